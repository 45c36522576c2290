# SPDX-License-Identifier: Apache-2.0
"""Calls of nova-compute on the hosts of devices."""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from nova_accel import errors
from placement_sync import parallel
from placement_sync.cli import common_options, progress
from placement_sync.client import nova_api, rest
from placement_sync.fleet import host_bus
from placement_sync.fleet.cli import server_command
from placement_sync.fleet.devices import drain_notes
from placement_sync.fleet.flavors import offered_devices

# A list must not wait long for one host; a note is a small file.
_NOTES_SECONDS = 5.0
_MAX_THREADS = 8

Notes = Mapping[str, tuple[drain_notes.DrainNote, ...]]


class HostCalls:
    """Client of the endpoints for devices, in the name of the user."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        options: common_options.CommandOptions,
        compute: rest.RestClient,
        command: str,
    ) -> None:
        """Connect to the message bus.

        :param options: those of the arguments.
        :param command: name of the command, for errors.
        :raises CommandError: Nova is not installed here.
        :raises ConfigurationError: no message bus is configured.
        :raises ServiceError: the bus or Keystone can't be reached.
        """
        self._timeout_s = arguments.timeout
        self._bus = server_command.open_bus(arguments, options, command)
        identity = compute.read_identity()
        is_own = server_command.is_of_service(arguments, options)
        self._identity = (
            host_bus.RequestIdentity(identity, is_own) if identity else None
        )

    def call(
        self,
        host: str,
        method: str,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> Sequence[Mapping[str, str]]:
        """Return the rows of a host's nova-compute.

        :param timeout_s: see ``ComputeRpc.call``; None for that of the
            arguments.
        :raises ServiceError: it refuses, or does not answer.
        """
        rows: Sequence[Mapping[str, str]] = self._bus.call(
            host,
            method,
            False,
            self._identity,
            timeout_s or self._timeout_s,
            **parameters,
        )
        return rows

    def is_refusal(self, error: errors.ServiceError) -> bool:
        """Return whether nova-compute has answered with a refusal."""
        return isinstance(error, host_bus.RpcRefusedError)


def read_drains(
    devices: Collection[offered_devices.OfferedDevice],
    open_compute: Callable[[], rest.RestClient],
    arguments: argparse.Namespace,
    options: common_options.CommandOptions,
) -> Notes:
    """Return the notes on drained devices, by the uuids of their providers.

    Two requests for each of their hosts: the name of its compute service
    from Nova's API, and the notes of all its devices over the message bus.
    Notes that can't be read are unknown, which is no error of a list.
    """
    if not devices:
        return {}
    try:
        compute = open_compute()
        calls = HostCalls(arguments, options, compute, "device list")
    except errors.ServiceError as error:
        return _mark_unknown(devices, "message bus does not answer", error)
    except errors.AcceleratorError as error:
        return _mark_unknown(devices, "no message bus here", error)
    by_root: dict[str, list[offered_devices.OfferedDevice]] = {}
    for device in devices:
        by_root.setdefault(device.root, []).append(device)
    names = ", ".join(sorted({device.host for device in devices}))
    with progress.waiting_for(
        f"reasons of drains, from nova-compute on {names}: at most"
        f" {_NOTES_SECONDS:g} s for each"
    ):
        answers = parallel.run(
            lambda root: _read_host(calls, compute, root, by_root[root]),
            by_root,
            _MAX_THREADS,
        )
        return {uuid: n for notes in answers for uuid, n in notes.items()}


def _read_host(
    calls: HostCalls,
    compute: rest.RestClient,
    root: str,
    devices: Collection[offered_devices.OfferedDevice],
) -> Notes:
    try:
        service = nova_api.read_service(compute, root)
    except (errors.ServiceError, nova_api.NoAnswerError) as error:
        return _mark_unknown(devices, "Nova does not show its host", error)
    if not service.is_up:
        down = f"the nova-compute of {service.host} is down"
        return _mark_unknown(devices, "host does not answer", down)
    try:
        rows = calls.call(service.host, "list_drains", _NOTES_SECONDS)
    except errors.ServiceError as error:
        is_refusal = calls.is_refusal(error)
        text = "host refuses" if is_refusal else "host does not answer"
        return _mark_unknown(devices, text, error)
    return {device.uuid: _select(device, rows) for device in devices}


def _select(
    device: offered_devices.OfferedDevice, rows: Sequence[Mapping[str, str]]
) -> tuple[drain_notes.DrainNote, ...]:
    """Return the notes on a device; the drain of a card has its regions."""
    notes = tuple(
        drain_notes.DrainNote(
            reason=row["reason"], author=row["author"], since=row["when"]
        )
        for row in rows
        if row["provider"] in (device.uuid, device.card)
    )
    if not notes:
        reason = "it was undrained just now, or drained with another state_dir"
        return _unknown("host has no note", reason)
    return notes


def _mark_unknown(
    devices: Collection[offered_devices.OfferedDevice],
    reason: str,
    error: object,
) -> Notes:
    return {device.uuid: _unknown(reason, error) for device in devices}


def _unknown(reason: str, error: object) -> tuple[drain_notes.DrainNote, ...]:
    return (drain_notes.DrainNote(unknown=reason, detail=str(error)),)
