# SPDX-License-Identifier: Apache-2.0
"""Usage of GPUs and vGPUs is read through pynvml; unknown is not 0."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nova_accel.model import usage
from tests.unit.nova_accel.host.nvml import test_gpu_reader

SLICED, MIG = "0000:41:00.0", "0000:51:00.0"
GIB = 1 << 30
SCRIPT = """
from nova_accel.host.nvml import usage_reader
from nova_accel.model import usage
for _ in range(2):
    print(usage.FORMAT.encode(usage_reader.read_usage(0.5)))
"""


def read_twice(place: Path, before: str = "") -> list[usage.UsageSample]:
    """Read twice, in a process with the library of a directory."""
    completed = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", before + SCRIPT],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(place),
            "PYTHONPATH": str(test_gpu_reader.STANDINS.parents[3]),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    return [usage.FORMAT.decode(line) for line in completed]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> usage.UsageSample:
    place = tmp_path_factory.mktemp("nvml")
    test_gpu_reader.build(place, "usagenvml.c")
    first, second = read_twice(place)
    assert first == second
    return first


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> usage.UsageSample:
    """Return the usage that a driver before R510 has."""
    place = tmp_path_factory.mktemp("nvml")
    test_gpu_reader.build(place, "usagenvml.c", "-DOLD")
    first, _ = read_twice(place)
    return first


def device(read: usage.UsageSample, address: str) -> usage.DeviceUsage:
    (match,) = (d for d in read.devices if d.address == address)
    return match


def test_a_time_sliced_gpu_has_all_figures(read: usage.UsageSample) -> None:
    assert device(read, SLICED) == usage.DeviceUsage(
        address=SLICED,
        engines=(
            usage.EngineUsage(engine="compute", ratio=0.8),
            usage.EngineUsage(engine="memory", ratio=0.35),
            usage.EngineUsage(engine="encoder", ratio=0),
        ),
        memory_used=6 * GIB,
        memory_total=16 * GIB,
        power_watts=70.5,
        temperature_celsius=61,
    )


def test_memory_that_the_driver_reserves_is_not_in_use(
    read: usage.UsageSample, old: usage.UsageSample
) -> None:
    assert device(read, SLICED).memory_used == 6 * GIB
    # Drivers before R510 count it.
    assert device(old, SLICED).memory_used == 7 * GIB


def test_figures_that_a_gpu_in_mig_mode_lacks_are_unknown(
    read: usage.UsageSample,
) -> None:
    gpu = device(read, MIG)
    assert (gpu.engines, gpu.power_watts) == ((), None)
    assert gpu.memory_used == 0


def test_a_vgpu_has_its_last_sample(read: usage.UsageSample) -> None:
    busy = read.partitions[0]
    assert (busy.device, busy.profile) == (SLICED, "T4-8Q")
    assert busy.handle == "83c32df7-d52e-4ec1-9668-1f3c7e4df111"
    shares = {e.engine: (e.ratio, e.scope) for e in busy.engines}
    assert shares["compute"] == (0.75, usage.Scope.DEVICE)
    assert shares["decoder"] == (0.04, usage.Scope.DEVICE)


def test_framebuffer_of_more_than_4_gib_is_exact(
    read: usage.UsageSample,
) -> None:
    assert read.partitions[0].memory_used == 5 * GIB


def test_figures_that_nvml_marks_as_missing_are_unknown(
    read: usage.UsageSample,
) -> None:
    idle = read.partitions[1]
    assert (idle.engines, idle.memory_used) == ((), None)


def test_a_vgpu_in_an_instance_has_its_scope(read: usage.UsageSample) -> None:
    vgpu = read.partitions[2]
    assert (vgpu.device, vgpu.profile, vgpu.handle) == (MIG, "A100-1-5C", "")
    assert vgpu.server == "11111111-2222-4333-8444-555555555521"
    assert vgpu.engines[0] == usage.EngineUsage(
        engine="compute", ratio=1, scope=usage.Scope.INSTANCE
    )


def test_a_lost_and_a_silent_gpu_are_problems(read: usage.UsageSample) -> None:
    lost, silent = read.problems
    assert (lost.where, silent.where) == ("usage of GPU 2", "usage of GPU 3")
    assert "GPU is lost" in lost.reason
    assert "no answer in time" in silent.reason


def test_drivers_before_r535_have_the_first_version(
    old: usage.UsageSample,
) -> None:
    shares = {e.engine: e.ratio for e in old.partitions[0].engines}
    assert shares["compute"] == 0.5
    assert "jpeg" not in shares


def test_without_nvidia_ml_py_there_are_no_figures(tmp_path: Path) -> None:
    before = "import sys; sys.modules['pynvml'] = None"
    assert read_twice(tmp_path, before) == [usage.UsageSample()] * 2


def test_without_the_library_there_are_no_figures(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    (tmp_path / "libnvidia-ml.so.1").write_text("no library\n" * 99)
    assert read_twice(tmp_path) == [usage.UsageSample()] * 2
