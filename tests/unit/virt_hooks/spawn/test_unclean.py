# SPDX-License-Identifier: Apache-2.0
"""Functions that were not released cleanly are scrubbed before reuse.

Each test lets the service forget a release in another way.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.claims import claim_plan
from nova_accel.config import policy
from nova_accel.host.state import faults
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


def test_after_a_restart_a_pass_scrubs_unclaimed_functions(
    kernel: fakehost.Controller, state: Path
) -> None:
    before = started(kernel, state)
    give(before, slot(before, GPU))
    later = started(kernel, state)
    later.clean_up()
    assert GPU in resets(kernel)
    assert dict(faults.FaultNotes(str(state)).read_unreleased()) == {}
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


@pytest.mark.parametrize("address", [GPU, FLEX])
def test_after_a_restart_the_next_server_gets_it_clean(
    kernel: fakehost.Controller, state: Path, address: str
) -> None:
    before = started(kernel, state)
    function = FLEX_VF if address == FLEX else ""
    give(before, slot(before, address, function))
    later = started(kernel, state)
    give(later, slot(later, address, function), B)
    assert (function or address) in resets(kernel)
    (note,) = faults.FaultNotes(str(state)).read_unreleased().values()
    assert (note.address, note.consumer) == (function or address, B)


def test_a_function_that_cannot_be_cleaned_is_not_assigned(
    kernel: fakehost.Controller, state: Path
) -> None:
    before = started(kernel, state)
    give(before, slot(before, GPU))
    kernel.fail(f"bus/pci/devices/{GPU}/reset", "ENOTTY")
    later = started(kernel, state)
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
    notes = faults.FaultNotes(str(state))
    notes.note_assigned(claim)
    with life._locks.hold([names.provider_uuid(ROOT.uuid, PAC)]):
        life.clean_up()
        assert PAC in notes.read_unreleased()
    life.clean_up()
    assert PAC not in notes.read_unreleased()


def test_a_function_in_a_guest_is_not_cleaned(
    kernel: fakehost.Controller, state: Path
) -> None:
    before = started(kernel, state)
    give(before, slot(before, GPU))
    libvirt = domains.SimulatedDomains()
    later = started(kernel, state, domains=libvirt)
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
    assert [*faults.FaultNotes(str(state)).read_unreleased()] == [FLEX_VF]
    libvirt.set_use(IDLE)
    life.clean_up()
    assert resets(kernel) == [FLEX_VF]


def test_the_server_itself_gets_its_function_as_it_left_it(
    kernel: fakehost.Controller, state: Path
) -> None:
    before = started(kernel, state)
    give(before, slot(before, GPU))
    later = started(kernel, state)
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
        notes = faults.FaultNotes(str(state))
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
        faults.FaultNotes(str(state)).note_assigned(claim)
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
        assert not faults.FaultNotes(str(state)).read_unreleased()
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
    before = started(kernel, state)
    give(before, slot(before, card, function), A)
    later = started(kernel, state)
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
