# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel leave``: prepare a host for Nova's own driver.

Stock Nova goes on to offer the providers that it finds, and a server that
has slots of one ends its first report with an error. It is run after
nova-compute was stopped: afterwards no claim can be made, and none is
in use.
"""

import argparse
import dataclasses
import importlib
from typing import Any

from nova_accel.cli import application, command_manager
from nova_accel.host.state import claims_file, drains, service_lock
from nova_accel.inventory import wording
from nova_accel.model import providers
from placement_sync.cli import (
    common_options,
    drain_command,
    outside_host,
    sync_command,
)
from placement_sync.client import nova_api, resource_providers
from placement_sync.fleet.cli import server_command
from placement_sync.sync import sync_pass

_OK, _UNDONE = 0, 1
_RUNNING = (
    "nova-compute of this host must be stopped, and must have run with"
    " nova-accel and this state directory: systemctl stop nova-compute"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """Closed devices, and the servers without slots in Nova's database."""

    root: providers.ProviderRoot
    devices: tuple[str, ...]
    servers: tuple[str, ...]
    functions: tuple[str, ...]
    problems: tuple[str, ...]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--force",
        action="store_true",
        help="go on with servers that have whole functions: their next hard"
        " reboot loses them",
    )
    common_options.add_compute_endpoint(parser)
    common_options.add_arguments(parser)


def _run(arguments: argparse.Namespace) -> application.Output:
    """Close all devices, and remove slots; return output and exit status.

    :raises AcceleratorError: an argument can't be used, nova-compute runs,
        servers have whole functions, or a service fails.
    """
    options = common_options.resolve_options(arguments)
    host = outside_host.open_own_node(options)
    functions = _check_host(arguments, options, host)
    result = _leave(arguments, options, host, functions)
    return application.Document(
        lambda: _as_dict(result),
        lambda: _as_text(result),
        lambda: _UNDONE if result.problems else _OK,
    )


def _check_host(
    arguments: argparse.Namespace,
    options: common_options.CommandOptions,
    host: outside_host.OutsideHost,
) -> tuple[str, ...]:
    """Return the servers that have whole functions.

    :raises CommandError: the host can't be left now.
    """
    state_dir = options.state_dir
    if state_dir is None or not service_lock.identify_ended(state_dir):
        raise command_manager.CommandError("leave", _RUNNING)
    recorded = host.read_claims()
    if not recorded.is_known:
        raise command_manager.CommandError(
            "leave", f"the servers' claims are unknown: {recorded.reason}"
        )
    functions = claims_file.list_function_servers(recorded.claims)
    if functions and not arguments.force:
        raise command_manager.CommandError(
            "leave",
            f"servers {', '.join(functions)} have whole functions, which a"
            " hard reboot under Nova's own driver takes away without an"
            " error; start nova-compute again, and stop, move or delete"
            " them, or use --force",
        )
    return functions


def _leave(
    arguments: argparse.Namespace,
    options: common_options.CommandOptions,
    host: outside_host.OutsideHost,
    functions: tuple[str, ...],
) -> _Result:
    """Close the host in Placement first, then remove the slots."""
    placement = resource_providers.PlacementClient(
        common_options.open_placement(arguments, options)
    )
    compute, reason = common_options.open_compute(arguments, options)
    if compute is None:
        raise nova_api.NoAnswerError(reason)
    root = outside_host.find_root(arguments, options, host, placement)
    service = nova_api.read_service_host(compute, root.uuid)
    slots = _open_slots(options, service, root, placement)
    if moving := slots.list_moving():
        raise command_manager.CommandError(
            "leave",
            f"servers {', '.join(moving)} are migrating, or wait to be"
            " confirmed; start nova-compute again, and confirm or revert"
            " their migrations first",
        )
    devices, problems = _close(options, host, root, placement)
    return _Result(
        root=root,
        devices=devices,
        servers=() if problems else slots.clear(),
        functions=functions,
        problems=problems,
    )


def _open_slots(
    options: common_options.CommandOptions,
    service: str,
    root: providers.ProviderRoot,
    placement: resource_providers.PlacementClient,
) -> Any:
    """Return the slots of the host's servers in Nova's database.

    :raises CommandError: Nova is not installed here.
    :raises ServiceError: the message bus can't be reached.
    """
    bus = server_command.open_nova_bus(options, "leave")
    module = importlib.import_module("placement_sync.fleet.assigned_slots")
    if bus.owns_transport:
        module.use_conductor()
    owned = {node.uuid for node in placement.fetch(root.uuid).tree.nodes}
    return module.AssignedSlots(service, root.name, owned)


def _close(
    options: common_options.CommandOptions,
    host: outside_host.OutsideHost,
    root: providers.ProviderRoot,
    placement: resource_providers.PlacementClient,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Drain all devices, and make a pass; return devices and problems."""
    notes = drains.DrainNotes(options.drains_dir)
    state = host.read()
    devices = sorted({d.address for d in state.devices} | state.unknown)
    with drain_command.translate_write_errors(options):
        for address in set(devices) - notes.read().keys():
            notes.put(address, drains.LEAVING, drain_command.find_author())
    with sync_command.hold_lock(options):
        view = host.read_view(root)
        result = sync_pass.Synchronizer(placement).run(
            view.tree,
            view.host,
            is_shared=view.is_shared,
            reread=lambda: (view.tree, view.host),
        )
    problems = [f"{p.where}: {p.reason}" for p in result.problems]
    problems += [
        f"{node.name} still offers {name}"
        for node in placement.fetch(root.uuid).tree.nodes
        for name, inventory in sorted(node.inventories.items())
        if inventory.capacity
    ]
    return tuple(devices), tuple(problems)


def _as_text(result: _Result) -> str:
    lines = [f"not closed: {problem}" for problem in result.problems]
    if result.problems:
        lines.append("No slot was removed; correct this, and run it again")
        return "\n".join(lines) + "\n"
    count = wording.count_of(len(result.devices), "device")
    lines.append(
        f"{result.root.name}: {count} drained, and closed in Placement"
    )
    for server in result.servers:
        words = (
            "loses its functions at its next hard reboot"
            if server in result.functions
            else "keeps its mdevs until this host reboots"
        )
        lines.append(f"Server {server} has no slots any more, and {words}")
    lines.append(
        "Now set compute_driver = libvirt.LibvirtDriver in nova.conf, and"
        " start nova-compute"
    )
    return "\n".join(lines) + "\n"


def _as_dict(result: _Result) -> dict[str, object]:
    return {
        "host": {"name": result.root.name, "uuid": result.root.uuid},
        "devices": result.devices,
        "servers": result.servers,
        "functions": result.functions,
        "problems": result.problems,
    }


ACTION = application.Action(_add_arguments, _run)
