# SPDX-License-Identifier: Apache-2.0
"""Command ``openstack accel report``: the fleet on one page."""

import argparse
import dataclasses
import datetime
import json

from nova_accel import errors
from nova_accel.cli import application
from nova_accel.config import library_version
from placement_sync.cli import common_options
from placement_sync.client import cloud_client, rest
from placement_sync.fleet.cli import fleet_command
from placement_sync.fleet.devices import fleet_query, fleet_state
from placement_sync.fleet.flavors import cloud
from placement_sync.fleet.report import fleet_report, report_page, report_text


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("-f", "--format"),
        choices=("html", "text", "json"),
        default="html",
        dest="report_format",
        help="set the format (default html)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write to this file instead of standard output",
    )
    fleet_command.add_host(parser)
    fleet_command.add_model(parser)


def _run(arguments: argparse.Namespace) -> application.Output:
    """Return the report, or write it to a file.

    :raises ConfigurationError: the template engine is not installed.
    :raises AcceleratorError: an argument can't be used, or Placement fails.
    """
    reader = fleet_command.CloudReader(arguments)
    query = fleet_query.FleetQuery(
        hosts=arguments.hosts, model=arguments.model or ""
    )
    fleet = reader.read(query)
    # Allocation candidates have no reserved units, and the bars show them.
    uuids = {device.uuid for device in fleet.devices}
    offered = cloud.read_totals(reader.placement, fleet.cloud, uuids)
    fleet = reader.add_servers(dataclasses.replace(fleet, cloud=offered))
    fleet = reader.add_notes(fleet)
    fleet, flavors = _read_flavors(reader, fleet)
    report = fleet_report.build(
        _build_header(reader.placement), fleet, flavors, reader.types
    )
    text = _FORMATS[arguments.report_format](report)
    if arguments.output is None:
        return text
    with open(arguments.output, "w", encoding="utf-8") as file:
        file.write(text)
    return f"Wrote {arguments.output}: {report_text.summarize(report)}\n"


def _read_flavors(
    reader: fleet_command.CloudReader, fleet: fleet_state.Fleet
) -> tuple[fleet_state.Fleet, list[fleet_report.FlavorSpecs]]:
    """Return the flavors of Nova, and a fleet with a gap if it refuses."""
    try:
        return fleet, [
            fleet_report.FlavorSpecs(
                name=flavor.name, specs=flavor.specs, needs=flavor.needs
            )
            for flavor in cloud.list_flavors(reader.compute)
        ]
    except (errors.ServiceError, errors.ConfigurationError) as error:
        gap = f"flavors ({error})"
        return dataclasses.replace(fleet, gaps=(*fleet.gaps, gap)), []


def _build_header(client: rest.RestClient) -> fleet_report.ReportHeader:
    now = datetime.datetime.now(datetime.UTC)
    identity = cloud_client.read_identity(client)
    user = "an unknown user"
    if identity:
        user = f"user {identity.user_name or identity.user}"
    return fleet_report.ReportHeader(
        created=now.isoformat(timespec="seconds"),
        version=library_version.read(),
        user=user,
    )


def _as_json(report: fleet_report.FleetReport) -> str:
    return json.dumps(report_text.as_dict(report), indent=2) + "\n"


_FORMATS = {
    "html": report_page.render,
    "text": report_text.as_text,
    "json": _as_json,
}

ACTION = common_options.build_cloud_action(_add_arguments, _run)
