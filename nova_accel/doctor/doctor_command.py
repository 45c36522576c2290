# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel doctor``."""

import argparse
import collections
import functools
from collections.abc import Mapping

from nova_accel import errors
from nova_accel.cli import application, command_manager, host_source
from nova_accel.config import top_packages
from nova_accel.discovery import unoffered_devices
from nova_accel.doctor import (
    check_report,
    checked_host,
    host_checks,
    registry,
)
from nova_accel.doctor.sources import wrapped_methods


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
    parser.add_argument(
        "--cloud",
        action="store_true",
        help="also check, with the nova.conf of this machine, whether"
        " Placement, Nova's API, the message bus and the licence servers"
        " answer, whether the versions of other hosts differ, and whether"
        " flavors lack what their GPUs need",
    )
    host_source.add_config(parser)
    parser.add_argument(
        "--fix-plan",
        action="store_true",
        help="print the roles that correct this host as variables of Ansible;"
        " nothing is changed",
    )


def _check_host(arguments: argparse.Namespace) -> application.Output:
    """Run the checks of the arguments.

    :raises UsageError: arguments exclude each other.
    """
    if arguments.fix_plan and arguments.is_json:
        raise command_manager.UsageError(
            "--fix-plan can't be used with -f json: it prints YAML"
        )
    root = host_source.select_root(arguments.root, "/")
    is_here = root == "/"
    checks = registry.select(
        _list_checks(arguments),
        _select_roles(arguments, is_here),
        arguments.technology,
        arguments.only,
    )
    reader, meta = host_source.open_host(root)
    packages = top_packages.find_foreign() if is_here else ()
    unwrapped = wrapped_methods.find_differences() if is_here else {}
    host_source.check_config_files(arguments)
    host = checked_host.CheckedHost(
        reader, arguments.config_file, packages, unwrapped
    )
    results = registry.run(checks, host)
    summary = ""
    if any(check.role is host_checks.Role.COMPUTE for check in checks):
        names = unoffered_devices.name_functions(
            reader, meta.get("models", {})
        )
        summary = _describe_accelerators(host, names)
    status = check_report.exit_status(results)
    if arguments.fix_plan:
        return check_report.as_fix_plan(results), status
    return application.Document(
        functools.partial(check_report.as_dict, results, summary),
        functools.partial(check_report.as_text, results, summary),
        lambda: status,
    )


def _describe_accelerators(
    host: checked_host.CheckedHost, names: Mapping[str, str]
) -> str:
    """Return how many accelerators of which model the host has.

    The functions of one slot are one accelerator.

    :param names: models by address, empty where unknown.
    """
    models: dict[str, str] = {}
    try:
        for card in host.cards:
            address = str(card.address)
            ids = f"{card.vendor}:{card.product}"
            slot = address.rpartition(".")[0]
            models.setdefault(slot, names.get(address) or ids)
        for device in host.state.devices:
            address = device.parent or device.address
            slot = address.rpartition(".")[0] or address
            models.setdefault(slot, names.get(address) or device.model)
    except errors.UnreadableError as error:
        return f"the accelerators of this host are not known: {error}"
    if not models:
        return "no accelerator on this host"
    counts = collections.Counter(models.values())
    noun = "accelerator" if len(models) == 1 else "accelerators"
    parts = (f"{name} ({count})" for name, count in sorted(counts.items()))
    return f"{len(models)} {noun}: {', '.join(parts)}"


def _list_checks(
    arguments: argparse.Namespace,
) -> tuple[host_checks.HostCheck, ...]:
    """Return the checks, those of the cloud only on this machine.

    :raises MalformedError: the cloud and another host are to be checked.
    """
    if not arguments.cloud:
        return registry.list_checks()
    if arguments.root is not None:
        raise command_manager.UsageError(
            "--cloud can't be used with --root: the credentials are those of"
            " this host"
        )
    return (*registry.list_checks(), *registry.list_cloud_checks())


def _select_roles(
    arguments: argparse.Namespace, is_here: bool
) -> tuple[host_checks.Role, ...]:
    """Return the roles of the host; of another one only files are there."""
    roles = []
    if arguments.scheduler:
        roles.append(host_checks.Role.SCHEDULER)
    if arguments.remove:
        roles.append(host_checks.Role.REMOVAL)
    roles = roles or [host_checks.Role.COMPUTE]
    if arguments.cloud:
        roles.append(host_checks.Role.CLOUD)
    if is_here:
        roles.append(host_checks.Role.EVERY)
    return tuple(roles)


ACTION = application.Action(_add_arguments, _check_host)
