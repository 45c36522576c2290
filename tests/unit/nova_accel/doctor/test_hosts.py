# SPDX-License-Identifier: Apache-2.0
"""Good hosts have no failure, and broken ones those that are listed."""

import json
import pathlib
import time
from collections.abc import Iterable

import pytest

from nova_accel.cli import commands
from nova_accel.doctor import checked_host, host_checks, offers, registry
from nova_accel.host.sysfs import host_reader
from tests.hosts import build, look, recorded

CHECKS = registry.select(registry.list_checks(), (host_checks.Role.COMPUTE,))
LIMIT_S = 2.0

# Failures of hosts that are broken on purpose, and of hosts that have a
# broken card among good ones: their notes describe it.
FAILURES = {
    "alveo-cards": {"fpga.offline"},
    "amd-vf": {"pci.reset"},
    "alveo-iommu-off": {"iommu.enabled"},
    "broken": {"iommu.enabled"},
    "broken-vf": {"iommu.enabled"},
    "dfl-broken": {"iommu.enabled"},
    "dfl-pac": {"iommu.group"},
    "iommu-off": {"iommu.enabled"},
    "kinds": {"iommu.enabled"},
    "passthrough": {"iommu.group", "drv.wrong"},
    "qat": {"qat.errors-fatal", "qat.offers"},
    "recorded/gpu-passthrough": {"iommu.group", "drv.wrong"},
    "recorded/h100-in-guest": {"iommu.firmware"},
    "recorded/h200-in-guest": {"iommu.firmware"},
    "recorded/iommu-off": {"iommu.enabled"},
    "recorded/mixed-server": {"pci.reset"},
}


def failures(
    reader: host_reader.HostReader,
    checks: Iterable[host_checks.HostCheck] = CHECKS,
) -> set[str]:
    host = checked_host.CheckedHost(reader)
    return {
        result.check.name
        for result in registry.run(checks, host)
        if result.level is host_checks.Level.FAIL
    }


@pytest.mark.parametrize("name", look.NAMES)
def test_a_described_host_has_the_listed_failures(
    tmp_path: pathlib.Path, name: str
) -> None:
    reader = host_reader.HostReader(look.make(name, tmp_path))
    assert failures(reader) == FAILURES.get(name, set())


@pytest.mark.parametrize("name", recorded.NAMES)
def test_a_recorded_host_has_the_listed_failures(name: str) -> None:
    reader = host_reader.HostReader(source=recorded.load(name))
    assert failures(reader) == FAILURES.get(f"recorded/{name}", set())


def assert_one_verdict(host: checked_host.CheckedHost) -> None:
    """Check that the doctor prints the problems of inspect, and no others."""
    printed = {
        observation.text
        for result in registry.run(CHECKS, host)
        for observation in result.observations
        if result.check.find.__module__ == offers.__name__
    }
    problems = {f"{p.where}: {p.reason}" for p in host.state.problems}
    reasons = {
        f"{item.address}: {text}"
        for item in host.unoffered
        for text in (item.reason, f"is not offered: {item.reason}")
    }
    assert problems <= printed
    assert printed <= problems | reasons


@pytest.mark.parametrize("name", look.NAMES)
def test_inspect_and_doctor_have_one_verdict(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    root = look.make(name, tmp_path)
    reader = host_reader.HostReader(root)
    host = checked_host.CheckedHost(reader)
    assert_one_verdict(host)
    assert commands.main(["inspect", "-f", "json", "--root", str(root)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(p["where"], p["reason"]) for p in report["problems"]] == [
        (p.where, p.reason) for p in host.state.problems
    ]


@pytest.mark.parametrize("name", recorded.NAMES)
def test_a_recorded_host_has_one_verdict(name: str) -> None:
    reader = host_reader.HostReader(
        source=recorded.load(name), gpus=recorded.load_gpus(name)
    )
    assert_one_verdict(checked_host.CheckedHost(reader))


@pytest.mark.slow
def test_272_functions_are_checked_in_two_seconds(
    tmp_path: pathlib.Path,
) -> None:
    functions = [
        {
            "address": f"0000:{bus:02x}:00.0",
            "id": "10de:26b9",
            "class": "030200",
            "driver": "nvidia",
            "group": bus,
            "vfs": {
                "total": 33,
                "count": 33,
                "offset": 4,
                "driver": "nvidia",
                "first_group": bus * 100,
                "vgpus": {"creatable": [[1145, "NVIDIA L40S-1B"]]},
            },
        }
        for bus in range(0x10, 0x90, 0x10)
    ]
    root = build.build({"functions": functions}, tmp_path)
    start = time.process_time()
    reader = host_reader.HostReader(root)
    assert failures(reader) == set()
    assert time.process_time() - start < LIMIT_S
    assert len(reader.functions()) == 272
