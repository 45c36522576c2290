# SPDX-License-Identifier: Apache-2.0
"""Usage is read from sysfs as the drivers of AMD and Intel write it."""

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nova_accel.host.sysfs import fs, usage_files
from nova_accel.model import usage
from tests.hosts import build

GPU = "0000:03:00.0"
# amdgpu on an MI210; the second sensor is the junction's.
AMD = {
    "gpu_busy_percent": "97\n",
    "mem_busy_percent": "12\n",
    "mem_info_vram_total": "68702699520\n",
    "mem_info_vram_used": "5368709120\n",
    "hwmon/hwmon3/name": "amdgpu\n",
    "hwmon/hwmon3/temp1_input": "43000\n",
    "hwmon/hwmon3/temp2_input": "51000\n",
    "hwmon/hwmon3/power1_average": "88000000\n",
    "power/runtime_status": "active\n",
}
# xe has energy, and its temperatures begin with "pkg", the second.
XE = {
    "hwmon/hwmon2/name": "xe\n",
    "hwmon/hwmon2/energy1_input": "1000000\n",
    "hwmon/hwmon2/temp2_input": "39000\n",
    "hwmon/hwmon2/temp3_input": "44000\n",
}


def write(
    root: Path,
    attributes: dict[str, str],
    clock: Callable[[], float] = time.monotonic,
) -> usage_files.UsageFiles:
    description: dict[str, Any] = {
        "functions": [
            {
                "address": GPU,
                "id": "1002:740f",
                "class": "038000",
                "attributes": attributes,
            }
        ]
    }
    build.build(description, root)
    return usage_files.UsageFiles(fs.DiskSource(root), clock)


def test_an_amd_gpu_has_utilisation_memory_power_and_temperature(
    tmp_path: Path,
) -> None:
    assert write(tmp_path, AMD).read([GPU]).devices == (
        usage.DeviceUsage(
            address=GPU,
            engines=(
                usage.EngineUsage(engine="compute", ratio=0.97),
                usage.EngineUsage(engine="memory", ratio=0.12),
            ),
            memory_used=5368709120,
            memory_total=68702699520,
            power_watts=88,
            temperature_celsius=43,
        ),
    )


def test_power_is_the_energy_between_two_readings(tmp_path: Path) -> None:
    times = iter((100.0, 110.0, 120.0, 130.0))
    files = write(tmp_path, XE, lambda: next(times))
    energy = next(tmp_path.rglob("energy1_input"))
    powers = []
    # 25 J in 10 s; then the driver was bound again.
    for microjoules in (1_000_000, 26_000_000, 0, 5_000_000):
        energy.write_text(f"{microjoules}\n")
        (gpu,) = files.read([GPU]).devices
        powers.append(gpu.power_watts)
    assert powers == [None, 2.5, None, 0.5]
    assert gpu.temperature_celsius == 39


def test_a_suspended_device_is_not_read(tmp_path: Path) -> None:
    suspended = AMD | {"power/runtime_status": "suspended\n"}
    assert write(tmp_path, suspended).read([GPU]) == usage.UsageSample()


@pytest.mark.parametrize("text", ["", "N/A", "101", "-1", "1.5"])
def test_a_malformed_figure_is_unknown(tmp_path: Path, text: str) -> None:
    files = write(tmp_path, {"gpu_busy_percent": text})
    assert files.read([GPU]) == usage.UsageSample()


def test_a_device_without_figures_is_left_out(tmp_path: Path) -> None:
    files = write(tmp_path, {})
    absent = ["0000:99:00.0", "mtty", "../../etc"]
    assert files.read([GPU, *absent]) == usage.UsageSample()


def test_vfs_of_an_intel_gpu_have_their_memory(tmp_path: Path) -> None:
    place = "drm/card1/prelim_iov"
    attributes = {
        f"{place}/pf/auto_provisioning": "1",
        f"{place}/vf1/telemetry/lmem_alloc_size": "3221225472\n",
        f"{place}/vf2/telemetry/lmem_alloc_size": "0\n",
        f"{place}/vf3/gt/lmem_quota": "0\n",
    }
    files = write(tmp_path, attributes)
    top = tmp_path / "sys/bus/pci/devices" / GPU / place
    for number in (1, 2, 3):
        (top / f"vf{number}/device").symlink_to(f"../../0000:03:00.{number}")
    assert files.read([GPU]).partitions == (
        usage.PartitionUsage(
            device=GPU, handle="0000:03:00.1", memory_used=3221225472
        ),
        usage.PartitionUsage(device=GPU, handle="0000:03:00.2", memory_used=0),
    )


# -- QAT ------------------------------------------------------------------

# Control 1 has the current values, 2 to 4 also minimum, maximum and mean.
TELEMETRY = """\
sample_cnt                     52
pci_trans_cnt                  0
bw_in                          4711
util_cpr0                      60                     0         60    20
util_cpr1                      40
exec_cpr0                      99
util_pke0                      0
"""


def test_the_utilisation_of_slices_is_their_mean() -> None:
    (device,) = usage_files.judge_telemetry(GPU, 0, "2", TELEMETRY).devices
    assert device.engines == (
        usage.EngineUsage(engine="cpr", ratio=0.5),
        usage.EngineUsage(engine="pke", ratio=0),
    )


@pytest.mark.parametrize("text", ["", "sample_cnt 1\n", "util_cpr0 250\n"])
def test_telemetry_without_utilisation_gives_none(text: str) -> None:
    assert (
        usage_files.judge_telemetry(GPU, 0, "1", text) == usage.UsageSample()
    )


def test_telemetry_that_can_not_be_read_is_a_problem() -> None:
    sample = usage_files.judge_telemetry(GPU, errno.EACCES, "", "")
    (problem,) = sample.problems
    assert (problem.address, sample.devices) == (GPU, ())
    assert "Permission denied" in problem.reason
    absent = usage_files.judge_telemetry(GPU, errno.ENOENT, "", "")
    assert absent == usage.UsageSample()
