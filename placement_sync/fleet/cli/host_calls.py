# SPDX-License-Identifier: Apache-2.0
"""Calls of nova-compute on the hosts of devices."""

import argparse
import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from nova_accel import errors
from nova_accel.inventory import health, wording
from nova_accel.model import names
from placement_sync import parallel
from placement_sync.cli import common_options, progress
from placement_sync.client import cloud_client, nova_api, rest
from placement_sync.fleet import host_bus
from placement_sync.fleet.cli import server_command
from placement_sync.fleet.devices import drain_notes
from placement_sync.fleet.flavors import offered_devices

# A list must not wait long for one host: notes are small files, and the
# reading of a host takes about a second. Nor for all hosts together.
_HOST_SECONDS = 5.0
_TOTAL_SECONDS = 60.0
_MAX_THREADS = 16
# Hosts that a line names.
_MOST_NAMES = 8
_NO_ANSWER = "host does not answer"
#: This machine reaches no nova-compute.
NO_BUS = "no message bus here"
#: Methods that list.
DRAINS, FAULTS, UNOFFERED = "list_drains", "list_faults", "list_unoffered"
VERSION = "show_version"

Rows = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class HostAnswer:
    """Rows of a nova-compute; ``unknown`` says in a few words why not.

    ``detail`` is the error in full. Both are empty if it has answered.
    """

    rows: Rows = ()
    unknown: str = ""
    detail: str = ""


