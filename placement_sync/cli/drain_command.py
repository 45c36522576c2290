# SPDX-License-Identifier: Apache-2.0
"""Commands ``nova-accel drain`` and ``undrain``."""

import argparse
import contextlib
import dataclasses
import functools
import getpass
import os
from collections.abc import Iterable, Iterator, Sequence

from nova_accel import errors, model
from nova_accel.cli import application, command_manager, state_dir_option
from nova_accel.host.state import claims_file, device_notes
from nova_accel.inventory import conditions
from nova_accel.model import names
from placement_sync.cli import (
    common_options,
    drain_wait,
    outside_host,
    progress,
)
from placement_sync.client import (
    drained_providers,
    provider_records,
    resource_providers,
    rest,
)

_OK, _UNDONE = 0, 1
NO_REASON = (
    "a drain needs a reason, which lists show to other operators; add"
    " --reason TEXT"
)
_ADDRESS = (
    "address of the device or of one of its functions, for example"
    " 0000:5e:00.0, or of an FPGA region, for example 0000:5e:00.0/region-0;"
    " the address of a card includes its regions"
)


def _add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", nargs="*", metavar="ADDRESS", help=_ADDRESS)
    parser.add_argument(
        "--reason",
        metavar="TEXT",
        help="set the reason, which listings show; required",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="drain also a device that this host does not have now",
    )
    drain_wait.add_arguments(parser)
    common_options.add_compute_endpoint(parser)
    common_options.add_arguments(parser)


def _add_undrain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", nargs="+", metavar="ADDRESS", help=_ADDRESS)
    drain_wait.add_undrain_argument(parser)
    common_options.add_arguments(parser)


def _run_drain(arguments: argparse.Namespace) -> application.Output:
    """Drain devices, or list drained ones; return output and exit status.

    :raises AcceleratorError: an address is no device, or there is no reason.
    :raises ConfigurationError: the notes can't be written, or there are no
        credentials for a wait.
    :raises ServiceError: Placement can't be read for the compute node.
    """
    options = common_options.resolve_options(arguments)
    notes = device_notes.DrainNotes(options.drains_dir)
    is_waiting = not (arguments.wait is None and arguments.wait_empty is None)
    if not arguments.address:
        if is_waiting:
            raise command_manager.UsageError(
                "--wait and --wait-empty wait for devices; name one or more"
            )
        _check_state_dir(options)
        return application.Document(
            functools.partial(_build_drains, notes),
            functools.partial(_format_drains, notes),
        )
    host = _read_host(options)
    addresses = [
        _resolve_address(host, argument, arguments.force)
        for argument in arguments.address
    ]
    reason = " ".join((arguments.reason or "").split())
    if not reason and not (is_waiting and notes.read().keys() >= {*addresses}):
        raise command_manager.UsageError(NO_REASON)
    client = _open_placement(arguments, options) if is_waiting else None
    if reason:
        with translate_write_errors(options):
            for address in addresses:
                notes.put(address, reason, find_author())
    servers = _DrainedServers(options, addresses)
    return application.Document(
        functools.partial(_build_drains, notes),
        lambda: (
            f"{', '.join(addresses)}: drained; no new server gets a part of"
            " it after the next pass of nova-compute or placement-sync, in a"
            f" few seconds\n{servers.describe(arguments)}"
        ),
        lambda: (
            _OK
            if client is None
            else _wait_for_drain(arguments, options, addresses, client)
        ),
    )


def _open_placement(
    arguments: argparse.Namespace, options: common_options.CommandOptions
) -> rest.RestClient:
    """Return the client for a wait; it sends no request yet.

    The arguments of a wait are checked before devices are drained.

    :raises ConfigurationError: there are no credentials.
    :raises MalformedError: nothing names the compute node.
    """
    host = outside_host.open_node(
        options.settings, options.root, options.state_dir
    )
    outside_host.resolve_root_name(arguments, options, host)
    return common_options.open_placement(arguments, options)


