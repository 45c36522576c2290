# SPDX-License-Identifier: Apache-2.0
"""Functions that were not released cleanly are scrubbed before reuse.

Each test lets the service forget a release in another way.
"""

import dataclasses
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.config import policy
from nova_accel.host.state import device_notes, directories
from nova_accel.model import names
from tests.hosts import look
from tests.lab import fakehost
from tests.support.fpga import simulated
from tests.support.hosts import domains, simulated_scrub
from tests.support.hosts.simulated import ROOT, A, B, stopped
from tests.support.hosts.simulated_scrub import (
    FLEX,
    FLEX_VF,
    GPU,
    SOUND,
    fault,
    give,
    request,
    resets,
    slot,
    started,
)
from virt_hooks.guest import connection
from virt_hooks.spawn import lifecycle, orphan_cleanup

pytestmark = pytest.mark.usefixtures("own_rights")
SPEC = simulated_scrub.SPEC
IDLE = connection.HostdevUse()
PAC = "0000:05:00.0"


def forgotten(
    kernel: fakehost.Controller,
    state: Path,
    card: str = GPU,
    function: str = "",
    **settings: Any,
) -> lifecycle.Lifecycle:
    """Return a service that started while server A had a function."""
    before = started(kernel, state, settings.get("words", ""))
    give(before, slot(before, card, function))
    return started(kernel, state, **settings)


def test_after_a_restart_a_pass_scrubs_unclaimed_functions(
    kernel: fakehost.Controller, state: Path
) -> None:
    later = forgotten(kernel, state)
    later.clean_up()
    assert GPU in resets(kernel)
    assert dict(device_notes.FaultNotes(str(state)).read_unreleased()) == {}
    count = len(resets(kernel))
    later.clean_up()
    give(later, slot(later, GPU), B)
    assert len(resets(kernel)) == count, "it was seen clean"


