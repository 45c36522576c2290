# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of spans in the region of a device.

The occupied part of a region is a bit mask with one bit per unit.
"""

import functools
from collections.abc import Callable, Iterable

from nova_accel import model

Score = Callable[[int], tuple[int, ...]]


def to_mask(spans: Iterable[model.Span]) -> int:
    """Return the bit mask of the units in spans."""
    mask = 0
    for span in spans:
        mask |= ((1 << span.size) - 1) << span.start
    return mask


def free_starts(
    starts: Iterable[int], size: int, region: int, occupied: int
) -> tuple[int, ...]:
    """Return the starts at which ``size`` units are free, in order.

    :param region: the region's length; 0 where it is unknown, and then only
        ``starts`` limit the spans.
    :param occupied: bit mask of the region.
    """
    bits = (1 << size) - 1
    return tuple(
        start
        for start in sorted(set(starts))
        if not (bits << start) & occupied
        and (not region or start + size <= region)
    )


def count_disjoint(options: Iterable[tuple[int, int]]) -> int:
    """Return the maximal number of disjoint spans among the options.

    Greedy by the end of a span, which is optimal for intervals.

    :param options: spans, as start and size.
    """
    count = end = 0
    for stop, start in sorted((s + size, s) for s, size in options):
        if start >= end:
            count, end = count + 1, stop
    return count


@functools.lru_cache(maxsize=1 << 16)
def count_fitting(
    starts: tuple[int, ...], size: int, region: int, occupied: int
) -> int:
    """Return how many spans of one size fit into the free units.

    The cache serves callers that score many positions.
    """
    return count_disjoint(
        (start, size) for start in free_starts(starts, size, region, occupied)
    )


def choose_start(
    starts: Iterable[int], size: int, occupied: int, score: Score
) -> int:
    """Return the start with the best score, the lowest of equal ones.

    :param starts: possible starts, at least one.
    :param score: rates the bit mask after placing the span; higher is
        better.
    """
    bits = (1 << size) - 1
    return max(starts, key=lambda s: (score(occupied | bits << s), -s))
