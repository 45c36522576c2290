# SPDX-License-Identifier: Apache-2.0
"""A slot, or the function of a uevent, is read without its card."""

import os
import pathlib
import shutil

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import change_detection, snapshot
from nova_accel.host.sysfs import fs, udev
from tests.hosts import look

# Of the host "l40s-vendor-vfio": an empty card, and two of its VFs.
L40S, FIRST, SECOND = "0000:3e:00.0", "0000:3e:00.4", "0000:3e:00.6"
A40 = "0000:41:00.0"
ONE_Q = "ID    : vGPU Name\n1147  : NVIDIA L40S-1Q\n"
NOTHING = "ID    : vGPU Name\n"


class CountedFiles(fs.DiskSource):
    """Files of a directory; records each operation."""

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.operations: list[str] = []

    def content(self, path: str) -> bytes:
        self.operations.append(path)
        return super().content(path)

    def names(self, path: str) -> list[str]:
        self.operations.append(path)
        return super().names(path)

    def link(self, path: str) -> str | None:
        self.operations.append(path)
        return super().link(path)


class Host:
    """A described host, its snapshot and the uevents it received."""

    def __init__(self, name: str, root: pathlib.Path) -> None:
        self.root = look.make(name, root)
        self.count = self.root / "sys/kernel/uevent_seqnum"
        self.count.parent.mkdir(exist_ok=True)
        self.count.write_text("1\n")
        self.files = CountedFiles(self.root)
        self.uevents = udev.UeventLog()
        self.uevents.set_open(True)
        self.detector = change_detection.ChangeDetector(
            self.files,
            look.DRIVERS,
            policy.DeviceRules(),
            uevents=self.uevents,
        )
        self.snapshot = snapshot.Snapshot(self.detector)
        self.snapshot.refresh()
        self.files.operations.clear()

    def function(self, address: str) -> pathlib.Path:
        return (self.root / "sys/bus/pci/devices" / address).resolve()

    def set_type(self, address: str, type_id: str) -> None:
        """Type a VF as NVIDIA's driver shows it, on an equal-size card."""
        (self.function(address) / "nvidia/current_vgpu_type").write_text(
            f"{type_id}\n"
        )
        for vf in look.device(self.snapshot.state, L40S).slots:
            creatable = self.function(vf) / "nvidia/creatable_vgpu_types"
            creatable.write_text(NOTHING if vf == address else ONE_Q)

    def send_uevent(self, address: str) -> None:
        self.count.write_text(f"{int(self.count.read_text()) + 1}\n")
        self.uevents.add(address)

    @property
    def partitions(self) -> set[str]:
        card = look.device(self.snapshot.state, L40S)
        return {partition.handle for partition in card.partitions}


@pytest.fixture
def l40s(tmp_path: pathlib.Path) -> Host:
    return Host("l40s-vendor-vfio", tmp_path)


def test_a_slot_is_read_with_few_files(l40s: Host) -> None:
    l40s.set_type(FIRST, "1147")
    l40s.snapshot.refresh_cards([L40S], [FIRST])
    assert l40s.partitions == {FIRST}
    assert len(l40s.files.operations) <= 6
    assert l40s.snapshot.state == l40s.snapshot.refresh()


def test_readings_of_two_slots_keep_both_partitions(l40s: Host) -> None:
    for number, slot in enumerate((FIRST, SECOND), 1):
        l40s.set_type(slot, "1147")
        l40s.snapshot.refresh_cards([L40S], [slot])
        assert len(l40s.partitions) == number
    assert l40s.detector.find_changes() == frozenset()
    assert l40s.snapshot.state == l40s.snapshot.refresh()


def test_a_removed_partition_frees_the_card(l40s: Host) -> None:
    before = l40s.snapshot.state
    texts = {
        path: path.read_text()
        for path in l40s.function(FIRST).parent.rglob("nvidia/*_types")
    }
    l40s.set_type(FIRST, "1147")
    l40s.snapshot.refresh_cards([L40S], [FIRST])
    l40s.set_type(FIRST, "0")
    for path, text in texts.items():
        path.write_text(text)
    l40s.snapshot.refresh_cards([L40S], [FIRST])
    assert l40s.snapshot.state == before


def test_a_type_set_by_another_program_is_read_alone(l40s: Host) -> None:
    l40s.set_type(SECOND, "1147")
    l40s.snapshot.refresh_changed()
    assert l40s.partitions == {SECOND}
    read = {path for path in l40s.files.operations if L40S in path}
    assert f"{l40s.function(L40S)}/vendor" not in read
    assert l40s.snapshot.state == l40s.snapshot.refresh()


