# SPDX-License-Identifier: Apache-2.0
"""Partial readings agree with full ones, and read less."""

import pathlib
from collections.abc import Iterator

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.conformance import template
from nova_accel.discovery import change_detection, note_stores, snapshot
from nova_accel.host import nvml_gpus
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import fs, host_reader
from tests.hosts import look
from tests.support import strategies

HOSTS = [
    "a40-vf-mdev",
    "t4-mdev",
    "mtty",
    "passthrough",
    "broken",
    "l40s-vendor-vfio",
    "dfl-n6000",
    "alveo-cards",
]
A40 = "0000:41:00.0"


class Counted(fs.DiskSource):
    """Files of a directory; records which ones are read."""

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.contents: list[str] = []

    def content(self, path: str) -> bytes:
        self.contents.append(path)
        return super().content(path)


def detector_of(
    root: pathlib.Path,
) -> tuple[change_detection.ChangeDetector, Counted]:
    source = Counted(root)
    return change_detection.ChangeDetector(
        source, look.DRIVERS, policy.DeviceRules()
    ), source


def send_uevent(root: pathlib.Path) -> None:
    """Count one more uevent, as the kernel does."""
    path = root / "sys/kernel/uevent_seqnum"
    path.parent.mkdir(exist_ok=True)
    count = int(path.read_text()) if path.exists() else 4710
    path.write_text(f"{count + 1}\n")


def file(root: pathlib.Path, pattern: str) -> pathlib.Path:
    paths = sorted((root / "sys/devices").rglob(pattern))
    assert paths, pattern
    return paths[0]


