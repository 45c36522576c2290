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


def inspect(
    root: pathlib.Path,
    capsys: test_inspect.Output,
    facts: dict[str, Any],
    rule: object = None,
) -> tuple[list[dict[str, Any]], str]:
    """Return both reports of a host that has one GPU."""
    build.build({"functions": [{**V100, **facts}]}, root / "host")
    lines = [f"device_spec = {json.dumps(rule)}"] if rule else []
    conf = root / "nova.conf"
    conf.write_text(
        "\n".join(
            [
                "[DEFAULT]",
                "host = node1",
                "[nova_accel]",
                *lines,
                f"root = {root / 'host'}",
            ]
        )
    )
    options = ["inspect", "--config-file", str(conf)]
    output = json.loads(test_inspect.run(capsys, *options, "-f", "json"))
    return output["not_offered"], test_inspect.run(capsys, *options)


@pytest.mark.parametrize(
    ("facts", "rule", "reason"),
    [
        ({}, None, "the host's driver nvidia holds it"),
        ({"group": None}, None, "in no IOMMU group"),
        ({"group": None, "driver": None}, None, "in no IOMMU group"),
        ({}, {"use": "off"}, "device_spec says use off"),
        ({"boot_vga": 1}, None, "the host's boot display"),
        ({}, {"use": "vgpu"}, "device_spec says use vgpu"),
        (
            {"id": "1002:74a1", "class": "120000", "driver": "amdgpu"},
            None,
            f'device_spec = {{"address": "{GPU}", "use": "passthrough"}}',
        ),
        (
            {"driver": "gim", "vfs": {"total": 8, "count": 2, "offset": 1}},
            None,
            "2 virtual functions enabled",
        ),
    ],
)
def test_each_unoffered_accelerator_has_a_reason(
    tmp_path: pathlib.Path,
    capsys: test_inspect.Output,
    facts: dict[str, Any],
    rule: object,
    reason: str,
) -> None:
    (entry,), text = inspect(tmp_path, capsys, facts, rule)
    assert entry.keys() == {
        "address",
        "vendor_id",
        "product_id",
        "model",
        "class",
        "driver",
        "reason",
    }
    assert entry["address"] == GPU
    card = {**V100, **facts}
    assert f"{entry['vendor_id']}:{entry['product_id']}" == card["id"]
    assert (entry["class"], entry["driver"]) == (card["class"], card["driver"])
    assert reason in entry["reason"]
    assert reason in text


def test_the_printed_line_offers_the_accelerator(
    tmp_path: pathlib.Path, capsys: test_inspect.Output
) -> None:
    facts = {"id": "1002:74a1", "class": "120000", "driver": "amdgpu"}
    (entry,), _ = inspect(tmp_path / "without", capsys, facts)
    rule = json.loads(entry["reason"].partition("device_spec = ")[2])
    rows, _ = inspect(tmp_path / "with", capsys, facts, rule)
    assert rows == []


def test_an_offered_accelerator_has_no_reason(
    tmp_path: pathlib.Path, capsys: test_inspect.Output
) -> None:
    rows, text = inspect(tmp_path, capsys, {"driver": "vfio-pci"})
    assert rows == []
    assert "Not offered" not in text


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
