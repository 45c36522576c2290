# SPDX-License-Identifier: Apache-2.0
"""Proves how VFs of NVMe disks and of named PFs are described."""

import json
import pathlib
from typing import Any

import pytest

from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions
from nova_accel.vendors import pci_vf
from tests.hosts import build, look

DISK = "0000:61:00.0"
NIC = "0000:11:00.0"


def disk(**vfs: Any) -> dict[str, Any]:
    return {
        "address": DISK,
        "id": "144d:a824",
        "class": "010802",
        "driver": "nvme",
        "group": 1,
        "vfs": {
            "total": 32,
            "count": 2,
            "offset": 1,
            "first_group": 10,
            **vfs,
        },
    }


def read(
    root: pathlib.Path, function: dict[str, Any], **rule: Any
) -> tuple[list[str], str]:
    """Return the offered slots, and the problems of the PF."""
    build.build({"functions": [function]}, root)
    state = look.read(root, [json.dumps(rule)] if rule else [])
    slots = [slot for device in state.devices for slot in device.slots]
    return slots, look.reasons(state, function["address"])


def arrange(
    root: pathlib.Path, function: dict[str, Any], rule: policy.Rule
) -> tuple[actions.Action, ...]:
    build.build({"functions": [function]}, root)
    rules = policy.DeviceRules(rules=(rule,))
    driver = pci_vf.PciVfDriver()
    return tuple(driver.plan_arrange(host_reader.HostReader(root), rules))


@pytest.mark.parametrize("fault", ["EIO", "missing"])
def test_vfs_of_a_disk_with_an_unreadable_total_are_offered(
    tmp_path: pathlib.Path, fault: str
) -> None:
    root = look.make("nvme", tmp_path)
    path = f"bus/pci/devices/{DISK}/sriov_totalvfs"
    build.break_path(root, path, {"fault": fault})
    device = look.device(look.read(root), DISK)
    assert device.counters == {"CUSTOM_NVME_VF": 3}


