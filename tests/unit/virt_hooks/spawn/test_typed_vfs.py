# SPDX-License-Identifier: Apache-2.0
"""Typed VFs, whose owner no id shows, are made and removed."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.host.execute import privileged
from nova_accel.host.state import faults
from tests.lab import fakehost
from tests.support.hosts import domains, simulated_vfio
from tests.support.hosts.simulated import IDLE, A, B, node, stopped
from tests.support.hosts.simulated_vfio import (
    EIGHT,
    EIGHT_Q,
    FIRST,
    FOUR_Q,
    GPU,
    SECOND,
    asks,
    asks_many,
    clear_by_hand,
    slot,
    started,
    type_by_hand,
    types,
)
from virt_hooks.guest import connection
from virt_hooks.spawn import lifecycle

TYPE = f"bus/pci/devices/{FIRST}/nvidia/current_vgpu_type"


@pytest.fixture(scope="module")
def mounted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[fakehost.Controller]:
    if reason := fakehost.missing():
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("host")
    with fakehost.simulated_sysfs(simulated_vfio.SPEC, root) as controller:
        controller.write_sriov_manage(root / privileged.SRIOV_MANAGE)
        yield controller


@pytest.fixture
def life(
    kernel: fakehost.Controller, libvirt: domains.SimulatedDomains
) -> lifecycle.Lifecycle:
    return started(kernel, domains=libvirt)


def test_a_vf_is_typed_and_cleared(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    before = node(life, GPU)
    (claim,) = life.ensure(A, (asks(),), (slot(),))
    assert types(kernel) == {FIRST: EIGHT}
    assert (claim.handle, claim.is_managed) == (FIRST, False)
    assert claim.state is model.ClaimState.MADE
    after = node(life, GPU)
    assert EIGHT_Q in after.traits
    assert FOUR_Q not in after.traits
    assert after.inventories["VGPU"].reserved == 0
    life.release(A, (slot(),), stopped)
    assert types(kernel) == {}
    assert node(life, GPU) == before


def test_ensured_twice_is_typed_once(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    first = life.ensure(A, (asks(),), (slot(),))
    written = kernel.writes()
    assert life.ensure(A, (asks(),), (slot(),)) == first
    assert kernel.writes() == written


def test_what_an_operator_types_after_a_failed_release_stays(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """The operator cleared by hand what the library could not clear."""
    life.ensure(A, (asks(),), (slot(),))
    kernel.fail("*/current_vgpu_type", "EBUSY", times=1, on="write")
    life.release(A, (slot(),), stopped)
    assert types(kernel) == {FIRST: EIGHT}
    clear_by_hand(kernel, FIRST)
    life.host.refresh()
    life.remove_unused(IDLE)
    type_by_hand(kernel, FIRST)
    life.host.refresh()
    life.remove_unused(IDLE)
    assert types(kernel) == {FIRST: EIGHT}
    assert node(life, GPU).inventories["VGPU"].reserved == 1


def test_a_server_from_before_there_were_notes_gets_one(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    """Else its VF would stay typed if it went while the service is down."""
    before = started(kernel, state_dir=str(tmp_path))
    before.ensure(A, (asks(),), (slot(),))
    faults.FaultNotes(str(tmp_path)).note_clean(FIRST)
    upgraded = started(kernel, state_dir=str(tmp_path))
    upgraded.restore(A, (slot(),))
    upgraded.remove_unused(IDLE)
    later = started(kernel, state_dir=str(tmp_path))
    later.remove_unused(IDLE)
    assert types(kernel) == {}


def test_a_failed_release_is_not_forgotten_while_the_type_is_unreadable(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    life = started(kernel, state_dir=str(tmp_path))
    life.ensure(A, (asks(),), (slot(),))
    kernel.fail("*/current_vgpu_type", "EBUSY", on="write")
    life.release(A, (slot(),), stopped)
    kernel.fail(TYPE, "EIO", on="read")
    life.host.refresh()
    life.remove_unused(IDLE)
    kernel.heal()
    life.host.refresh()
    life.remove_unused(IDLE)
    assert types(kernel) == {}


def test_a_server_recalled_while_the_type_is_unreadable(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    held = life.ensure(A, (asks(),), (slot(),))
    kernel.fail(TYPE, "EIO", on="read")
    again = started(kernel)
    again.restore(A, (slot(),), (asks(),))
    kernel.heal()
    again.host.refresh()
    again.restore(A, (slot(),), (asks(),))
    assert [c.profile for c in again.claims_of(A)] == [held[0].profile]


def test_a_restart_clears_what_no_server_has_any_more(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    """Its server was deleted while there was no service."""
    started(kernel, state_dir=str(tmp_path)).ensure(A, (asks(),), (slot(),))
    later = started(kernel, state_dir=str(tmp_path))
    later.remove_unused(IDLE)
    assert types(kernel) == {}
    assert node(later, GPU).inventories["VGPU"].reserved == 0
    type_by_hand(kernel, FIRST)
    later.host.refresh()
    later.remove_unused(IDLE)
    assert types(kernel) == {FIRST: EIGHT}, "made by an operator"


def test_another_size_is_refused_with_the_reason(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    life.ensure(A, (asks(),), (slot(),))
    with pytest.raises(errors.ClaimError, match="L40S-4Q"):
        life.ensure(B, (asks(FOUR_Q),), (slot(SECOND),))
    assert types(kernel) == {FIRST: EIGHT}
    assert life.claims_of(B) == ()


def test_a_restart_knows_what_is_a_server_s(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    held = life.ensure(A, (asks(),), (slot(),))
    written = kernel.writes()
    again = started(kernel)
    assert again.restore(A, (slot(),)) == held
    again.remove_unused(IDLE)
    assert again.ensure(A, (asks(),), (slot(),)) == held
    assert kernel.writes() == written
    again.release(A, (slot(),), stopped)
    assert types(kernel) == {}


def test_a_recalled_server_s_failed_release_is_tried_again(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    life.ensure(A, (asks(),), (slot(),))
    again = started(kernel)
    again.restore(A, (slot(),))
    kernel.fail("*/current_vgpu_type", "EBUSY", times=1, on="write")
    again.release(A, (slot(),), stopped)
    assert types(kernel) == {FIRST: EIGHT}
    assert node(again, GPU).inventories["VGPU"].reserved == 1
    again.remove_unused(IDLE)
    assert types(kernel) == {}
    assert node(again, GPU).inventories["VGPU"].reserved == 0


def test_what_a_guest_holds_is_not_tidied_away(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    life.ensure(A, (asks(),), (slot(),))
    kernel.fail("*/current_vgpu_type", "EBUSY", times=1, on="write")
    life.release(A, (slot(),), stopped)
    life.remove_unused(connection.HostdevUse(functions=frozenset({FIRST})))
    assert types(kernel) == {FIRST: EIGHT}


def test_what_is_given_back_while_libvirt_answers_can_be_had(
    life: lifecycle.Lifecycle, libvirt: domains.SimulatedDomains
) -> None:
    life.ensure(A, (asks(),), (slot(),))

    def answer() -> connection.HostdevUse:
        life.release(A, (slot(),), stopped)
        return connection.HostdevUse(functions=frozenset({FIRST}))

    libvirt.read_use = answer
    life.clean_up()
    assert FIRST in node(life, GPU).slots["VGPU"]


def test_a_stranger_s_vf_stays_and_is_reserved(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    """No id tells that it is ours: an operator may have typed it."""
    type_by_hand(kernel, SECOND)
    life = started(kernel)
    for _ in range(3):
        life.remove_unused(IDLE)
    assert types(kernel) == {SECOND: EIGHT}
    assert node(life, GPU).inventories["VGPU"].reserved == 1
    assert SECOND not in node(life, GPU).slots["VGPU"]
    assert caplog.text.count("was made by no server that") == 1


def test_what_was_ours_is_a_stranger_s_if_typed_again(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    life.ensure(A, (asks(),), (slot(),))
    life.release(A, (slot(),), stopped)
    type_by_hand(kernel, FIRST)
    life.host.refresh()
    life.remove_unused(IDLE)
    assert types(kernel) == {FIRST: EIGHT}


@pytest.mark.parametrize("wanted", [EIGHT_Q, FOUR_Q])
def test_a_stranger_s_vf_is_never_passed_on(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle, wanted: str
) -> None:
    """It was typed between Nova's choice of the slot and the spawn."""
    type_by_hand(kernel, FIRST)
    with pytest.raises(errors.ClaimError, match="clear it by hand"):
        life.ensure(A, (asks(wanted),), (slot(),))
    assert types(kernel) == {FIRST: EIGHT}
    assert life.claims() == ()
    life.release(A, (slot(),), stopped)
    assert types(kernel) == {FIRST: EIGHT}, "Nova cleans up what was refused"


