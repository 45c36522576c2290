# SPDX-License-Identifier: Apache-2.0
"""Collected state of an audit: values by source, and an index of them."""

import collections
import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping

from nova_accel import model
from nova_accel.claims.claim_plan import claim_charges
from nova_accel.model import names
from nova_accel.model.domains import Domain
from nova_accel.model.providers import (
    Allocation,
    Inventory,
    Provider,
    ProviderRoot,
)
from placement_sync.client import nova_api

# Trait that Nova sets on the provider of each compute node
# (nova/compute/resource_tracker.py, _sync_compute_service_disabled_trait).
COMPUTE_TRAIT = "COMPUTE_NODE"


class StateSource(enum.Enum):
    """A source of the audit; the value is its name in the report."""

    ALLOCATIONS = "allocations of Placement"
    PROVIDERS = "resource providers of this host"
    EVERYWHERE = "resource providers of all hosts"
    CLAIMS = "claims that nova-compute has published"
    SERVERS = "servers of Nova's API"
    MIGRATIONS = "migrations of Nova's API"
    HYPERVISORS = "hypervisors of Nova's API"
    DOMAINS = "domains of libvirt"
    KERNEL = "devices of the kernel"
    SERVICE = "nova-compute of this host"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerAllocations:
    """All allocations of a consumer: amounts by provider and class."""

    allocations: Mapping[str, Mapping[str, int]]
    project: str = ""
    user: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CollectedState:
    """Data of all sources at about one time; None for an unread source.

    ``servers`` maps a uuid to None if Nova is proved not to have it; a
    uuid that is missing was not read. ``gone`` are the roots of
    ``everywhere`` whose compute node Nova has removed. ``used`` are the
    providers of ``everywhere`` on gone roots that have allocations.
    ``is_stock`` is whether nova-compute of the host is proved to run without
    this library. ``unread`` has the reason for each source that was not
    read, or not completely. ``consumers`` are those with claims that exceed
    their allocations, and ``inventories`` those of the providers concerned,
    the compute node's included.
    """

    root: ProviderRoot
    providers: tuple[Provider, ...] | None = None
    allocations: tuple[Allocation, ...] | None = None
    consumers: Mapping[str, ConsumerAllocations] = dataclasses.field(
        default_factory=dict
    )
    inventories: Mapping[str, Mapping[str, Inventory]] = dataclasses.field(
        default_factory=dict
    )
    claims: tuple[model.Claim, ...] | None = None
    servers: Mapping[str, nova_api.Server | None] | None = None
    migrations: tuple[nova_api.Migration, ...] | None = None
    domains: tuple[Domain, ...] | None = None
    host: model.HostState | None = None
    is_stock: bool | None = None
    everywhere: tuple[Provider, ...] | None = None
    gone: frozenset[str] | None = None
    used: frozenset[str] = frozenset()
    unread: Mapping[StateSource, str] = dataclasses.field(default_factory=dict)

    def has(self, source: StateSource) -> bool:
        return getattr(self, _FIELDS[source]) is not None


def merge(here: CollectedState, everywhere: CollectedState) -> CollectedState:
    """Return the state of one host, with the providers of all hosts."""
    return dataclasses.replace(
        here,
        everywhere=everywhere.everywhere,
        gone=everywhere.gone,
        used=everywhere.used,
        unread={**here.unread, **everywhere.unread},
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
    StateSource.SERVICE: "is_stock",
}

Inventories = Mapping[str, Inventory]

# Sources that must be read before a consumer is called nonexistent.
_CONSUMER_SOURCES = (
    StateSource.SERVERS,
    StateSource.MIGRATIONS,
    StateSource.CLAIMS,
    StateSource.DOMAINS,
)


