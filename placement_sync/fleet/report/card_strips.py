# SPDX-License-Identifier: Apache-2.0
"""Strip of a host: a small bar for each card, in lines of equal length."""

import dataclasses
import itertools
from collections.abc import Sequence

from placement_sync.fleet.report import card_bars

# Pixels of a small bar, and between two of them.
WIDTH, HEIGHT = 28, 16
GAP = 3
# Small bars in a line; a host with more has several lines.
PER_LINE = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SmallPart:
    """Part of a small bar, in pixels. ``kind`` is used, reserved or free."""

    kind: str
    x: float
    width: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SmallBar:
    """Small bar of a card, with its place in the strip in pixels."""

    bar: card_bars.CardBar
    x: int
    y: int
    parts: tuple[SmallPart, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardStrip:
    """Strip of a host, with its size in pixels."""

    width: int
    height: int
    bars: tuple[SmallBar, ...]


def build_strip(bars: Sequence[card_bars.CardBar]) -> CardStrip:
    """Return the strip of a host's cards."""
    lines = -(-len(bars) // PER_LINE)
    return CardStrip(
        width=PER_LINE * (WIDTH + GAP) - GAP,
        height=lines * (HEIGHT + GAP) - GAP,
        bars=tuple(
            SmallBar(
                bar=bar,
                x=number % PER_LINE * (WIDTH + GAP),
                y=number // PER_LINE * (HEIGHT + GAP),
                parts=_join_parts(bar),
            )
            for number, bar in enumerate(bars)
        ),
    )


def _join_parts(bar: card_bars.CardBar) -> tuple[SmallPart, ...]:
    """Return the parts of a bar in pixels; neighbours of a kind are one."""
    parts = []
    for kind, group in itertools.groupby(bar.parts, key=_find_kind):
        first, *others = group
        last = others[-1] if others else first
        start = first.start / bar.total * WIDTH
        end = (last.start + last.size) / bar.total * WIDTH
        parts.append(
            SmallPart(
                kind=kind, x=round(start, 1), width=round(end - start, 1)
            )
        )
    return tuple(parts)


def _find_kind(part: card_bars.BarPart) -> str:
    is_server = part.kind is card_bars.PartKind.SERVER
    return "used" if is_server else part.kind.value
