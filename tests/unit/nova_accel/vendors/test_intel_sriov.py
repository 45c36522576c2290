# SPDX-License-Identifier: Apache-2.0
"""Proves how Intel GPUs with VFs are described and arranged."""

import json
import pathlib
from collections.abc import Iterable
from typing import Any

import pytest

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import scan
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions
from nova_accel.vendors import intel_sriov
from tests.hosts import build, look

FLEX = "0000:4d:00.0"
# The profile of a VF with an unknown quota.
PLAIN = "8086:56c0-VF"


def flex(**vfs: Any) -> dict[str, Any]:
    return {
        "address": FLEX,
        "id": "8086:56c0",
        "class": "038000",
        "driver": "i915",
        "group": 1,
        "vfs": {
            "total": 31,
            "count": 2,
            "offset": 1,
            "first_group": 10,
            **vfs,
        },
    }


def read(
    root: pathlib.Path,
    functions: Iterable[dict[str, Any]],
    rule: policy.Rule | None = None,
    faults: Iterable[dict[str, Any]] = (),
) -> model.HostState:
    build.build({"functions": functions, "faults": faults}, root)
    rules = policy.DeviceRules(rules=(rule,) if rule else ())
    return scan.read(host_reader.HostReader(root), look.DRIVERS, rules)


def arrange(root: pathlib.Path, rule: policy.Rule) -> list[str]:
    driver = intel_sriov.IntelSriovDriver()
    planned = driver.plan_arrange(
        host_reader.HostReader(root), policy.DeviceRules(rules=(rule,))
    )
    return [str(action) for action in planned]


def test_without_quotas_a_vf_has_a_plain_profile(
    tmp_path: pathlib.Path,
) -> None:
    (card,) = read(tmp_path, [flex()]).devices
    assert [p.name for p in card.profiles] == [PLAIN]
    assert card.counters == {"VGPU": 2}


def test_vfs_whose_quotas_are_unreadable_are_no_plain_vfs(
    tmp_path: pathlib.Path,
) -> None:
    faults = [
        {
            "path": f"bus/pci/devices/{FLEX}/sriov_admin/vf{n}/profile"
            "/vram_quota",
            "is": {"fault": "EIO"},
        }
        for n in (1, 2)
    ]
    state = read(tmp_path, [flex()], faults=faults)
    assert [d.counters for d in state.devices if d.counters] == []
    for vf in ("0000:4d:00.1", "0000:4d:00.2"):
        assert "its quota can't be read" in look.reasons(state, vf)


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"driver_of": {"0": "nouveau"}}, "nouveau"),
        ({"driver_of": {"0": "unknown"}}, "unknown"),
    ],
)
def test_a_vf_that_the_host_holds_is_not_offered(
    tmp_path: pathlib.Path, facts: dict[str, Any], word: str
) -> None:
    state = read(tmp_path, [flex(**facts)])
    assert look.device(state, FLEX).slots == ("0000:4d:00.2",)
    assert word in look.reasons(state, "0000:4d:00.1")


def test_vfs_of_one_group_go_to_one_guest(tmp_path: pathlib.Path) -> None:
    card = flex()
    card["group"] = 7
    card["driver"] = "i915"
    del card["vfs"]["first_group"]
    # The PF is in that group too, and i915 holds it.
    state = read(tmp_path / "1", [card])
    assert state.devices == ()
    assert f"{FLEX} in its IOMMU group 7" in look.reasons(state, FLEX)
    alone = [
        {
            "path": f"kernel/iommu_groups/7/devices/{FLEX}",
            "is": {"fault": "missing"},
        }
    ]
    state = read(tmp_path / "2", [card], faults=alone)
    assert look.device(state, FLEX).slots == ("0000:4d:00.1",)
    assert "shares its IOMMU group" in look.reasons(state, "0000:4d:00.2")


def test_equal_reasons_are_reported_once(tmp_path: pathlib.Path) -> None:
    card = flex(count=9)
    del card["group"], card["vfs"]["first_group"]
    state = read(tmp_path, [card])
    assert state.devices == ()
    (problem,) = state.problems
    assert "and 5 more" in problem.reason
    assert "intel_iommu=on" in problem.reason


