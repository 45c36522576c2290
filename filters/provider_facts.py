# SPDX-License-Identifier: Apache-2.0
"""Providers and allocation candidates, as the filter judges them."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel.model.providers import ClassCapacity

__all__ = ["Candidate", "ClassCapacity", "Facts", "ProviderFacts", "named"]

# One of Nova's allocation candidates (Placement's "allocation_requests"
# from microversion 1.34): {"allocations": {provider uuid: {"resources":
# {class: amount}}}, "mappings": {suffix: [provider uuid]}}
Candidate = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFacts:
    """What is known of a resource provider.

    ``name`` is empty where it was not read. ``exact`` tells that stock and
    holdings were read just now, after the latest server of the same
    request took its share; only such facts may refuse for want of room.
    ``taken_by`` are those servers, ``shares`` the suffixes of the groups
    that each of them has of it, in the same order. ``parent`` and ``root``
    are providers' uuids. ``held`` is what each consumer has of it, units by
    class; None where that was not read. ``read_at`` is when a cache first
    stored these facts, in seconds of its clock.
    """

    uuid: str
    stock: Mapping[str, ClassCapacity]
    name: str = ""
    traits: frozenset[str] = frozenset()
    exact: bool = False
    taken_by: tuple[str, ...] = ()
    shares: tuple[tuple[str, ...], ...] = ()
    parent: str = ""
    root: str = ""
    generation: int | None = None
    held: tuple[Mapping[str, int], ...] | None = None
    read_at: float | None = dataclasses.field(default=None, compare=False)

    @property
    def identity(self) -> tuple[object, ...]:
        """Return what differs once the provider is another, or changed.

        A provider that is deleted and created again gets the same uuid,
        and may have reached the same generation.
        """
        return self.generation, self.name, self.parent, self.root

    @property
    def label(self) -> str:
        """Return the name, or the uuid where no name was read."""
        return self.name or self.uuid


Facts = Mapping[str, ProviderFacts]


def named(
    classes: frozenset[str], candidates: Iterable[Candidate]
) -> tuple[str, ...]:
    """Return whom candidates take any of the classes from, in order."""
    return tuple(
        dict.fromkeys(
            uuid
            for candidate in candidates
            for uuid, allocation in candidate["allocations"].items()
            if not classes.isdisjoint(allocation["resources"])
        )
    )
