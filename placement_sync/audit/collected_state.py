# SPDX-License-Identifier: Apache-2.0
"""CollectedState of an audit: value types, by source."""

import collections
import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping

from nova_accel import model
from nova_accel.claims.claim_plan import charges
from nova_accel.model import names
from nova_accel.model.domains import Domain
from nova_accel.model.providers import Inventory, ProviderRoot
from placement_sync.client import nova_types

# What Nova puts on the provider of each compute node
# (nova/compute/resource_tracker.py, _sync_compute_service_disabled_trait
# and the traits beside it).
COMPUTE_TRAIT = "COMPUTE_NODE"


class StateSource(enum.Enum):
    """Who is asked, in the words of the report."""

    ALLOCATIONS = "allocations of Placement"
    PROVIDERS = "resource providers of this host"
    EVERYWHERE = "resource providers of all hosts"
    CLAIMS = "claims that nova-compute has published"
    SERVERS = "servers of Nova's API"
    MIGRATIONS = "migrations of Nova's API"
    HYPERVISORS = "hypervisors of Nova's API"
    DOMAINS = "domains of libvirt"
    KERNEL = "devices of the kernel"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditedProvider:
    """A resource provider of ours, wherever it is.

    ``root`` is the uuid of the provider at the top of its tree.
    """

    uuid: str
    name: str
    parent: str
    root: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What a consumer has of a provider: amounts by resource class."""

    provider: str
    consumer: str
    amounts: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerAllocations:
    """All allocations of a consumer: amounts by provider and class."""

    allocations: Mapping[str, Mapping[str, int]]
    project: str = ""
    user: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CollectedState:
    """What every source said at about one time; None: nothing is known.

    ``servers`` has None for one that Nova surely does not have; of one
    that is missing nobody asked, or no answer came. ``gone`` are the roots
    of ``everywhere`` that Nova had a compute node for and surely has none
    now. ``used`` are those providers of ``everywhere`` on gone roots that
    have allocations. ``unasked`` tells why what is None is not known.
    ``consumers`` are those that have claims and lack allocations, and
    ``inventories`` those of the providers where they lack them, the
    compute node's among them.
    """

    root: ProviderRoot
    providers: tuple[AuditedProvider, ...] | None = None
    allocations: tuple[Allocation, ...] | None = None
    consumers: Mapping[str, ConsumerAllocations] = dataclasses.field(
        default_factory=dict
    )
    inventories: Mapping[str, Mapping[str, Inventory]] = dataclasses.field(
        default_factory=dict
    )
    claims: tuple[model.Claim, ...] | None = None
    servers: Mapping[str, nova_types.Server | None] | None = None
    migrations: tuple[nova_types.Migration, ...] | None = None
    domains: tuple[Domain, ...] | None = None
    host: model.HostState | None = None
    everywhere: tuple[AuditedProvider, ...] | None = None
    gone: frozenset[str] | None = None
    used: frozenset[str] = frozenset()
    unasked: Mapping[StateSource, str] = dataclasses.field(
        default_factory=dict
    )

    def has(self, source: StateSource) -> bool:
        """Return whether a source has spoken."""
        return getattr(self, _FIELDS[source]) is not None


def together(
    here: CollectedState, everywhere: CollectedState
) -> CollectedState:
    """Return evidence of one host with that of all hosts' providers."""
    return dataclasses.replace(
        here,
        everywhere=everywhere.everywhere,
        gone=everywhere.gone,
        used=everywhere.used,
        unasked={**here.unasked, **everywhere.unasked},
    )


_FIELDS = {
    StateSource.ALLOCATIONS: "allocations",
    StateSource.PROVIDERS: "providers",
    StateSource.EVERYWHERE: "everywhere",
    StateSource.CLAIMS: "claims",
    StateSource.SERVERS: "servers",
    StateSource.MIGRATIONS: "migrations",
    StateSource.HYPERVISORS: "gone",
    StateSource.DOMAINS: "domains",
    StateSource.KERNEL: "host",
}

Inventories = Mapping[str, Inventory]

# Who must have spoken before anybody is said not to be.
_OF_CONSUMERS = (
    StateSource.SERVERS,
    StateSource.MIGRATIONS,
    StateSource.CLAIMS,
    StateSource.DOMAINS,
)


