# SPDX-License-Identifier: Apache-2.0
"""Device health is read from AER counters and config space."""

import pathlib

import pytest

from nova_accel.host.sysfs import error_counters, fs, host_reader
from tests.hosts import build, look
from tests.support import examples
from tests.support.hosts import ailing, shapes
from tests.support.hosts.ailing import (
    CARD,
    CARD_VF,
    GONE,
    OTHER,
    WELL,
    errors_of,
    find,
    put,
)

# A card of four functions that go to a guest together.
WHOLE, AUDIO = "0000:65:00.0", "0000:65:00.1"
ASLEEP = {"power/runtime_status": "suspended\n", "power_state": "D3cold\n"}


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return look.make(ailing.HOST, tmp_path / "host")


@pytest.mark.parametrize("name", examples.share(look.NAMES))
def test_hosts_without_counters_are_healthy(
    name: str, tmp_path: pathlib.Path
) -> None:
    assert find(look.make(name, tmp_path)) == {}


def test_fatal_errors_fault_one_card(root: pathlib.Path) -> None:
    put(root, CARD, {"aer_dev_fatal": errors_of(2)}, WELL)
    put(root, OTHER, {"aer_dev_fatal": errors_of(0)}, WELL)
    faults = find(root)
    assert list(faults) == [CARD]
    assert "2 uncorrectable fatal errors" in faults[CARD]


def test_nonfatal_errors_fault_no_card(root: pathlib.Path) -> None:
    text = "UnsupReq 9\nTOTAL_ERR_NONFATAL 9\n"
    counters = {"aer_dev_nonfatal": text, "aer_dev_correctable": text}
    put(root, CARD, {**counters, "aer_dev_fatal": errors_of(0)})
    assert find(root) == {}


def test_errors_of_a_group_member_fault_the_card(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("passthrough", tmp_path)
    put(root, AUDIO, {"aer_dev_fatal": errors_of(1)})
    faults = find(root)
    assert list(faults) == [WHOLE]
    assert AUDIO in faults[WHOLE]


def test_errors_of_a_card_fault_its_regions(tmp_path: pathlib.Path) -> None:
    root = look.make("dfl-n6000", tmp_path)
    put(root, "0000:b1:00.0", {"aer_dev_fatal": errors_of(1)})
    regions = {
        device.address
        for device in look.read(root).devices
        if "0000:b1:00.0" in (device.address, device.parent)
    }
    assert regions
    assert find(root).keys() == regions


def test_a_card_whose_ids_read_as_ones_is_gone(root: pathlib.Path) -> None:
    put(root, CARD, head=GONE)
    put(root, OTHER, head=WELL)
    faults = find(root)
    assert list(faults) == [CARD]
    assert "does not answer" in faults[CARD]
    put(root, CARD, head=WELL)
    assert find(root) == {}


def test_vfs_whose_ids_read_as_ones_are_healthy(root: pathlib.Path) -> None:
    put(root, CARD, head=WELL)
    put(root, CARD_VF, {"aer_dev_fatal": errors_of(7)}, GONE)
    assert find(root) == {}


def test_a_device_that_is_a_vf_has_the_fault_of_its_card(
    root: pathlib.Path,
) -> None:
    put(root, CARD_VF, head=GONE)
    device = look.device(look.read(root), CARD)
    single = shapes.plain_device(CARD_VF, plugin=device.plugin)
    reader = host_reader.HostReader(root)
    assert error_counters.find_faults(reader, (single,)) == {}
    put(root, CARD, {"aer_dev_fatal": errors_of(1)})
    reader = host_reader.HostReader(root)
    assert error_counters.find_faults(reader, (single,)).keys() == {CARD_VF}


class Counted(fs.DiskSource):
    """Files of a directory; records which ones are opened."""

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.opened: list[str] = []

    def content(self, path: str) -> bytes:
        self.opened.append(path)
        return super().content(path)


def test_a_suspended_device_is_not_woken(root: pathlib.Path) -> None:
    put(root, CARD, ASLEEP, GONE)
    state, source = look.read(root), Counted(root)
    reader = host_reader.HostReader(source=source)
    assert error_counters.find_faults(reader, state.devices) == {}
    assert not [path for path in source.opened if path.endswith("/config")]
    # The kernel takes it for active, and can't reach it.
    put(root, CARD, {"power/runtime_status": "active\n"})
    assert find(root).keys() == {CARD}


def test_the_number_of_reads_does_not_depend_on_vfs(
    root: pathlib.Path,
) -> None:
    awake = {"power/runtime_status": "active\n", "power_state": "D0\n"}
    for address in (CARD, CARD_VF):
        put(root, address, {**awake, "aer_dev_fatal": errors_of(0)}, WELL)
    state, source = look.read(root), Counted(root)
    error_counters.find_faults(
        host_reader.HostReader(source=source), state.devices
    )
    assert len(source.opened) == 4
    assert not [path for path in source.opened if CARD_VF in path]


@pytest.mark.parametrize(
    "name", ["aer_dev_fatal", "config", "power_state", "power/runtime_status"]
)
@pytest.mark.parametrize("fault", sorted(build.FAULTS))
def test_unreadable_files_fault_no_card(
    root: pathlib.Path, name: str, fault: str
) -> None:
    put(root, CARD, {"aer_dev_fatal": errors_of(0), name: ""}, WELL)
    place = f"bus/pci/devices/{CARD}/{name}"
    build.break_path(root, place, {"fault": fault})
    assert find(root) == {}


def test_a_failed_power_state_faults_a_card(root: pathlib.Path) -> None:
    put(root, CARD, {"power_state": "error\n"})
    assert "power state" in find(root)[CARD]