def test_a_pass_ends_though_much_is_to_be_cleaned(
    kernel: fakehost.Controller, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = started(kernel, state)
    give(before, slot(before, GPU))
    give(before, slot(before, FLEX, FLEX_VF), B)
    later = started(kernel, state)
    monkeypatch.setattr(orphan_cleanup, "CLEAN_S", 0.0)
    later.clean_up()
    assert resets(kernel) == []
    monkeypatch.undo()
    later.clean_up()
    assert {GPU, FLEX_VF} <= {*resets(kernel)}


@pytest.mark.parametrize(("card", "function"), [(GPU, ""), (FLEX, FLEX_VF)])
def test_after_a_restart_the_next_server_gets_it_clean(
    kernel: fakehost.Controller, state: Path, card: str, function: str
) -> None:
    later = forgotten(kernel, state, card, function)
    give(later, slot(later, card, function), B)
    assert (function or card) in resets(kernel)
    (note,) = device_notes.FaultNotes(str(state)).read_unreleased().values()
    assert (note.address, note.consumer) == (function or card, B)


def test_a_function_that_cannot_be_cleaned_is_not_assigned(
    kernel: fakehost.Controller, state: Path
) -> None:
    later = forgotten(kernel, state)
    kernel.fail(f"bus/pci/devices/{GPU}/reset", "ENOTTY")
    with pytest.raises(errors.ClaimError, match="could not be cleaned"):
        give(later, slot(later, GPU), B)
    assert "could not be scrubbed" in fault(later, GPU)
    assert later.claims() == ()


def test_a_region_is_not_cleaned_while_its_card_is_locked(
    tmp_path: Path,
) -> None:
    root, state = look.make("dfl-pac", tmp_path / "host"), tmp_path / "state"
    life = simulated.started(root, policy.DeviceRules(), state)
    address = names.region_address(PAC, 0)
    (claim,) = claim_plan.find_existing(
        A, (slot(life, address, PAC),), ROOT, life.host.state
    )
    notes = device_notes.FaultNotes(str(state))
    notes.note_assigned(claim)
    with life._locks.hold([names.provider_uuid(ROOT.uuid, PAC)]):
        life.clean_up()
        assert PAC in notes.read_unreleased()
    life.clean_up()
    assert PAC not in notes.read_unreleased()


def test_a_function_in_a_guest_is_not_cleaned(
    kernel: fakehost.Controller, state: Path
) -> None:
    libvirt = domains.SimulatedDomains()
    later = forgotten(kernel, state, domains=libvirt)
    guest = connection.HostdevUse(functions=frozenset({SOUND}))
    libvirt.set_use(guest)
    later.clean_up()
    with pytest.raises(errors.ClaimError, match="a guest has it"):
        give(later, slot(later, GPU), B)
    assert kernel.writes() == []
    libvirt.set_use(IDLE)
    later.clean_up()
    assert GPU in resets(kernel)


def test_a_function_seen_in_a_guest_counts_as_unclean(
    kernel: fakehost.Controller, state: Path
) -> None:
    """A guest that no claim of this library explains."""
    libvirt = domains.SimulatedDomains()
    life = started(kernel, state, domains=libvirt)
    libvirt.set_use(connection.HostdevUse(functions=frozenset({FLEX_VF})))
    life.clean_up()
    assert [*device_notes.FaultNotes(str(state)).read_unreleased()] == [
        FLEX_VF
    ]
    libvirt.set_use(IDLE)
    life.clean_up()
    assert resets(kernel) == [FLEX_VF]


def test_the_server_itself_gets_its_function_as_it_left_it(
    kernel: fakehost.Controller, state: Path
) -> None:
    later = forgotten(kernel, state)
    give(later, slot(later, GPU))
    assert resets(kernel) == []


def start_with_use(
    kernel: fakehost.Controller, state: Path, use: str
) -> lifecycle.Lifecycle:
    """Return a service after its first pass, with a rule for a card's use."""
    rule = f'{{"address": "{FLEX}", "use": {use}}}'
    life = simulated.started(kernel.root, policy.parse_rules([rule]), state)
    life.set_card_modes()
    life.clean_up()
    return life


def test_an_unclean_whole_card_is_not_offered_in_parts(
    tmp_path: Path, state: Path
) -> None:
    """Its VFs can be reset, and the card that has the data can't."""
    with without_vfs(tmp_path) as kernel:
        before = start_with_use(kernel, state, '"passthrough"')
        give(before, slot(before, FLEX))
        later = start_with_use(kernel, state, '"vf", "num_vfs": 2')
        assert "its use was changed" in fault(later, FLEX)
        assert simulated_scrub.reserved(later, FLEX)
        notes = device_notes.FaultNotes(str(state))
        assert not notes.read_unreleased()
        notes.heal([FLEX])
        healed = start_with_use(kernel, state, '"vf", "num_vfs": 2')
        give(healed, slot(healed, FLEX, FLEX_VF), B)


def test_a_spawn_before_the_first_pass_gets_no_part_of_an_unclean_card(
    tmp_path: Path, state: Path
) -> None:
    with without_vfs(tmp_path) as kernel:
        before = start_with_use(kernel, state, '"passthrough"')
        claim = give(before, slot(before, FLEX))
        before.release(A, (slot(before, FLEX),), stopped)
        later = start_with_use(kernel, state, '"vf", "num_vfs": 2')
        device_notes.FaultNotes(str(state)).note_assigned(claim)
        with pytest.raises(errors.ClaimError, match="its use was changed"):
            give(later, slot(later, FLEX, FLEX_VF), B)


def test_the_scrub_of_a_card_covers_its_former_vfs(
    tmp_path: Path, state: Path
) -> None:
    with without_vfs(tmp_path) as kernel:
        before = start_with_use(kernel, state, '"vf", "num_vfs": 2')
        give(before, slot(before, FLEX, FLEX_VF))
        count = kernel.root / "sys/bus/pci/devices" / FLEX / "sriov_numvfs"
        count.write_text("0")
        later = start_with_use(
            kernel, state, '"passthrough", "scrub": "reset"'
        )
        assert resets(kernel) == [FLEX]
        assert not device_notes.FaultNotes(str(state)).read_unreleased()
        give(later, slot(later, FLEX), B)


@contextmanager
def without_vfs(tmp_path: Path) -> Iterator[fakehost.Controller]:
    """Yield a host with one card whose VFs are not enabled."""
    if reason := fakehost.missing():
        pytest.skip(reason)
    (card,) = (
        card
        for card in SPEC.cards
        if isinstance(card, fakehost.PciCard) and card.address == FLEX
    )
    empty = dataclasses.replace(card, enabled_vfs=0)
    with fakehost.simulated_sysfs(
        fakehost.HostSpec(cards=(empty,)), tmp_path / "host"
    ) as kernel:
        yield kernel


def test_a_note_that_cannot_be_written_refuses_the_server(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    card_slot = slot(life, GPU)
    state.mkdir(exist_ok=True)
    (state / "unreleased").mkdir()
    (state / "unreleased" / f"{GPU.replace(':', '%3A')}.json").mkdir()
    with pytest.raises(errors.ClaimError, match="state_dir"):
        give(life, card_slot)
    assert life.claims() == ()


def test_a_function_that_was_away_is_scrubbed_when_it_is_back(
    kernel: fakehost.Controller, state: Path
) -> None:
    life = started(kernel, state)
    vf_slot = slot(life, FLEX, FLEX_VF)
    give(life, vf_slot)
    kernel.unplug(FLEX)
    life.release(A, (vf_slot,), stopped)
    assert life.claims() == ()
    kernel.plug()
    life.host.refresh()
    give(life, slot(life, FLEX, FLEX_VF), B)
    assert resets(kernel) == [FLEX_VF]


@pytest.mark.parametrize(("card", "function"), [(GPU, ""), (FLEX, FLEX_VF)])
def test_a_function_restored_before_it_is_assigned_is_scrubbed(
    kernel: fakehost.Controller, state: Path, card: str, function: str
) -> None:
    """A pass reads the slot of a server from Nova before its spawn does."""
    later = forgotten(kernel, state, card, function)
    later.restore(B, (slot(later, card, function),))
    later.clean_up()
    give(later, slot(later, card, function), B)
    assert (function or card) in resets(kernel)


def test_of_two_servers_of_one_slot_the_last_one_assigned_keeps_it(
    kernel: fakehost.Controller, state: Path
) -> None:
    """Nova's database may name the slot for a server that lost it, too."""
    before = started(kernel, state)
    give(before, slot(before, GPU), B)
    libvirt = domains.SimulatedDomains()
    later = started(kernel, state, domains=libvirt)
    for server in (A, B):
        later.restore(server, (slot(later, GPU),))
    use = connection.HostdevUse(functions=frozenset({GPU}))
    libvirt.read_use = lambda: use
    with pytest.raises(errors.ClaimError, match="a guest"):
        give(later, slot(later, GPU), A)
    assert later.claims_of(B)


# -- notes that can't be read for a time

Break = Callable[[Path, pytest.MonkeyPatch], None]


def _fill(state: Path, _: pytest.MonkeyPatch) -> None:
    """Replace the contents, as a torn write of a full disk."""
    for path in (state / "unreleased").iterdir():
        path.write_text("{")


def _fail_file(number: int) -> Break:
    def fail(_: Path, patched: pytest.MonkeyPatch) -> None:
        read = directories.read_file

        def refuse(name: str, parent: int, limit: int) -> bytes:
            if name.endswith(".json"):
                raise OSError(number, os.strerror(number), name)
            return read(name, parent, limit)

        patched.setattr(directories, "read_file", refuse)

    return fail


def _fail_directory(number: int) -> Break:
    def fail(_: Path, patched: pytest.MonkeyPatch) -> None:
        opened = directories.open_directory

        def refuse(path: str, **options: bool) -> object:
            if os.path.basename(path) in ("unreleased", "scrubbing"):
                raise OSError(number, os.strerror(number), path)
            return opened(path, **options)

        patched.setattr(directories, "open_directory", refuse)

    return fail


BREAKS = {
    "garbage": _fill,
    "EIO of a file": _fail_file(errno.EIO),
    "EACCES of a file": _fail_file(errno.EACCES),
    "EIO of the directory": _fail_directory(errno.EIO),
    "EACCES of the directory": _fail_directory(errno.EACCES),
}


@pytest.fixture(params=[*BREAKS.values()], ids=[*BREAKS])
def break_notes(request: pytest.FixtureRequest) -> Break:
    broken: Break = request.param
    return broken


def use_of(server: str, *functions: str) -> connection.HostdevUse:
    """Return the host devices of one domain."""
    handles = frozenset(functions)
    return connection.HostdevUse(
        functions=handles, by_domain={server: handles}
    )


@pytest.mark.parametrize(("card", "vf"), [(GPU, ""), (FLEX, FLEX_VF)])
def test_a_function_in_the_server_s_own_domain_is_its_own(
    kernel: fakehost.Controller,
    state: Path,
    break_notes: Break,
    card: str,
    vf: str,
) -> None:
    before = started(kernel, state)
    claim = give(before, slot(before, card, vf))
    libvirt = domains.SimulatedDomains()
    libvirt.set_use(use_of(A, vf or card))
    with pytest.MonkeyPatch.context() as patched:
        break_notes(state, patched)
        later = started(kernel, state, domains=libvirt)
        (restored,) = later.restore(A, (slot(later, card, vf),))
        assert restored.state is model.ClaimState.MADE
        assert not later.has_undecided(A)
        assert give(later, slot(later, card, vf)).handle == claim.handle
    later.clean_up()
    assert resets(kernel) == []
    notes = device_notes.FaultNotes(str(state)).read_unreleased()
    assert [(n.address, n.consumer) for n in notes.values()] == [
        (vf or card, A)
    ]


def test_the_note_is_read_again_with_each_pass(
    kernel: fakehost.Controller, state: Path, break_notes: Break
) -> None:
    """Without a domain only the note can say whose the function is."""
    later = forgotten(kernel, state)
    texts = {p: p.read_bytes() for p in (state / "unreleased").iterdir()}
    with pytest.MonkeyPatch.context() as patched:
        break_notes(state, patched)
        (restored,) = later.restore(A, (slot(later, GPU),))
        assert restored.state is model.ClaimState.PLANNED
        assert later.has_undecided(A)
        later.clean_up()
        assert later.has_undecided(A)
        assert resets(kernel) == []
    for path, text in texts.items():
        path.write_bytes(text)
    (restored,) = later.restore(A, (slot(later, GPU),))
    assert restored.state is model.ClaimState.MADE
    assert not later.has_undecided(A)


def test_the_first_operation_decides_before_the_next_pass(
    kernel: fakehost.Controller, state: Path, break_notes: Break
) -> None:
    later = forgotten(kernel, state)
    texts = {p: p.read_bytes() for p in (state / "unreleased").iterdir()}
    with pytest.MonkeyPatch.context() as patched:
        break_notes(state, patched)
        later.restore(A, (slot(later, GPU),))
    for path, text in texts.items():
        path.write_bytes(text)
    give(later, slot(later, GPU))
    assert resets(kernel) == []


def test_a_function_of_an_unknown_server_is_scrubbed_for_another_one(
    kernel: fakehost.Controller, state: Path
) -> None:
    later = forgotten(kernel, state)
    with pytest.MonkeyPatch.context() as patched:
        _fail_file(errno.EIO)(state, patched)
        give(later, slot(later, GPU), B)
    assert GPU in resets(kernel)


def test_no_server_gets_a_function_while_the_directory_is_unreadable(
    kernel: fakehost.Controller, state: Path
) -> None:
    later = forgotten(kernel, state)
    with pytest.MonkeyPatch.context() as patched:
        _fail_directory(errno.EIO)(state, patched)
        with pytest.raises(errors.UnreadableError):
            give(later, slot(later, GPU), B)
    assert resets(kernel) == []
    give(later, slot(later, GPU), B)
    assert GPU in resets(kernel)


def test_interrupted_scrubs_are_asked_for_until_they_are_known(
    kernel: fakehost.Controller, state: Path
) -> None:
    device_notes.FaultNotes(str(state)).begin_scrub(GPU, GPU)
    later = started(kernel, state)
    with pytest.MonkeyPatch.context() as patched:
        _fail_directory(errno.EIO)(state, patched)
        later.clean_up()
    assert not fault(later, GPU)
    later.clean_up()
    assert "was cut off" in fault(later, GPU)


def test_a_release_while_the_notes_are_unreadable_scrubs(
    kernel: fakehost.Controller, state: Path, break_notes: Break
) -> None:
    life = started(kernel, state)
    give(life, slot(life, GPU))
    with pytest.MonkeyPatch.context() as patched:
        break_notes(state, patched)
        life.release(A, (slot(life, GPU),), stopped)
    assert life.claims() == ()
    assert GPU in resets(kernel)


# -- an operation while a note can't be read and the server has no domain


@pytest.fixture(name="erased")
def log_commands(kernel: fakehost.Controller) -> Path:
    """Return the log of the scrub command of services with ``ERASES``."""
    log, command = kernel.root / "erased", kernel.root / "wipe"
    command.write_text(f"#!/bin/sh\necho $1 >> {log}\n")
    command.chmod(0o755)
    log.unlink(missing_ok=True)  # of the test before
    return log


ERASES = '"scrub_command": "/wipe"'


@pytest.mark.parametrize("is_restored", [True, False])
@pytest.mark.parametrize(("card", "vf"), [(GPU, ""), (FLEX, FLEX_VF)])
def test_a_stopped_server_s_data_is_not_erased_for_want_of_a_note(
    kernel: fakehost.Controller,
    state: Path,
    erased: Path,
    card: str,
    vf: str,
    is_restored: bool,
) -> None:
    later = forgotten(kernel, state, card, vf, words=ERASES)
    (path,) = (state / "unreleased").iterdir()
    text = path.read_bytes()
    path.write_text("{")
    if is_restored:
        later.restore(A, (slot(later, card, vf),))
    with pytest.raises(errors.ClaimError, match=f"{path.name} can't be read"):
        start_again(later, slot(later, card, vf))
    assert not erased.exists()
    assert resets(kernel) == []
    path.write_bytes(text)
    (claim,) = start_again(later, slot(later, card, vf))
    assert claim.state is model.ClaimState.MADE
    assert not erased.exists()


def test_another_server_s_data_are_erased_for_want_of_a_note(
    kernel: fakehost.Controller, state: Path, erased: Path
) -> None:
    """Nova gave the device to a new server: the former one has lost it."""
    later = forgotten(kernel, state, words=ERASES)
    (path,) = (state / "unreleased").iterdir()
    path.write_text("{")
    later.restore(A, (slot(later, GPU),))
    give(later, slot(later, GPU), B)
    assert erased.read_text().split() == [GPU]
    assert later.claims_of(A) == ()


def test_a_stopped_server_without_a_domain_gets_a_clean_function(
    kernel: fakehost.Controller, state: Path, break_notes: Break
) -> None:
    """A reset takes nothing from a guest that does not run."""
    later = forgotten(kernel, state)
    with pytest.MonkeyPatch.context() as patched:
        break_notes(state, patched)
        later.restore(A, (slot(later, GPU),))
        is_listed = _can_list(later)
        if is_listed:
            start_again(later, slot(later, GPU))
        else:
            with pytest.raises(errors.UnreadableError):
                start_again(later, slot(later, GPU))
    start_again(later, slot(later, GPU))
    assert later.claims_of(A)[0].state is model.ClaimState.MADE
    assert bool(resets(kernel)) is is_listed


def test_a_running_server_keeps_its_function_though_none_is_restored(
    kernel: fakehost.Controller, state: Path, erased: Path
) -> None:
    libvirt = domains.SimulatedDomains()
    libvirt.set_use(use_of(A, GPU))
    later = forgotten(kernel, state, words=ERASES, domains=libvirt)
    (path,) = (state / "unreleased").iterdir()
    path.write_text("{")
    (claim,) = start_again(later, slot(later, GPU))
    assert claim.state is model.ClaimState.MADE
    assert resets(kernel) == []
    assert not erased.exists()


def start_again(
    life: lifecycle.Lifecycle, assigned: model.Slot
) -> tuple[model.Claim, ...]:
    """Return the claims of a server that was on this host before."""
    return life.ensure(A, (request(life, assigned),), (assigned,))


def _can_list(life: lifecycle.Lifecycle) -> bool:
    try:
        life._release.notes.read()
    except errors.UnreadableError:
        return False
    return True
