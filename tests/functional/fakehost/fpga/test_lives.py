# SPDX-License-Identifier: Apache-2.0
"""FPGA regions are assigned and released correctly after failures."""

import dataclasses
import errno
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.discovery import (
    change_detection,
    note_stores,
    plugin,
    snapshot,
)
from nova_accel.host.execute.technologies import fpga_privileged
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.inventory import tree_builder
from nova_accel.model import names
from tests.lab import fakehost
from tests.lab.fakehost import fpga
from tests.support.fpga import simulated
from tests.support.hosts import domains
from tests.support.hosts.simulated import ROOT
from virt_hooks.operations.fpga import region_programs
from virt_hooks.spawn import host_access, lifecycle

pytestmark = pytest.mark.fakehost

ONE = "aaaaaaaa-0000-4000-8000-000000000000"
TWO = "bbbbbbbb-0000-4000-8000-000000000000"
REGION = names.region_address(simulated.PAC, 0)
BLANKING = policy.parse_rules(['{"blank": "/etc/blank.gbs"}'])


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[fakehost.Controller]:
    root = tmp_path / "root"
    root.mkdir()
    with simulated.mounted(simulated.SPEC, root) as controller:
        yield controller


@pytest.fixture
def libvirt() -> domains.SimulatedDomains:
    return domains.SimulatedDomains()


@pytest.fixture
def start(
    kernel: fakehost.Controller,
    tmp_path: Path,
    libvirt: domains.SimulatedDomains,
) -> Callable[[], lifecycle.Lifecycle]:
    """Return a function that starts a service that blanks regions."""
    blank = simulated.bitstream(tmp_path, simulated.C)

    def started() -> lifecycle.Lifecycle:
        root, drivers = kernel.root, plugin.load()
        faulted = device_notes.FaultNotes(str(tmp_path / "state"))
        detector = change_detection.ChangeDetector(
            fs.DiskSource(root),
            drivers,
            BLANKING,
            stores=note_stores.NoteStores(faulted=faulted),
        )
        life = lifecycle.Lifecycle(
            drivers,
            BLANKING,
            simulated.executor(root),
            snapshot.Snapshot(detector),
            host_access.HostAccess(
                domains=libvirt,
                read_host=lambda: host_reader.HostReader(root),
                faults=faulted,
                programs=region_programs.RegionPrograms(
                    libvirt, faulted, lambda _: blank
                ),
            ),
        )
        life.adopt(ROOT)
        life.host.refresh()
        return life

    return started


@pytest.fixture
def life(start: Callable[[], lifecycle.Lifecycle]) -> lifecycle.Lifecycle:
    return start()


def ensure(
    life: lifecycle.Lifecycle,
    server: str,
    card: str,
    bitstream: model.Bitstream,
) -> model.Slot:
    slot = simulated.slot(life.host.state, card)
    life.ensure(
        server,
        (simulated.asks("img"),),
        (slot,),
        bitstreams={"img": bitstream},
    )
    return slot


def release(life: lifecycle.Lifecycle, server: str, slot: model.Slot) -> None:
    life.release(server, (slot,), lambda _: False)


def region(life: lifecycle.Lifecycle) -> model.Device:
    device = life.host.refresh().device(REGION)
    assert device is not None
    return device


