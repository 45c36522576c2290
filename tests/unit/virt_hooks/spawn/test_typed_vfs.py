# SPDX-License-Identifier: Apache-2.0
"""Typed VFs, whose id does not show their owner, are set and cleared."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.host.execute import privileged
from nova_accel.host.state import device_notes
from tests.lab import fakehost
from tests.support.hosts import domains, simulated_vfio
from tests.support.hosts.simulated import A, B, node, stopped
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

SPEC = simulated_vfio.SPEC


@pytest.fixture(scope="module")
def mounted(mounted: fakehost.Controller) -> fakehost.Controller:
    """Return the host with NVIDIA's tool for VFs."""
    mounted.write_sriov_manage(mounted.root / privileged.SRIOV_MANAGE)
    return mounted


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


def test_what_an_operator_types_after_a_failed_release_stays(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """An operator cleared the VF that the library could not clear."""
    life.ensure(A, (asks(),), (slot(),))
    kernel.fail("*/current_vgpu_type", "EBUSY", times=1, on="write")
    life.release(A, (slot(),), stopped)
    assert types(kernel) == {FIRST: EIGHT}
    clear_by_hand(kernel, FIRST)
    life.host.refresh()
    life.clean_up()
    type_by_hand(kernel, FIRST)
    life.host.refresh()
    life.clean_up()
    assert types(kernel) == {FIRST: EIGHT}
    assert node(life, GPU).inventories["VGPU"].reserved == 1


def test_a_server_of_an_older_release_gets_a_note(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    """Otherwise its VF stays typed if it goes while the service is down."""
    before = started(kernel, state_dir=str(tmp_path))
    before.ensure(A, (asks(),), (slot(),))
    device_notes.FaultNotes(str(tmp_path)).note_clean(FIRST)
    upgraded = started(kernel, state_dir=str(tmp_path))
    upgraded.restore(A, (slot(),))
    upgraded.clean_up()
    later = started(kernel, state_dir=str(tmp_path))
    later.clean_up()
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
    life.clean_up()
    kernel.heal()
    life.host.refresh()
    life.clean_up()
    assert types(kernel) == {}


def test_a_server_restored_while_the_type_is_unreadable(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    claims = life.ensure(A, (asks(),), (slot(),))
    kernel.fail(TYPE, "EIO", on="read")
    again = started(kernel)
    again.restore(A, (slot(),), (asks(),))
    kernel.heal()
    again.host.refresh()
    again.restore(A, (slot(),), (asks(),))
    assert [c.profile for c in again.claims_of(A)] == [claims[0].profile]


def test_a_restart_clears_a_vf_without_server(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    """Its server was deleted while no service was running."""
    started(kernel, state_dir=str(tmp_path)).ensure(A, (asks(),), (slot(),))
    later = started(kernel, state_dir=str(tmp_path))
    later.clean_up()
    assert types(kernel) == {}
    assert node(later, GPU).inventories["VGPU"].reserved == 0
    type_by_hand(kernel, FIRST)
    later.host.refresh()
    later.clean_up()
    assert types(kernel) == {FIRST: EIGHT}, "made by an operator"


@pytest.mark.parametrize("consumer", [A, B])
def test_a_typed_vf_with_an_unreadable_note_is_made_again(
    kernel: fakehost.Controller, tmp_path: Path, consumer: str
) -> None:
    """The note shows that this library has typed the VF, for any server."""
    started(kernel, state_dir=str(tmp_path)).ensure(A, (asks(),), (slot(),))
    (path,) = (tmp_path / "unreleased").iterdir()
    path.write_text("{")
    later = started(kernel, state_dir=str(tmp_path))
    later.restore(A, (slot(),), (asks(),))
    count = len(kernel.writes())
    (claim,) = later.ensure(consumer, (asks(),), (slot(),))
    assert claim.state is model.ClaimState.MADE
    values = [write["data"].strip() for write in kernel.writes()[count:]]
    assert values == ["0", EIGHT]
    assert later.claims() == (claim,)
    assert consumer in path.read_text()


def test_a_typed_vf_of_a_guest_is_not_made_again(
    kernel: fakehost.Controller, tmp_path: Path
) -> None:
    started(kernel, state_dir=str(tmp_path)).ensure(A, (asks(),), (slot(),))
    (path,) = (tmp_path / "unreleased").iterdir()
    path.write_text("{")
    libvirt = domains.SimulatedDomains()
    libvirt.set_use(connection.HostdevUse(functions=frozenset({FIRST})))
    later = started(kernel, state_dir=str(tmp_path), domains=libvirt)
    with pytest.raises(errors.ClaimError, match="a guest has it"):
        later.ensure(B, (asks(),), (slot(),))
    assert types(kernel) == {FIRST: EIGHT}


def test_another_size_is_refused_with_the_reason(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    life.ensure(A, (asks(),), (slot(),))
    with pytest.raises(errors.ClaimError, match="L40S-4Q"):
        life.ensure(B, (asks(FOUR_Q),), (slot(SECOND),))
    assert types(kernel) == {FIRST: EIGHT}
    assert life.claims_of(B) == ()


def test_a_restart_restores_a_server_s_claims(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    claims = life.ensure(A, (asks(),), (slot(),))
    written = kernel.writes()
    again = started(kernel)
    assert again.restore(A, (slot(),)) == claims
    again.clean_up()
    assert again.ensure(A, (asks(),), (slot(),)) == claims
    assert kernel.writes() == written
    again.release(A, (slot(),), stopped)
    assert types(kernel) == {}


def test_a_restored_server_s_failed_release_is_tried_again(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    life.ensure(A, (asks(),), (slot(),))
    again = started(kernel)
    again.restore(A, (slot(),))
    kernel.fail("*/current_vgpu_type", "EBUSY", times=1, on="write")
    again.release(A, (slot(),), stopped)
    assert types(kernel) == {FIRST: EIGHT}
    assert node(again, GPU).inventories["VGPU"].reserved == 1
    again.clean_up()
    assert types(kernel) == {}
    assert node(again, GPU).inventories["VGPU"].reserved == 0


def test_a_vf_in_a_guest_is_not_cleared(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    libvirt: domains.SimulatedDomains,
) -> None:
    life.ensure(A, (asks(),), (slot(),))
    kernel.fail("*/current_vgpu_type", "EBUSY", times=1, on="write")
    life.release(A, (slot(),), stopped)
    libvirt.set_use(connection.HostdevUse(functions=frozenset({FIRST})))
    life.clean_up()
    assert types(kernel) == {FIRST: EIGHT}


def test_a_vf_released_while_libvirt_answers_is_offered(
    life: lifecycle.Lifecycle, libvirt: domains.SimulatedDomains
) -> None:
    life.ensure(A, (asks(),), (slot(),))

    def answer() -> connection.HostdevUse:
        life.release(A, (slot(),), stopped)
        return connection.HostdevUse(functions=frozenset({FIRST}))

    libvirt.read_use = answer
    life.clean_up()
    assert FIRST in node(life, GPU).slots["VGPU"]


def test_a_foreign_vf_stays_and_is_reserved(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    """No id shows an owner: an operator may have typed it."""
    type_by_hand(kernel, SECOND)
    life = started(kernel)
    for _ in range(3):
        life.clean_up()
    assert types(kernel) == {SECOND: EIGHT}
    assert node(life, GPU).inventories["VGPU"].reserved == 1
    assert SECOND not in node(life, GPU).slots["VGPU"]
    assert caplog.text.count("was made by no server that") == 1


def test_a_released_vf_that_is_typed_again_is_foreign(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    life.ensure(A, (asks(),), (slot(),))
    life.release(A, (slot(),), stopped)
    type_by_hand(kernel, FIRST)
    life.host.refresh()
    life.clean_up()
    assert types(kernel) == {FIRST: EIGHT}


@pytest.mark.parametrize("trait", [EIGHT_Q, FOUR_Q])
def test_a_foreign_vf_is_never_assigned(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle, trait: str
) -> None:
    """It was typed between Nova's choice of the slot and the spawn."""
    type_by_hand(kernel, FIRST)
    with pytest.raises(errors.ClaimError, match="clear it by hand"):
        life.ensure(A, (asks(trait),), (slot(),))
    assert types(kernel) == {FIRST: EIGHT}
    assert life.claims() == ()
    life.release(A, (slot(),), stopped)
    assert types(kernel) == {FIRST: EIGHT}, "Nova cleans up what was refused"


@pytest.mark.parametrize("trait", [EIGHT_Q, FOUR_Q])
def test_a_stale_type_gives_way(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle, trait: str
) -> None:
    """The last server's release failed; the next one has another size."""
    life.ensure(A, (asks(),), (slot(),))
    kernel.fail("*/current_vgpu_type", "EBUSY", times=1, on="write")
    life.release(A, (slot(),), stopped)
    before = len(kernel.writes())
    (claim,) = life.ensure(B, (asks(trait),), (slot(),))
    assert claim.profile == trait.removeprefix("CUSTOM_VGPU_NVIDIA_").replace(
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
    life.clean_up()
    assert types(kernel) == {FIRST: EIGHT}, "it is not owned"


def test_a_type_that_appears_late_is_cleared(
    kernel: fakehost.Controller, life: lifecycle.Lifecycle
) -> None:
    """The driver has not answered in time, and goes on nevertheless."""
    kernel.fail("*/current_vgpu_type", "ETIMEDOUT", times=1, on="write")
    with pytest.raises(errors.ActionError):
        life.ensure(A, (asks(),), (slot(),))
    assert life.claims() == ()
    life.clean_up()
    type_by_hand(kernel, FIRST)
    life.host.refresh()
    life.clean_up()
    assert types(kernel) == {}


# -- concurrency -----------------------------------------------------------


def until(check: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(100):
        if check():
            return
        done.wait(0.1)
    raise AssertionError("the condition was never met")


def test_a_card_that_hangs_delays_no_other(
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
        life.clean_up()
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
