# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of spans: free ones, how many fit, which one to take.

What is taken of a region is a bit mask, one bit for each unit.
"""

import functools
from collections.abc import Callable, Iterable

from nova_accel import model

Score = Callable[[int], tuple[int, ...]]


def mask(spans: Iterable[model.Span]) -> int:
    """Return the units that spans take, as bits."""
    taken = 0
    for span in spans:
        taken |= ((1 << span.size) - 1) << span.start
    return taken


def openings(
    starts: Iterable[int], size: int, region: int, taken: int
) -> tuple[int, ...]:
    """Return the starts at which ``size`` units are free, in order.

    :param region: the region's length; 0 where nobody tells it, and the
        allowed starts are all there is to go by.
    """
    bits = (1 << size) - 1
    return tuple(
        start
        for start in sorted(set(starts))
        if not (bits << start) & taken
        and (not region or start + size <= region)
    )


def most(options: Iterable[tuple[int, int]]) -> int:
    """Return how many of some places can be taken side by side.

    Taking whatever ends first is the best there is for that number.

    :param options: places, as start and size.
    """
    count = end = 0
    for stop, start in sorted((s + size, s) for s, size in options):
        if start >= end:
            count, end = count + 1, stop
    return count


@functools.lru_cache(maxsize=1 << 16)
def room(starts: tuple[int, ...], size: int, region: int, taken: int) -> int:
    """Return how many of one length go side by side into what is free.

    Remembered: whoever compares places asks for the same ones again.
    """
    return most((s, size) for s in openings(starts, size, region, taken))


def best(starts: Iterable[int], size: int, taken: int, score: Score) -> int:
    """Return the start that leaves the best score, of equals the lowest.

    :param starts: where it can begin; at least one.
    :param score: rates what would be taken then; more is better.
    """
    bits = (1 << size) - 1
    return max(starts, key=lambda s: (score(taken | bits << s), -s))