def test_a_blank_that_the_daemon_never_loaded_sets_the_region_aside(
    life: lifecycle.Lifecycle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = ensure(
        life, ONE, simulated.PAC, simulated.bitstream(tmp_path, simulated.A)
    )

    def dead(*_: object) -> int:
        raise BrokenPipeError(errno.EPIPE, "the daemon is gone")

    monkeypatch.setattr(fpga_privileged, "program_port", dead)
    release(life, ONE, slot)
    assert "could not be blanked" in region(life).fault


def silence(kernel: fakehost.Controller, *, is_silent: bool) -> None:
    """Let a card answer with ones only, or answer again."""
    kernel.die_at_reset(simulated.PAC, is_dying=is_silent)
    functions = kernel.sys / "bus/pci/devices"
    (functions / simulated.PAC / "reset").write_text("1")


def test_a_region_that_was_silent_at_the_release_is_blanked_later(
    life: lifecycle.Lifecycle, kernel: fakehost.Controller, tmp_path: Path
) -> None:
    """No note says that the card is at fault: it ends by itself."""
    slot = ensure(
        life, ONE, simulated.PAC, simulated.bitstream(tmp_path, simulated.A)
    )
    silence(kernel, is_silent=True)
    assert region(life).fault
    release(life, ONE, slot)
    silence(kernel, is_silent=False)
    assert region(life).fault == ""
    notes = device_notes.FaultNotes(str(tmp_path / "state")).read_unreleased()
    assert [*notes] == [slot.identifier]
    ensure(
        life, TWO, simulated.PAC, simulated.bitstream(tmp_path, simulated.B)
    )
    loaded = [each["function"] for each in kernel.programmings()]
    assert loaded == [simulated.A, simulated.C, simulated.B]


def test_a_region_of_another_guest_is_not_blanked(
    life: lifecycle.Lifecycle,
    kernel: fakehost.Controller,
    tmp_path: Path,
    libvirt: domains.SimulatedDomains,
) -> None:
    """Nova's database does not have the domain's server."""
    slot = ensure(
        life, ONE, simulated.SPLIT, simulated.bitstream(tmp_path, simulated.B)
    )
    libvirt.set_use(simulated.using(slot.identifier))
    before = len(kernel.programmings())
    release(life, ONE, slot)
    assert len(kernel.programmings()) == before


def test_a_server_that_never_got_a_region_does_not_blank_it(
    life: lifecycle.Lifecycle, kernel: fakehost.Controller, tmp_path: Path
) -> None:
    wrong = simulated.bitstream(
        tmp_path, simulated.A, interface=simulated.OTHER
    )
    with pytest.raises(errors.ClaimError):
        ensure(life, ONE, simulated.PAC, wrong)
    release(life, ONE, simulated.slot(life.host.state, simulated.PAC))
    assert kernel.programmings() == []


def test_a_server_that_never_got_a_region_does_not_clean_it(
    start: Callable[[], lifecycle.Lifecycle],
    kernel: fakehost.Controller,
    tmp_path: Path,
) -> None:
    """After a restart, and before the first pass, a spawn fails."""
    slot = ensure(
        start(), ONE, simulated.PAC, simulated.bitstream(tmp_path, simulated.A)
    )
    life = start()
    release(life, TWO, slot)
    notes = device_notes.FaultNotes(str(tmp_path / "state")).read_unreleased()
    assert [*notes] == [slot.identifier]
    before = len(kernel.programmings())
    life.clean_up()
    assert len(kernel.programmings()) == before + 1
    assert not device_notes.FaultNotes(
        str(tmp_path / "state")
    ).read_unreleased()


def test_another_build_of_a_function_is_loaded(
    life: lifecycle.Lifecycle, kernel: fakehost.Controller, tmp_path: Path
) -> None:
    """Its id stays the same from build to build."""
    first = simulated.bitstream(tmp_path, simulated.C)
    content = fpga.gbs(simulated.C, simulated.INTEL) + b"\0second build"
    path = tmp_path / "second"
    path.write_bytes(content)
    second = dataclasses.replace(
        first,
        path=str(path),
        sha512=hashlib.sha512(content).hexdigest(),
        size=len(content),
    )
    slot = ensure(life, ONE, simulated.SPLIT, first)
    release(life, ONE, slot)
    before = len(kernel.programmings())
    ensure(life, TWO, simulated.SPLIT, second)
    assert len(kernel.programmings()) == before + 1
    ensure(life, TWO, simulated.SPLIT, second)
    assert len(kernel.programmings()) == before + 1


def test_a_stopped_guest_s_region_is_not_given_to_another(
    start: Callable[[], lifecycle.Lifecycle],
    tmp_path: Path,
    libvirt: domains.SimulatedDomains,
) -> None:
    slot = ensure(
        start(), ONE, simulated.PAC, simulated.bitstream(tmp_path, simulated.A)
    )
    life = start()  # without the claims of the first
    libvirt.read_use = lambda: simulated.using(simulated.PAC)
    with pytest.raises(errors.ClaimError, match="a guest has it"):
        life.ensure(TWO, (simulated.asks(function=simulated.A),), (slot,))


def test_a_card_that_came_back_is_set_aside_until_it_is_healed(
    life: lifecycle.Lifecycle, kernel: fakehost.Controller, tmp_path: Path
) -> None:
    slot = simulated.slot(life.host.state, simulated.PAC)
    bad = simulated.bitstream(tmp_path, simulated.A, "VANISH")
    with pytest.raises(errors.ProgrammingError):
        ensure(life, ONE, simulated.PAC, bad)
    release(life, ONE, slot)
    kernel.heal()
    kernel.plug()
    assert region(life).fault
    assert device_notes.FaultNotes(str(tmp_path / "state")).heal([REGION])
    assert not region(life).fault
    ensure(
        life, TWO, simulated.PAC, simulated.bitstream(tmp_path, simulated.B)
    )


def test_a_pass_offers_a_healed_region_though_only_its_note_has_changed(
    life: lifecycle.Lifecycle, tmp_path: Path
) -> None:
    bad = simulated.bitstream(tmp_path, simulated.A, "SAME")
    with pytest.raises(errors.ProgrammingError):
        ensure(life, ONE, simulated.PAC, bad)
    assert total(life) == 0
    device_notes.FaultNotes(str(tmp_path / "state")).heal([REGION])
    life.host.refresh_changed()
    assert total(life) == 1


def total(life: lifecycle.Lifecycle) -> int:
    """Return how many servers the first region may have."""
    tree = life.tree(tree_builder.OWNER_TRAITS)
    assert tree is not None
    node = tree.node(names.provider_uuid(ROOT.uuid, REGION))
    assert node is not None
    inventory = node.inventories[names.FPGA_CLASS]
    return inventory.total - inventory.reserved


def test_a_function_that_its_driver_forgets_heals_nothing(
    life: lifecycle.Lifecycle, kernel: fakehost.Controller, tmp_path: Path
) -> None:
    """AMD's driver shows no function after it was unbound."""
    bad = simulated.bitstream(tmp_path, simulated.B, "SAME", is_xclbin=True)
    with pytest.raises(errors.ProgrammingError):
        ensure(life, ONE, simulated.ALVEO, bad)
    driver = kernel.sys / "bus/pci/drivers/xocl"
    (driver / "unbind").write_text(simulated.USER)
    (driver / "bind").write_text(simulated.USER)
    life.host.refresh_changed()
    address = names.region_address(simulated.ALVEO, 0)
    device = life.host.state.device(address)
    assert device is not None
    assert device.region is not None
    assert device.region.function == ""
    assert device.fault
