# SPDX-License-Identifier: Apache-2.0
"""Commands ``nova-accel remove plan`` and ``remove apply``.

They run on the host: its nova.conf has the credentials of Placement and
Nova, and its files are the last things to remove. Stock Nova goes on to
offer the providers that it finds, and reports an error for a server that
has slots of one.
"""

import argparse
import functools

from nova_accel.cli import application, command_manager
from nova_accel.host.state import ended_service
from nova_accel.inventory import wording
from placement_sync.cli import common_options, drain_wait
from placement_sync.fleet.devices import server_migrations
from placement_sync.fleet.removal import (
    host_removal,
    leaving_host,
    removal_plan,
)

_OK, _UNDONE = 0, 1
_NEXT = (
    "Now set compute_driver = libvirt.LibvirtDriver in nova.conf, and start"
    " nova-compute; `nova-accel doctor --remove` lists what is left to do"
)
_REPEAT = (
    "Leave nova-compute stopped, correct this, and run `nova-accel remove"
    " apply` again"
)
_MOVED = (
    "No server has a device of this host any more. Now stop nova-compute and"
    " placement-sync, and run `nova-accel remove apply` again"
)


def _add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    common_options.add_host_services(parser)
    common_options.add_arguments(parser)


def _add_apply_arguments(parser: argparse.ArgumentParser) -> None:
    servers = parser.add_mutually_exclusive_group()
    servers.add_argument(
        "--move",
        choices=[kind.value for kind in server_migrations.MOVES],
        help="migrate the servers that have devices, while nova-compute runs;"
        " cold migrations are confirmed",
    )
    servers.add_argument(
        "--shelve",
        action="store_true",
        help="shelve and offload the servers that have devices, while"
        " nova-compute runs",
    )
    servers.add_argument(
        "--keep-servers",
        action="store_true",
        dest="is_kept",
        help="go on with servers that have devices: remove their slots from"
        " Nova's database, so that Nova's own driver starts without an error",
    )
    parser.add_argument(
        "--extra-specs",
        action="store_true",
        help="on the last host, remove the extra specs of flavors that request"
        " these devices; Nova then builds their servers without a device",
    )
    parser.add_argument(
        "--cleaned",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="remove the notes on a device or function that was reset and"
        " erased by hand after its last server; may be repeated",
    )
    parser.add_argument(
        "--wait",
        type=common_options.parse_option_seconds,
        default=drain_wait.EMPTY_TIMEOUT_S,
        metavar="SECONDS",
        help="wait for --move or --shelve for at most this time (default"
        f" {drain_wait.EMPTY_TIMEOUT_S:g})",
    )
    _add_plan_arguments(parser)


def _plan(arguments: argparse.Namespace) -> application.Output:
    """Return what a removal would do; nothing is changed.

    :raises AcceleratorError: an argument can't be used, or a part of the
        host or the cloud can't be read.
    """
    options = common_options.resolve_options(arguments)
    contents = leaving_host.LeavingHost(arguments, options).read()
    return application.Document(
        functools.partial(removal_plan.as_dict, contents),
        functools.partial(removal_plan.as_text, contents),
    )


def _apply(arguments: argparse.Namespace) -> application.Output:
    """Remove this library from the host, as far as it is not in use.

    :raises AcceleratorError: an argument can't be used, servers have
        devices, a service runs, or something can't be removed.
    """
    options = common_options.resolve_options(arguments)
    leaving = leaving_host.LeavingHost(arguments, options)
    leaving.check_adoption()
    removal = host_removal.HostRemoval(leaving)
    if arguments.move or arguments.shelve:
        return _move(arguments, leaving, removal)
    if leaving.list_nodes() or leaving.has_files():
        host_removal.check_stopped(leaving.state_dir)
    removal.forget_cleaned(arguments.cleaned)
    holders = leaving.list_holders()
    if holders and not arguments.is_kept:
        raise command_manager.CommandError(
            leaving_host.COMMAND, removal_plan.explain_holders(holders)
        )
    others = leaving.list_other_hosts()
    if arguments.extra_specs and (others or holders):
        raise command_manager.UsageError(
            "--extra-specs is for the last host, when no server has a device;"
            f" the flavors are in use on"
            f" {', '.join(others) or leaving.root.name}"
        )
    removed = removal.remove(arguments.extra_specs)
    return application.Document(
        functools.partial(_as_dict, leaving, removed),
        functools.partial(_as_text, leaving, removed),
        lambda: _UNDONE if removed.problems else _OK,
    )


def _move(
    arguments: argparse.Namespace,
    leaving: leaving_host.LeavingHost,
    removal: host_removal.HostRemoval,
) -> application.Output:
    """Move or shelve the servers of the host.

    :raises CommandError: nova-compute does not run.
    """
    if ended_service.identify(leaving.state_dir):
        raise command_manager.CommandError(
            leaving_host.COMMAND,
            "servers move while nova-compute runs with nova-accel: systemctl"
            " start nova-compute",
        )
    removal.close()
    kind = (
        server_migrations.MigrationKind.SHELVE
        if arguments.shelve
        else server_migrations.MigrationKind(arguments.move)
    )
    is_done = removal.move(kind, arguments.wait)
    holders = () if is_done else leaving.list_holders()
    return application.Document(
        lambda: {"holders": [removal_plan.as_holder(h) for h in holders]},
        lambda: (
            f"{_MOVED}\n"
            if is_done
            else "".join(
                f"{removal_plan.format_holder(holder)}\n" for holder in holders
            )
        ),
        lambda: _OK if is_done else _UNDONE,
    )


def _as_text(
    leaving: leaving_host.LeavingHost, removed: host_removal.Removed
) -> str:
    counts = (
        wording.count_of(len(removed.providers), "resource provider"),
        f"{len(removed.names)} resource classes and traits",
        wording.count_of(len(removed.mdevs), "partition"),
    )
    lines = [f"{leaving.root.name}: removed {', '.join(counts)}"]
    lines += [
        f"Server {server}: its slots were removed from Nova's database"
        for server in removed.servers
    ]
    lines += [
        f"Stays: {removal_plan.format_holder(holder)}"
        for holder in removed.holders
    ]
    lines += [
        f"Flavor {name} requests no device any more"
        for name in removed.flavors
    ]
    lines += [f"Not removed: {text}" for text in removed.problems]
    if removed.has_removed_files:
        lines.append(f"{leaving.state_dir}: its files were removed")
    elif removed.unclean:
        lines += removal_plan.format_unclean(removed.unclean)
    elif removed.holders:
        lines.append(
            "The providers of these devices are closed and stay; run this"
            " again when no consumer is left"
        )
    lines.append(_REPEAT if removed.problems else _NEXT)
    return "\n".join(lines) + "\n"


def _as_dict(
    leaving: leaving_host.LeavingHost, removed: host_removal.Removed
) -> dict[str, object]:
    return {
        "host": {"name": leaving.root.name, "uuid": leaving.root.uuid},
        "servers": list(removed.servers),
        "holders": [removal_plan.as_holder(h) for h in removed.holders],
        "mdevs": list(removed.mdevs),
        "providers": list(removed.providers),
        "names": list(removed.names),
        "flavors": list(removed.flavors),
        "unclean": dict(removed.unclean),
        "has_removed_files": removed.has_removed_files,
        "problems": list(removed.problems),
    }


PLAN = application.Action(_add_plan_arguments, _plan)
APPLY = application.Action(_add_apply_arguments, _apply)
