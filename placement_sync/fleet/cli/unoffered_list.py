# SPDX-License-Identifier: Apache-2.0
"""Accelerators that hosts do not offer, as their nova-compute reads them.

Placement has nothing of them. A host is asked if Nova shows one compute node
of its service: with Ironic a service has many of them.
"""

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nova_accel import errors
from nova_accel.inventory import wording
from placement_sync.client import nova_api
from placement_sync.fleet.cli import host_calls
from placement_sync.fleet.devices import fleet_state

_SUBJECT = "accelerators that are not offered"
_NO_SERVICE = "Nova does not show its host"
# Hosts that a line names.
_MOST_NAMES = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Accelerator of a host that is not offered, and why."""

    address: str
    model: str
    reason: str

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> "Accelerator":
        """Return that of a row of nova-compute."""
        return cls(
            address=str(row["address"]),
            model=str(row["model"]),
            reason=str(row["reason"]),
        )

    def __str__(self) -> str:
        title = f"{self.address} {self.model}".rstrip()
        return f"{title}: {self.reason}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostAccelerators:
    """Compute node with its accelerators that are not offered.

    ``unknown`` is why they could not be read, empty if they were. ``version``
    is that of nova-accel, None if it is not known. ``service`` is None if
    Nova shows none.
    """

    name: str
    uuid: str
    service: nova_api.ComputeService | None = None
    accelerators: tuple[Accelerator, ...] = ()
    unknown: str = ""
    version: str | None = None


def read(
    fleet: fleet_state.Fleet,
    lists: host_calls.HostLists,
    services: Mapping[str, nova_api.ComputeService],
    names: Collection[str] = (),
    has_versions: bool = False,
) -> tuple[HostAccelerators, ...]:
    """Ask nova-compute of each host; return the hosts by name.

    :param services: of the compute nodes in Nova, by uuid.
    :param names: of the only hosts to ask, with or without their domain;
        empty for all.
    :param has_versions: whether to ask for the versions, too.
    :raises MalformedError: there is no host of one of the names.
    """
    labels = {d.root: d.host for d in fleet.devices if not d.counts}
    nodes = collections.Counter(s.host for s in services.values())
    hosts = {
        uuid: HostAccelerators(
            name=labels.get(uuid, service.host), uuid=uuid, service=service
        )
        for uuid, service in services.items()
        if nodes[service.host] == 1
    }
    hosts |= {
        uuid: HostAccelerators(name=name, uuid=uuid, unknown=_NO_SERVICE)
        for uuid, name in labels.items()
        if uuid not in services
    }
    if names:
        hosts = _select(hosts, names)
    methods = (host_calls.UNOFFERED, host_calls.VERSION)
    answers = lists.read_all(
        methods if has_versions else methods[:1],
        _SUBJECT,
        {u: h.service for u, h in hosts.items() if h.service is not None},
    )
    hosts |= {
        uuid: _complete(hosts[uuid], of_host)
        for uuid, of_host in answers.items()
    }
    return tuple(sorted(hosts.values(), key=lambda host: host.name))


def _complete(
    host: HostAccelerators, answers: host_calls.Answers
) -> HostAccelerators:
    unoffered = answers[host_calls.UNOFFERED]
    versions = answers.get(host_calls.VERSION, host_calls.HostAnswer()).rows
    return dataclasses.replace(
        host,
        accelerators=tuple(map(Accelerator.parse, unoffered.rows)),
        unknown=_explain(unoffered),
        version=str(versions[0]["version"]) if versions else None,
    )


def _select(
    hosts: Mapping[str, HostAccelerators], names: Iterable[str]
) -> dict[str, HostAccelerators]:
    selected: dict[str, HostAccelerators] = {}
    for name in names:
        of_name = {u: h for u, h in hosts.items() if h.name == name} or {
            u: h for u, h in hosts.items() if h.name.partition(".")[0] == name
        }
        if len(of_name) != 1:
            raise errors.MalformedError(
                "host", name, "the full name of one compute node in Nova"
            )
        selected |= of_name
    return selected


def _explain(answer: host_calls.HostAnswer) -> str:
    # The detail of a host without an answer names that host only.
    is_common = answer.unknown == host_calls.NO_BUS
    return answer.detail if is_common else answer.unknown


def list_gaps(hosts: Iterable[HostAccelerators]) -> list[str]:
    """Return what is not known, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for host in hosts:
        if host.unknown:
            by_reason.setdefault(host.unknown, []).append(host.name)
    return [
        f"{_SUBJECT} on {_join(names)} ({reason})"
        for reason, names in by_reason.items()
    ]


def _join(names: Collection[str]) -> str:
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    first = ", ".join([*names][:_MOST_NAMES])
    others = wording.count_of(len(names) - _MOST_NAMES, "other host")
    return f"{first} and {others}"