def _run_undrain(arguments: argparse.Namespace) -> application.Output:
    """Offer drained devices again; return the output.

    :raises UsageError: an address is not that of a drained device.
    :raises ConfigurationError: the state directory is missing, or a note
        can't be removed.
    """
    options = common_options.resolve_options(arguments)
    _check_state_dir(options)
    notes = device_notes.DrainNotes(options.drains_dir)
    drained = notes.read()
    host = _read_host(options)
    addresses = []
    for argument in arguments.address:
        address = conditions.resolve_address(host, argument)
        if address not in drained and argument not in drained:
            listed = ", ".join(sorted(drained))
            choice = f"these are: {listed}" if drained else "no device is"
            raise command_manager.UsageError(
                f"{argument!r} is not drained; {choice}"
            )
        addresses.append(address if address in drained else argument)
    is_waiting = arguments.wait is not None
    client = _open_placement(arguments, options) if is_waiting else None
    with translate_write_errors(options):
        notes.remove(addresses)
    return application.Document(
        functools.partial(_build_drains, notes),
        lambda: (
            f"{', '.join(addresses)}: undrained; it is offered again after the"
            " next pass of nova-compute or placement-sync, in a few seconds\n"
        ),
        lambda: (
            _OK
            if client is None
            else _wait_for_undrain(arguments, options, addresses, client)
        ),
    )


def find_author() -> str:
    """Return the name of the user who runs this, before sudo; or ""."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return ""  # the user has no name (an OSError since Python 3.13)


@contextlib.contextmanager
def translate_write_errors(
    options: common_options.CommandOptions,
) -> Iterator[None]:
    """Raise ConfigurationError for a failed write of notes."""
    try:
        yield
    except OSError as error:
        raise common_options.build_unwritable_error(options, error) from error


def _check_state_dir(options: common_options.CommandOptions) -> None:
    """Check that the state directory exists.

    For another machine it may be missing here, unless a nova.conf names it.

    :raises ConfigurationError: it does not exist, so the drained devices
        are unknown.
    """
    if options.is_foreign and not options.files:
        return
    if hint := state_dir_option.describe_missing(options.drains_dir):
        raise options.settings.refusal("state_dir", options.drains_dir, hint)


def _read_host(options: common_options.CommandOptions) -> model.HostState:
    return outside_host.open_node(options.settings, options.root, None).read()


def _resolve_address(
    host: model.HostState, argument: str, is_forced: bool
) -> str:
    """Return the address of the device that an argument names.

    :raises MalformedError: the argument is not printable, or this host has
        no such device and ``--force`` is not given.
    """
    if not argument.strip() or not argument.isprintable():
        raise errors.MalformedError(
            "device's address", argument, "printable text"
        )
    device = conditions.find_device(host, argument)
    addresses = {d.address for d in host.devices} | host.unknown
    address = conditions.resolve_address(host, argument)
    if device is None and address not in addresses and not is_forced:
        listed = ", ".join(sorted(addresses)) or "none"
        raise command_manager.UsageError(
            f"{argument!r} is not a device of this host, which has {listed};"
            " --force drains a device that the host does not have now"
        )
    return address


class _DrainedServers:
    """Servers with claims on drained devices, as nova-compute publishes."""

    def __init__(
        self, options: common_options.CommandOptions, addresses: Iterable[str]
    ) -> None:
        self._options = options
        self._addresses = tuple(addresses)
        place = options.state_dir
        self._claims = claims_file.ClaimsFile(place) if place else None

    @property
    def has_claims(self) -> bool:
        """Return whether a state directory can have claims."""
        return self._claims is not None

    def read(self) -> tuple[frozenset[str], str]:
        """Return the servers' uuids, and a reason if they are unknown."""
        if self._claims is None:
            return frozenset(), "--state-dir does not name their directory"
        recorded = self._claims.read()
        return frozenset(
            claim.consumer
            for claim in recorded.claims
            if any(
                _is_device_or_region(claim.device, address)
                for address in self._addresses
            )
        ), recorded.reason

    def describe(self, arguments: argparse.Namespace) -> str:
        """Return lines with uuids, and names if Nova's API shows them."""
        uuids, reason = self.read()
        if reason:
            return (
                "The servers that use it are unknown: nova-compute has"
                f" published no claims: {reason}\n"
            )
        if not uuids:
            return "No server uses it.\n"
        server_names = _read_server_names(arguments, self._options, uuids)
        return "".join(
            f"Server {uuid} uses it{server_names.get(uuid, '')}\n"
            for uuid in sorted(uuids)
        )


