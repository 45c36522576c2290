# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel doctor``."""

import argparse
import json

from nova_accel.cli import application, host_source
from nova_accel.discovery.doctor import (
    check_report,
    checked_host,
    host_checks,
    registry,
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    host_source.add_root(parser)
    parser.add_argument(
        "--technology",
        action="append",
        default=[],
        metavar="T",
        help="run only the checks of a technology, such as nvidia or qat, and"
        " those that every host needs; may be repeated",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="ID",
        help="run only these checks or areas, as pci.bars or iommu",
    )
    parser.add_argument(
        "--scheduler",
        action="store_true",
        help="check a host of nova-scheduler instead of a compute host",
    )
    parser.add_argument(
        "--remove",
        action="store_true",
        help="list what to do before nova-accel is removed from this host",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print JSON instead of text"
    )
    form.add_argument(
        "--fix-plan",
        action="store_true",
        help="print the roles that correct this host as variables of Ansible;"
        " nothing is changed",
    )


def _check_host(arguments: argparse.Namespace) -> tuple[str, int]:
    checks = registry.select(
        registry.list_checks(),
        _select_roles(arguments),
        arguments.technology,
        arguments.only,
    )
    root = host_source.select_root(arguments.root, "/")
    reader, _ = host_source.open_host(root)
    results = registry.run(checks, checked_host.CheckedHost(reader))
    status = check_report.exit_status(results)
    if arguments.json:
        report = check_report.as_dict(results)
        return json.dumps(report, indent=2) + "\n", status
    if arguments.fix_plan:
        return check_report.as_fix_plan(results), status
    return check_report.as_text(results), status


def _select_roles(
    arguments: argparse.Namespace,
) -> tuple[host_checks.Role, ...]:
    roles = []
    if arguments.scheduler:
        roles.append(host_checks.Role.SCHEDULER)
    if arguments.remove:
        roles.append(host_checks.Role.REMOVAL)
    return tuple(roles) or (host_checks.Role.COMPUTE,)


ACTION = application.Action(_add_arguments, _check_host)