def test_a_vf_may_be_kept_from_guests(tmp_path: pathlib.Path) -> None:
    rule = policy.Rule(address="0000:4d:00.1", use=policy.DeviceUse.OFF)
    (card,) = read(tmp_path, [flex()], rule).devices
    assert card.slots == ("0000:4d:00.2",)


@pytest.mark.parametrize(
    ("use", "offered"),
    [
        (policy.DeviceUse.AUTO, True),
        (policy.DeviceUse.VF, True),
        (policy.DeviceUse.VGPU, False),
        (policy.DeviceUse.MDEV, False),
        (policy.DeviceUse.OFF, False),
        (policy.DeviceUse.PASSTHROUGH, False),
    ],
)
def test_the_use_that_policy_names_counts(
    tmp_path: pathlib.Path, use: policy.DeviceUse, offered: bool
) -> None:
    state = read(tmp_path, [flex()], policy.Rule(address=FLEX, use=use))
    assert bool(state.devices) is offered


@pytest.mark.parametrize(
    ("count", "driver", "rule", "word"),
    [
        (0, "i915", policy.Rule(num_vfs=4), "when nova-compute starts"),
        (2, "i915", policy.Rule(num_vfs=99), "lower num_vfs"),
        (
            0,
            "ast",
            policy.Rule(use=policy.DeviceUse.VF),
            "bind 0000:4d:00.0 to xe",
        ),
    ],
)
def test_a_count_that_is_not_met_is_a_problem(
    tmp_path: pathlib.Path,
    count: int,
    driver: str,
    rule: policy.Rule,
    word: str,
) -> None:
    card = flex(count=count)
    card["driver"] = driver
    assert word in look.reasons(read(tmp_path, [card], rule), FLEX)


def test_use_vf_on_a_card_without_any_is_a_problem(
    tmp_path: pathlib.Path,
) -> None:
    card = flex()
    del card["vfs"]
    rule = policy.Rule(use=policy.DeviceUse.VF)
    assert "SR-IOV" in look.reasons(read(tmp_path, [card], rule), FLEX)


@pytest.mark.parametrize(
    ("facts", "num_vfs", "planned"),
    [
        ({"count": 0}, 4, True),
        ({"count": 2}, 4, True),
        ({"count": 2, "driver": "i915"}, 4, True),
        ({"count": 2}, 0, True),
        ({"count": 2}, 2, False),
        ({"count": 2}, None, False),
        ({"count": 2, "driver": "vfio-pci"}, 4, False),
        ({"count": 2, "driver_of": {"1": "xe-vfio-pci"}}, 4, False),
        ({"count": 2}, 32, False),
    ],
)
def test_vf_counts_are_changed_while_nothing_uses_them(
    tmp_path: pathlib.Path,
    facts: dict[str, Any],
    num_vfs: int | None,
    planned: bool,
) -> None:
    build.build({"functions": [flex(**facts)]}, tmp_path)
    rule = policy.Rule(address=FLEX, num_vfs=num_vfs)
    action = f"set {num_vfs} virtual functions on {FLEX}"
    assert arrange(tmp_path, rule) == ([action] if planned else [])


def test_new_vfs_are_kept_from_the_hosts_drivers(
    tmp_path: pathlib.Path,
) -> None:
    build.build({"functions": [flex(count=2)]}, tmp_path)
    rules = policy.DeviceRules(rules=(policy.Rule(num_vfs=8),))
    driver = intel_sriov.IntelSriovDriver()
    assert driver.plan_arrange(host_reader.HostReader(tmp_path), rules) == (
        actions.SetVfCount(function=FLEX, count=8, before=2, is_probed=False),
    )


def test_a_vf_that_is_not_readable_is_in_use(tmp_path: pathlib.Path) -> None:
    fault = {
        "path": "bus/pci/devices/0000:4d:00.1/vendor",
        "is": {"fault": "EIO"},
    }
    build.build({"functions": [flex()], "faults": [fault]}, tmp_path)
    assert arrange(tmp_path, policy.Rule(num_vfs=4)) == []


def test_a_captured_line_of_json_names_vfs(tmp_path: pathlib.Path) -> None:
    root = look.make("intel-vf", tmp_path)
    line = json.dumps({"address": FLEX, "use": "off"})
    assert look.read(root, [line]).device(FLEX) is None