def test_without_changes_uevent_number_and_models_are_read(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    send_uevent(root)
    detector, source = detector_of(root)
    detector.read()
    source.contents.clear()
    assert detector.read_changed() is None
    count, *models = source.contents
    assert count == "/sys/kernel/uevent_seqnum"
    assert models == [
        f"/sys/bus/pci/devices/{address}/modalias"
        for address in (A40, "0000:42:00.0")
    ]


def test_after_a_uevent_the_host_is_read_again(tmp_path: pathlib.Path) -> None:
    root = look.make("t4-mdev", tmp_path)
    send_uevent(root)
    detector, _ = detector_of(root)
    before = detector.read()
    file(root, "available_instances").write_text("0\n")
    assert detector.read_changed() is None, "no uevent, no reading"
    send_uevent(root)
    after = detector.read_changed()
    assert after is not None
    assert after == look.read(root)
    assert after != before


def test_without_uevent_numbers_the_host_is_read_each_time(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path)
    detector, _ = detector_of(root)
    assert detector.read() == detector.read_changed()


class TypeReader(template.TemplateDriver):
    """Reads the type of one function, as drivers of typed VFs do."""

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        text = card.attribute(A40, "nvidia/current_vgpu_type")
        yield model.Problem(where=A40, reason=f"type {text}")


def test_a_type_change_without_a_uevent_is_detected(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    written = root / f"sys/bus/pci/devices/{A40}/nvidia/current_vgpu_type"
    written.parent.mkdir()
    written.write_text("0\n")
    send_uevent(root)
    detector = change_detection.ChangeDetector(
        Counted(root), {"template": TypeReader()}, policy.DeviceRules()
    )
    detector.read()
    assert detector.read_changed() is None
    written.write_text("558\n")
    state = detector.read_changed()
    assert state is not None
    assert "type 558" in [problem.reason for problem in state.problems]
    assert detector.read_changed() is None
    written.unlink()
    assert detector.read_changed() is not None, "a removed file is a change"


def test_the_host_is_read_again_after_an_interval(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = look.make("t4-mdev", tmp_path)
    send_uevent(root)
    detector, _ = detector_of(root)
    detector.read()
    assert detector.read_changed() is None
    monkeypatch.setattr(change_detection, "FULL_READ_INTERVAL_S", -1)
    assert detector.read_changed() is not None


@pytest.mark.parametrize("name", HOSTS)
def test_a_partial_reading_equals_a_full_one(
    tmp_path: pathlib.Path, name: str
) -> None:
    root = look.make(name, tmp_path)
    detector, source = detector_of(root)
    state = detector.read()
    whole = len(source.contents)
    for device in state.devices:
        source.contents.clear()
        assert detector.read_devices([device]) == state
        assert len(source.contents) <= whole


def test_a_partial_reading_reads_files_of_one_card(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path)
    detector, source = detector_of(root)
    state = detector.read()
    first, second = state.devices
    assert second.address not in first.slots
    for path in sorted((root / "sys/devices").rglob("available_instances")):
        path.write_text("0\n")
    source.contents.clear()
    again = detector.read_devices([first])
    changed = again.device(first.address)
    assert changed is not None
    assert not any(profile.available for profile in changed.profiles)
    assert again.device(second.address) == second, "it was not read"
    assert not [p for p in source.contents if second.address in p]


def test_the_first_reading_is_always_full(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path)
    detector, _ = detector_of(root)
    assert detector.read_devices([]) == look.read(root)


@pytest.mark.parametrize(
    ("name", "reads"), [("mtty", 0), ("intel-vf", 0), ("t4-mdev", 1)]
)
def test_nvml_is_read_only_on_hosts_with_its_cards(
    tmp_path: pathlib.Path, name: str, reads: int
) -> None:
    root = look.make(name, tmp_path)
    send_uevent(root)
    times: list[int] = []

    def read_gpus() -> nvml_gpus.NvmlGpus:
        times.append(1)
        return nvml_gpus.NvmlGpus({})

    detector = change_detection.ChangeDetector(
        fs.DiskSource(root), look.DRIVERS, policy.DeviceRules(), read_gpus
    )
    state = detector.read()
    assert len(times) == reads
    detector.open_reader()
    assert detector.read_changed() is None
    detector.read_devices(state.devices)
    assert len(times) == 4 * reads


def test_a_card_of_another_vendor_causes_no_nvml_reading(
    tmp_path: pathlib.Path,
) -> None:
    """Values of the NVIDIA cards beside it stay as they were."""
    root = look.make("passthrough", tmp_path)
    answers = [nvml_gpus.NvmlGpus({A40: nvml_gpus.NvmlGpu(address=A40)})]
    detector = change_detection.ChangeDetector(
        fs.DiskSource(root), look.DRIVERS, policy.DeviceRules(), answers.pop
    )
    state = detector.read()
    other, *_ = (d for d in state.devices if d.vendor_id == "1002")
    assert detector.read_devices([other]) == state


def test_a_guest_with_a_new_licence_changes_no_device(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("passthrough", tmp_path)
    send_uevent(root)
    states = ["licensed", "unlicensed"]

    def read_gpus() -> nvml_gpus.NvmlGpus:
        vgpu = nvml_gpus.NvmlVgpu(server="s1", license=states.pop())
        gpu = nvml_gpus.NvmlGpu(address=A40, vgpus=(vgpu,))
        return nvml_gpus.NvmlGpus({A40: gpu})

    detector = change_detection.ChangeDetector(
        fs.DiskSource(root), look.DRIVERS, policy.DeviceRules(), read_gpus
    )
    host = snapshot.Snapshot(detector)
    host.refresh()
    assert detector.find_changes() == frozenset()
    ((vgpu,),) = [gpu.vgpus for gpu in host.gpus.values() if gpu.vgpus]
    assert vgpu.license == "licensed"


class Unreliable(template.TemplateDriver):
    """Describes one card, unless it fails."""

    is_failing = False

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        if self.is_failing:
            raise RuntimeError("no answer")
        if A40 in card.card_names:
            yield strategies.card(A40, 1)


def test_a_card_whose_driver_fails_is_unknown_not_absent(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    send_uevent(root)
    driver = Unreliable()
    detector = change_detection.ChangeDetector(
        fs.DiskSource(root), {"unreliable": driver}, policy.DeviceRules()
    )
    host_snapshot = snapshot.Snapshot(detector)
    before = host_snapshot.refresh()
    driver.is_failing = True
    number = root / f"sys/bus/pci/devices/{A40}/numa_node"
    text = number.read_text()
    number.write_text("7\n")
    after = host_snapshot.refresh_cards([A40])
    assert after.device(A40) is None
    assert after.unknown == {A40}
    assert [p.where for p in after.problems] == ["driver unreliable"]
    driver.is_failing = False
    number.write_text(text)
    assert host_snapshot.refresh_changed() == before, (
        "the next pass reads it again"
    )


def test_a_kernel_error_is_detected_without_a_uevent(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path / "host")
    send_uevent(root)
    baseline = device_notes.ErrorBaseline(str(tmp_path / "state"), "boot")
    detector = change_detection.ChangeDetector(
        fs.DiskSource(root),
        look.DRIVERS,
        policy.DeviceRules(),
        stores=note_stores.NoteStores(baseline=baseline),
    )
    before = detector.read()
    address = before.devices[0].address
    written = root / f"sys/bus/pci/devices/{address}/aer_dev_fatal"
    written.write_text("TLP 0\nTOTAL_ERR_FATAL 0\n")
    assert detector.read() == before
    written.write_text("TLP 1\nTOTAL_ERR_FATAL 1\n")
    after = detector.read_changed()
    assert after is not None
    assert [bool(d.fault) for d in after.devices] == [True, False]
    assert [p.where for p in after.problems] == [address]
    assert detector.read_changed() is None
    baseline.put({address: 1})
    assert detector.read_changed() == before
