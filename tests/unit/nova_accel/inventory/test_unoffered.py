# SPDX-License-Identifier: Apache-2.0
"""`inspect` prints the reason for each accelerator that is not offered."""

import json
import pathlib
import time
from typing import Any

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.inventory import unoffered
from tests.hosts import build, look
from tests.unit.nova_accel.cli import test_inspect

GPU, NIC = "0000:07:00.0", "0000:18:00.0"
V100 = {
    "address": GPU,
    "id": "10de:1db7",
    "class": "030200",
    "driver": "nvidia",
    "group": 1,
}


@pytest.mark.parametrize(
    ("facts", "rule", "reason"),
    [
        ({}, {"use": "off"}, "device_spec says use off"),
        ({}, {"use": "vgpu"}, "device_spec says use vgpu"),
        (
            {"driver": "gim", "vfs": {"total": 8, "count": 2, "offset": 1}},
            None,
            "2 virtual functions enabled",
        ),
    ],
)
def test_a_line_or_existing_vfs_are_the_reason(
    tmp_path: pathlib.Path,
    capsys: test_inspect.Output,
    facts: dict[str, Any],
    rule: object,
    reason: str,
) -> None:
    """The golden reports of hosts have the other reasons."""
    build.build({"functions": [{**V100, **facts}]}, tmp_path / "host")
    line = f"device_spec = {json.dumps(rule)}\n" if rule else ""
    conf = tmp_path / "nova.conf"
    conf.write_text(f"[nova_accel]\n{line}root = {tmp_path / 'host'}\n")
    words = ("--config-file", str(conf), "--host", "node1", "-f", "json")
    report = json.loads(test_inspect.run(capsys, "inspect", *words))
    (entry,) = report["not_offered"]
    assert entry["address"] == GPU
    assert reason in entry["reason"]


def read_nic(root: pathlib.Path, rules: list[str]) -> model.HostState:
    """Read a host with a NIC whose NUMA node can't be read."""
    place = f"bus/pci/devices/{NIC}/numa_node"
    description = {
        "functions": [{"address": NIC, "id": "8086:1592", "class": "020000"}],
        "faults": [{"path": place, "is": {"fault": "EIO"}}],
    }
    return look.read(build.build(description, root), rules)


def test_a_function_that_is_no_accelerator_makes_no_problem(
    tmp_path: pathlib.Path,
) -> None:
    assert read_nic(tmp_path, []).problems == ()


def test_a_function_that_policy_names_makes_a_problem(
    tmp_path: pathlib.Path,
) -> None:
    rule = json.dumps({"address": NIC, "use": "passthrough"})
    problems = read_nic(tmp_path, [rule]).problems
    assert any("numa_node" in problem.reason for problem in problems)


def test_an_accelerator_off_the_bus_is_named_unless_it_is_offered(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("mtty", tmp_path))
    (entry,) = unoffered.find(
        state,
        (),
        policy.DeviceRules(),
        accelerators=("mtty", "accel0", GPU),
    )
    assert entry.address == "accel0"
    assert "not on the PCI bus" in entry.reason


def test_many_problems_take_little_time() -> None:
    problems = tuple(
        model.Problem(where=f"{n}", reason="is unreadable", address="x")
        for n in range(20_000)
    )
    state = model.HostState(devices=(), problems=problems)
    began = time.thread_time()
    assert unoffered.find(state, (), policy.DeviceRules(), problems) == ()
    assert time.thread_time() - began < 2.0
