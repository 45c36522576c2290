# SPDX-License-Identifier: Apache-2.0
"""Command ``plan capacity``: how many servers fit, where, what blocks."""

import argparse
import dataclasses
import datetime
import pathlib
from collections.abc import Mapping
from typing import Any

from nova_accel.cli import application, command_manager
from nova_accel.config import library_version
from nova_accel.inventory import wording
from placement_sync.cli import common_options
from placement_sync.fleet.devices import fleet_state
from placement_sync.fleet.explain import flavor_options
from placement_sync.fleet.report import fleet_report
from placement_sync.planning.capacity import (
    capacity_page,
    capacity_plan,
    capacity_requests,
    hardware,
    plan_sources,
)

_INCOMPLETE = 1


class _AddRequest(argparse.Action):
    """Begins a request, to which a later ``--count`` belongs."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        words = capacity_requests.RequestWords(
            option_string or "", str(values)
        )
        namespace.requests = [*namespace.requests, words]


class _SetCount(argparse.Action):
    """Sets the number of servers of the request before it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        requests = namespace.requests
        if not requests or requests[-1].count is not None:
            parser.error(
                f"{option_string} {values} belongs to the --flavor or"
                " --profile before it, each of which has one at most"
            )
        requests[-1].count = values


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(requests=[])
    for option, name, text in (
        (
            capacity_requests.FLAVOR,
            "FLAVOR",
            "plan servers of this flavor, by name or id",
        ),
        (
            capacity_requests.PROFILE,
            "PROFILE",
            "plan servers with one device of this profile, for example"
            " A40-8Q, without a flavor of Nova",
        ),
    ):
        parser.add_argument(
            option,
            metavar=name,
            action=_AddRequest,
            dest="requests",
            default=[],
            help=f"{text}; may be repeated, and is planned in this order",
        )
    parser.add_argument(
        "--count",
        metavar="N",
        type=flavor_options.parse_count,
        action=_SetCount,
        help="plan this number of servers of the --flavor or --profile"
        " before it (default: as many as fit)",
    )
    flavor_options.add_sizes(parser, " of each server of a --profile")
    parser.add_argument(
        "--extra-spec",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set an extra spec of the servers of each --profile; may be"
        " repeated",
    )
    for option, name, text in (
        (
            hardware.ADD,
            "gpu=MODEL,...",
            "plan with hosts that do not exist yet: after gpu=MODEL, each"
            " behind a comma, hosts=N, cards=N, vcpus=N, memory=MB,"
            " mode=equal, mixed or mig (default equal), vfs=N, and for MIG"
            " instances=KIND/KIND. Without vcpus or memory these are not"
            " limited",
        ),
        (
            hardware.SET,
            "host=HOST,...",
            "plan with the cards of a host, or with that of card=ADDRESS, in"
            " another mode: mode, vfs or instances as in --add. The servers"
            " of these cards are placed anew",
        ),
        (
            "--without",
            "HOST",
            "plan without this host, as during its maintenance; its servers"
            " get another place first",
        ),
        (
            "--from",
            "DIR|ARCHIVE",
            "plan with this host, a directory with sys/ or an archive of"
            " `nova-accel capture`, and without a cloud",
        ),
    ):
        parser.add_argument(
            option,
            metavar=name,
            dest=f"{option.removeprefix('--')}_hosts",
            action="append",
            default=[],
            help=f"{text}; may be repeated",
        )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write the result and the cards after and before it to this page",
    )


def _run(arguments: argparse.Namespace) -> application.Output:
    """Return the plan, and 1 if a server has no place.

    :raises MalformedError: an argument can't be used.
    :raises ServiceError: a service does not respond.
    :raises RejectedError: Placement would reject a flavor's groups.
    """
    if not (arguments.requests or arguments.without_hosts):
        raise command_manager.UsageError(
            "name what to place: --flavor or --profile, or --without for the"
            " servers of a host"
        )
    sources = plan_sources.PlanSources(arguments)
    before = sources.planned.build_fleet()
    evicted = sources.change(arguments)
    requests = [
        capacity_requests.build_request(words, arguments, sources)
        for words in arguments.requests
    ]
    planner = capacity_plan.CapacityPlanner(sources.planned, sources.drains)
    plan = planner.plan(requests, evicted)
    plan = dataclasses.replace(plan, notes=(*sources.notes, *plan.notes))
    if arguments.html:
        _write_page(arguments.html, plan, sources, before)
    document = capacity_page.as_dict(plan)
    return application.Record(
        _build_fields(plan, document),
        status=0 if plan.is_complete else _INCOMPLETE,
    )


def _write_page(
    path: str,
    plan: capacity_plan.CapacityPlan,
    sources: plan_sources.PlanSources,
    before: fleet_state.Fleet,
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    header = fleet_report.ReportHeader(
        created=now.isoformat(timespec="seconds"),
        version=library_version.read(),
        user="nothing was changed",
    )
    page = capacity_page.render(
        plan, header, before, sources.planned.build_fleet(), sources.types
    )
    pathlib.Path(path).write_text(page, encoding="utf-8")


def _build_fields(
    plan: capacity_plan.CapacityPlan, document: Mapping[str, Any]
) -> dict[str, object]:
    """Return the fields, each with its text for a table."""
    texts = {
        "is_complete": "yes" if plan.is_complete else "no",
        "requests": "\n".join(map(_describe_result, plan.results)),
        "moved": "\n".join(
            f"{m.evicted.server.name}: {m.evicted.host} to {m.target}"
            for m in plan.moved
        ),
        "homeless": "\n".join(map(_describe_homeless, plan.homeless)),
        "notes": "\n".join(plan.notes),
    }
    return {
        name: application.Cell(value, texts[name] or "-")
        for name, value in document.items()
    }


def _describe_result(result: capacity_plan.RequestResult) -> str:
    count = result.request.count
    fits = (
        f"{result.fits} fit"
        if count is None
        else (f"{result.fits} of {count} fit")
    )
    hosts = "".join(f"\n  {name}: {n}" for name, n in result.by_host.items())
    return f"{result.request.name}: {fits}{hosts}" + _list_blocked(
        result.blocked
    )


def _describe_homeless(homeless: capacity_plan.HomelessServer) -> str:
    evicted = homeless.evicted
    name = evicted.server.name or evicted.server.uuid
    problem = f"\n  {evicted.problem}" if evicted.problem else ""
    return f"{name} of {evicted.host}{problem}" + _list_blocked(
        homeless.blocked
    )


def _list_blocked(blocked: Mapping[str, int]) -> str:
    return "".join(
        f"\n  {wording.count_of(count, 'device')}: {reason}"
        for reason, count in blocked.items()
    )


ACTION = common_options.build_cloud_action(_add_arguments, _run)
