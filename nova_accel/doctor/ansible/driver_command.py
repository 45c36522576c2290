# SPDX-License-Identifier: Apache-2.0
"""Commands ``nova-accel driver plan``, ``install``, ``remove``, ``status``."""

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nova_accel import errors
from nova_accel.cli import (
    application,
    command_manager,
    host_source,
    registered_readers,
    time_options,
)
from nova_accel.config import conf
from nova_accel.doctor import checked_host, host_checks, registry
from nova_accel.doctor.ansible import device_use, driver_plan, manifests, roles
from nova_accel.model import domains

_OK, _FAILED = 0, 1
# A pass starts within seconds of a drain, unless Placement is slow.
_DRAIN_WAIT_S = 120.0
# Monolithic daemon, or the one of QEMU.
_LIBVIRT = ("libvirtd", "virtqemud")
_OWN_ROLE = "nova_accel"
_ROLES = tuple(role.name for role in roles.ROLES)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--technology",
        action="append",
        default=[],
        metavar="T",
        help="select the drivers of a technology, such as nvidia or qat, or"
        " host for IOMMU, VFIO, blacklist and nova-accel; may be repeated",
    )
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        metavar="ROLE",
        help=f"select a role, whether this host needs it or not: one of"
        f" {', '.join(_ROLES)}; may be repeated",
    )


def _add_variables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vars",
        metavar="FILE",
        help="read variables of the roles from a file of YAML or JSON, such as"
        " nvidia_vgpu_host_installer and nvidia_vgpu_host_sha256",
    )


def _add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    host_source.add_root(parser)
    _add_selection(parser)
    _add_variables(parser)


def _add_change_arguments(parser: argparse.ArgumentParser) -> None:
    _add_selection(parser)
    _add_variables(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="print the changes without making them",
    )
    parser.add_argument(
        "--reboot",
        action="store_true",
        help="reboot this host if a change needs it; no server may hold any"
        " device then",
    )
    parser.add_argument(
        "--drain-wait",
        type=time_options.parse_seconds,
        default=_DRAIN_WAIT_S,
        metavar="SECONDS",
        help="wait for at most this time until Placement offers the drained"
        " devices to no server, and has none that was scheduled to them"
        f" before (default {_DRAIN_WAIT_S:g}); 0 to drain without Placement",
    )
    host_source.add_config(parser)


def _add_status_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def _read_variables(arguments: argparse.Namespace) -> Mapping[str, Any]:
    if arguments.vars is None:
        return {}
    variables: Mapping[str, Any] = _load_playbook().read_variables(
        arguments.vars
    )
    return variables


def _load_playbook() -> Any:
    """Return the module that imports ansible-runner.

    :raises CommandError: it is not installed.
    """
    try:
        return importlib.import_module("nova_accel.doctor.ansible.playbook")
    except ModuleNotFoundError as error:
        raise command_manager.CommandError(
            "driver",
            f"needs {error.name}; install nova-accel[drivers]",
        ) from error


def _plan(
    arguments: argparse.Namespace,
    host: checked_host.CheckedHost,
    variables: Collection[str],
) -> tuple[driver_plan.PlannedRole, ...]:
    """Return the selected roles that a host needs.

    :raises MalformedError: a technology or a role does not exist.
    """
    technologies = arguments.technology
    if technologies and not arguments.role:
        # A driver needs IOMMU, VFIO and nova-accel on each host.
        technologies = [*technologies, host_checks.HOST]
    selected = roles.select_roles(technologies, arguments.role)
    checks = registry.select(
        registry.list_checks(), (host_checks.Role.COMPUTE,)
    )
    return driver_plan.build_plan(
        host,
        registry.run(checks, host),
        selected,
        arguments.role,
        variables,
    )


def _print_plan(arguments: argparse.Namespace) -> application.Table:
    root = host_source.select_root(arguments.root, "/")
    reader, _ = host_source.open_host(root)
    host = checked_host.CheckedHost(reader)
    # The manifests are those of this host.
    present = manifests.read() if arguments.root is None else {}
    plan = _plan(arguments, host, _read_variables(arguments))
    return application.Table(
        columns=("Role", "Technology", "Installed", "Reasons", "Variables"),
        rows=[
            (
                planned.name,
                planned.role.technology,
                planned.name in present,
                application.build_cell(
                    list(driver_plan.format_reasons(planned))
                ),
                planned.describe_missing(),
            )
            for planned in plan
        ],
        notes="" if plan else "This host needs no role.\n",
    )


def _install(arguments: argparse.Namespace) -> tuple[str, int]:
    """Install the roles that this host needs.

    :raises DevicesInUseError: a server holds a device of a role.
    :raises MalformedError: an input is not valid, or is missing.
    """
    variables = _read_variables(arguments)
    settings = host_source.read_settings(arguments)
    host = _open_host(arguments, settings)
    plan = _plan(arguments, host, variables)
    if not plan:
        return "This host needs no role.\n", _OK
    driver_plan.check_complete(plan)
    use = _check_use(arguments, settings, host, plan, arguments.reboot)
    return _change(arguments, use, "install", plan, variables)


