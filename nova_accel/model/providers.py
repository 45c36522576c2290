# SPDX-License-Identifier: Apache-2.0
"""Resource providers: inventories, nodes, trees."""

import dataclasses
from collections.abc import Mapping

# Placement keeps these numbers in signed 32-bit columns and refuses more
# (placement/db/constants.py, MAX_INT).
MAX_TOTAL = 0x7FFFFFFF


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One inventory record, with Placement's own field names.

    What this library reserves is told from what an operator reserves by
    the record itself: it is ``max_unit - total``. Placement lets a
    ``max_unit`` be larger than what there is.
    """

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = 1
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def own(self) -> int:
        """Return how many units this library has reserved.

        None of them, if somebody else has written the record.
        """
        own = self.max_unit - self.total
        return own if 0 <= own <= self.total else 0

    def reserving(self, amount: int) -> "Inventory":
        """Return the record with so many units reserved by this library.

        As many as there are, at most.
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
    """What a provider has of one class, in Placement's units.

    ``capacity`` is what may be allocated in all: (total - reserved) times
    allocation_ratio.
    """

    capacity: int
    used: int = 0

    @property
    def left(self) -> int:
        """Return the units not allocated, never below 0."""
        return max(0, self.capacity - self.used)

    def __str__(self) -> str:
        """Return the stock in words: ``0 of 4 left``."""
        return f"{self.left} of {self.capacity} left"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProviderNode:
    """One resource provider: inventories, traits, and claimable slots.

    ``slots`` are, by resource class, the identifiers Nova's resource
    tracker may hand out. ``unread`` are prefixes of traits of which
    nothing can be told now: those that the provider has, it keeps.
    """

    name: str
    uuid: str
    parent: str
    inventories: Mapping[str, Inventory]
    traits: frozenset[str]
    slots: Mapping[str, frozenset[str]] = dataclasses.field(
        default_factory=dict
    )
    unread: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRoot:
    """The compute node's own provider: Nova's, read and never written."""

    name: str
    uuid: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTree:
    """Our providers below one compute node."""

    root: ProviderRoot
    nodes: tuple[ProviderNode, ...] = ()

    def node(self, uuid: str) -> ProviderNode | None:
        """Return the provider of that uuid, or None."""
        return next((n for n in self.nodes if n.uuid == uuid), None)
