# SPDX-License-Identifier: Apache-2.0
"""Page of a plan of capacity: its results, the hosts after and before it."""

from collections.abc import Mapping
from typing import Any

from placement_sync.fleet.devices import fleet_state
from placement_sync.fleet.flavors import offered_devices
from placement_sync.fleet.report import fleet_report, report_page
from placement_sync.planning.capacity import capacity_plan

TITLE = "Plan of capacity"


def render(
    plan: capacity_plan.CapacityPlan,
    header: fleet_report.ReportHeader,
    before: fleet_state.Fleet,
    after: fleet_state.Fleet,
    types: offered_devices.VgpuTypes,
) -> str:
    """Return the page.

    :raises ConfigurationError: the template engine is not installed.
    """
    tables = [
        report_page.PageTable(
            title=title,
            columns=columns,
            rows=rows,
        )
        for title, columns, rows in (
            (
                "Servers",
                ("Flavor or profile", "Fit", "Hosts", "Blocked by"),
                [
                    (
                        result.request.name,
                        describe_count(result),
                        describe_numbers(result.by_host),
                        describe_numbers(result.blocked),
                    )
                    for result in plan.results
                ],
            ),
            (
                "Moved servers",
                ("Server", "From", "To"),
                [
                    (_name(m.evicted), m.evicted.host, m.target)
                    for m in plan.moved
                ],
            ),
            (
                "Servers without a place",
                ("Server", "From", "Blocked by"),
                [
                    (
                        _name(h.evicted),
                        h.evicted.host,
                        h.evicted.problem or describe_numbers(h.blocked),
                    )
                    for h in plan.homeless
                ],
            ),
        )
        if rows
    ]
    reports = [
        fleet_report.build(header, fleet, (), types)
        for fleet in (before, after)
    ]
    return report_page.render_change(TITLE, tables, *reports)


def describe_count(result: capacity_plan.RequestResult) -> str:
    """Return ``7 of 10``, or the number that fits at most."""
    count = result.request.count
    return f"{result.fits}" if count is None else f"{result.fits} of {count}"


def describe_numbers(numbers: Mapping[str, int]) -> str:
    """Return ``host1: 4; host2: 3``, or ``-`` without any."""
    return "; ".join(f"{name}: {n}" for name, n in numbers.items()) or "-"


def _name(evicted: capacity_plan.EvictedServer) -> str:
    return evicted.server.name or evicted.server.uuid


def as_dict(plan: capacity_plan.CapacityPlan) -> dict[str, Any]:
    """Return a plan for JSON."""
    return {
        "is_complete": plan.is_complete,
        "requests": [
            {
                "name": result.request.name,
                "count": result.request.count,
                "fits": result.fits,
                "hosts": dict(result.by_host),
                "blocked_by": dict(result.blocked),
            }
            for result in plan.results
        ],
        "moved": [
            {
                "server": moved.evicted.server.name,
                "uuid": moved.evicted.server.uuid,
                "from": moved.evicted.host,
                "to": moved.target,
            }
            for moved in plan.moved
        ],
        "homeless": [
            {
                "server": homeless.evicted.server.name,
                "uuid": homeless.evicted.server.uuid,
                "from": homeless.evicted.host,
                "problem": homeless.evicted.problem,
                "blocked_by": dict(homeless.blocked),
            }
            for homeless in plan.homeless
        ],
        "notes": list(plan.notes),
    }
