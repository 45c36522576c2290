# SPDX-License-Identifier: Apache-2.0
"""Resource providers and allocation candidates, parsed from Placement."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel.model import names
from nova_accel.model.providers import ClassCapacity

__all__ = [
    "Candidate",
    "ClassCapacity",
    "Facts",
    "ProviderFacts",
    "list_providers",
    "parse_card_address",
]

# One of Nova's allocation candidates (Placement's "allocation_requests"
# from microversion 1.34): {"allocations": {provider uuid: {"resources":
# {class: amount}}}, "mappings": {suffix: [provider uuid]}}
Candidate = Mapping[str, Any]

_REGION = re.compile(r"_region_[0-9]+\Z")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFacts:
    """A resource provider with its inventories, traits and allocations.

    ``capacities`` are total and used units by resource class. ``name`` is
    empty where only a candidate's summary was read; ``card_address`` is the
    PCI address of the provider's card as ``names.provider_name`` spells it,
    empty without a name. ``parent`` and ``root`` are uuids.

    ``is_exact`` is True if capacities and allocations were read after the
    latest server of the same request was claimed; only such facts may
    reject a candidate for lack of room. ``sibling_servers`` are the earlier
    servers of the request that have allocations of this provider,
    ``sibling_groups`` the suffixes of the groups that each of them has of
    it, in the same order.

    ``allocations`` are the units by class of each consumer, None where they
    were not read. ``read_at`` is when a cache first stored these facts, in
    seconds of its clock.
    """

    uuid: str
    capacities: Mapping[str, ClassCapacity]
    name: str = ""
    card_address: str = ""
    traits: frozenset[str] = frozenset()
    is_exact: bool = False
    sibling_servers: tuple[str, ...] = ()
    sibling_groups: tuple[tuple[str, ...], ...] = ()
    parent: str = ""
    root: str = ""
    generation: int | None = None
    allocations: tuple[Mapping[str, int], ...] | None = None
    read_at: float | None = dataclasses.field(default=None, compare=False)

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

    @property
    def card(self) -> str:
        """Return the uuid of the card's provider.

        The provider of an FPGA region is a child of its card's provider;
        the provider of any other device is a child of the compute node's.
        """
        is_part = self.parent not in ("", self.root)
        return self.parent if is_part else self.uuid


# Providers by uuid.
Facts = Mapping[str, ProviderFacts]


def parse_card_address(name: str) -> str:
    """Return the address of a card from its provider's name.

    ``host_accel_0000_41_00_0`` and ``host_accel_0000_41_00_0_region_1``
    give ``0000_41_00_0``. Placement stores the address nowhere else: the
    provider's uuid is a hash of it.
    """
    address = name.rpartition(names.PROVIDER_MARK)[2]
    return _REGION.sub("", address)


def list_providers(
    classes: frozenset[str], candidates: Iterable[Candidate]
) -> tuple[str, ...]:
    """Return the uuids of the providers that candidates allocate from.

    Only providers of the given resource classes, each once, in the order
    of the candidates.
    """
    return tuple(
        dict.fromkeys(
            uuid
            for candidate in candidates
            for uuid, allocation in candidate["allocations"].items()
            if not classes.isdisjoint(allocation["resources"])
        )
    )
