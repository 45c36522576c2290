# SPDX-License-Identifier: Apache-2.0
"""Commands ``device set`` and ``device heal``, over Nova's message bus.

The nova-compute of a device's host writes the note on the host. Placement
and Nova's API are read for the devices, their hosts and their holders.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova_accel.cli import application, command_manager
from placement_sync.cli import (
    common_options,
    drain_command,
    drain_wait,
    progress,
)
from placement_sync.client import (
    drained_providers,
    nova_api,
    resource_providers,
)
from placement_sync.fleet.cli import fleet_command, fleet_output, host_calls
from placement_sync.fleet.devices import (
    fleet_query,
    host_reports,
    server_migrations,
)
from placement_sync.fleet.flavors import cloud, offered_devices

_OK, _UNDONE = 0, 1
_DEVICE = (
    "HOST/ADDRESS, ADDRESS or uuid of the device, for example"
    " node1/0000:41:00.0; the address of a card includes its regions; may be"
    " repeated"
)
_COLUMNS = ("Host", "Address", "Result", "Reason")
_DRAINED, _UNDRAINED = "drained", "undrained"
_HEALED, _FAULTED = "healed", "faulted"


def _add_set_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", nargs="+", metavar="DEVICE", help=_DEVICE)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--drain",
        action="store_true",
        help="offer the devices to no new server; needs --reason",
    )
    action.add_argument(
        "--undrain",
        action="store_true",
        help="offer the devices to new servers again",
    )
    parser.add_argument(
        "--reason",
        metavar="TEXT",
        help="store this reason of the drain on the host, with your name and"
        " the time",
    )
    drain_wait.add_arguments(parser, ", or has it no more with --undrain")
    parser.add_argument(
        "--migrate",
        choices=[kind.value for kind in server_migrations.MOVES],
        help="migrate the servers that hold the devices, and wait as"
        " --wait-empty does; cold migrations are confirmed",
    )


def _add_heal_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", nargs="+", metavar="DEVICE", help=_DEVICE)


# -- the commands -----------------------------------------------------------


def _set(arguments: argparse.Namespace) -> application.Output:
    """Drain devices, or end their drain.

    :raises AcceleratorError: an argument can't be used.
    :raises ServiceError: a service refuses, or nova-compute does.
    """
    _check_set(arguments)
    reader = fleet_command.CloudReader(arguments)
    offered = cloud.read(reader.placement, tuple).devices
    devices = _select(offered, arguments.device)
    if arguments.undrain:
        results = _call_hosts(arguments, reader, devices, "undrain")
        return _as_output(
            devices,
            results,
            (_UNDRAINED, ""),
            _wait(arguments, reader, devices),
        )
    results = _call_hosts(
        arguments, reader, devices, "drain", reason=arguments.reason
    )
    return _as_output(
        devices,
        results,
        (_DRAINED, arguments.reason),
        _wait(arguments, reader, devices),
    )


def _check_set(arguments: argparse.Namespace) -> None:
    reason = " ".join((arguments.reason or "").split())
    if arguments.drain and not reason:
        raise command_manager.UsageError(drain_command.NO_REASON)
    unused = [
        flag
        for flag, value in (
            ("--reason", arguments.reason),
            ("--wait-empty", arguments.wait_empty),
            ("--migrate", arguments.migrate),
        )
        if arguments.undrain and value is not None
    ]
    if unused:
        raise command_manager.UsageError(
            f"{', '.join(unused)} can't be used with --undrain; remove"
            f" {'it' if len(unused) == 1 else 'them'}"
        )
    arguments.reason = reason


def _heal(arguments: argparse.Namespace) -> application.Output:
    """Offer devices again that were set aside.

    :raises MalformedError: an argument can't be used.
    :raises ServiceError: a service refuses, or nova-compute does.
    """
    reader = fleet_command.CloudReader(arguments)
    offered = cloud.read(reader.placement, tuple).devices
    devices = _select(offered, arguments.device)
    results = _call_hosts(arguments, reader, devices, "heal")
    is_faulted = any(result["fault"] for result in results.values())
    return _as_output(
        devices,
        results,
        (_HEALED, ""),
        _UNDONE if is_faulted else _OK,
    )


def _select(
    offered: Sequence[offered_devices.OfferedDevice], texts: Sequence[str]
) -> list[offered_devices.OfferedDevice]:
    """Return the devices of the arguments; a card includes its regions.

    :param offered: all devices of the cloud.
    :raises AcceleratorError: there is no such device, or several hosts have
        one.
    """
    selected: dict[str, offered_devices.OfferedDevice] = {}
    for text in texts:
        devices = fleet_query.FleetQuery(device=text, is_card=True).select(
            offered
        )
        if len({device.root for device in devices}) > 1:
            listed = ", ".join(f"{d.host}/{d.address}" for d in devices)
            raise command_manager.UsageError(
                f"several hosts have a device {text}; name one of {listed}"
            )
        selected |= {device.uuid: device for device in devices}
    return list(selected.values())


def _call_hosts(
    arguments: argparse.Namespace,
    reader: fleet_command.CloudReader,
    devices: Iterable[offered_devices.OfferedDevice],
    method: str,
    **parameters: Any,
) -> dict[str, Mapping[str, Any]]:
    """Call the nova-compute of each host; return its rows by device.

    :raises ConfigurationError: no message bus is configured.
    :raises ServiceError: Nova or a nova-compute refuses.
    """
    compute = reader.compute
    by_root: dict[str, list[str]] = {}
    for device in devices:
        by_root.setdefault(device.root, []).append(device.uuid)
    hosts = {
        root: nova_api.read_service_host(compute, root) for root in by_root
    }
    calls = host_calls.HostCalls(
        arguments, reader.options, compute, f"device {method}"
    )
    results: dict[str, Mapping[str, Any]] = {}
    for root, uuids in by_root.items():
        subject = host_reports.describe_host(compute, hosts[root])
        with progress.waiting_for(subject):
            rows = calls.call(hosts[root], method, devices=uuids, **parameters)
        results |= {row["provider"]: row for row in rows}
    return results


def _as_output(
    devices: Iterable[offered_devices.OfferedDevice],
    results: Mapping[str, Mapping[str, Any]],
    result: tuple[str, str],
    status: int = _OK,
) -> application.Output:
    """Return a row for each device.

    :param results: rows of nova-compute, by device; a device without one
        is unchanged.
    :param result: result and reason of a device without a fault.
    """
    rows = []
    for device in devices:
        word, reason = result
        row = results.get(device.uuid)
        if row is None:
            word, reason = "unchanged", f"it was not {_PRESENT[word]}"
        elif row["fault"]:
            word, reason = _FAULTED, row["fault"]
        cells = (device.host, device.address, word, reason)
        rows.append(dict(zip(_COLUMNS, cells, strict=True)))
    return fleet_output.as_output(_COLUMNS, rows, status=status)


# State that a device must have, by result.
_PRESENT = {_UNDRAINED: _DRAINED, _HEALED: "set aside"}


def _wait(
    arguments: argparse.Namespace,
    reader: fleet_command.CloudReader,
    devices: Sequence[offered_devices.OfferedDevice],
) -> int:
    """Wait as the arguments request; return the exit status."""
    drained = drained_providers.DrainedProviders(
        resource_providers.PlacementClient(reader.placement),
        {
            root: {d.uuid for d in devices if d.root == root}
            for root in {device.root for device in devices}
        },
    )
    addresses = ", ".join(f"{d.host}/{d.address}" for d in devices)
    if arguments.undrain:
        is_done = drain_wait.run_undrain(arguments, drained, addresses)
        return _OK if is_done else _UNDONE
    migrate = None
    if arguments.migrate:
        migrate = server_migrations.ServerMigrations(
            reader.compute,
            server_migrations.MigrationKind(arguments.migrate),
        ).advance
        if arguments.wait_empty is None:
            arguments.wait_empty = drain_wait.EMPTY_TIMEOUT_S
    is_done = drain_wait.run(arguments, drained, addresses, migrate)
    return _OK if is_done else _UNDONE


SET = common_options.build_cloud_action(_add_set_arguments, _set)
HEAL = common_options.build_cloud_action(_add_heal_arguments, _heal)