def test_vfs_of_unknown_cards_are_offered_if_named(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("kinds", tmp_path)
    for rule in (
        {"address": NIC, "use": "vf"},
        {"vendor_id": "8086", "product_id": "1592", "use": "vf"},
    ):
        state = look.read(root, [json.dumps(rule)])
        device = look.device(state, NIC)
        # One VF is the host's network.
        assert device.slots == ("0000:11:01.1", "0000:11:01.2")
        assert device.counters == {"CUSTOM_PCI_8086_1592_VF": 2}
        assert "iavf" in look.reasons(state, "0000:11:01.0")
        assert "sriov_drivers_autoprobe" in look.reasons(state, NIC)


@pytest.mark.parametrize(
    "rule",
    [
        {"use": "vf"},
        {"address": NIC},
        {"address": NIC, "use": "auto", "num_vfs": 2},
        {"address": NIC, "use": "off"},
    ],
)
def test_other_lines_leave_a_network_card_alone(
    tmp_path: pathlib.Path, rule: dict[str, Any]
) -> None:
    state = look.read(look.make("kinds", tmp_path), [json.dumps(rule)])
    assert state.device(NIC) is None


def test_a_line_for_a_vendor_reports_no_card_without_sriov(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("kinds", tmp_path)
    line = json.dumps({"vendor_id": "8086", "use": "vf"})
    state = look.read(root, [line])
    assert look.device(state, NIC).counters == {"CUSTOM_PCI_8086_1592_VF": 2}
    assert look.reasons(state, "0000:6a:01.0") == ""
    line = json.dumps({"address": "0000:6a:01.0", "use": "vf"})
    state = look.read(root, [line])
    reason = look.reasons(state, "0000:6a:01.0")
    assert reason.endswith("no SR-IOV in it; correct its device_spec line")


@pytest.mark.parametrize(
    ("facts", "rule", "word"),
    [
        ({"count": 0}, {}, ""),
        ({"count": 0}, {"num_vfs": 4}, "when nova-compute starts"),
        ({"count": 2}, {"num_vfs": 99}, "lower num_vfs"),
        ({"count": 0}, {"use": "vf"}, '"num_vfs": '),
        ({"count": 2, "driver": "vfio-pci"}, {"num_vfs": 4}, "in one"),
    ],
)
def test_a_wrong_count_is_reported(
    tmp_path: pathlib.Path,
    facts: dict[str, Any],
    rule: dict[str, Any],
    word: str,
) -> None:
    _, reasons = read(tmp_path, disk(**facts), address=DISK, **rule)
    assert (word in reasons) if word else not reasons


def test_a_disk_that_no_driver_has_can_enable_none(
    tmp_path: pathlib.Path,
) -> None:
    idle = disk(count=0)
    idle["driver"] = "vfio-pci"
    _, reasons = read(tmp_path, idle, address=DISK, use="vf", num_vfs=4)
    assert "vfio-pci can't do that" in reasons
    rule = policy.Rule(address=DISK, use=policy.DeviceUse.VF, num_vfs=4)
    assert arrange(tmp_path / "again", idle, rule) == ()


@pytest.mark.parametrize(
    ("facts", "rule", "planned"),
    [
        ({"count": 0}, policy.Rule(num_vfs=4), True),
        ({"count": 2}, policy.Rule(num_vfs=4), True),
        ({"count": 4}, policy.Rule(num_vfs=4), False),
        ({"count": 2, "driver": "nvme"}, policy.Rule(num_vfs=4), False),
        ({"count": 2, "driver": "vfio-pci"}, policy.Rule(num_vfs=4), False),
        ({"count": 0}, policy.Rule(num_vfs=64), False),
        ({"count": 0}, policy.Rule(), False),
    ],
)
def test_vf_counts_of_disks_follow_policy(
    tmp_path: pathlib.Path,
    facts: dict[str, Any],
    rule: policy.Rule,
    planned: bool,
) -> None:
    action = actions.SetVfCount(
        function=DISK,
        count=4,
        before=facts["count"],
        is_probed=False,
    )
    planned_actions = arrange(tmp_path, disk(**facts), rule)
    assert planned_actions == ((action,) if planned else ())


@pytest.mark.parametrize(
    ("function", "rule", "planned"),
    [
        # A GPU, a QAT device and an FPGA card have their own drivers.
        ({"id": "1002:73a1", "class": "030000"}, {"address": DISK}, 0),
        ({"id": "8086:4940", "class": "0b4000"}, {"address": DISK}, 0),
        ({"id": "8086:09c4", "driver": "dfl-pci"}, {"address": DISK}, 0),
        ({"id": "8086:1592", "class": "020000"}, {"address": DISK}, 1),
        ({"id": "8086:1592", "class": "020000"}, {}, 0),
    ],
)
def test_cards_of_other_drivers_are_not_described(
    tmp_path: pathlib.Path,
    function: dict[str, Any],
    rule: dict[str, Any],
    planned: int,
) -> None:
    card = disk(count=0) | {"class": "120000"} | function
    line = policy.Rule(use=policy.DeviceUse.VF, num_vfs=4, **rule)
    assert len(arrange(tmp_path, card, line)) == planned


def test_a_vf_that_shares_its_group_or_cant_be_reset_is_not_offered(
    tmp_path: pathlib.Path,
) -> None:
    shared = disk()
    del shared["vfs"]["first_group"]
    slots, reasons = read(tmp_path / "1", shared)
    assert slots == []
    assert "IOMMU group 1" in reasons
    stuck = {
        "path": "bus/pci/devices/0000:61:00.1/reset_method",
        "is": "\n",
    }
    build.build({"functions": [disk()], "faults": [stuck]}, tmp_path / "2")
    state = look.read(tmp_path / "2")
    assert look.device(state, DISK).slots == ("0000:61:00.2",)
    assert "reset" in look.reasons(state, "0000:61:00.1")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ({"address": DISK, "use": "vf", "scrub": "none"}, True),
        ({"address": DISK, "use": "vf"}, False),
    ],
)
def test_vfs_without_reset_are_offered_by_the_line_of_their_card(
    tmp_path: pathlib.Path, line: dict[str, str], offered: bool
) -> None:
    build.build({"functions": [disk()]}, tmp_path)
    for vf in ("0000:61:00.1", "0000:61:00.2"):
        for name in ("reset", "reset_method"):
            (tmp_path / "sys/bus/pci/devices" / vf / name).unlink()
    state = look.read(tmp_path, [json.dumps(line)])
    device = state.device(DISK)
    assert (device is not None and len(device.slots) == 2) is offered
    reason = look.reasons(state, DISK)
    assert ('"use": "vf", "scrub": "none"' in reason) is not offered