def _remove(arguments: argparse.Namespace) -> tuple[str, int]:
    """Undo the roles with manifests; see ``_install``."""
    selected = roles.select_roles(arguments.technology, arguments.role)
    present = manifests.read()
    plan = tuple(
        driver_plan.PlannedRole(role=role)
        for role in selected
        if role.name in present
    )
    if not plan:
        return "No role has changed anything on this host.\n", _OK
    variables = _read_variables(arguments)
    settings = host_source.read_settings(arguments)
    # Without nova-accel no server can release its devices.
    is_whole = arguments.reboot or _OWN_ROLE in {p.name for p in plan}
    host = _open_host(arguments, settings)
    use = _check_use(arguments, settings, host, plan, is_whole)
    return _change(arguments, use, "remove", plan, variables)


def _open_host(
    arguments: argparse.Namespace, settings: conf.Settings
) -> checked_host.CheckedHost:
    reader, _ = host_source.open_host(settings.root, settings)
    return checked_host.CheckedHost(reader, arguments.config_file)


def _check_use(
    arguments: argparse.Namespace,
    settings: conf.Settings,
    host: checked_host.CheckedHost,
    plan: Sequence[driver_plan.PlannedRole],
    is_whole: bool,
) -> device_use.HeldDevices:
    """Return the devices of the planned roles, which no server holds.

    :param is_whole: no server may hold any device of the host.
    :raises DevicesInUseError: a server does.
    :raises ConfigurationError: the settings name another root directory.
    """
    if is_whole:
        addresses = frozenset(str(card.address) for card in host.cards)
    else:
        addresses = frozenset[str]().union(
            *(
                roles.list_devices(host, technology)
                for technology in driver_plan.list_technologies(plan)
            )
        )
    is_here = os.path.realpath(settings.root) == "/"
    # libvirt describes this host only.
    read_domains = functools.partial(_read_domains, host) if is_here else tuple
    open_drains = functools.partial(
        registered_readers.open_drains,
        host_source.list_config_files(arguments),
    )
    use = device_use.HeldDevices(
        host, addresses, settings.state_dir, read_domains, open_drains
    )
    if not arguments.check:
        use.check()
        if is_whole:
            # Regions, mdevs of other buses, and cards that were lost.
            device_use.HeldDevices(
                host, None, settings.state_dir, read_domains, open_drains
            ).check()
    if not is_here:
        raise settings.refusal(
            "root",
            settings.root,
            "is not this host; Ansible changes this host only",
        )
    return use


def _read_domains(
    host: checked_host.CheckedHost,
) -> tuple[domains.Domain, ...]:
    """Return the domains of this host; none if it has no libvirt.

    :raises DomainsError: libvirt is installed, and can't be read.
    """
    if not any(map(host.unit, _LIBVIRT)):
        return ()
    return registered_readers.read_domains()


def _change(
    arguments: argparse.Namespace,
    use: device_use.HeldDevices,
    action: str,
    plan: Sequence[driver_plan.PlannedRole],
    variables: Mapping[str, Any],
) -> tuple[str, int]:
    """Run an action of the planned roles; return output and exit status."""
    playbook = _load_playbook()
    names = {planned.name: list(planned.checks) for planned in plan}
    if arguments.check:
        result = playbook.run(action, names, variables, _report, is_check=True)
        return _describe(result, action, names, ())
    variables = {**variables, "nova_accel_reboot": arguments.reboot}
    drained = use.drain(arguments.drain_wait, _report)
    try:
        result = playbook.run(action, names, variables, _report)
    except errors.AcceleratorError:
        use.undrain(drained)  # nothing has begun
        raise
    # A device whose driver is half installed, or not loaded yet, must get no
    # server.
    if not (result.failure or result.pending):
        use.undrain(drained)
        drained = ()
    return _describe(result, action, names, drained)


def _describe(
    result: Any,
    action: str,
    names: Collection[str],
    drained: Sequence[str],
) -> tuple[str, int]:
    """Return the text about a run, and the exit status."""
    lines = [
        f"{action} of {', '.join(names)}: {result.changed} changes",
    ]
    if result.failure:
        lines[0] = f"{action} stopped: {result.failure}"
    elif result.pending:
        lines.append(f"reboot this host for {', '.join(result.pending)}")
    if drained:
        lines.append(
            f"drained until you run: nova-accel undrain {' '.join(drained)}"
        )
    return "".join(f"{line}\n" for line in lines), (
        _FAILED if result.failure else _OK
    )


def _report(line: str) -> None:
    print(f"nova-accel: {line}", file=sys.stderr, flush=True)


def _print_status(arguments: argparse.Namespace) -> application.Table:
    del arguments
    boot = manifests.read_boot()
    present = manifests.read()
    ordered = sorted(present.values(), key=lambda m: _rank(m.role))
    return application.Table(
        columns=(
            "Role",
            "Files",
            "Packages",
            "Services",
            "Interrupted",
            "Reboot",
        ),
        rows=[
            (
                manifest.role,
                application.build_cell([*manifest.files, *manifest.edited]),
                application.build_cell(list(manifest.packages)),
                application.build_cell(list(manifest.services)),
                manifest.is_interrupted,
                manifest.is_reboot_pending(boot),
            )
            for manifest in ordered
        ],
        notes=""
        if present
        else f"No role has changed anything: {manifests.DIRECTORY} has no"
        " manifest.\n",
    )


def _rank(name: str) -> int:
    return _ROLES.index(name) if name in _ROLES else len(_ROLES)


PLAN = application.Action(_add_plan_arguments, _print_plan)
INSTALL = application.Action(_add_change_arguments, _install)
REMOVE = application.Action(_add_change_arguments, _remove)
STATUS = application.Action(_add_status_arguments, _print_status)
