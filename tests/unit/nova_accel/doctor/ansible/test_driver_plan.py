# SPDX-License-Identifier: Apache-2.0
"""The plan has the roles that cards and checks need, and no others."""

import json

import pytest

from nova_accel.cli import command_manager
from nova_accel.doctor import checked_host, host_checks, registry
from nova_accel.doctor.ansible import driver_plan, roles
from tests.support.hosts import prepared
from tests.unit.nova_accel.doctor import changes

CHECKS = registry.select(
    registry.list_checks(), (host_checks.Role.COMPUTE,)
)  # fmt: skip
Plan = tuple[driver_plan.PlannedRole, ...]


def plan_host(change: prepared.Change, *names: str) -> Plan:
    host = prepared.changed(change)
    return plan(host, names)


def plan(host: checked_host.CheckedHost, names: tuple[str, ...] = ()) -> Plan:
    return driver_plan.build_plan(
        host, registry.run(CHECKS, host), roles.ROLES, names
    )


def unbound(address: str) -> prepared.Change:
    return {prepared.at(address, "driver"): None}


def test_a_good_host_needs_no_role() -> None:
    assert plan_host({}) == ()


@pytest.mark.parametrize(
    "name", ["iommu.off", "drv.blacklist", "vfio.module", "qat.firmware"]
)
def test_a_failed_check_plans_its_role(name: str) -> None:
    (check,) = (check for check in CHECKS if check.name == name)
    case = changes.CASES[name]
    planned = {
        role.name: role.checks for role in plan_host(case.before | case.change)
    }
    assert name in planned[check.ansible]


@pytest.mark.parametrize(
    ("address", "role"),
    [
        (prepared.L40S, "nvidia_vgpu_host"),
        (prepared.MI300X, "amd_gim"),
        (prepared.FLEX, "intel_xe"),
        (prepared.QAT, "qat"),
        (prepared.ALVEO, "xrt"),
    ],
)
def test_a_card_without_a_driver_plans_its_role(
    address: str, role: str
) -> None:
    planned = {each.name: each.cards for each in plan_host(unbound(address))}
    assert address in planned[role]


@pytest.mark.parametrize("use", ["passthrough", "off"])
def test_a_card_without_partitions_needs_no_role(use: str) -> None:
    line = json.dumps({"address": prepared.L40S, "use": use})
    conf = f"{prepared.CONF}[nova_accel]\ndevice_spec = {line}\n"
    change = unbound(prepared.L40S) | {changes.NOVA_CONF: conf}
    planned = {each.name: each.cards for each in plan_host(change)}
    assert prepared.L40S not in planned.get("nvidia_vgpu_host", ())


def test_a_named_role_is_planned_without_a_reason() -> None:
    (planned,) = plan_host({}, "nvidia_datacenter")
    assert planned.name == "nvidia_datacenter"


def test_roles_are_in_the_order_of_their_installation() -> None:
    change = unbound(prepared.L40S) | changes.CASES["iommu.off"].change
    names = [planned.name for planned in plan_host(change)]
    assert names.index("iommu") < names.index("nvidia_vgpu_host")


@pytest.mark.parametrize(
    "variables",
    [
        {"nvidia_vgpu_host_installer", "nvidia_vgpu_host_sha256"},
        {"nvidia_vgpu_host_packages"},
    ],
)
def test_one_source_is_enough(variables: set[str]) -> None:
    host = prepared.changed({})
    driver_plan.check_complete(
        driver_plan.build_plan(
            host, (), roles.ROLES, ["nvidia_vgpu_host"], variables
        )
    )


def test_a_checksum_alone_is_no_source() -> None:
    planned = driver_plan.build_plan(
        prepared.changed({}),
        (),
        roles.ROLES,
        ["nvidia_vgpu_host"],
        {"nvidia_vgpu_host_sha256"},
    )
    with pytest.raises(command_manager.UsageError):
        driver_plan.check_complete(planned)


def test_roles_of_a_technology_are_selected() -> None:
    names = [role.name for role in roles.select_roles(["nvidia"])]
    assert names == [
        "nvidia_vgpu_host",
        "nvidia_datacenter",
        "nvidia_fabric_manager",
    ]


@pytest.mark.parametrize(
    ("technology", "address"),
    [
        ("nvidia", prepared.L40S),
        ("amd", prepared.MI300X),
        ("intel", prepared.FLEX),
        ("qat", prepared.QAT),
        ("fpga", prepared.DFL),
    ],
)
def test_a_technology_has_its_cards_only(
    technology: str, address: str
) -> None:
    host = prepared.changed({})
    owners = [
        name
        for name in sorted(roles.TECHNOLOGIES)
        if address in roles.list_devices(host, name)
    ]
    assert owners == [technology]
