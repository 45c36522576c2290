# SPDX-License-Identifier: Apache-2.0
"""Plan of an adoption: servers, their devices, and Nova's own providers."""

import dataclasses
import enum
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.model import providers

Amounts = Mapping[str, int]
# Amounts by resource class, by the uuid of the provider.
Allocations = Mapping[str, Amounts]


class Source(enum.Enum):
    """Support of Nova that servers have their devices from."""

    #: ``[devices] enabled_mdev_types``.
    NOVA_MDEV = "nova-mdev"
    #: ``[pci] device_spec`` and ``alias``.
    NOVA_PCI = "nova-pci"
    #: Accelerator requests of Cyborg.
    CYBORG = "cyborg"


class AdoptionState(enum.Enum):
    """Progress of an adoption; nova-compute does the work of two of them."""

    PLANNED = "planned"
    #: The next start of nova-compute adopts.
    APPLYING = "applying"
    ADOPTED = "adopted"
    #: The next start of nova-compute hands back.
    UNDOING = "undoing"
    UNDONE = "undone"

    @property
    def is_pending(self) -> bool:
        """Return whether nova-compute has to do it when it starts."""
        return self in (AdoptionState.APPLYING, AdoptionState.UNDOING)


class Obstacle(enum.Enum):
    """Kind of a reason why a host can't be adopted, or handed back."""

    UNKNOWN_TYPE = "unknown-type"
    UNOFFERED_CARD = "unoffered-card"
    CLOSED_CARD = "closed-card"
    SHARED_CARD = "shared-card"
    UNUSED_MDEV = "mdev-without-server"
    MISSING_MDEV = "missing-mdev"
    SHARED_DEVICE = "shared-device"
    MOVING = "moving-server"
    DRIFTED = "drifted-server"
    FLAVOR = "unclear-flavor"
    OVERBOOKED = "overbooked-card"
    NETWORK_PORT = "network-port"
    UNKNOWN_CONSUMER = "unknown-consumer"
    NO_SUPPORT = "no-native-form"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Reason why a plan can't be applied.

    ``subject`` is the server, mdev or card; ``remedy`` is what to do.
    """

    kind: Obstacle
    subject: str
    reason: str
    remedy: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NativeProvider:
    """Nova's provider of mdevs or PCI functions, as Placement stores it.

    ``address`` is that of the mdevs' parent, a card or a VF, or of the
    function. VFs are units of their card's provider.
    """

    uuid: str
    name: str
    address: str
    inventories: Mapping[str, providers.Inventory]
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    generation: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NativeUnit:
    """Unit of a class of Nova's: of an mdev, or of a PCI function.

    ``address`` is that of the mdev's parent, or of the function.
    ``provider`` is Nova's, empty where it reports none of PCI devices.
    ``alias`` and ``request`` are the name and the id of Nova's PCI request,
    which nova-compute records, or the device profile and the uuid of Cyborg's
    accelerator request.
    """

    address: str
    provider: str
    resource_class: str
    alias: str = ""
    request: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CyborgRequest:
    """Accelerator request of Cyborg that is bound to a server.

    ``address`` is that of the function, or of the mdev's parent; ``handle``
    that of the function, or the mdev's uuid. ``provider`` is Cyborg's in
    Placement, ``profile`` the name of the device profile.
    """

    uuid: str
    server: str
    provider: str
    profile: str
    address: str
    handle: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedPartition:
    """A partition of a server, and its place on both sides.

    ``handle`` is the mdev's uuid or the function's address. ``units`` are
    Nova's: one, or one for each function that goes to the guest together.
    ``provider`` and ``slot`` are those of this library, ``charges`` the
    amounts that the partition takes of ``provider``. ``device`` is the
    address of the card, ``parent`` that of the mdev's parent.
    """

    handle: str
    parent: str
    type_id: str
    profile: str
    device: str
    units: tuple[NativeUnit, ...]
    provider: str
    resource_class: str
    slot: str
    charges: Amounts

    @property
    def assigned(self) -> model.Slot:
        """Return the slot that Nova will have assigned to the server."""
        return model.Slot(
            provider=self.provider,
            resource_class=self.resource_class,
            identifier=self.slot,
        )

    @property
    def native_class(self) -> str:
        """Return the class of the partition's unit of Nova's."""
        return self.units[0].resource_class


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedServer:
    """A server with partitions; the extra specs are of its embedded flavor.

    ``requests`` are its PCI requests before, in the JSON of Nova's database;
    nova-compute records them.
    """

    uuid: str
    name: str
    partitions: tuple[AdoptedPartition, ...]
    specs_before: Mapping[str, str]
    specs_after: Mapping[str, str]
    requests: str = ""

    @property
    def slots(self) -> frozenset[model.Slot]:
        """Return the slots that Nova will have assigned to the server."""
        return frozenset(each.assigned for each in self.partitions)

    @property
    def units(self) -> tuple[NativeUnit, ...]:
        """Return all that Nova assigned to the server."""
        return tuple(u for each in self.partitions for u in each.units)

    def native_amounts(self) -> dict[str, dict[str, int]]:
        """Return the amounts of Nova's providers that the server takes."""
        return sum_amounts(
            (u.provider, {u.resource_class: 1})
            for u in self.units
            if u.provider
        )

    def own_amounts(self) -> dict[str, dict[str, int]]:
        """Return the amounts of this library's providers."""
        return sum_amounts((p.provider, p.charges) for p in self.partitions)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorMapping:
    """Extra specs of one native resource class and type, and of its profile.

    ``before`` and ``after`` are those of one vGPU in a group without a
    suffix, or of one function by an alias. ``traits`` are the traits of
    Nova's providers of that type, which flavors may require.
    """

    native_class: str
    type_id: str
    profile: str
    before: Mapping[str, str]
    after: Mapping[str, str]
    traits: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Adoption of one compute node: all that ``apply`` and ``undo`` need.

    ``natives`` are Nova's providers of the adopted cards, those without
    servers, too; ``functions`` the addresses that ``[pci] device_spec``
    names of them. ``reserved`` are mdevs and functions of domains that are
    no servers of Nova's: they stay, and their amounts are reserved.
    ``applied_at`` is a time in ISO 8601.
    """

    source: Source
    root: providers.ProviderRoot
    state: AdoptionState = AdoptionState.PLANNED
    natives: tuple[NativeProvider, ...] = ()
    functions: tuple[str, ...] = ()
    servers: tuple[AdoptedServer, ...] = ()
    flavors: tuple[FlavorMapping, ...] = ()
    reserved: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    applied_at: str = ""

    def server(self, uuid: str) -> AdoptedServer | None:
        return next((s for s in self.servers if s.uuid == uuid), None)

    def own_providers(self) -> dict[str, str]:
        """Return this library's providers by the native one of each.

        Only of natives that have servers.
        """
        return {
            unit.provider: partition.provider
            for server in self.servers
            for partition in server.partitions
            for unit in partition.units
            if unit.provider
        }

    def used_providers(self) -> frozenset[str]:
        """Return those of this library that its servers will have."""
        return frozenset(
            partition.provider
            for server in self.servers
            for partition in server.partitions
        )

    def is_same_work(self, other: "Plan") -> bool:
        """Return whether another plan makes the same changes."""
        same = dataclasses.replace(
            self, state=other.state, applied_at=other.applied_at
        )
        return same == other


def sum_amounts(
    pairs: Iterable[tuple[str, Amounts]],
) -> dict[str, dict[str, int]]:
    """Return the sums of amounts by provider and resource class."""
    total: dict[str, dict[str, int]] = {}
    for provider, amounts in pairs:
        by_class = total.setdefault(provider, {})
        for name, amount in amounts.items():
            by_class[name] = by_class.get(name, 0) + amount
    return total
