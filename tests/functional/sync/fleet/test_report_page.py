# SPDX-License-Identifier: Apache-2.0
"""Page of the report in a real browser, and its pictures in the manual.

With ``NOVA_ACCEL_UPDATE_GOLDEN=1`` the pictures are written.
"""

import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from nova_accel.catalog import loader
from placement_sync.fleet.flavors import offered_devices
from placement_sync.fleet.report import fleet_report, report_page
from tests.functional.sync.fleet import browser
from tests.support import golden
from tests.support.placement import fleets, sized_fleets

if not browser.PROGRAM:
    pytest.skip("there is no Chromium", allow_module_level=True)

TYPES = offered_devices.VgpuTypes(loader.load())
FLAVORS = tuple(
    fleet_report.FlavorSpecs(
        name=f"gpu.{size.lower()}",
        specs={
            "resources_GPU1:VGPU": "1",
            "resources_GPU1:CUSTOM_GPU_MEMORY_MB": str(memory),
            f"trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_{size}": "required",
        },
        needs={},
    )
    for size, memory in (("2Q", 2048), ("8Q", 8192))
)
# Of a laptop, and the least width of Chromium's window.
WIDE, NARROW = (1280, 800), (500, 800)
WINDOWS = [
    pytest.param(WIDE, id="wide", marks=pytest.mark.long),
    pytest.param(NARROW, id="narrow"),
]
#: Numbers of cards.
COUNTS = [30, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 1000))]
# Pictures of the manual: number of cards, width and height of the window.
PICTURES = {
    "doc/source/admin/fleet-report.png": (240, *WIDE),
    "doc/source/admin/fleet-report-host.png": (8, 1000, 800),
}
ROOT = Path(__file__).parents[4]
MAX_PICTURE = 150_000
# Of a fleet of 1,000 cards with 8,000 servers.
MAX_PAGE = 2_500_000

_SCRIPT = """
const all = (selector, root = document) =>
    [...root.querySelectorAll(selector)];
const box = (element) => element.getBoundingClientRect();
const name = (element) => element.textContent.trim().slice(0, 60);
const wide = (element) => element.scrollWidth > element.clientWidth + 1;
"""
_GLANCE = (
    _SCRIPT
    + """
const rows = all('.host > summary').map((row) => [...row.children].map(box));
return {
    page: document.documentElement.scrollWidth - innerWidth,
    bottom: box(document.querySelector('.hosts')).bottom,
    overlaps: rows.filter(([title, strip, use]) =>
        title.right > strip.left || strip.bottom > use.bottom + 40 ||
        (use.left < strip.right && use.top < strip.bottom)).length,
    outside: rows.flat().filter((part) => part.right > innerWidth).length,
    bars: all('summary svg g').length,
    heights: all('summary svg g').filter((bar) => box(bar).height < 12).length,
};
"""
)
_UNFOLDED = (
    _SCRIPT
    + """
document.getElementById('unfold')?.click();
const bars = all('svg.bar text').map((text) =>
    [text, box(text), box(text.previousElementSibling)]);
return {
    page: document.documentElement.scrollWidth - innerWidth,
    names: all('figure li').filter((li) => !wide(li) && box(li).height > 9 &&
        box(li).right <= box(li.closest('figure')).right + 1).length,
    cut: bars.filter(([, label, part]) =>
        label.left < part.left || label.right > part.right ||
        label.top < part.top || label.bottom > part.bottom
    ).map(([text]) => name(text)),
    labels: bars.length,
    captions: all('figcaption').filter(wide).map(name),
};
"""
)
_COLORS = (
    _SCRIPT
    + """
document.getElementById('unfold')?.click();
const light = (color) => {
    const [r, g, b] = color.match(/[0-9.]+/g).slice(0, 3).map((value) => {
        const part = value / 255;
        return part <= 0.04045 ? part / 12.92 :
            ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
};
const style = (element) => getComputedStyle(element);
const page = style(document.body).backgroundColor;
const texts = ['body', '.dim', '.badge.faulted', '.badge.drained', 'a'];
const isServer = (rect) => /^s[0-9]/.test(rect.className.baseVal);
const servers = all('svg.bar rect').filter(isServer);
const labels = all('svg.bar text').filter((text) =>
    isServer(text.previousElementSibling));
return {
    page: light(page),
    texts: Math.min(...texts.map((each) =>
        contrast(style(document.querySelector(each)).color, page))),
    labels: Math.min(...labels.map((text) => contrast(style(text).fill,
        style(text.previousElementSibling).fill))),
    borders: Math.min(...servers.map((rect) =>
        contrast(style(rect).stroke, style(rect).fill))),
    widths: Math.min(...servers.map((rect) =>
        parseFloat(style(rect).strokeWidth))),
};
"""
)
_SELECTED = (
    _SCRIPT
    + """
const shown = () => all('.host').filter((host) => box(host).height > 0);
const click = (id) => document.getElementById(id).click();
const result = {all: shown().length};
for (const id of ['only-problems', 'only-room', 'only-full']) {
    click(id);
    result[id] = shown().map((host) => host.className);
}
click('only-all');
for (const id of ['by-room', 'by-problems', 'by-name']) {
    click(id);
    const first = shown().sort((a, b) =>
        box(a).top - box(b).top || box(a).left - box(b).left)[0];
    result[id] = first.getAttribute('style');
}
return result;
"""
)


