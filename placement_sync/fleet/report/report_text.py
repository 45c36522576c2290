# SPDX-License-Identifier: Apache-2.0
"""Report of a fleet as text, and as a document for programs."""

from collections.abc import Iterator
from typing import Any

from nova_accel.inventory import wording
from placement_sync.fleet.devices import device_rows, holder_rows
from placement_sync.fleet.report import card_bars, fleet_report

FORMAT = 1
# Characters of a bar, and of the use of its parts.
_WIDTH = 40
_CHARACTERS = {
    card_bars.PartKind.SERVER: "#",
    card_bars.PartKind.UNALLOCATED: "?",
    card_bars.PartKind.RESERVED: "/",
    card_bars.PartKind.FREE: ".",
}
_LEGEND = "# server, / reserved, . free, ? partition without an allocation"


def summarize(report: fleet_report.FleetReport) -> str:
    """Return the fleet in one line."""
    states = ", ".join(f"{n} {state}" for state, n in report.states.items())
    count = sum(report.states.values())
    parts = [
        wording.count_of(len(report.hosts), "host"),
        wording.count_of(count, "device") + (f" ({states})" if states else ""),
        wording.count_of(report.server_count, "server"),
        *(f"{usage} in use" for usage in report.usages),
    ]
    return ", ".join(parts)


def describe_fragmentation(item: fleet_report.Fragmentation) -> str:
    """Return the free memory of a model in words, with moves that help."""
    text = (
        f"{item.model}: {item.free_mb} MB free, largest single profile"
        f" {item.largest or 'none'}"
    )
    if item.empty_card:
        moves = ", ".join(
            f"{server} to {card}"
            for server, card in zip(
                item.moved_servers, item.target_cards, strict=True
            )
        )
        text += (
            f"; moving {moves} makes {item.gained} possible on"
            f" {item.empty_card}"
        )
    return text


def as_text(report: fleet_report.FleetReport) -> str:
    return "\n".join(_list_lines(report)) + "\n"


def _list_lines(report: fleet_report.FleetReport) -> Iterator[str]:
    header = report.header
    yield f"Accelerators, {header.created}, by {header.user}"
    yield f"nova-accel {header.version}"
    yield summarize(report)
    yield _LEGEND
    for gap in report.gaps:
        yield f"Not known: {gap}"
    for section in report.hosts:
        disabled = ", service disabled" if section.row.is_disabled else ""
        stale = ", stale" if section.row.is_stale else ""
        yield f"\n{section.row.name}{disabled}{stale}"
        for bar in section.bars:
            row = bar.row
            fits = f"fits {row.largest}" if row.largest else row.state
            yield (
                f"  {row.device.address}  {row.model}"
                f"  [{_draw(bar)}]  {row.usage}  {fits}"
            )
            for part in bar.parts:
                if part.kind is card_bars.PartKind.SERVER:
                    yield f"    {part.text}"
    yield from _list_sums(report)


def _list_sums(report: fleet_report.FleetReport) -> Iterator[str]:
    """Yield the lines of each sum; one that is empty has no heading."""
    for heading, lines in (
        ("Flavors", map(_describe_flavor, report.flavors)),
        ("Holders by project", map(_describe_usage, report.projects)),
        ("Fragmentation", map(describe_fragmentation, report.fragmentation)),
        (
            "Problems",
            (f"{p.where}: {p.problem}; {p.remedy}" for p in report.problems),
        ),
    ):
        for number, line in enumerate(lines):
            if not number:
                yield f"\n{heading}"
            yield f"  {line}"


def _describe_flavor(flavor: fleet_report.FlavorRow) -> str:
    cause = flavor.problem or f"room for {flavor.room} more"
    return f"{flavor.name}: {flavor.request or '?'}, {cause}"


def _describe_usage(usage: holder_rows.ProjectUsage) -> str:
    devices = wording.count_of(len(usage.devices), "device")
    servers = wording.count_of(len(usage.consumers), "server")
    return (
        f"{usage.label}: {usage.resource_class} {usage.units} on {devices},"
        f" {servers}"
    )


def _draw(bar: card_bars.CardBar) -> str:
    """Return a bar of characters; each part of it has at least one."""
    text = ""
    for part in bar.parts:
        end = round((part.start + part.size) / bar.total * _WIDTH)
        text += _CHARACTERS[part.kind] * max(1, end - len(text))
    return text[:_WIDTH].ljust(_WIDTH)


def as_dict(report: fleet_report.FleetReport) -> dict[str, Any]:
    """Return the report for JSON; its keys are a stable interface."""
    header = report.header
    return {
        "format": FORMAT,
        "created": header.created,
        "version": header.version,
        "user": header.user,
        "states": dict(report.states),
        "use": [_usage(usage) for usage in report.usages],
        "servers": report.server_count,
        "hosts": [
            {
                "name": section.row.name,
                "uuid": section.row.uuid,
                "is_disabled": section.row.is_disabled,
                "is_stale": section.row.is_stale,
                "last_report": (
                    section.row.service and section.row.service.reported
                )
                or None,
                "devices": [_bar(bar) for bar in section.bars],
            }
            for section in report.hosts
        ],
        "flavors": [
            {
                "name": flavor.name,
                "request": flavor.request,
                "room": flavor.room,
                "problem": flavor.problem,
            }
            for flavor in report.flavors
        ],
        "projects": [
            {
                "project": project.project,
                "project_name": project.name,
                "resource_class": project.resource_class,
                "units": project.units,
                "servers": sorted(project.consumers),
                "devices": sorted(project.devices),
            }
            for project in report.projects
        ],
        "fragmentation": [
            {
                "model": item.model,
                "free_mb": item.free_mb,
                "largest": item.largest,
                "empty_card": item.empty_card,
                "moved_servers": list(item.moved_servers),
                "target_cards": list(item.target_cards),
                "gained": item.gained,
            }
            for item in report.fragmentation
        ],
        "problems": [
            {
                "where": problem.where,
                "problem": problem.problem,
                "remedy": problem.remedy,
            }
            for problem in report.problems
        ],
        "not_known": list(report.gaps),
    }


def _usage(usage: device_rows.UnitUsage) -> dict[str, Any]:
    return {"used": usage.used, "total": usage.total, "unit": usage.unit}


def _bar(bar: card_bars.CardBar) -> dict[str, Any]:
    row = bar.row
    return {
        "address": row.device.address,
        "uuid": row.device.uuid,
        "model": row.model,
        "state": row.state,
        "mode": row.mode,
        "use": _usage(row.usage),
        "fits": [
            {"profile": profile.name, "count": profile.count}
            for profile in row.fits
        ],
        "length": bar.total,
        "parts": [
            {
                "kind": part.kind.value,
                "start": part.start,
                "size": part.size,
                "text": part.text,
                "project": part.project,
            }
            for part in bar.parts
        ],
    }
