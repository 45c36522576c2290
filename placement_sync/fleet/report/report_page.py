# SPDX-License-Identifier: Apache-2.0
"""Report of a fleet as one HTML file, without scripts and network.

The template escapes all names: those of servers are their users' text.
"""

import importlib
from importlib import resources
from typing import Any

from nova_accel import errors
from nova_accel.inventory import wording
from placement_sync.fleet.report import fleet_report, report_text

# Colors of servers; a project has one of them.
COLORS = 6
# Hosts that are open at first; of more, each is folded.
_MAX_OPEN = 12


def render(report: fleet_report.FleetReport) -> str:
    """Return the page.

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
    projects = sorted({usage.project for usage in report.projects} - {""})
    page: str = environment.from_string(
        template.read_text(encoding="utf-8")
    ).render(
        report=report,
        summary=report_text.summarize(report),
        describe=report_text.describe_fragmentation,
        count_of=wording.count_of,
        colors={name: n % COLORS for n, name in enumerate(projects)},
        is_open=len(report.hosts) <= _MAX_OPEN,
    )
    return page