@functools.cache
def render(count: int, **names: str) -> str:
    fleet = sized_fleets.build_fleet(count, **names)
    report = fleet_report.build(fleets.HEADER, fleet, FLAVORS, TYPES)
    return report_page.render(report)


def measure(
    place: Path,
    page: str,
    script: str,
    window: tuple[int, int] = WIDE,
    is_dark: bool = False,
) -> Any:
    width, height = window
    chromium = browser.Browser(
        place=place, width=width, height=height, is_dark=is_dark
    )
    return chromium.measure(page, script)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("count", COUNTS)
def test_nothing_of_the_folded_page_overflows(
    count: int, window: tuple[int, int], tmp_path: Path
) -> None:
    glance = measure(tmp_path, render(count), _GLANCE, window)
    assert glance["bars"] == count
    assert glance["page"] <= 0
    for fault in ("overlaps", "outside", "heights"):
        assert glance[fault] == 0, fault


@pytest.mark.parametrize("count", COUNTS)
def test_the_name_of_each_server_can_be_read(
    count: int, tmp_path: Path
) -> None:
    unfolded = measure(tmp_path, render(count), _UNFOLDED)
    servers = len(sized_fleets.build_fleet(count).servers)
    assert unfolded["names"] == servers
    assert unfolded["labels"] > servers / 2
    assert unfolded["cut"] == unfolded["captions"] == []
    assert unfolded["page"] <= 0


@pytest.mark.parametrize("window", WINDOWS)
def test_long_names_have_several_lines(
    window: tuple[int, int], tmp_path: Path
) -> None:
    """Nova allows 255 characters for the name of a host, and of a server."""
    page = render(30, prefix="h" * 252, suffix="s" * 240)
    glance = measure(tmp_path, page, _GLANCE, window)
    assert glance["page"] <= 0
    assert glance["overlaps"] == glance["outside"] == 0
    unfolded = measure(tmp_path, page, _UNFOLDED, window)
    assert unfolded["names"] == len(sized_fleets.build_fleet(30).servers)
    assert unfolded["page"] <= 0


def test_240_cards_are_on_one_screen(tmp_path: Path) -> None:
    glance = measure(tmp_path, render(240), _GLANCE)
    assert glance["bars"] == 240
    assert glance["bottom"] <= WIDE[1]


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_contrasts_suffice(is_dark: bool, tmp_path: Path) -> None:
    """WCAG 2.2: 4.5 for text (1.4.3), 3 for other graphics (1.4.11)."""
    colors = measure(tmp_path, render(30), _COLORS, is_dark=is_dark)
    assert (colors["page"] < 0.1) is is_dark
    assert colors["texts"] >= 4.5
    assert colors["labels"] >= 4.5
    assert colors["borders"] >= 3
    assert colors["widths"] >= 1


def test_hosts_are_selected_and_ordered_in_the_browser(
    tmp_path: Path,
) -> None:
    result = measure(tmp_path, render(240), _SELECTED)
    assert result["all"] == 30
    assert all("problem" in each.split() for each in result["only-problems"])
    assert all("room" in each.split() for each in result["only-room"])
    assert not any("room" in each.split() for each in result["only-full"])
    assert 0 < len(result["only-problems"]) < 30
    assert len(result["only-room"]) + len(result["only-full"]) == 30
    assert "--r:0;" in result["by-room"]
    assert result["by-problems"].endswith("--p:0")
    assert result["by-name"] != result["by-room"]


@pytest.mark.parametrize(
    "count", [240, pytest.param(1000, marks=pytest.mark.long)]
)
def test_the_page_of_many_cards_can_be_sent(count: int) -> None:
    assert len(render(count).encode()) < MAX_PAGE * count / 1000


@pytest.mark.parametrize("name", sorted(PICTURES), ids=os.path.basename)
def test_the_pictures_of_the_manual_are_of_this_page(
    name: str, tmp_path: Path
) -> None:
    count, width, height = PICTURES[name]
    page, picture = render(count), ROOT / name
    digest = hashlib.sha256(page.encode()).hexdigest()
    if os.environ.get(golden.UPDATE):
        browser.Browser(
            place=tmp_path, width=width, height=height
        ).take_picture(page, picture)
        browser.add_digest(picture, digest)
        pytest.skip(f"wrote {name}")
    assert browser.read_digest(picture) == digest, (
        f"{name} shows another page; write it with {golden.UPDATE}=1"
    )
    assert picture.stat().st_size < MAX_PICTURE
