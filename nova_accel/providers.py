# SPDX-License-Identifier: Apache-2.0
"""Resource providers on paper."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One inventory record, with Placement's own field names."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = 1
    step_size: int = 1
    allocation_ratio: float = 1.0

    def as_dict(self) -> dict[str, int | float]:
        """Return the record as Placement's API and Nova spell it."""
        return dataclasses.asdict(self)


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
