# SPDX-License-Identifier: Apache-2.0
"""StockLevel of a flavor's stock.

A start is a new server, a server that moves, or an attached profile. It
allocates on one host, and at most one card for each of its request groups.
So it makes a bounded number of cards and one host unusable for another
flavor, and the number of starts that a flavor survives has a lower bound,
whatever the starts are and whichever cards they get.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping

from nova_accel import errors
from nova_accel.model import flavors, providers
from placement_sync.fleet.explain import simulation
from placement_sync.fleet.flavors import cloud, flavor_specs

# Prefixes of extra specs that Nova's other filters and Placement's other
# inventories judge: the simulation does not.
_OTHER_JUDGES = (
    *("hw:", "pci_passthrough:", "aggregate_instance_extra_specs:"),
    *("capabilities:", "trust:"),
)
_SERVING = frozenset({simulation.FIRST, simulation.FITS})

Capacities = Mapping[str, providers.ClassCapacity]


class StockLevel(enum.StrEnum):
    """StockLevel of a flavor's stock.

    NONE: no server can start. FEW: one can. MANY: one can start after any
    number of other starts up to the promised one. UNKNOWN: the stock is
    older than its age.
    """

    NONE = "none"
    FEW = "few"
    MANY = "many"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LargestStart:
    """Upper bound of what one start of any flavor allocates.

    ``cards`` is a number of cards, ``needs`` are amounts of the compute node
    by class.
    """

    cards: int = 1
    needs: Mapping[str, int] = dataclasses.field(default_factory=dict)


def find_largest(listed: Iterable[cloud.Flavor]) -> LargestStart:
    """Return the upper bound for all flavors of a cloud.

    A flavor with a malformed extra spec starts no server.
    """
    cards, needs = 1, dict[str, int]()
    for flavor in listed:
        try:
            cards = max(cards, _count_cards(flavor))
        except errors.MalformedError:
            continue
        for name, amount in _list_needs(flavor).items():
            needs[name] = max(amount, needs.get(name, 0))
    return LargestStart(cards=cards, needs=needs)


def _count_cards(flavor: cloud.Flavor) -> int:
    """Return on how many cards a server allocates at most.

    Placement takes a group with a suffix from one provider, and each class
    of the other group from one.
    """
    return sum(
        1 if group.suffix else len(group.resources)
        for group in flavor_specs.read(flavor.specs).groups
    )


def _list_needs(flavor: cloud.Flavor) -> dict[str, int]:
    """Return what a server needs of its compute node at most, by class.

    Extra specs may replace amounts of the flavor.
    """
    needs = flavor.needs_with_disk
    for group in flavors.parse_groups(flavor.specs):
        for name in group.resources.keys() & needs.keys():
            needs[name] = max(needs[name], group.resources[name])
    return needs


def has_other_judges(specs: Mapping[str, str]) -> bool:
    """Return whether the simulation leaves extra specs to other judges.

    An extra spec without a namespace may be one of an aggregate.
    """
    numa = flavor_specs.read(specs).policy.numa
    return numa is flavors.NumaPolicy.REQUIRED or any(
        key.startswith(_OTHER_JUDGES)
        or (":" not in key and key != flavor_specs.POLICY)
        for key in specs
    )


def count_starts(
    flavor: cloud.Flavor,
    cards: Mapping[str, str],
    largest: LargestStart,
    host: simulation.HostVerdict,
    capacities: Capacities,
) -> int:
    """Return how many starts exhaust a host for a flavor, at least.

    :param cards: uuids of cards by those of their devices.
    :param host: result of a simulation of the flavor; a server fits there.
    :param capacities: of the compute node, by class.
    """
    serving = {c.uuid for c in host.cards if c.verdict in _SERVING}
    count = 1
    if _count_cards(flavor) == 1:
        usable = len({cards[uuid] for uuid in serving})
        count = -(-usable // largest.cards)
    for name, amount in _list_needs(flavor).items():
        taken = largest.needs.get(name, 0)
        if not amount or not taken:
            continue
        if name not in capacities:
            return 1
        spare = capacities[name].free - amount
        count = min(count, spare // taken + 1)
    return max(count, 1)


def find_level(starts: int, promised: int) -> StockLevel:
    """Return the level of a flavor.

    :param starts: how many starts exhaust the cloud for it, at least.
    :param promised: how many starts a level of MANY survives.
    """
    if starts > promised:
        return StockLevel.MANY
    return StockLevel.FEW if starts else StockLevel.NONE
