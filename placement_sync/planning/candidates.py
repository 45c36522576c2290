# SPDX-License-Identifier: Apache-2.0
"""Allocation candidates of a host in a snapshot, by Placement's rules.

Each group with a suffix gets one provider; of the group without a suffix
each class gets one. Candidates that differ only in which of two equal groups
each provider serves are one: AcceleratorFilter ranks them the same.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from filters.fit import provider_facts
from filters.request import UNSUFFIXED, AcceleratorRequest
from nova_accel.model import flavors
from placement_sync.fleet.explain import simulation
from placement_sync.fleet.flavors import flavor_specs, offered_devices
from placement_sync.planning import snapshot

_Devices = Sequence[offered_devices.OfferedDevice]
# A group's provider, and its units by class.
_Part = tuple[str, str, Mapping[str, int]]


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CandidateQuery:
    """Query for the candidates of a server.

    ``needs`` are its amounts on the compute node, by class.
    """

    request: AcceleratorRequest
    needs: Mapping[str, int]
    is_isolated: bool

    @classmethod
    def build(cls, simulated: simulation.SimulatedRequest) -> "CandidateQuery":
        """Return the query of a request.

        :raises RejectedError: Placement would reject it.
        :raises MalformedError: an extra spec has a value that is not
            allowed.
        """
        policy = simulation.read_group_policy(simulated)
        return cls(
            request=simulated.accelerators,
            needs={n: a for n, a in simulated.needs.items() if a},
            is_isolated=policy == flavor_specs.ISOLATE,
        )

    def list_candidates(
        self, host: snapshot.PlannedHost, limit: int
    ) -> list[provider_facts.Candidate]:
        """Return the candidates of a host, at most so many."""
        if host.is_closed or any(
            amount > host.capacities[name].free
            for name, amount in self.needs.items()
            if name in host.capacities
        ):
            return []
        devices = sorted(host.devices.values(), key=lambda d: d.uuid)
        parts = self._list_parts(devices)
        return [
            self._build(host.uuid, chosen)
            for chosen in itertools.islice(parts, limit)
        ]

    def _list_parts(self, devices: _Devices) -> Iterator[tuple[_Part, ...]]:
        unsuffixed = [g for g in self.request.groups if not g.suffix]
        suffixed = sorted(
            (g for g in self.request.groups if g.suffix), key=_build_kind
        )
        for shared in itertools.product(
            *(
                _list_shared(name, amount, devices)
                for group in unsuffixed
                for name, amount in group.resources.items()
            )
        ):
            yield from self._choose(suffixed, devices, shared, 0)

    def _choose(
        self,
        groups: Sequence[flavors.RequestGroup],
        devices: _Devices,
        chosen: tuple[_Part, ...],
        first: int,
    ) -> Iterator[tuple[_Part, ...]]:
        """Yield the choices of providers for the remaining groups.

        :param first: number of the first device that may serve the next
            group: equal groups are served in the order of devices.
        """
        if not groups:
            yield chosen
            return
        group, *others = groups
        is_equal = bool(others) and _build_kind(others[0]) == _build_kind(
            group
        )
        for number, device in enumerate(devices[first:], first):
            if self._has_room(group, device, chosen):
                part = group.suffix, device.uuid, group.resources
                yield from self._choose(
                    others, devices, (*chosen, part), number * is_equal
                )

    def _has_room(
        self,
        group: flavors.RequestGroup,
        device: offered_devices.OfferedDevice,
        chosen: Sequence[_Part],
    ) -> bool:
        own = [p for p in chosen if p[1] == device.uuid]
        if self.is_isolated and any(suffix for suffix, _, _ in own):
            return False
        return (
            group.required <= device.traits
            and device.traits.isdisjoint(group.forbidden)
            and all(
                name in device.capacities
                and device.capacities[name].free
                >= amount + sum(units.get(name, 0) for _, _, units in own)
                for name, amount in group.resources.items()
            )
        )

    def _build(
        self, root: str, chosen: Sequence[_Part]
    ) -> provider_facts.Candidate:
        allocations: dict[str, Any] = {root: {"resources": dict(self.needs)}}
        mappings: dict[str, list[str]] = {UNSUFFIXED: [root]}
        for suffix, uuid, amounts in chosen:
            part = allocations.setdefault(uuid, {"resources": {}})
            for name, amount in amounts.items():
                units = part["resources"].get(name, 0) + amount
                part["resources"][name] = units
            served = mappings.setdefault(suffix, [])
            if uuid not in served:
                served.append(uuid)
        return {"allocations": allocations, "mappings": mappings}


def _list_shared(name: str, amount: int, devices: _Devices) -> list[_Part]:
    """Return the devices that can serve one class without a suffix."""
    return [
        (UNSUFFIXED, device.uuid, {name: amount})
        for device in devices
        if name in device.capacities and device.capacities[name].free >= amount
    ]


def _build_kind(group: flavors.RequestGroup) -> tuple[object, ...]:
    """Return what equal groups have in common."""
    return (
        sorted(group.resources.items()),
        sorted(group.required),
        sorted(group.forbidden),
        group.bitstream,
    )
