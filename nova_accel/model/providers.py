# SPDX-License-Identifier: Apache-2.0
"""Resource providers: as Placement stores them, and as a host needs them.

Field names of inventory records are Placement's.
"""

import dataclasses
from collections.abc import Mapping

# Placement stores these numbers in signed 32-bit columns and refuses larger
# ones (placement/db/constants.py, MAX_INT).
MAX_TOTAL = 0x7FFFFFFF


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One inventory record.

    ``max_unit - total`` is the amount that this library has reserved; the
    rest of ``reserved`` is the operator's. Placement accepts a ``max_unit``
    larger than the total.
    """

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = 1
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def own_reserved(self) -> int:
        """Return how many units this library has reserved.

        0 if another writer made the record.
        """
        own = self.max_unit - self.total
        return own if 0 <= own <= self.total else 0

    @property
    def capacity(self) -> int:
        """Return the allocatable units.

        Same arithmetic as Inventory.capacity of
        placement/objects/inventory.py.
        """
        return int((self.total - self.reserved) * self.allocation_ratio)

    def with_own_reserved(self, amount: int) -> "Inventory":
        """Return the record with units reserved by this library.

        At most ``total`` units are reserved.
        """
        own = min(amount, self.total)
        return dataclasses.replace(
            self,
            reserved=own,
            max_unit=min(self.total + own, MAX_TOTAL),
        )

    def as_dict(self) -> dict[str, int | float]:
        """Return the record as Placement's API and Nova spell it."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClassCapacity:
    """Capacity and usage of one resource class of a provider.

    ``capacity`` is (total - reserved) times allocation_ratio. ``reserved``
    is 0 until the inventory itself is read: Placement's allocation
    candidates do not have it, so it does not count in comparisons.
    """

    capacity: int
    used: int = 0
    reserved: int = dataclasses.field(default=0, compare=False)

    @property
    def total(self) -> int:
        """Return the units, reserved or not."""
        return self.capacity + self.reserved

    @property
    def free(self) -> int:
        """Return the units that are not allocated, at least 0."""
        return max(0, self.capacity - self.used)

    def __str__(self) -> str:
        """Return the free units in words: ``0 of 4 left``."""
        return f"{self.free} of {self.capacity} left"


def as_dicts(
    inventories: Mapping[str, Inventory],
) -> dict[str, dict[str, int | float]]:
    """Return inventories in the format of Nova and Placement, sorted."""
    return {
        name: inventory.as_dict()
        for name, inventory in sorted(inventories.items())
    }


def build_capacities(
    inventories: Mapping[str, Inventory],
) -> dict[str, ClassCapacity]:
    """Return the capacities of inventories, without used units."""
    return {
        name: ClassCapacity(
            capacity=i.capacity,
            reserved=int(i.total * i.allocation_ratio) - i.capacity,
        )
        for name, i in inventories.items()
    }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Resource provider as Placement stores it.

    Fields that were not read are empty, or None. ``parent`` and ``root``
    are uuids; ``parent`` is empty for a root. ``capacities`` are by
    resource class, as ``inventories`` are. ``allocations`` are the units by
    class of each consumer. ``read_at`` is when a cache first stored the
    provider, in seconds of its clock.

    ``siblings`` are the earlier servers of a request that have allocations of
    this provider, in order, with the suffixes of the groups that each of
    them has of it.
    """

    uuid: str
    name: str = ""
    parent: str = ""
    root: str = ""
    generation: int | None = None
    inventories: Mapping[str, Inventory] = dataclasses.field(
        default_factory=dict
    )
    capacities: Mapping[str, ClassCapacity] = dataclasses.field(
        default_factory=dict
    )
    traits: frozenset[str] = frozenset()
    allocations: tuple[Mapping[str, int], ...] | None = None
    read_at: float | None = dataclasses.field(default=None, compare=False)
    siblings: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )

    @property
    def identity(self) -> tuple[object, ...]:
        """Return generation, name, parent and root.

        The generation alone is not enough: a provider that is deleted and
        created again gets the same uuid and may reach the same generation.
        """
        return self.generation, self.name, self.parent, self.root

    @property
    def label(self) -> str:
        """Return the name for logs, or the uuid where no name was read."""
        return self.name or self.uuid

    def with_used(self, used: Mapping[str, int]) -> "Provider":
        """Return the provider with the used units of each of its classes."""
        return dataclasses.replace(
            self,
            capacities={
                name: dataclasses.replace(capacity, used=used.get(name, 0))
                for name, capacity in self.capacities.items()
            },
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Allocation of a consumer from a provider: amounts by resource class.

    ``provider`` is a uuid. ``consumer`` is the uuid of a server, or of a
    migration while one is active.
    """

    provider: str
    consumer: str
    amounts: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProviderNode:
    """One resource provider: inventories, traits, and claimable slots.

    ``slots`` are, by resource class, the identifiers that Nova's resource
    tracker may assign. ``unread_traits`` are prefixes of traits that could
    not be read: the provider keeps those it has. It loses the
    ``former_traits`` that an earlier release set.
    """

    name: str
    uuid: str
    parent: str
    inventories: Mapping[str, Inventory]
    traits: frozenset[str]
    slots: Mapping[str, frozenset[str]] = dataclasses.field(
        default_factory=dict
    )
    unread_traits: tuple[str, ...] = ()
    former_traits: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRoot:
    """The compute node's provider: Nova's, so it is read-only."""

    name: str
    uuid: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTree:
    """The library's providers below one compute node."""

    root: ProviderRoot
    nodes: tuple[ProviderNode, ...] = ()

    def node(self, uuid: str) -> ProviderNode | None:
        return next((n for n in self.nodes if n.uuid == uuid), None)
