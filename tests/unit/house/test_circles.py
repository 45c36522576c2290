# SPDX-License-Identifier: Apache-2.0
"""Circles of the code: their picture, their sizes, and their imports."""

import pytest

from tests.support import golden
from tests.unit.house import circle_sizes
from tools import circles, draw_circles

RINGS = {circle.name: circle.ring for circle in circles.CIRCLES}
# Modules of the heart that import a circle by name, until it is registered.
UNCUT = {
    "FPGA": {
        "filters.glance_images",
        "nova_accel.claims.claim_plan",
        "nova_accel.claims.matching",
        "nova_accel.host.execute.action_executor",
        "nova_accel.host.execute.privileged",
        "nova_accel.host.execute.readback",
        "virt_hooks.hooks",
        "virt_hooks.operations.server_partitions",
        "virt_hooks.spawn.lifecycle",
        "virt_hooks.spawn.release",
        "virt_hooks.spawn.setup",
        "virt_hooks.spawn.spawn_plan",
    },
    "NVML": {
        "nova_accel.discovery.change_detection",
        "nova_accel.discovery.host_readings",
        "nova_accel.discovery.scan",
        "nova_accel.discovery.snapshot",
        "nova_accel.discovery.vgpu_guests",
        "nova_accel.host.execute.privileged",
        "nova_accel.host.execute.readback",
        "nova_accel.host.sysfs.error_counters",
        "nova_accel.host.sysfs.host_reader",
        "nova_accel.host.sysfs.repeated_reader",
        "placement_sync.daemon.heartbeat",
        "virt_hooks.spawn.setup",
    },
}


def count(name: str) -> int:
    modules = {
        **circles.list_members(),
        "inside Nova": circles.list_inside_nova(),
    }
    return circles.count_lines(modules[name])


def test_the_picture_is_up_to_date() -> None:
    golden.check(draw_circles.PATH, draw_circles.render())


def test_each_prefix_of_a_circle_has_modules() -> None:
    modules = circles.list_modules()
    prefixes = {p for circle in circles.CIRCLES for p in circle.prefixes}
    assert prefixes <= modules.keys()


def test_each_circle_is_on_the_page() -> None:
    text = (draw_circles.PATH.parent / "circles.rst").read_text()
    assert [name for name in RINGS if f"   * - {name}\n" not in text] == []


def test_a_circle_imports_no_circle_outside_of_it() -> None:
    outwards = {
        (source, target)
        for source, target in circles.list_arrows()
        if RINGS[source] < RINGS[target]
    }
    assert outwards == {(circles.HEART, name) for name in UNCUT}


@pytest.mark.parametrize("circle", UNCUT)
def test_no_more_modules_of_the_heart_import_a_circle(circle: str) -> None:
    importers = {
        module
        for module in circles.list_members()[circles.HEART]
        for imported in circles.list_imports(module)
        if circles.find_circle(imported) == circle
    }
    assert importers <= UNCUT[circle]


def test_nova_loads_no_package_by_imports() -> None:
    packages = {c.name for c in circles.CIRCLES if c.ring == circles.PACKAGES}
    loaded = map(circles.find_circle, circles.list_inside_nova())
    assert not packages & {*loaded}


@pytest.mark.parametrize("name", circle_sizes.HISTORY)
def test_a_circle_grows_only_with_a_reason(name: str) -> None:
    history = circle_sizes.HISTORY[name]
    assert count(name) <= history[-1].lines, (
        "add a limit with its reason to tests/unit/house/circle_sizes.py"
    )
    assert all(limit.since and limit.reason for limit in history)
    assert sorted(limit.since for limit in history) == [
        limit.since for limit in history
    ]


def test_each_package_has_a_limit() -> None:
    packages = {c.name for c in circles.CIRCLES if c.ring == circles.PACKAGES}
    assert {*packages, *circle_sizes.GOALS} == circle_sizes.HISTORY.keys()
