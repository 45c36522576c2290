# SPDX-License-Identifier: Apache-2.0
"""GPUs are read through pynvml; failures of NVML become problems."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.catalog import loader
from nova_accel.host import nvml_gpus
from nova_accel.host.nvml import gpu_reader, gpu_state, gpu_writer
from tests.lab import fakehost
from tests.support.hosts import simulated_gpus

STANDINS = Path(__file__).parents[4] / "lab/standins/nvml"
T4, L40S = "0000:3b:00.0", "0000:81:00.0"
A100, BLACKWELL = "0000:b1:00.0", "0000:d1:00.0"
MOUNT = simulated_gpus.mounted
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.NvidiaGpu(address=T4, model="T4"),
        fakehost.NvidiaGpu(
            address=L40S, model="L40S", enabled_vfs=4, interface="vfio"
        ),
        fakehost.NvidiaGpu(
            address=A100,
            model="A100",
            enabled_vfs=8,
            interface="vfio",
            mig=True,
        ),
        fakehost.NvidiaGpu(
            address=BLACKWELL,
            model="RTXPRO6000",
            enabled_vfs=8,
            interface="vfio",
            mig=True,
        ),
    )
)

SCRIPT = """
import json, sys
from nova_accel.host.nvml import gpu_reader, gpu_state
for _ in range(2):
    print(json.dumps(gpu_state.to_plain(gpu_reader.read_gpus(0.5))))