class StateIndex:
    """CollectedState, arranged for questions; what is unknown reads as empty.

    Whoever asks sees to it that what the answer needs is known.
    """

    def __init__(self, known: CollectedState) -> None:
        """Arrange it."""
        self.root = known.root
        self.providers = known.providers or ()
        self.allocations = known.allocations or ()
        self.consumers = known.consumers
        self.inventories = known.inventories
        self.claims = known.claims or ()
        self.servers = known.servers or {}
        self.migrations = {m.uuid: m for m in known.migrations or ()}
        self.domains = known.domains or ()
        self.host = known.host or model.HostState(complete=False)
        self.everywhere = known.everywhere or ()
        self.gone = known.gone or frozenset()
        self.used = known.used
        self._can_tell = all(map(known.has, _OF_CONSUMERS))
        self._names = {p.uuid: p.name for p in self.providers}
        self._devices = {
            names.provider_uuid(self.root.uuid, device.address): device
            for device in self.host.devices
        }

    def device(self, provider: str) -> model.Device | None:
        """Return the device that a provider stands for, or None."""
        return self._devices.get(provider)

    def is_absent(self, provider: str) -> bool:
        """Return whether a provider's device surely is not on the host."""
        unread = {
            names.provider_uuid(self.root.uuid, address)
            for address in self.host.unknown
        }
        above = next(
            (p.parent for p in self.providers if p.uuid == provider), None
        )
        return (
            self.host.complete
            and above is not None
            and provider not in self._devices
            and not unread & {provider, above}
        )

    def devices(self) -> Mapping[str, model.Device]:
        """Return the devices by the uuid of their provider."""
        return self._devices

    def name(self, provider: str) -> str:
        """Return a provider's name, or its uuid where it has none."""
        return self._names.get(provider, provider)

    def where(self, provider: str) -> str:
        """Return what people call a provider: its device, or its name."""
        device = self.device(provider)
        return device.address if device else self.name(provider)

    def domain(self, server: str) -> Domain | None:
        """Return the domain of a server, or None."""
        return next((d for d in self.domains if d.uuid == server), None)

    def is_moving(self, server: str) -> bool:
        """Return whether a move of a server is not over."""
        return any(
            m.server == server and not m.is_over
            for m in self.migrations.values()
        )

    def has_claim(self, server: str, provider: str) -> bool:
        """Return whether a server has a claim on a provider."""
        return any(
            claim.consumer == server and claim.provider == provider
            for claim in self.claims
        )

    def unallocated(
        self,
    ) -> Mapping[tuple[str, str], tuple[model.Claim, ...]]:
        """Return a consumer's claims on a provider where it lacks some.

        Those of consumers whose claims take more of a resource class than
        is allocated, by consumer and provider. Allocations of its moves
        count as the server's.
        """
        groups: dict[tuple[str, str], list[model.Claim]] = {}
        for claim in self.claims:
            key = claim.consumer, claim.provider
            groups.setdefault(key, []).append(claim)
        return {
            (consumer, provider): tuple(claims)
            for (consumer, provider), claims in groups.items()
            if provider in self._names
            and self._lacks(consumer, provider, claims)
        }

    def _lacks(
        self, consumer: str, provider: str, claims: Iterable[model.Claim]
    ) -> bool:
        """Return whether claims take more than a consumer has allocated."""
        allocated: collections.Counter[str] = collections.Counter()
        for each in self.allocations:
            if each.provider == provider and self.holds(each, consumer):
                allocated.update(each.amounts)
        return any(
            amount > allocated[name]
            for name, amount in self.charged(provider, claims).items()
        )

    def charged(
        self, provider: str, claims: Iterable[model.Claim]
    ) -> dict[str, int]:
        """Return what claims on a device take of it, by resource class."""
        device = self.device(provider)
        found: collections.Counter[str] = collections.Counter()
        if device is not None:
            for claim in claims:
                found.update(charges(device, claim))
        return dict(found)

    def holds(self, allocation: Allocation, server: str) -> bool:
        """Return whether an allocation is a server's, or its move's."""
        move = self.migrations.get(allocation.consumer)
        return allocation.consumer == server or (
            move is not None and move.server == server
        )

    def is_leaked(self, allocation: Allocation) -> bool:
        """Return whether nobody can have an allocation any more.

        Nova has neither a server nor a move of that uuid, no claim is its,
        and no domain either. Unless all of them have spoken, somebody can.
        """
        consumer = allocation.consumer
        return (
            self._can_tell
            and consumer in self.servers
            and self.servers[consumer] is None
            and consumer not in self.migrations
            and all(claim.consumer != consumer for claim in self.claims)
            and self.domain(consumer) is None
        )

    def is_pending(self, provider: str) -> bool:
        """Return whether somebody may be about to use a provider.

        An allocation is there before the claim, the claim before the
        partition, and that before the domain: a server is pending that has
        more allocated than it has claims, or devices in its domain.
        """
        device = self.device(provider)
        name = device.resource_class if device else ""
        needed: collections.Counter[str] = collections.Counter()
        for found in self.allocations:
            if found.provider == provider and not self.is_leaked(found):
                move = self.migrations.get(found.consumer)
                server = move.server if move else found.consumer
                needed[server] += found.amounts.get(name, 1)
        return any(
            count > len(self._held(server, provider))
            for server, count in needed.items()
        )

    def _held(self, server: str, provider: str) -> frozenset[str]:
        """Return what a server has of a provider, by claim or in fact."""
        domain = self.domain(server)
        given = domain.handles if domain else frozenset()
        return (given & self.handles(provider)) | {
            claim.handle
            for claim in self.claims
            if claim.consumer == server and claim.provider == provider
        }

    def handles(self, provider: str) -> frozenset[str]:
        """Return every handle under which a guest may have of a device."""
        device = self.device(provider)
        if device is None:
            return frozenset()
        return frozenset(
            {p.handle for p in device.partitions}
            | {device.address, *device.members, *device.slots}
            | slot_mdevs(device, provider).keys()
        )

    def used_by(self, handle: str) -> Collection[Domain]:
        """Return the domains that have a host device."""
        return tuple(d for d in self.domains if handle in d.handles)


def slot_mdevs(device: model.Device, provider: str) -> Mapping[str, str]:
    """Return a device's slots by the uuids of the mdevs we make in them."""
    if device.technology != "mdev":
        return {}
    return {names.mdev_uuid(provider, slot): slot for slot in device.slots}
