# SPDX-License-Identifier: Apache-2.0
"""Goals of scheduling, each with its history; the last one is valid.

Counts hold for clouds of any size and are tested; ratios are of filter and
weigher to the same cloud and request with Nova's own filters alone, and are
checked by ``tests.benchmark.schedule --check``.
"""

from typing import NamedTuple


class Goal(NamedTuple):
    """A limit, the day since which it holds, and its reason."""

    limit: float
    since: str
    reason: str


_CAPTURE = "facts are those of Nova's own answer; before, 9.6 requests"

#: Requests to Placement that filter and weigher add to Nova's own.
REQUESTS: dict[str, tuple[Goal, ...]] = {
    "single": (Goal(0, "2026-11-28", _CAPTURE),),
    "multi-create": (
        Goal(0, "2026-11-28", "claims of a request's servers are computed"),
    ),
    "plain flavor": (Goal(0, "2026-11-28", _CAPTURE),),
    "full cloud": (
        Goal(0, "2026-11-28", "the reason of a group is kept for 10 s"),
    ),
    "doubtful cards": (
        Goal(32, "2026-11-28", "allocations are read until a card is sure"),
    ),
}

#: Wall time, and processor time of nova-scheduler and Placement together,
#: relative to Nova's alone.
RATIOS: dict[str, tuple[Goal, ...]] = {
    "single": (Goal(1.1, "2026-11-28", "1.08 is possible with 1,000 hosts"),),
    "multi-create": (Goal(1.5, "2026-11-28", "5.3 before"),),
    "plain flavor": (Goal(1.1, "2026-11-28", "as a single server"),),
}
