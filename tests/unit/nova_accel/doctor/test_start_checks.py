# SPDX-License-Identifier: Apache-2.0
"""nova-compute logs the failed checks that it does not make itself."""

import pytest

from nova_accel.doctor import start_checks
from tests.support.hosts import prepared
from tests.unit.nova_accel.doctor import changes


def find(name: str) -> list[tuple[str, str]]:
    host = prepared.changed(changes.CASES[name].change)
    return list(start_checks.find_failures(host.reader))


def test_a_failed_check_is_logged_once() -> None:
    ((name, text),) = find("drv.wrong")
    assert name == "drv.wrong"
    assert text == f"{prepared.GPU} is bound to nouveau"


def test_a_failed_device_is_logged_by_its_own_check() -> None:
    assert [name for name, _ in find("qat.errors-fatal")] == [
        "qat.errors-fatal"
    ]


@pytest.mark.parametrize("name", ["nova.options", "nova.sections"])
def test_what_nova_compute_ignores_is_logged(name: str) -> None:
    ((failed, text),) = find(name)
    assert failed == name
    assert "is ignored: nova-accel has no such" in text


@pytest.mark.parametrize(
    "name",
    ["nova.settings", "nova.device-spec", "nova.mdev-types", "nova.pci-spec"],
)
def test_errors_of_the_start_are_left_to_it(name: str) -> None:
    assert find(name) == []
