# SPDX-License-Identifier: Apache-2.0
"""The roles, the checks of ``doctor`` and ``nova-accel driver`` agree."""

from typing import Any

import pytest

from nova_accel.doctor import registry
from nova_accel.doctor.ansible import manifests, roles
from nova_accel.doctor.areas import kernel_drivers
from tests.unit.contrib import collection

CHECKS = registry.list_checks()
ROLES = collection.list_roles()


def checks_of(role: str) -> set[str]:
    variables = collection.load("roles", role, "vars", "main.yml")
    return {
        name
        for key, names in variables.items()
        if key.endswith("checks")
        for name in names
    }


def specs_of(role: str) -> dict[str, Any]:
    specs: dict[str, Any] = collection.load(
        "roles", role, "meta", "argument_specs.yml"
    )["argument_specs"]
    return specs


def test_the_collection_has_the_roles_of_the_command() -> None:
    names = [role.name for role in roles.ROLES]
    assert sorted(names) == ROLES
    (play,) = collection.load("playbooks", "driver.yml")
    assert play["vars"]["nova_accel_order"] == names


def test_each_role_that_doctor_names_exists() -> None:
    assert {check.ansible for check in CHECKS} <= {"", *ROLES}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_verifies_the_checks_that_name_it(role: str) -> None:
    named = {check.name for check in CHECKS if check.ansible == role}
    assert named <= checks_of(role) <= {check.name for check in CHECKS}
    assert checks_of(role)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_three_actions_with_specifications(role: str) -> None:
    specs = specs_of(role)
    assert specs.keys() == {"main", "install", "verify", "remove"}
    for action in specs:
        path = collection.TOP / "roles" / role / "tasks" / f"{action}.yml"
        assert path.is_file()


@pytest.mark.parametrize("role", ROLES)
def test_each_default_is_specified(role: str) -> None:
    defaults = collection.load("roles", role, "defaults", "main.yml")
    options = specs_of(role)["install"]["options"]
    assert defaults.keys() == options.keys()
    assert all(name.startswith(f"{role}_") for name in options)


@pytest.mark.parametrize("role", roles.ROLES, ids=lambda role: role.name)
def test_inputs_of_a_role_are_its_options(role: roles.DriverRole) -> None:
    options = specs_of(role.name)["install"]["options"]
    assert {name for names in role.inputs for name in names} <= set(options)


@pytest.mark.parametrize("role", ROLES)
def test_the_text_of_nova_conf_is_in_no_result(role: str) -> None:
    for path in (collection.TOP / "roles" / role / "tasks").iterdir():
        for task in collection.load("roles", role, "tasks", path.name):
            read = task.get("ansible.builtin.slurp", {}).get("src", "")
            assert not read.endswith("nova.conf") or task["no_log"], path


def test_technologies_are_those_of_doctor() -> None:
    assert {check.technology for check in CHECKS} >= roles.TECHNOLOGIES


def test_needed_modules_are_those_of_doctor() -> None:
    defaults = collection.load("roles", "blacklist", "defaults", "main.yml")
    needed = defaults["blacklist_needed_modules"]
    assert tuple(needed) == kernel_drivers._NEEDED


def test_manifests_have_one_directory() -> None:
    module = collection.load_module("manifest_file")
    defaults = collection.load("roles", "manifest", "defaults", "main.yml")
    assert (
        module.DIRECTORY == defaults["manifest_directory"]
        == manifests.DIRECTORY
    )  # fmt: skip
