# SPDX-License-Identifier: Apache-2.0
"""Command ``openstack accel plan defragment``."""

import argparse
import functools
import json
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.cli import application, command_manager, time_options
from nova_accel.inventory import wording
from placement_sync.cli import common_options, progress
from placement_sync.fleet.moves import defragmentation
from placement_sync.planning.defragmentation import (
    cloud_reader,
    move_plan,
    move_planner,
    plan_text,
)

_NO_PLAN = 1
_MOST_MOVES = 8
_SECONDS = 60.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument(
        "--profile",
        metavar="PROFILE",
        help="make this profile fit, for example A40-24Q",
    )
    goal.add_argument(
        "--raise-largest",
        action="store_true",
        help="make a larger profile fit than any that fits now (default)",
    )
    parser.add_argument(
        "--count",
        type=_parse_number,
        default=1,
        metavar="N",
        help="make --profile fit so many times in the cloud (default 1)",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="raise the largest profile of cards of this model only, for"
        " example A40",
    )
    parser.add_argument(
        "--moves",
        type=_parse_number,
        default=_MOST_MOVES,
        metavar="N",
        help=f"plan at most so many moves (default {_MOST_MOVES})",
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--cold",
        action="store_true",
        help="also move servers that are shut off, by cold migrations",
    )
    kinds.add_argument(
        "--live-only",
        action="store_true",
        help="move running servers only, by live migrations (default)",
    )
    parser.add_argument(
        "--link",
        type=_parse_number,
        metavar="MIB_PER_S",
        help="compute how long guests pause with this throughput between hosts"
        " in MiB/s (default [nova_accel] live_migration_link of this host)",
    )
    parser.add_argument(
        "--time-limit",
        type=time_options.parse_seconds,
        default=_SECONDS,
        metavar="SECONDS",
        help="search for at most this time; a plan that is found then may not"
        f" have the fewest moves (default {_SECONDS:g})",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the plan to this file, for plan apply",
    )


def _parse_number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _run(arguments: argparse.Namespace) -> application.Output:
    """Return the plan, and write it to a file.

    :raises AcceleratorError: an argument can't be used, or Placement or Nova
        fails.
    """
    if arguments.profile is None and arguments.count != 1:
        raise command_manager.UsageError("--count is for --profile")
    if arguments.profile is not None and arguments.model:
        raise command_manager.UsageError("--model is for --raise-largest")
    reader = cloud_reader.PlanningReader(arguments)
    with progress.waiting_for("the cloud to be read and searched"):
        planner = move_planner.MovePlanner(
            reader, arguments.time_limit, arguments.cold
        )
        try:
            result = planner.find(functools.partial(find_moves, arguments))
        except defragmentation.NoPlanError as error:
            reasons = list(_explain(error, planner))
            return application.Document(
                lambda: {"moves": [], "reasons": reasons},
                lambda: "".join(f"{line}\n" for line in reasons),
                lambda: _NO_PLAN,
            )
        plan = planner.build(result, arguments.link or reader.link)
    if arguments.output and plan.moves:
        move_plan.write(arguments.output, plan)
    return application.Document(
        lambda: json.loads(move_plan.FORMAT.encode(plan)),
        lambda: plan_text.as_text(plan) + _describe_file(arguments, plan),
    )


def find_moves(
    arguments: argparse.Namespace, search: defragmentation.Defragmentation
) -> defragmentation.Rearrangement:
    """Return the moves that the arguments request.

    :raises NoPlanError: there are none.
    :raises MalformedError: no card is of the model, or offers the profile.
    """
    if arguments.profile is not None:
        return search.make_room(
            search.find_type(arguments.profile),
            arguments.count,
            arguments.moves,
        )
    models = search.list_models()
    if arguments.model:
        models = tuple(
            m for m in models if m.lower() == arguments.model.lower()
        )
        if not models:
            raise errors.MalformedError(
                "model of a card in service whose partitions are known",
                arguments.model,
                ", ".join(search.list_models())
                or "none: there is no such card",
            )
    return search.raise_any_largest(models, arguments.moves)


def _explain(
    error: defragmentation.NoPlanError, planner: move_planner.MovePlanner
) -> Iterator[str]:
    """Yield why there is no plan, and the servers that stay."""
    yield f"There is {error}"
    if not error.is_certain:
        yield "The time was over before all plans were tried"
    for reason, count in planner.open_search().terms.count_fixed():
        servers = wording.count_of(count, "server")
        yield f"{servers} can't move: {reason}"


def _describe_file(
    arguments: argparse.Namespace, plan: move_plan.MovePlan
) -> str:
    if not arguments.output or not plan.moves:
        return ""
    return (
        f"Wrote {arguments.output}; `openstack accel plan apply"
        f" {arguments.output}` carries it out\n"
    )


ACTION = common_options.build_cloud_action(_add_arguments, _run)
