# SPDX-License-Identifier: Apache-2.0
"""``placement-sync status``: results of this host's passes."""

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

from nova_accel import errors
from placement_sync.cli import common_options
from placement_sync.daemon import heartbeat
from placement_sync.daemon.status import Status

_DONE, _STALE = 0, 1
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
# Units below these are told with seconds, minutes and hours.
_UNITS = ((2 * _DAY, _DAY, "d"), (2 * _HOUR, _HOUR, "h"))


def add_parser(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "status",
        help="print how the passes over this host went, and how long ago",
        description="Tells of each writer of this host, nova-compute and"
        " placement-sync, what its passes left. Placement is not asked. The"
        " exit status is 1 if one has had no success for too long, or none"
        " has ever passed.",
        allow_abbrev=False,
    )
    common_options.add_arguments(parser, is_command=True)


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """Return what to print, and 1 if a writer's passes are stale.

    :raises UnreadableError: the status can't be read.
    """
    chosen = common_options.choose(arguments)
    if chosen.state_dir is None:
        raise errors.MalformedError(
            "place of a status", "--root alone", "--state-dir too"
        )
    found, now = heartbeat.read(chosen.state_dir), time.time()
    is_stale = not found or any(_is_stale(one, now) for one in found)
    text = (
        json.dumps({"writers": [_plain(one, now) for one in found]}, indent=2)
        + "\n"
        if arguments.json
        else "\n".join("\n".join(_lines(one, now)) + "\n" for one in found)
        or f"No pass has left a status in {chosen.state_dir}.\n"
    )
    return text, _STALE if is_stale else _DONE


def _is_stale(one: Status, now: float) -> bool:
    return one.is_broken or one.is_stale(now)


def _plain(one: Status, now: float) -> dict[str, Any]:
    return one.as_dict() | {
        "outcome": one.outcome,
        "age": round(one.age(now), 1),
        "is_stale": _is_stale(one, now),
    }


def _lines(one: Status, now: float) -> Iterator[str]:
    yield f"{one.writer}: {'STALE' if _is_stale(one, now) else 'fresh'}"
    if one.is_broken:
        yield f"  error         {one.error}"
        return
    if one.root is not None:
        yield f"  compute node  {one.root.name} ({one.root.uuid})"
    if one.succeeded is None:
        yield f"  last success  never, in {_span(one.age(now))}"
    else:
        yield f"  last success  {_span(one.age(now))} ago"
    each = f", each {_span(one.interval_s)}" if one.interval_s else ""
    yield (
        f"  last pass     {one.outcome}, {one.seconds:.1f} s,"
        f" {one.reads} reads, {one.writes} writes{each}"
    )
    if one.error:
        yield f"  error         {one.error}"
    yield from _counts("calls", one.calls)
    yield from _counts("devices", one.devices)
    for name, use in sorted(one.use.items()):
        yield (
            f"  {name}  total {use.total}, reserved {use.reserved},"
            f" claimed {use.claimed}"
        )
    for problem in one.problems:
        yield f"  problem       {problem.where}: {problem.reason}"


def _counts(title: str, counts: Any) -> Iterator[str]:
    told = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    if told:
        yield f"  {title:<13} {told}"


def _span(seconds: float) -> str:
    """Return a time in the largest unit of which there are two."""
    for least, unit, letter in _UNITS:
        if seconds >= least:
            return f"{seconds / unit:.0f} {letter}"
    if seconds >= 2 * _MINUTE:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds:.0f} s"
