#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Picture of the circles of the code, drawn from their imports.

``python -m tools.draw_circles`` writes it; a test checks that it is up to
date. Attributes of SVG are used, not CSS: converters to PDF read them, too.
"""

import math
from collections.abc import Iterator

from tools import circles

PATH = circles.ROOT / "doc/source/contributor/circles.svg"
_WIDTH, _HEIGHT = 1200, 640
# Bands from the heart outwards: top, height and middle of boxes.
_BANDS = ((530, 64, 562), (330, 185, 385), (215, 100, 255), (10, 190, 130))
_BAND_COLOURS = ("#eaf1fb", "#eef6eb", "#f3eefa", "#fbf3e1")
_BOX_COLOURS = ("#c7dcf5", "#d0e6c8", "#dccdf0", "#f0d9ab")
_TITLES = (
    "Heart: nova-compute",
    "Registered in nova-compute by entry points",
    "Other processes",
    "Packages: the rest never imports them",
)
_OTHER_PROCESSES, _OUTERMOST = (circles.SCHEDULER, circles.HOST_COMMANDS), 3
_NOTES = (
    "An arrow is an import. Not drawn: every circle imports the heart, and the"
    " packages import the host commands.",
)
_BOX = (108, 34)
# Height of an arc between two boxes of a band, by their distance.
_BEND = 0.1
_HEAD = 8
_TEXT = 'font-family="sans-serif" fill="#000"'
_ARROW = "#555"

Point = tuple[float, float]


def render() -> str:
    """Return the picture as SVG."""
    places = _place()
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}"'
        f' height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "<!-- Written by tools/draw_circles.py. -->",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        *_draw_bands(),
        *_draw_arrows(places),
        *_draw_boxes(places),
        *_draw_notes(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _place() -> dict[str, Point]:
    """Return the centres of the circles' boxes."""
    places = {}
    for band, (_, _, y) in enumerate(_BANDS):
        members = [c for c in circles.CIRCLES if _find_band(c) == band]
        for number, circle in enumerate(members):
            x = 10 + (_WIDTH - 20) * (number + 0.5) / len(members)
            places[circle.name] = (x, float(y))
    return places


def _find_band(circle: circles.Circle) -> int:
    if circle.name in _OTHER_PROCESSES:
        return 2
    return _OUTERMOST if circle.ring == circles.PACKAGES else circle.ring


def _draw_bands() -> Iterator[str]:
    for (top, height, _), colour, title in zip(
        _BANDS, _BAND_COLOURS, _TITLES, strict=True
    ):
        yield (
            f'<rect x="8" y="{top}" width="{_WIDTH - 16}" height="{height}"'
            f' rx="10" fill="{colour}" stroke="#bbb"/>'
        )
        yield (
            f'<text x="20" y="{top + height - 9}" font-size="12" {_TEXT}>'
            f"{title}</text>"
        )


def _draw_arrows(places: dict[str, Point]) -> Iterator[str]:
    bands = {circle.name: _find_band(circle) for circle in circles.CIRCLES}
    for source, target in sorted(circles.list_arrows()):
        is_package = bands[source] == _OUTERMOST
        if target == circles.HEART or (
            target == circles.HOST_COMMANDS and is_package
        ):
            continue
        start, end = places[source], places[target]
        if bands[source] == bands[target]:
            # Above the boxes of packages, and below the others.
            side = -1 if is_package else 1
            yield from _draw_arc(start, end, side)
        else:
            yield from _draw_line(start, end)


def _draw_line(start: Point, end: Point) -> Iterator[str]:
    side = math.copysign(_BOX[1] / 2, end[1] - start[1])
    first, last = (start[0], start[1] + side), (end[0], end[1] - side)
    yield from _draw_path(first, last, first)


def _draw_arc(start: Point, end: Point, side: int) -> Iterator[str]:
    edge = side * _BOX[1] / 2
    shift = math.copysign(_BOX[0] / 4, end[0] - start[0])
    first = (start[0] + shift, start[1] + edge)
    last = (end[0] - shift, end[1] + edge)
    bend = side * (20 + 2 * _BEND * abs(end[0] - start[0]))
    middle = ((first[0] + last[0]) / 2, first[1] + bend)
    yield from _draw_path(first, last, middle)


def _draw_path(first: Point, last: Point, middle: Point) -> Iterator[str]:
    """Yield a curve with a head; a line if its middle is its beginning."""
    yield (
        f'<path d="M {first[0]:.0f} {first[1]:.0f} Q {middle[0]:.0f}'
        f' {middle[1]:.0f} {last[0]:.0f} {last[1]:.0f}" fill="none"'
        f' stroke="{_ARROW}"/>'
    )
    angle = math.atan2(last[1] - middle[1], last[0] - middle[0])
    corners = [
        (
            last[0] - _HEAD * math.cos(angle + turn),
            last[1] - _HEAD * math.sin(angle + turn),
        )
        for turn in (0.4, -0.4)
    ]
    points = " ".join(f"{x:.0f},{y:.0f}" for x, y in (last, *corners))
    yield f'<polygon points="{points}" fill="{_ARROW}"/>'


def _draw_boxes(places: dict[str, Point]) -> Iterator[str]:
    width, height = _BOX
    for circle in circles.CIRCLES:
        x, y = places[circle.name]
        yield (
            f'<rect x="{x - width / 2:.0f}" y="{y - height / 2:.0f}"'
            f' width="{width}" height="{height}" rx="8"'
            f' fill="{_BOX_COLOURS[_find_band(circle)]}" stroke="#555"/>'
        )
        yield (
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle"'
            f' font-size="13" {_TEXT}>{circle.name}</text>'
        )


def _draw_notes() -> Iterator[str]:
    for number, note in enumerate(_NOTES):
        y = _HEIGHT - 26 + 17 * number
        yield f'<text x="12" y="{y}" font-size="12" {_TEXT}>{note}</text>'


if __name__ == "__main__":
    PATH.write_text(render())
