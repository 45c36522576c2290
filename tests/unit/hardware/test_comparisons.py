# SPDX-License-Identifier: Apache-2.0
"""The program for real GPUs notices each value that differs.

``h200.xml`` is what nvidia-smi printed of the recorded host's GPU, without
its clocks.
"""

import dataclasses
import pathlib
import subprocess
import sys

import pytest

from nova_accel.catalog import loader
from nova_accel.model import usage
from tests.hardware import comparisons, smi
from tests.hardware.comparisons import Result
from tests.hosts import recorded

XML = (pathlib.Path(__file__).parent / "h200.xml").read_text()
HOST, ADDRESS = "h200-in-guest", "0000:00:06.0"
# What nvidia-smi 580 printed on that machine, shortened.
PROFILES = """\
|   0  MIG 1g.18gb         19     7/7        16.00      No     16     1     0   |
|   0  MIG 1g.18gb+me      20     1/1        16.00      No     16     1     0   |
|   0  MIG 1g.35gb         15     4/4        32.50      No     26     1     0   |
|   0  MIG 2g.35gb         14     3/3        32.50      No     32     2     0   |
|   0  MIG 3g.71gb          9     2/2        69.75      No     60     3     0   |
|   0  MIG 4g.71gb          5     1/1        69.75      No     64     4     0   |
|   0  MIG 7g.141gb         0     1/1        140.00     No     132    7     0   |
"""  # noqa: E501
PLACES = """\
GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID 20 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID 15 Placements: {0,2,4,6}:2
GPU  0 Profile ID 14 Placements: {0,2,4}:2
GPU  0 Profile ID  9 Placements: {0,4}:4
GPU  0 Profile ID  5 Placement : {0}:4
GPU  0 Profile ID  0 Placement : {0}:8
"""
USAGE = usage.DeviceUsage(
    address=ADDRESS,
    engines=tuple(
        usage.EngineUsage(engine=name, ratio=0.0)
        for name in comparisons.ENGINES
    ),
    memory_used=0,
    power_watts=82.0,
    temperature_celsius=37.0,
)


def compare_state(xml: str) -> dict[str, Result]:
    gpu = recorded.load_gpus(HOST)[ADDRESS]
    version, described = smi.parse_smi(xml)
    rows = comparisons.compare_state(gpu, version, described[ADDRESS], 0)
    return {row.value: row.result for row in rows}


def compare_usage(measured: usage.DeviceUsage) -> dict[str, Result]:
    described = smi.parse_smi(XML)[1][ADDRESS]
    rows = comparisons.compare_usage(measured, described, described)
    return {row.value: row.result for row in rows}


def test_the_state_of_a_recorded_gpu_agrees() -> None:
    assert compare_state(XML) == {
        "driver": Result.AGREES,
        "memory, MiB": Result.AGREES,
        "MIG": Result.AGREES,
        "mixed sizes": Result.UNSUPPORTED,
        "ECC: now, pending": Result.AGREES,
        "fabric": Result.UNSUPPORTED,
        "needs recovery": Result.AGREES,
        "has NVLinks": Result.AGREES,
        "fault": Result.AGREES,
    }


@pytest.mark.parametrize(
    ("value", "before", "after"),
    [
        ("driver", "580.159.04</driver", "580.159.05</driver"),
        ("memory, MiB", "143771 MiB", "143770 MiB"),
        ("MIG", "Disabled</current_mig", "Enabled</current_mig"),
        ("mixed sizes", "N/A</vgpu_het", "Enabled</vgpu_het"),
        ("ECC: now, pending", "Enabled</pending_ecc", "Disabled</pending_ecc"),
        ("fabric", "<state>N/A", "<state>Completed"),
        ("needs recovery", "None</gpu_recovery", "Reset</gpu_recovery"),
    ],
)
def test_another_state_differs(value: str, before: str, after: str) -> None:
    assert before in XML
    results = compare_state(XML.replace(before, after, 1))
    assert [v for v, r in results.items() if r is Result.DIFFERS] == [value]


def test_links_differ() -> None:
    gpu = recorded.load_gpus(HOST)[ADDRESS]
    version, described = smi.parse_smi(XML)
    active = smi.count_links("\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n")
    assert active == 1
    rows = comparisons.compare_state(gpu, version, described[ADDRESS], active)
    assert [r.value for r in rows if r.result is Result.DIFFERS] == [
        "has NVLinks"
    ]


def test_usage_agrees() -> None:
    assert set(compare_usage(USAGE).values()) == {Result.AGREES}


@pytest.mark.parametrize(
    "changed",
    [
        {"memory_used": 480 * 1024 * 1024},
        {"memory_used": None},
        {"power_watts": 700.0},
        {"temperature_celsius": 20.0},
        {"engines": USAGE.engines[1:]},
        {"engines": (usage.EngineUsage(engine="compute", ratio=0.9),)},
    ],
)
def test_another_usage_differs(changed: dict[str, object]) -> None:
    measured = dataclasses.replace(USAGE, **changed)  # type: ignore[arg-type]
    assert Result.DIFFERS in compare_usage(measured).values()


def test_the_printed_mig_kinds_are_those_of_the_catalog() -> None:
    gpu = next(g for g in loader.load().gpus() if "10de:2335" in g.pci_ids)
    printed = smi.parse_kinds(PROFILES, PLACES)
    rows = [*comparisons.compare_kinds("", printed, gpu.kinds, "catalog")]
    assert len(rows) == 7
    assert {row.result for row in rows} == {Result.AGREES}
    rows = [*comparisons.compare_kinds("", printed[1:], gpu.kinds, "")]
    assert [r.result for r in rows].count(Result.DIFFERS) == 1


def test_instances_are_parsed() -> None:
    # The form of `nvidia-smi mig -lgi` in NVIDIA's MIG User Guide.
    text = (
        "|   0  MIG 1g.5gb          19        9          2:1     |\n"
        "|   0  MIG 3g.20gb          9        1          4:4     |\n"
    )
    assert smi.parse_instances(text) == {("1g.5gb", 2, 1), ("3g.20gb", 4, 4)}


def test_no_serial_number_is_left() -> None:
    private = "<a><serial>123</serial><uuid>GPU-5</uuid><x>1</x></a>"
    assert smi.remove_identity(private) == (
        "<a><serial>removed</serial><uuid>removed</uuid><x>1</x></a>"
    )


def test_a_machine_without_a_gpu_is_no_success(tmp_path: pathlib.Path) -> None:
    if pathlib.Path("/dev/nvidiactl").exists():
        pytest.skip("there is an NVIDIA GPU")
    completed = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-m", "tests.hardware", "--output", tmp_path / "out"],
        cwd=pathlib.Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert completed.returncode == 2
    assert "NVML has no GPU" in completed.stderr