def _is_device_or_region(device: str, address: str) -> bool:
    return device == address or device.startswith(f"{address}/")


def _read_server_names(
    arguments: argparse.Namespace,
    options: common_options.CommandOptions,
    uuids: Iterable[str],
) -> dict[str, str]:
    """Return servers' names in parentheses, those that Nova shows."""
    server_names: dict[str, str] = {}
    try:
        client, _ = common_options.open_compute(arguments, options)
        if client is None:
            return server_names
        for uuid in uuids:
            path = f"/servers/{provider_records.quote_name(uuid)}"
            body = client.get(path).body
            if body is not None:
                server_names[uuid] = f" ({body['server']['name']})"
    except errors.AcceleratorError:
        return server_names
    return server_names


def _wait_for_drain(
    arguments: argparse.Namespace,
    options: common_options.CommandOptions,
    addresses: Sequence[str],
    client: rest.RestClient,
) -> int:
    """Wait as the arguments request; return the exit status.

    :raises MalformedError: Placement has no provider of the node.
    :raises ServiceError: Placement can't be read.
    """
    drained = _open_drained(arguments, options, addresses, client)
    servers = _DrainedServers(options, addresses)
    devices = ", ".join(addresses)
    if servers.has_claims:
        drained = dataclasses.replace(drained, read_claims=servers.read)
    elif arguments.wait_empty is not None:
        progress.print_line(
            "without nova-compute's claims, only Placement is read for servers"
            f" that use {devices}; name the directory of the claims with"
            " --state-dir"
        )
    return _OK if drain_wait.run(arguments, drained, devices) else _UNDONE


def _wait_for_undrain(
    arguments: argparse.Namespace,
    options: common_options.CommandOptions,
    addresses: Sequence[str],
    client: rest.RestClient,
) -> int:
    """Wait for the end of drains; return and raise as the wait for one."""
    drained = _open_drained(arguments, options, addresses, client)
    devices = ", ".join(addresses)
    is_done = drain_wait.run_undrain(arguments, drained, devices)
    return _OK if is_done else _UNDONE


def _open_drained(
    arguments: argparse.Namespace,
    options: common_options.CommandOptions,
    addresses: Iterable[str],
    client: rest.RestClient,
) -> drained_providers.DrainedProviders:
    """Return the providers of devices in Placement.

    :raises MalformedError: Placement has no provider of the node.
    :raises ServiceError: Placement can't be read.
    """
    placement = resource_providers.PlacementClient(client)
    node = outside_host.open_node(
        options.settings, options.root, options.state_dir
    )
    root = outside_host.find_root(arguments, options, node, placement).uuid
    uuids = {names.provider_uuid(root, address) for address in addresses}
    return drained_providers.DrainedProviders(placement, {root: uuids})


def _build_drains(notes: device_notes.DrainNotes) -> dict[str, object]:
    return {
        "drained": [
            {
                "address": d.address,
                "reason": d.reason,
                "author": d.author,
                "when": d.when,
            }
            for _, d in sorted(notes.read().items())
        ]
    }


def _format_drains(notes: device_notes.DrainNotes) -> str:
    return (
        "".join(
            f"{d.address}  since {d.when or '?'}"
            f"{f' by {d.author}' * bool(d.author)}: {d.reason}\n"
            for _, d in sorted(notes.read().items())
        )
        or f"No device is drained in {notes.path}.\n"
    )


DRAIN = application.Action(_add_drain_arguments, _run_drain)
UNDRAIN = application.Action(_add_undrain_arguments, _run_undrain)