@pytest.mark.parametrize("wanted", [EIGHT_Q, FOUR_Q])
def test_a_stale_type_gives_way(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle, wanted: str
) -> None:
    """The last holder's release failed; its size is not the next one's."""
    life.ensure(A, (asks(),), (slot(),))
    kernel.fail("*/current_vgpu_type", "EBUSY", times=1, on="write")
    life.release(A, (slot(),), stopped)
    before = len(kernel.writes())
    (claim,) = life.ensure(B, (asks(wanted),), (slot(),))
    assert claim.profile == wanted.removeprefix("CUSTOM_VGPU_NVIDIA_").replace(
        "_", "-"
    )
    assert next(w["data"] for w in kernel.writes()[before:]) == "0"
    assert len(types(kernel)) == 1
    life.release(B, (slot(),), stopped)
    assert types(kernel) == {}


def test_a_spawn_that_fails_leaves_no_type(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    kernel.fail(
        f"bus/pci/devices/{SECOND}/nvidia/current_vgpu_type",
        "EIO",
        on="write",
    )
    both = asks_many(2)
    with pytest.raises(errors.ActionError):
        life.ensure(A, (both,), (slot(), slot(SECOND)))
    kernel.heal()
    assert types(kernel) == {}
    type_by_hand(kernel, FIRST)
    life.host.refresh()
    life.remove_unused(IDLE)
    assert types(kernel) == {FIRST: EIGHT}, "it is not taken for ours"


def test_what_the_kernel_makes_late_is_cleared_again(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """The driver has not answered in time, and goes on nevertheless."""
    kernel.fail("*/current_vgpu_type", "ETIMEDOUT", times=1, on="write")
    with pytest.raises(errors.ActionError):
        life.ensure(A, (asks(),), (slot(),))
    assert life.claims() == ()
    life.remove_unused(IDLE)
    type_by_hand(kernel, FIRST)
    life.host.refresh()
    life.remove_unused(IDLE)
    assert types(kernel) == {}


# -- side by side ----------------------------------------------------------


def until(check: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(100):
        if check():
            return
        done.wait(0.1)
    raise AssertionError("it did not come to pass")


def test_a_card_that_hangs_keeps_no_other_waiting(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """Its kernel driver does not come back from a write."""
    kernel.hang(
        f"bus/pci/devices/{FIRST}/nvidia/current_vgpu_type",
        seconds=20,
        on="write",
    )
    stuck = threading.Thread(
        target=life.ensure, args=(A, (asks(),), (slot(),)), daemon=True
    )
    stuck.start()
    until(lambda: bool(life.claims_of(A)))  # planned: the write is next

    def work() -> None:
        other = slot("0000:3e:00.4")
        life.ensure(B, (asks(),), (other,))
        life.remove_unused(IDLE)
        life.release(B, (other,), stopped)

    beside = threading.Thread(target=work, daemon=True)
    beside.start()
    beside.join(10)
    assert not beside.is_alive()
    assert stuck.is_alive(), "the first one was to hang meanwhile"
    kernel.heal()
    stuck.join(30)
    assert not stuck.is_alive()
    assert life.claims_of(A)[0].state is model.ClaimState.MADE


def test_two_spawns_on_one_card_are_both_right(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """One after the other; the second finds what the first has left."""
    results: dict[str, object] = {}

    def one(consumer: str, function: str, trait: str) -> None:
        try:
            results[consumer] = life.ensure(
                consumer, (asks(trait),), (slot(function),)
            )
        except errors.ClaimError as error:
            results[consumer] = error

    threads = [
        threading.Thread(target=one, args=given)
        for given in ((A, FIRST, EIGHT_Q), (B, SECOND, FOUR_Q))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    refused = [r for r in results.values() if isinstance(r, Exception)]
    assert len(refused) == 1, "sizes are equal on a card"
    assert len(types(kernel)) == 1
    assert len(life.claims()) == 1
