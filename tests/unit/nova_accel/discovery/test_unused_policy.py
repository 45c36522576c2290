# SPDX-License-Identifier: Apache-2.0
"""Unused device_spec lines are reported as problems."""

import pathlib

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import scan
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import host_reader
from tests.hosts import look

T4 = "0000:3b:00.0"
SPEC = "device_spec = "


def idle(state: model.HostState) -> list[str]:
    return [
        f"{p.where.partition(SPEC)[2]} {p.reason}"
        for p in state.problems
        if SPEC in p.where
    ]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return look.make("t4-mdev", tmp_path)


def test_a_line_for_another_host_is_a_problem(root: pathlib.Path) -> None:
    line = '{"address": {"bus": "99"}, "use": "mig"}'
    (reason,) = idle(look.read(root, [line, "{}"]))
    assert reason.startswith(line)
    assert "matches nothing on this host" in reason


def test_a_line_for_an_unreadable_device_is_no_problem(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("broken", tmp_path)
    unknown = sorted(look.read(root).unknown)
    assert unknown
    line = f'{{"address": "{unknown[0]}"}}'
    assert idle(look.read(root, [line])) == []


def test_on_an_unlistable_host_no_line_is_a_problem(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "sys/bus/pci").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").write_text("no directory")
    state = look.read(tmp_path, ['{"vendor_id": "10de"}'])
    assert not state.complete
    assert idle(state) == []


def test_problems_of_nvml_are_among_the_problems(
    root: pathlib.Path,
) -> None:
    lost = model.Problem(where="NVML GPU 1", reason="GPU is lost")
    host = host_reader.HostReader(root, gpus=nvml_gpus.NvmlGpus({}, (lost,)))
    state = scan.read(host, look.DRIVERS, policy.DeviceRules())
    assert lost in state.problems
    assert look.device(state, T4).profiles
