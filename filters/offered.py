# SPDX-License-Identifier: Apache-2.0
"""What is known of the providers that allocation candidates name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

# One of Nova's allocation candidates (Placement's "allocation_requests"
# from microversion 1.34): {"allocations": {provider uuid: {"resources":
# {class: amount}}}, "mappings": {suffix: [provider uuid]}}
Candidate = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What a provider has of one class, in Placement's units.

    ``capacity`` is what may be allocated in all: (total - reserved) times
    allocation_ratio.
    """

    capacity: int
    used: int

    @property
    def left(self) -> int:
        """Return the units not allocated, never below 0."""
        return max(0, self.capacity - self.used)

    def __str__(self) -> str:
        """Return the stock in words: ``0 of 4 left``."""
        return f"{self.left} of {self.capacity} left"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFacts:
    """What is known of a resource provider.

    ``name`` is empty where it was not read. ``exact`` tells that stock and
    holdings were read just now, after the latest server of the same
    request took its share; only such facts may refuse for want of room.
    ``taken_by`` are those servers. ``parent`` and ``root`` are providers'
    uuids. ``held`` is what each consumer has of it, units by class; None
    where that was not read.
    """

    uuid: str
    stock: Mapping[str, Stock]
    name: str = ""
    traits: frozenset[str] = frozenset()
    exact: bool = False
    taken_by: tuple[str, ...] = ()
    parent: str = ""
    root: str = ""
    generation: int | None = None
    held: tuple[Mapping[str, int], ...] | None = None

    @property
    def label(self) -> str:
        """Return the name, or the uuid where no name was read."""
        return self.name or self.uuid


Facts = Mapping[str, ProviderFacts]
