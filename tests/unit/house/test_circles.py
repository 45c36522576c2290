# SPDX-License-Identifier: Apache-2.0
"""Circles of the code: their picture, their sizes, and their imports."""

import pytest

from tests.support import golden
from tests.unit.house import circle_sizes
from tools import circles, draw_circles

RINGS = {circle.name: circle.ring for circle in circles.CIRCLES}


def count(name: str) -> int:
    modules = {**circles.list_members(), **circles.list_sums()}
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
    assert outwards == set()


def test_nova_loads_no_package_by_imports() -> None:
    packages = {c.name for c in circles.CIRCLES if c.ring == circles.PACKAGES}
    loaded = map(circles.find_circle, circles.list_inside_nova())
    assert not packages & {*loaded}


def test_nova_compute_loads_the_whole_heart_and_no_scheduler() -> None:
    loaded = circles.list_loaded_by("nova-compute")
    members = circles.list_members()
    assert loaded >= {*members[circles.HEART]}
    assert not loaded & {*members[circles.SCHEDULER]}


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


def test_each_circle_and_each_sum_has_a_limit() -> None:
    limited = circle_sizes.HISTORY.keys()
    assert limited == {*RINGS, *circles.list_sums()} - {circles.HOST_COMMANDS}