def test_a_card_whose_function_vanished_is_unknown(l40s: Host) -> None:
    shutil.rmtree(l40s.function(L40S))
    state = l40s.snapshot.refresh_cards([L40S])
    assert L40S in state.unknown


UUID = "5d4e7f0a-0000-4000-8000-000000000009"


def make_mdev(host: Host, vf: str, type_id: str) -> None:
    place = host.function(vf) / UUID
    place.mkdir()
    types = host.function(vf) / "mdev_supported_types"
    (place / "mdev_type").symlink_to(os.path.relpath(types / type_id, place))
    bus = host.root / "sys/bus/mdev/devices"
    (bus / UUID).symlink_to(os.path.relpath(place, bus))


def find_free_vf(host: Host) -> str:
    card = look.device(host.snapshot.state, A40)
    occupied = {partition.parent for partition in card.partitions}
    return next(slot for slot in card.slots if slot not in occupied)


def read_slot(host: Host, vf: str) -> model.Device:
    """Return the card of a slot that was read, as a full reading has it."""
    state = host.snapshot.refresh_cards([A40], [vf])
    assert host.snapshot.refresh() == state
    return look.device(state, A40)


def test_an_mdev_made_again_has_its_present_type(
    tmp_path: pathlib.Path,
) -> None:
    host = Host("a40-vf-mdev", tmp_path)
    vf = find_free_vf(host)
    first, second, *_ = look.device(host.snapshot.state, A40).profiles
    make_mdev(host, vf, first.handles[vf])
    host.snapshot.refresh_cards([A40], [vf])
    shutil.rmtree(host.function(vf) / UUID)
    (host.root / "sys/bus/mdev/devices" / UUID).unlink()
    make_mdev(host, vf, second.handles[vf])
    after = read_slot(host, vf)
    assert second.name in {p.profile for p in after.partitions}


def test_types_that_another_driver_registered_are_read(
    tmp_path: pathlib.Path,
) -> None:
    host = Host("a40-vf-mdev", tmp_path)
    vf = find_free_vf(host)
    profile = look.device(host.snapshot.state, A40).profiles[0]
    types = host.function(vf) / "mdev_supported_types"
    (types / profile.handles[vf]).rename(types / "vfio-pci-1")
    driver = host.function(vf) / "driver"
    driver.unlink()
    driver.symlink_to("../../../bus/pci/drivers/vfio-pci")
    after = read_slot(host, vf).profile(profile.name)
    assert after is not None
    assert vf not in after.handles


def test_a_uevent_reads_the_function_that_it_names(
    tmp_path: pathlib.Path,
) -> None:
    host = Host("a40-vf-mdev", tmp_path)
    card = look.device(host.snapshot.state, A40)
    vf = find_free_vf(host)
    make_mdev(host, vf, card.profiles[0].handles[vf])
    host.send_uevent(vf)
    host.snapshot.refresh_changed()
    assert len(host.files.operations) <= 400
    others = [slot for slot in card.slots if slot != vf]
    assert sum(f"{vf}/" in path for path in host.files.operations) > sum(
        f"{slot}/" in path for path in host.files.operations for slot in others
    )
    assert host.snapshot.state == host.snapshot.refresh()
    after = look.device(host.snapshot.state, A40)
    assert len(after.partitions) == len(card.partitions) + 1


@pytest.mark.parametrize("name", ["", "0000:99:00.0", L40S])
def test_other_uevents_read_the_host_or_the_card(
    l40s: Host, name: str
) -> None:
    l40s.set_type(FIRST, "1147")
    l40s.send_uevent(name)
    l40s.snapshot.refresh_changed()
    assert l40s.snapshot.state == l40s.snapshot.refresh()


def test_a_uevent_of_another_device_reads_nothing(l40s: Host) -> None:
    before = l40s.snapshot.state
    l40s.send_uevent("0000:3a:00.0")
    assert l40s.snapshot.refresh_changed() is before
    assert isinstance(before, model.HostState)


def test_uevents_without_a_log_read_the_host(l40s: Host) -> None:
    l40s.uevents.set_open(False)
    assert l40s.detector.find_changes() == frozenset()
    l40s.send_uevent(FIRST)
    assert l40s.detector.find_changes() is None