print(gpu_reader.create_instance("0000:41:00.0", "1g.5gb", 0))
"""


def read_twice(
    path: Path, before: str = ""
) -> tuple[list[nvml_gpus.NvmlGpus], int]:
    """Read twice, in a process with libraries from a directory."""
    completed = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", before + SCRIPT],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(path),
            "FAKEHOST_CONTROL": "",
            "PYTHONPATH": str(STANDINS.parents[3]),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    return [
        gpu_state.from_plain(json.loads(line)) for line in completed[:2]
    ], int(completed[2])


def test_without_nvidia_ml_py_nothing_is_known(tmp_path: Path) -> None:
    without = "import sys; sys.modules['pynvml'] = None"
    (first, _), number = read_twice(tmp_path, without)
    assert first == {}
    assert first.problems == ()
    assert "nvidia-ml-py" in first.reason
    assert number == errno.ENOSYS


def test_without_the_library_nothing_is_known(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    (tmp_path / "libnvidia-ml.so.1").write_text("no library\n" * 99)
    (first, second), number = read_twice(tmp_path)
    assert first == second == {}
    assert first.problems == ()
    assert "Library Not Found" in first.reason
    assert number == errno.ENOSYS


def build(place: Path, source: str, *flags: str) -> Path:
    """Compile a simulated library into a directory; return that."""
    pytest.importorskip("pynvml")
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc")
    subprocess.run(  # noqa: S603 - our own words
        [
            *("gcc", "-O2", "-Wall", "-shared", "-fPIC", *flags),
            *("-o", place / "libnvidia-ml.so.1", STANDINS / source),
        ],
        check=True,
    )
    return place


def build_old(place: Path, *flags: str) -> Path:
    return build(place, "oldnvml.c", *flags)


def test_a_lost_and_a_hanging_gpu_affect_no_other(
    tmp_path: Path,
) -> None:
    readings, number = read_twice(build_old(tmp_path))
    for gpus in readings:
        assert gpus == {
            "10000:af:1f.0": nvml_gpus.NvmlGpu(
                address="10000:af:1f.0",
                driver_version="418.226.00",
                memory_mb=16384,
            )
        }
        lost, silent = gpus.problems
        assert lost.where == "NVML GPU 1"
        assert "GPU is lost" in lost.reason
        assert silent.where == "NVML GPU 2"
        assert "no answer in time" in silent.reason
    # The old library lacks this call.
    assert number == errno.ENOSYS


def test_an_incompatible_library_is_a_problem(tmp_path: Path) -> None:
    other = "import pynvml; pynvml.nvmlDeviceGetPciInfo = lambda gpu: None"
    (gpus, _), _ = read_twice(build_old(tmp_path), other)
    assert gpus == {}
    assert "'NoneType' object has no attribute" in gpus.problems[0].reason


def test_values_that_need_root_are_unread_not_absent(
    tmp_path: Path,
) -> None:
    (first, _), _ = read_twice(build_old(tmp_path, "-DMIG"))
    (gpu,) = first.values()
    assert gpu.is_mig
    assert gpu.unread == {"kinds", "instances"}
    reasons = [p.reason for p in first.problems if p.where == gpu.address]
    assert "its MIG mode changes when it is reset" in reasons[0]
    assert "its kinds" in reasons[1]
    assert "Insufficient Permissions" in reasons[1]
    assert "run as root" in reasons[1]
    assert "its instances" in reasons[2]


# -- a kernel that has cards ----------------------------------------------


@pytest.fixture
def cards(
    mounted: fakehost.Controller, monkeypatch: pytest.MonkeyPatch
) -> fakehost.Controller:
    monkeypatch.setenv("FAKEHOST_CONTROL", str(mounted.socket))
    mounted.reboot()
    return mounted


def test_each_gpu_is_described(cards: fakehost.Controller) -> None:
    gpus = gpu_reader.read_gpus()
    assert list(gpus) == sorted(cards.gpus())
    assert gpus.problems == ()
    assert gpus.reason == ""
    assert gpus[L40S].is_mixed is False
    assert gpus[L40S].is_mig is None
    assert gpus[L40S].memory_mb == 48 * 1024
    assert not gpus[L40S].kinds
    assert not gpus[L40S].instances
    assert gpus[A100].is_mig
    assert gpus[A100].driver_version
    types = {vgpu_type.name: vgpu_type for vgpu_type in gpus[L40S].types}
    assert types["L40S-24Q"] == nvml_gpus.NvmlVgpuType(
        name="L40S-24Q",
        type_id="1155",
        framebuffer_mb=24576,
        max_instances=2,
    )


@pytest.mark.parametrize("address", [L40S, A100, BLACKWELL])
def test_types_and_kinds_agree_with_the_catalog(
    cards: fakehost.Controller, address: str
) -> None:
    gpu = gpu_reader.read_gpus()[address]
    listed = loader.load().of_card([vgpu_type.name for vgpu_type in gpu.types])
    assert listed is not None
    for vgpu_type in gpu.types:
        facts = loader.load().find(vgpu_type.name)
        assert facts is not None, vgpu_type.name
        assert facts.framebuffer_mb == vgpu_type.framebuffer_mb, vgpu_type.name
        assert facts.limit == vgpu_type.max_instances, vgpu_type.name
        assert facts.instance == vgpu_type.instance, vgpu_type.name
        assert facts.per_instance == vgpu_type.per_instance, vgpu_type.name
    kinds = {kind.name: kind for kind in listed.kinds}
    for kind in gpu.kinds:
        assert kind == kinds[kind.name]


def test_placements_of_types_are_read_in_mixed_mode(
    cards: fakehost.Controller,
) -> None:
    assert gpu_reader.set_mixed(L40S, True) == 0
    types = gpu_reader.read_gpus()[L40S].types
    assert types
    for vgpu_type in types:
        facts = loader.load().find(vgpu_type.name)
        # L40S-3B is not in the catalog.
        if facts is not None:
            assert (vgpu_type.span, vgpu_type.starts) == (
                facts.span,
                facts.starts_mixed,
            )


def instances(address: str) -> list[tuple[str, int]]:
    return sorted(
        (instance.kind, instance.span.start)
        for instance in gpu_reader.read_gpus()[address].instances
        if instance.span is not None
    )


def test_an_instance_is_created_once_and_destroyed(
    cards: fakehost.Controller,
) -> None:
    assert gpu_reader.create_instance(A100, "2g.10gb", 2) == 0
    assert gpu_reader.create_instance(A100, "2g.10gb", 2) == 0
    assert gpu_reader.create_instance(A100, "1g.5gb", 0) == 0
    assert instances(A100) == [("1g.5gb", 0), ("2g.10gb", 2)]
    spans = {
        instance.span for instance in gpu_reader.read_gpus()[A100].instances
    }
    assert model.Span(start=2, size=2) in spans
    assert gpu_reader.destroy_instance(A100, "2g.10gb", 2) == 0
    assert gpu_reader.destroy_instance(A100, "2g.10gb", 2) == 0
    assert gpu_reader.destroy_instance(A100, "1g.5gb", None) == 0
    assert instances(A100) == []


def test_an_instance_that_does_not_fit_is_refused(
    cards: fakehost.Controller,
) -> None:
    assert gpu_reader.create_instance(A100, "4g.20gb", 0) == 0
    assert gpu_reader.create_instance(A100, "1g.5gb", 1) == errno.ENOSPC
    assert gpu_reader.create_instance(A100, "2g.10gb", 1) == errno.EINVAL
    assert gpu_reader.create_instance(A100, "1g.24gb", 0) == errno.ENODEV
    assert gpu_reader.create_instance(L40S, "1g.5gb", 0) == errno.ENODEV
    assert (
        gpu_reader.create_instance("0000:99:00.0", "1g.5gb", 0) == errno.ENODEV
    )
    assert instances(A100) == [("4g.20gb", 0)]


def vf(host: fakehost.Controller, address: str, number: int) -> Path:
    place = host.sys / "bus/pci/devices" / address / f"virtfn{number}"
    return place / "nvidia/current_vgpu_type"


def test_an_instance_in_use_is_not_destroyed(
    cards: fakehost.Controller,
) -> None:
    types = {
        vgpu_type.name: vgpu_type
        for vgpu_type in gpu_reader.read_gpus()[A100].types
    }
    for start in (0, 1):
        assert gpu_reader.create_instance(A100, "1g.5gb", start) == 0
    place = vf(cards, A100, 0)
    place.write_text(types["A100-1-5C"].type_id)
    assert gpu_reader.destroy_instance(A100, "1g.5gb", None) == 0
    ((_, start),) = instances(A100)
    assert gpu_reader.destroy_instance(A100, "1g.5gb", start) == errno.EBUSY
    assert instances(A100) == [("1g.5gb", start)]
    # The instance is unchanged: the next vGPU can be created in it.
    place.write_text("0")
    place.write_text(types["A100-1-5C"].type_id)
    place.write_text("0")
    assert gpu_reader.destroy_instance(A100, "1g.5gb", start) == 0


def test_mixed_sizes_are_set_only_without_vgpus(
    cards: fakehost.Controller,
) -> None:
    assert gpu_reader.set_mixed(L40S, True) == 0
    assert gpu_reader.read_gpus()[L40S].is_mixed
    assert gpu_reader.set_mixed(L40S, True) == 0
    place = vf(cards, L40S, 0)
    place.write_text("1155")
    assert gpu_reader.set_mixed(L40S, True) == 0  # unchanged
    assert gpu_reader.set_mixed(L40S, False) == errno.EBUSY
    place.write_text("0")
    assert gpu_reader.set_mixed(L40S, False) == 0
    assert gpu_reader.set_mixed(T4, True) == errno.EOPNOTSUPP


def test_without_the_driver_there_are_no_gpus(
    cards: fakehost.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKEHOST_CONTROL", "/nonexistent")
    gpus = gpu_reader.read_gpus()
    assert gpus == {}
    assert gpus.problems == ()
    assert "Driver Not Loaded" in gpus.reason
    assert gpu_reader.set_mixed(L40S, True) == errno.ENXIO


# -- values ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:41:00.0", "0000:41:00.0"),
        ("00010000:AF:1F.0", "10000:af:1f.0"),
        ("0000:AF:00.0", "0000:af:00.0"),
    ],
)
def test_bus_ids_become_addresses(text: str, address: str) -> None:
    assert gpu_reader.parse_bus_id(text) == address


@pytest.mark.parametrize("text", ["", "41:00.0", "0000:41:00", "gpu:0:0.0"])
def test_malformed_bus_ids_are_refused(text: str) -> None:
    with pytest.raises(errors.MalformedError):
        gpu_reader.parse_bus_id(text)


@pytest.mark.parametrize(
    ("address", "kind", "start"),
    [
        ("0000:41:00", "1g.5gb", 0),
        ("../0000:41:00.0", "1g.5gb", 0),
        ("0000:41:00.0", "1g.5gb; reboot", 0),
        ("0000:41:00.0", "", 0),
        ("0000:41:00.0", "0g.5gb", 0),
        ("0000:41:00.0", "1g.5gb", -1),
        ("0000:41:00.0", "1g.5gb", 64),
    ],
)
def test_arguments_of_changes_are_checked(
    address: str, kind: str, start: int
) -> None:
    with pytest.raises(errors.MalformedError):
        gpu_writer.create_instance(address, kind, start)
    with pytest.raises(errors.MalformedError):
        gpu_writer.destroy_instance(address, kind, start)


def test_every_kind_of_the_catalog_passes_the_check() -> None:
    kinds = {k.name for gpu in loader.load().gpus() for k in gpu.kinds}
    assert kinds
    for kind in sorted(kinds):
        gpu_writer._check("0000:41:00.0", kind, 0)
