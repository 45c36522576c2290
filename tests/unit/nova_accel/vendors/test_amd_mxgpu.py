# SPDX-License-Identifier: Apache-2.0
"""Proves how AMD GPUs with VFs of gim are described."""

import json
import pathlib
from typing import Any

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import scan
from nova_accel.host.sysfs import host_reader
from nova_accel.vendors import amd_mxgpu
from tests.hosts import build, look

MI25 = "0000:43:00.0"
UNBOUND = "0000:85:00.0"


def card(count: int = 2, **facts: Any) -> dict[str, Any]:
    return {
        "address": MI25,
        "id": "1002:6860",
        "class": "038000",
        "driver": "gim",
        "group": 1,
        "vfs": {
            "total": 16,
            "count": count,
            "offset": 16,
            "id": "1002:686c",
            "first_group": 10,
        },
        **facts,
    }


def read(
    root: pathlib.Path,
    function: dict[str, Any],
    rule: policy.Rule | None = None,
) -> model.HostState:
    build.build({"functions": [function]}, root)
    rules = policy.DeviceRules(rules=(rule,) if rule else ())
    return scan.read(host_reader.HostReader(root), look.DRIVERS, rules)


def test_an_unbound_card_is_passed_through(tmp_path: pathlib.Path) -> None:
    # A GPU although its class is that of any processing accelerator.
    line = json.dumps({"address": UNBOUND, "use": "passthrough"})
    state = look.read(look.make("amd-vf", tmp_path), [line])
    device = look.device(state, UNBOUND)
    assert device.technology == "passthrough"
    assert device.counters == {"PGPU": 1}


def test_vf_counts_are_gims_to_set(tmp_path: pathlib.Path) -> None:
    rule = policy.Rule(num_vfs=4)
    state = read(tmp_path, card(), rule)
    assert look.device(state, MI25).counters == {"VGPU": 2}
    assert "options gim vf_num=N" in look.reasons(state, MI25)
    planned = amd_mxgpu.AmdMxgpuDriver().plan_arrange(
        host_reader.HostReader(tmp_path), policy.DeviceRules(rules=(rule,))
    )
    assert planned == ()


def test_an_mi300x_has_one_vf_or_eight(tmp_path: pathlib.Path) -> None:
    function = card(0, id="1002:74a1")
    function["class"] = "120000"
    assert "1 or 8" in look.reasons(read(tmp_path, function), MI25)


@pytest.mark.parametrize(
    ("facts", "use", "word"),
    [
        ({"driver": "amdgpu"}, policy.DeviceUse.AUTO, "bound to amdgpu"),
        ({"driver": None}, policy.DeviceUse.AUTO, "bound to no driver"),
        ({"vfs": None}, policy.DeviceUse.VF, "SR-IOV"),
    ],
)
def test_vfs_need_gim(
    tmp_path: pathlib.Path,
    facts: dict[str, Any],
    use: policy.DeviceUse,
    word: str,
) -> None:
    function = {k: v for k, v in card(**facts).items() if v is not None}
    state = read(tmp_path, function, policy.Rule(address=MI25, use=use))
    assert state.devices == ()
    assert word in look.reasons(state, MI25)


def test_a_vf_needs_no_action(tmp_path: pathlib.Path) -> None:
    (device,) = read(tmp_path, card()).devices
    claim = model.Claim(
        consumer="c",
        provider="p",
        device=MI25,
        profile=device.profiles[0].name,
        slot=device.slots[0],
        parent=device.slots[0],
        handle=device.slots[0],
        technology=device.technology,
    )
    driver = look.DRIVERS[device.plugin]
    assert driver.plan_prepare(claim) == driver.plan_release(claim) == ()