# By method.
Answers = Mapping[str, HostAnswer]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClosedDevices:
    """Notes on drained and on faulted devices, by provider.

    ``faults`` are texts; of a host without an answer they are the causes.
    """

    drains: Mapping[str, tuple[drain_notes.DrainNote, ...]]
    faults: Mapping[str, str]


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
        self.compute = compute
        self._timeout_s = arguments.timeout
        self._bus = server_command.open_bus(arguments, options, command)
        self._identity = cloud_client.read_identity(compute)

    def call(
        self,
        host: str,
        method: str,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> Rows:
        """Return the rows of a host's nova-compute.

        :param timeout_s: see ``ComputeRpc.call``; None for that of the
            arguments.
        :raises ServiceError: it refuses, or does not answer.
        """
        rows: Rows = self._bus.call(
            host,
            method,
            False,
            self._identity,
            timeout_s or self._timeout_s,
            **parameters,
        )
        return rows

    def list_all(
        self, host: str, methods: Iterable[str], until: float
    ) -> Answers:
        """Return the rows of a host by method, within the limits of a list.

        A host that does not answer the first one is not asked again.

        :param until: end of the list's time, as ``time.monotonic`` counts.
        """
        answers: dict[str, HostAnswer] = {}
        silent: HostAnswer | None = None
        for method in methods:
            answer = silent or self._list(host, method, until)
            silent = answer if answer.unknown == _NO_ANSWER else None
            answers[method] = answer
        return answers

    def _list(self, host: str, method: str, until: float) -> HostAnswer:
        limit_s = min(_HOST_SECONDS, until - time.monotonic())
        if limit_s <= 0:
            return HostAnswer(
                unknown="host was not asked",
                detail=f"others did not answer within {_TOTAL_SECONDS:g} s",
            )
        try:
            return HostAnswer(self.call(host, method, limit_s))
        except host_bus.RpcRefusedError as error:
            return HostAnswer(unknown="host refuses", detail=str(error))
        except errors.ServiceError as error:
            return HostAnswer(unknown=_NO_ANSWER, detail=str(error))


class HostLists:
    """Lists of several hosts at the same time, within limits.

    What can't be read is unknown, which is no error of a list.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        options: common_options.CommandOptions,
        compute: rest.RestClient,
    ) -> None:
        """Send no request yet; see ``HostCalls`` for the arguments."""
        self._arguments, self._options = arguments, options
        self._compute = compute

    def read_notes(
        self, devices: Collection[offered_devices.OfferedDevice]
    ) -> ClosedDevices:
        """Return the notes on drained and on faulted devices.

        A request for the name of each of their hosts, and one for each kind
        of notes there.
        """
        drained = [d for d in devices if names.DRAINED_TRAIT in d.traits]
        faulted = [d for d in devices if names.FAULTED_TRAIT in d.traits]
        methods: dict[str, list[str]] = {}
        for kind, closed in ((DRAINS, drained), (FAULTS, faulted)):
            for root in {device.root for device in closed}:
                methods.setdefault(root, []).append(kind)

        def ask(calls: HostCalls, root: str, until: float) -> Answers:
            host = _find_host(calls.compute, root)
            if isinstance(host, HostAnswer):
                return dict.fromkeys(methods[root], host)
            return calls.list_all(host, methods[root], until)

        answers = self._ask_all(
            "notes on devices",
            {d.root: d.host for d in (*drained, *faulted)},
            ask,
        )
        return ClosedDevices(
            drains={
                device.uuid: _select_drains(
                    device, answers[device.root][DRAINS]
                )
                for device in drained
            },
            faults={
                device.uuid: _select_fault(
                    device, answers[device.root][FAULTS]
                )
                for device in faulted
            },
        )

    def read_all(
        self,
        methods: Sequence[str],
        subject: str,
        services: Mapping[str, nova_api.ComputeService],
    ) -> Mapping[str, Answers]:
        """Return the rows of hosts by method.

        :param methods: for each host, in this order.
        :param subject: noun behind "waiting for".
        :param services: of the hosts; the keys are those of the result.
        """

        def ask(calls: HostCalls, key: str, until: float) -> Answers:
            service = services[key]
            if not service.is_up:
                return dict.fromkeys(methods, _mark_down(service))
            return calls.list_all(service.host, methods, until)

        hosts = {key: service.host for key, service in services.items()}
        return self._ask_all(subject, hosts, ask)

    def _ask_all(
        self,
        subject: str,
        hosts: Mapping[str, str],
        ask: Callable[[HostCalls, str, float], Answers],
    ) -> Mapping[str, Answers]:
        """Return the answers of all hosts by key.

        :param subject: noun behind "waiting for".
        :param hosts: names by key.
        :param ask: gets the clients, a key, and the end of the list's time.
        """
        if not hosts:
            return {}
        try:
            calls = HostCalls(
                self._arguments,
                self._options,
                self._compute,
                "device list",
            )
        except errors.ServiceError as error:
            return _refuse_all(hosts, "message bus does not answer", error)
        except errors.AcceleratorError as error:
            return _refuse_all(hosts, NO_BUS, error)
        until = time.monotonic() + _TOTAL_SECONDS
        with progress.waiting_for(
            f"{subject}, from nova-compute on {_describe(hosts)}: at most"
            f" {_HOST_SECONDS:g} s for each"
        ):
            answers = parallel.run(
                lambda key: ask(calls, key, until), hosts, _MAX_THREADS
            )
        return dict(zip(hosts, answers, strict=True))


def _describe(hosts: Mapping[str, str]) -> str:
    if len(hosts) > _MOST_NAMES:
        return wording.count_of(len(hosts), "host")
    return ", ".join(sorted(hosts.values()))


def _refuse_all(
    hosts: Iterable[str], reason: str, error: object
) -> Mapping[str, Answers]:
    answer = HostAnswer(unknown=reason, detail=str(error))
    return dict.fromkeys(
        hosts, dict.fromkeys((DRAINS, FAULTS, UNOFFERED, VERSION), answer)
    )


def _find_host(compute: rest.RestClient, root: str) -> str | HostAnswer:
    """Return the name of a compute node's service, or why there is none."""
    try:
        service = nova_api.read_service(compute, root)
    except (errors.ServiceError, nova_api.NoAnswerError) as error:
        return HostAnswer(
            unknown="Nova does not show its host", detail=str(error)
        )
    return service.host if service.is_up else _mark_down(service)


def _mark_down(service: nova_api.ComputeService) -> HostAnswer:
    detail = f"the nova-compute of {service.host} is down"
    return HostAnswer(unknown=_NO_ANSWER, detail=detail)


def _select_drains(
    device: offered_devices.OfferedDevice, answer: HostAnswer
) -> tuple[drain_notes.DrainNote, ...]:
    """Return the notes on a device; the drain of a card has its regions."""
    unknown, detail = answer.unknown, answer.detail
    notes = tuple(
        drain_notes.DrainNote(
            reason=row["reason"], author=row["author"], since=row["when"]
        )
        for row in answer.rows
        if row["provider"] in (device.uuid, device.card)
    )
    if not notes and not unknown:
        unknown = "host has no note"
        detail = "it was undrained just now, or drained with another state_dir"
    return notes or (drain_notes.DrainNote(unknown=unknown, detail=detail),)


def _select_fault(
    device: offered_devices.OfferedDevice, answer: HostAnswer
) -> str:
    """Return the fault of a device, or its causes and what is unknown."""
    for row in answer.rows:
        if row["provider"] == device.uuid:
            return str(row["fault"])
    causes = health.describe_causes(device.traits)
    if answer.unknown == NO_BUS:
        return causes
    unknown = answer.unknown or "host shows no fault now"
    return "; ".join(filter(None, (causes, f"text unknown: {unknown}")))
