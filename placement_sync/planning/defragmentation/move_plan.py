# SPDX-License-Identifier: Apache-2.0
"""Plan of moves, and its file.

A plan is complete: to carry it out, nothing is chosen. Two plans of the same
cloud differ only in ``created``.
"""

import dataclasses
import enum
import os
from collections.abc import Mapping

from nova_accel.cli import command_manager
from nova_accel.host.state import directories
from nova_accel.model import json_codec

_MODE = 0o644
_MAX_BYTES = 1 << 20
# Of files that others may have changed.
_LIMITS = json_codec.Limits(text=1024, items=1000, rows=10_000)


class MoveKind(enum.StrEnum):
    """Kind of a move: that of a running server, or of one that is shut off."""

    LIVE = "live"
    COLD = "cold"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCard:
    """Card of a move, by the uuid of its provider.

    ``host`` is the name of the compute node, ``root`` its uuid and ``service``
    the name of its nova-compute. ``generation`` is that of the provider when
    the plan was made.
    """

    uuid: str
    host: str
    root: str
    service: str
    address: str
    generation: int

    def __str__(self) -> str:
        return f"{self.host}/{self.address}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """Move of a server with one partition.

    ``resources`` are the units that the server has of the card.
    ``memory_mb`` is the guest's memory,
    ``framebuffer_mb`` that of the partition; a cold migration sends none of
    them. ``pause_ms`` is how long the guest stops at most for the framebuffer,
    None if the throughput between the hosts is not known.
    """

    server: str
    name: str
    kind: MoveKind
    profile: str
    source: PlannedCard
    target: PlannedCard
    resources: Mapping[str, int]
    memory_mb: int
    framebuffer_mb: int
    pause_ms: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGain:
    """Number of a profile that fits, and the largest one that does.

    ``cards`` have room for the profile after the moves.
    """

    profile: str
    before: int
    after: int
    largest_before: str
    largest_after: str
    cards: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MovePlan:
    """Moves in order, with their gain.

    ``release`` is that of nova-accel. ``is_shortest`` is true if there is
    proved to be no plan with fewer moves.
    """

    created: str
    release: str
    gain: PlannedGain
    moves: tuple[PlannedMove, ...]
    is_shortest: bool


#: A release that changes a meaning raises the version.
FORMAT = json_codec.Format(kind=MovePlan, limits=_LIMITS)


def read(path: str) -> MovePlan:
    """Return the plan of a file.

    :raises UsageError: it can't be read, is damaged, or is of another
        release's format.
    """
    try:
        return FORMAT.decode(directories.read_path(path, _MAX_BYTES))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
    except ValueError as error:
        reason = str(error)
    raise command_manager.UsageError(f"plan {path} can't be used: {reason}")


def write(path: str, plan: MovePlan) -> None:
    """Replace the file of a plan.

    :raises UsageError: it can't be written.
    """
    text = FORMAT.encode(plan, indent=1) + "\n"
    try:
        directories.replace_file(path, text.encode(), _MODE)
    except OSError as error:
        raise command_manager.UsageError(
            f"plan {path} can't be written: {os.strerror(error.errno or 0)}"
        ) from error