class StateIndex:
    """Queries on a CollectedState; an unread source reads as empty.

    The caller makes sure that the sources of a query were read.
    """

    def __init__(self, state: CollectedState) -> None:
        self.root = state.root
        self.providers = state.providers or ()
        self.allocations = state.allocations or ()
        self.consumers = state.consumers
        self.inventories = state.inventories
        self.claims = state.claims or ()
        self.servers = state.servers or {}
        self.migrations = {m.uuid: m for m in state.migrations or ()}
        self.domains = state.domains or ()
        self.host = state.host or model.HostState(complete=False)
        self.everywhere = state.everywhere or ()
        self.is_stock = bool(state.is_stock)
        self.gone = state.gone or frozenset()
        self.used = state.used
        self._has_consumer_sources = all(map(state.has, _CONSUMER_SOURCES))
        self._names = {p.uuid: p.name for p in self.providers}
        self._devices = {
            names.provider_uuid(self.root.uuid, device.address): device
            for device in self.host.devices
        }

    def device(self, provider: str) -> model.Device | None:
        return self._devices.get(provider)

    def address(self, provider: Provider) -> str:
        """Return the address of a provider's device; empty if unknown.

        The uuid of a provider is the uuid5 of its device's address. A
        second provider of the device has another uuid: its name is
        compared with the name for each address that the host, or a claim
        on it, has.
        """
        addresses = {
            *(device.address for device in self.host.devices),
            *self.host.unknown,
            *(claim.device for claim in self.claims),
        }
        for address in addresses:
            if provider.uuid == names.provider_uuid(self.root.uuid, address):
                return address
        return next(
            (
                address
                for address in sorted(addresses)
                if provider.name.endswith(names.provider_name("", address))
            ),
            "",
        )

    def is_absent(self, provider: str) -> bool:
        """Return whether a provider's device is proved to be absent."""
        unread = {
            names.provider_uuid(self.root.uuid, address)
            for address in self.host.unknown
        }
        parent = next(
            (p.parent for p in self.providers if p.uuid == provider), None
        )
        return (
            self.host.complete
            and parent is not None
            and provider not in self._devices
            and not unread & {provider, parent}
        )

    def devices(self) -> Mapping[str, model.Device]:
        return self._devices

    def name(self, provider: str) -> str:
        """Return a provider's name, or its uuid where it has none."""
        return self._names.get(provider, provider)

    def where(self, provider: str) -> str:
        """Return the address of a provider's device, or else its name."""
        device = self.device(provider)
        return device.address if device else self.name(provider)

    def domain(self, server: str) -> Domain | None:
        return next((d for d in self.domains if d.uuid == server), None)

    def is_moving(self, server: str) -> bool:
        """Return whether a server has a migration that is not over."""
        return any(
            m.server == server and not m.is_over
            for m in self.migrations.values()
        )

    def has_claim(self, server: str, provider: str) -> bool:
        return any(
            claim.consumer == server and claim.provider == provider
            for claim in self.claims
        )

    def unallocated(
        self,
    ) -> Mapping[tuple[str, str], tuple[model.Claim, ...]]:
        """Return claims that exceed allocations, by consumer and provider.

        The value is all claims of the consumer on the provider, if they
        charge more of a resource class than is allocated. Allocations of a
        server's migrations count as the server's.
        """
        groups: dict[tuple[str, str], list[model.Claim]] = {}
        for claim in self.claims:
            key = claim.consumer, claim.provider
            groups.setdefault(key, []).append(claim)
        return {
            (consumer, provider): tuple(claims)
            for (consumer, provider), claims in groups.items()
            if provider in self._names
            and self._exceeds_allocation(consumer, provider, claims)
        }

    def _exceeds_allocation(
        self, consumer: str, provider: str, claims: Iterable[model.Claim]
    ) -> bool:
        allocated: collections.Counter[str] = collections.Counter()
        for allocation in self.allocations:
            if allocation.provider == provider and self.is_allocation_of(
                allocation, consumer
            ):
                allocated.update(allocation.amounts)
        return any(
            amount > allocated[name]
            for name, amount in self.charged(provider, claims).items()
        )

    def charged(
        self, provider: str, claims: Iterable[model.Claim]
    ) -> dict[str, int]:
        """Return the amounts that claims on a device charge, by class."""
        device = self.device(provider)
        amounts: collections.Counter[str] = collections.Counter()
        if device is not None:
            for claim in claims:
                amounts.update(claim_charges(device, claim))
        return dict(amounts)

    def is_allocation_of(self, allocation: Allocation, server: str) -> bool:
        """Return whether an allocation is a server's or its migration's."""
        migration = self.migrations.get(allocation.consumer)
        return allocation.consumer == server or (
            migration is not None and migration.server == server
        )

    def is_leaked(self, allocation: Allocation) -> bool:
        """Return whether the consumer of an allocation does not exist.

        Nova has neither a server nor a migration of that uuid, nova-compute
        no claim, and libvirt no domain. False unless all of them were read.
        """
        consumer = allocation.consumer
        return (
            self._has_consumer_sources
            and consumer in self.servers
            and self.servers[consumer] is None
            and consumer not in self.migrations
            and all(claim.consumer != consumer for claim in self.claims)
            and self.domain(consumer) is None
        )

    def is_pending(self, provider: str) -> bool:
        """Return whether a server may be about to use a provider.

        The allocation exists before the claim, the claim before the
        partition, and the partition before the domain. So a server is
        pending if it has more allocated than claims and hostdevs together.
        """
        device = self.device(provider)
        name = device.resource_class if device else ""
        allocated: collections.Counter[str] = collections.Counter()
        for allocation in self.allocations:
            if allocation.provider == provider and not self.is_leaked(
                allocation
            ):
                migration = self.migrations.get(allocation.consumer)
                server = migration.server if migration else allocation.consumer
                allocated[server] += allocation.amounts.get(name, 1)
        return any(
            count > len(self._list_server_handles(server, provider))
            for server, count in allocated.items()
        )

    def _list_server_handles(
        self, server: str, provider: str
    ) -> frozenset[str]:
        """Return the handles of a server on a provider, by claim or domain."""
        domain = self.domain(server)
        hostdevs = domain.handles if domain else frozenset()
        return (hostdevs & self.handles(provider)) | {
            claim.handle
            for claim in self.claims
            if claim.consumer == server and claim.provider == provider
        }

    def handles(self, provider: str) -> frozenset[str]:
        """Return all handles that a guest can have of a device."""
        device = self.device(provider)
        if device is None:
            return frozenset()
        return frozenset(
            {p.handle for p in device.partitions}
            | {device.address, *device.members, *device.slots}
            | slot_mdevs(device, provider).keys()
        )

    def used_by(self, handle: str) -> Collection[Domain]:
        return tuple(d for d in self.domains if handle in d.handles)


def slot_mdevs(device: model.Device, provider: str) -> Mapping[str, str]:
    """Return a device's slots by the uuid of the mdev that fills each."""
    if device.technology != "mdev":
        return {}
    return {names.mdev_uuid(provider, slot): slot for slot in device.slots}
