# SPDX-License-Identifier: Apache-2.0
"""Report of a fleet as one HTML file, without scripts and network.

The template escapes all names: those of servers are their users' text.
"""

import dataclasses
import importlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from nova_accel import errors
from nova_accel.inventory import wording
from placement_sync.fleet.report import (
    card_strips,
    fleet_report,
    page_units,
    page_views,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """Table of texts above the hosts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def render(report: fleet_report.FleetReport) -> str:
    """Return the page.

    :raises ConfigurationError: the template engine is not installed.
    """
    return _render(report, "Accelerators", (), None)


def render_change(
    title: str,
    tables: Sequence[PageTable],
    before: fleet_report.FleetReport,
    after: fleet_report.FleetReport,
) -> str:
    """Return a page with the hosts after a change and before it.

    :raises ConfigurationError: the template engine is not installed.
    """
    return _render(after, title, tables, before)


def _render(
    report: fleet_report.FleetReport,
    title: str,
    tables: Sequence[PageTable],
    before: fleet_report.FleetReport | None,
) -> str:
    """Return the page of a report, with the one before a change if any.

    :raises ConfigurationError: the template engine is not installed.
    """
    try:
        jinja2: Any = importlib.import_module("jinja2")
    except ImportError as error:
        raise errors.ConfigurationError(
            "--format",
            "html",
            "it needs Jinja2: install it (nova-accel[report]), or choose text",
            "command line",
        ) from error
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = resources.files("placement_sync.fleet.report").joinpath(
        "data/report.html.j2"
    )
    views = page_views.PageViews(report)
    page: str = environment.from_string(
        template.read_text(encoding="utf-8")
    ).render(
        report=report,
        title=title,
        tables=tables,
        former=page_views.PageViews(before, "before-") if before else None,
        views=views,
        hosts=views.list_hosts(),
        problems=tuple(views.list_problems()),
        usages=tuple(map(page_units.format_usage, report.usages)),
        patterns=(*page_views.PATTERNS[1:], page_views.OTHER),
        colors=page_views.COLORS,
        least_width=page_views.LEAST_WIDTH,
        find_pattern=page_views.find_pattern,
        units=page_units,
        small=card_strips,
        count_of=wording.count_of,
    )
    return page
