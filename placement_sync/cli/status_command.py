# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel status``: results of this host's passes."""

import argparse
import time
from collections.abc import Iterator
from typing import Any

from nova_accel.cli import application, command_manager
from nova_accel.model import usage
from placement_sync.cli import common_options
from placement_sync.daemon import heartbeat, usage_rows
from placement_sync.daemon.status import Status

_OK, _STALE = 0, 1
# Figures that are printed with another one, or in a form of their own.
_OTHER_FIGURES = ("engines", "memory_total")
_USED = "memory_used"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
# Minimum seconds of a unit, its seconds, and its symbol.
_UNITS = ((2 * _DAY, _DAY, "d"), (2 * _HOUR, _HOUR, "h"))


def _run(arguments: argparse.Namespace) -> application.Output:
    """Return the output, and 1 if a writer's status is stale or missing.

    :raises UnreadableError: the status can't be read.
    """
    options = common_options.resolve_options(arguments)
    if options.state_dir is None:
        raise command_manager.UsageError(
            "--root is another machine, whose status is in its state"
            " directory; name that with --state-dir"
        )
    statuses, now = heartbeat.read(options.state_dir), time.time()
    is_stale = not statuses or any(_is_stale(s, now) for s in statuses)
    return application.Document(
        lambda: {"writers": [_format_json(s, now) for s in statuses]},
        lambda: (
            "\n".join(
                "\n".join(_format_lines(status, now)) + "\n"
                for status in statuses
            )
            or f"There is no status of a pass in {options.state_dir}.\n"
        ),
        lambda: _STALE if is_stale else _OK,
    )


def _is_stale(status: Status, now: float) -> bool:
    return status.is_broken or status.is_stale(now)


def _format_json(status: Status, now: float) -> dict[str, Any]:
    return status.as_dict() | {
        "outcome": status.outcome,
        "age": round(status.age(now), 1),
        "is_stale": _is_stale(status, now),
    }


def _format_lines(status: Status, now: float) -> Iterator[str]:
    yield f"{status.writer}: {'STALE' if _is_stale(status, now) else 'fresh'}"
    if status.is_broken:
        yield f"  error         {status.error}"
        return
    if status.root is not None:
        yield f"  compute node  {status.root.name} ({status.root.uuid})"
    if status.succeeded is None:
        span = _format_span(status.age(now))
        yield f"  last success  never, since its start {span} ago"
    else:
        yield f"  last success  {_format_span(status.age(now))} ago"
    each = (
        f", each {_format_span(status.interval_s)}"
        if status.interval_s
        else ""
    )
    yield (
        f"  last pass     {status.outcome}, {status.seconds:.1f} s,"
        f" {status.reads} reads, {status.writes} writes{each}"
    )
    if status.waiting:
        yield f"  waiting       {status.waiting}"
    if status.error:
        yield f"  error         {status.error}"
    yield from _format_counts("calls", status.calls)
    yield from _format_counts("devices", status.devices)
    for name, use in sorted(status.use.items()):
        yield (
            f"  {name}  total {use.total}, reserved {use.reserved},"
            f" claimed {use.claimed}"
        )
    yield from _format_usage(status, now)
    for problem in (*status.problems, *status.sample_problems):
        yield f"  problem       {problem.where}: {problem.reason}"


def _format_usage(status: Status, now: float) -> Iterator[str]:
    """Yield the figures of the last sample, nothing without one."""
    if status.sampled is None:
        return
    age_s = max(0.0, now - status.sampled)
    yield f"  usage         sampled {_format_span(age_s)} ago"
    for device in status.device_usage:
        yield f"  {device.address}  {', '.join(_format_figures(device))}"
    for row in status.servers:
        if figures := list(_format_figures(row)):
            yield (
                f"  server {row.server}  {row.profile} of {row.device}:"
                f" {', '.join(figures)}"
            )


def _format_figures(
    row: usage.DeviceUsage | usage_rows.ServerUsage,
) -> Iterator[str]:
    for engine in row.engines:
        yield f"{engine.engine} {engine.ratio:.0%} of the {engine.scope}"
    for name, figure in usage.list_figures(row).items():
        value = getattr(row, name)
        if name in _OTHER_FIGURES or value is None:
            continue
        total = row.memory_total if name == _USED else None
        yield figure.format(value, *([] if total is None else [total]))


def _format_counts(title: str, counts: Any) -> Iterator[str]:
    text = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    if text:
        yield f"  {title:<13} {text}"


def _format_span(seconds: float) -> str:
    """Return a duration in the largest unit of which it has two or more."""
    for least, unit, letter in _UNITS:
        if seconds >= least:
            return f"{seconds / unit:.0f} {letter}"
    if seconds >= 2 * _MINUTE:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds:.0f} s"


ACTION = application.Action(common_options.add_arguments, _run)
