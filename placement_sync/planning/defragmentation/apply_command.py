# SPDX-License-Identifier: Apache-2.0
"""Command ``openstack accel plan apply``."""

import argparse
import time
from collections.abc import Sequence

from nova_accel.cli import application, time_options
from nova_accel.inventory import wording
from placement_sync.cli import common_options, progress
from placement_sync.fleet.moves import defragmentation
from placement_sync.planning.defragmentation import (
    cloud_reader,
    move_plan,
    move_planner,
    move_run,
    plan_text,
)

_SECONDS = 1800.0
_OK, _LESS = 0, 1
_POLL_S = 1.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="plan that plan defragment wrote"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check the plan against the cloud, and move no server",
    )
    parser.add_argument(
        "--wait",
        type=time_options.parse_seconds,
        default=_SECONDS,
        metavar="SECONDS",
        help="wait for each migration for at most this time (default"
        f" {_SECONDS:g})",
    )


def _run(arguments: argparse.Namespace) -> application.Output:
    """Carry out a plan; return the progress of each move.

    :raises AcceleratorError: the file can't be used, or a service fails.
    """
    plan = move_plan.read(arguments.file)
    reader = cloud_reader.PlanningReader(arguments)
    run = move_run.MoveRun(reader, plan, arguments.wait)
    lines: list[str] = []
    status = _LESS
    try:
        status = _execute(arguments.dry_run, reader, run, lines)
    except move_run.DifferenceError as error:
        lines.append(str(error))
    return application.Document(
        lambda: {"is_reached": status == _OK, "lines": lines},
        lambda: "".join(f"{line}\n" for line in lines),
        lambda: status,
    )


def _execute(
    is_dry: bool,
    reader: cloud_reader.PlanningReader,
    run: move_run.MoveRun,
    lines: list[str],
) -> int:
    """Carry out a plan, add lines about it, and return the exit status.

    :raises DifferenceError: the cloud is not as the plan has it.
    """
    states = run.list_progress()
    waiting = [m for m, s in states if s is move_run.Progress.WAITING]
    running = [m for m, s in states if s is move_run.Progress.RUNNING]
    for move, state in states:
        if state is move_run.Progress.DONE:
            lines.append(f"{move.name} is on {move.target} already")
    if is_dry:
        lines += [f"{move.name} is moving" for move in running]
        lines += [f"To do: {plan_text.describe_move(m)}" for m in waiting]
        if running:
            return _LESS
        return _add_end(lines, reader, run.plan, waiting, has_moved=False)
    for move in run.execute(running):
        lines.append(f"Moved {move.name} to {move.target}")
    _count(reader, run.plan, waiting, has_moved=bool(running))
    for move in run.execute(waiting):
        lines.append(f"Moved {move.name} to {move.target}")
    has_moved = bool(running or waiting)
    return _add_end(lines, reader, run.plan, (), has_moved)


def _add_end(
    lines: list[str],
    reader: cloud_reader.PlanningReader,
    plan: move_plan.MovePlan,
    moves: Sequence[move_plan.PlannedMove],
    has_moved: bool,
) -> int:
    """Add how often the profile fits after moves; return the status."""
    count = _count(reader, plan, moves, has_moved)
    verb = "would fit" if moves else "fits"
    text = f"{plan.gain.profile} {verb} {wording.count_of(count, 'time')}"
    is_reached = count >= plan.gain.after
    if not is_reached:
        text += f", {plan.gain.after} by the plan: other servers have its room"
    lines.append(text)
    return _OK if is_reached else _LESS


def _count(
    reader: cloud_reader.PlanningReader,
    plan: move_plan.MovePlan,
    moves: Sequence[move_plan.PlannedMove],
    has_moved: bool,
) -> int:
    """Return how often the plan's profile fits after moves.

    :param has_moved: whether servers have just moved: their hosts publish the
        cards soon after.
    :raises DifferenceError: one of them is not possible in this cloud.
    """
    seconds = move_run.PUBLISH_SECONDS if has_moved else 0.0
    until = time.monotonic() + seconds
    while True:
        is_over = time.monotonic() >= until
        try:
            count = _count_now(reader, plan, moves)
        except move_run.DifferenceError:
            if is_over:
                raise
        else:
            if count >= plan.gain.after or is_over:
                return count
        time.sleep(_POLL_S)


def _count_now(
    reader: cloud_reader.PlanningReader,
    plan: move_plan.MovePlan,
    moves: Sequence[move_plan.PlannedMove],
) -> int:
    """Return ``_count`` as the cloud is now."""
    with progress.waiting_for("the plan to be checked against the cloud"):
        search = move_planner.MovePlanner(reader, 0, True).open_search()
        try:
            state = search.replay((m.server, m.target.uuid) for m in moves)
        except defragmentation.NoPlanError as error:
            raise move_run.DifferenceError(str(error)) from error
        return search.count(search.find_type(plan.gain.profile), state)


ACTION = common_options.build_cloud_action(_add_arguments, _run)
