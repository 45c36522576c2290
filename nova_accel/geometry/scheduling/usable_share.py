# SPDX-License-Identifier: Apache-2.0
"""Usable share: how much of a host's cards the usual requests could use.

The measure of FGD (Weng et al., USENIX ATC 2023) turned round: for each usual
request, weighted by its part of all requests,

- the free share of the cards with room for it, if the host has room for one
  (FGD: not fragmented); of vGPUs, which have places, what they can fill; and
- the share that it would use if the host were filled with it, up to its
  cards, CPU and memory.

A placement that costs little of it leaves room for what will be asked for. The
unit is a card. Room is counted by ``provider_room``, so with exact geometry.
"""

import collections
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nova_accel.catalog import vgpu_types
from nova_accel.geometry.scheduling.provider_room import ProviderRoom
from nova_accel.geometry.scheduling.vgpu_geometry import VgpuGeometry
from nova_accel.model import flavors, providers

# Parts of the two terms. Measured with tests.benchmark.density: the second
# alone serves small requests well and large ones badly, the first vice versa.
_REACHABLE, _FILLED = 0.8, 0.2
# Values stored until they are computed again: a key is some dozen bytes.
_MAX_VALUES = 1 << 16
# Sums of the same numbers in another order are equal to so many digits.
_DIGITS = 6
# vCPUs or MiB: more than any host has, and of a request that needs none.
PLENTY = 1e15
_LITTLE = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class GroupShape:
    """A request group without its suffix."""

    resources: tuple[tuple[str, int], ...]
    required: frozenset[str]
    forbidden: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class RequestShape:
    """vCPUs, memory in MiB, and accelerators that a server requests."""

    vcpus: int
    memory_mb: int
    groups: tuple[GroupShape, ...]


# Requests to expect, each with its part of all.
Usual = tuple[tuple[RequestShape, float], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class HostRoom:
    """Free vCPUs and MiB of a host, ``PLENTY`` where they are not known."""

    vcpus: float = PLENTY
    memory_mb: float = PLENTY


UNLIMITED = HostRoom()


class HostLoss(NamedTuple):
    """Loss of a host that gets a server; the lowest is best.

    ``usable`` is the loss of usable share; among equals the host with the
    least ``free`` cards and then ``vcpus`` is best.
    """

    usable: float
    free: float
    vcpus: float


def build_shape(
    vcpus: int, memory_mb: int, groups: Iterable[flavors.RequestGroup]
) -> RequestShape:
    """Return the shape of a server's request."""
    return RequestShape(
        vcpus,
        memory_mb,
        tuple(
            GroupShape(
                tuple(sorted(group.resources.items())),
                group.required,
                group.forbidden,
            )
            for group in groups
        ),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Usual:
    """A usual request: its part of all, and its groups by kind."""

    part: float
    vcpus: int
    memory_mb: int
    kinds: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _CardUse:
    """Of each kind of group: number, share if filled, and reachable share.

    ``usable`` is the usable share of the card alone, ``free`` the free share
    of its scarcest class.
    """

    counts: tuple[int, ...]
    filled: tuple[float, ...]
    reachable: tuple[float, ...]
    usable: float
    free: float


# For each usual request that cards have room for: its vCPUs and MiB, how many
# fit on the cards, the share that each of them fills, and the reachable share.
_Sums = list[tuple[float, float, float, float, float]]


class UsableShares:
    """Usable shares of cards and hosts; thread-safe.

    :param geometry: counts vGPUs that fit on a card.
    :param list_usual: returns the requests to expect, the same object until
        they change.
    """

    def __init__(
        self, geometry: VgpuGeometry, list_usual: Callable[[], Usual]
    ) -> None:
        self._geometry = geometry
        self._list_usual = list_usual
        self._table = _Table(geometry, ())

    def measure(self) -> "HostLosses":
        """Return the losses of hosts by one mix of requests."""
        return HostLosses(self._read_table())

    def compute_card_loss(
        self,
        card: providers.Provider,
        groups: Sequence[flavors.RequestGroup],
    ) -> float:
        """Return the usable share that one card loses, in cards.

        Each group of a usual request counts for itself.
        """
        table = self._read_table()
        before = table.read_card(card, ()).usable
        after = table.read_card(card, groups).usable
        return round(before - after, _DIGITS)

    def _read_table(self) -> "_Table":
        usual = self._list_usual()
        table = self._table
        if table.usual is not usual:
            table = self._table = _Table(self._geometry, usual)
        return table


class HostLosses:
    """Losses of the hosts of one answer of Placement.

    Equal sets of traits and of capacities are mostly one object in it.
    """

    def __init__(self, table: "_Table") -> None:
        self._table = table
        self._uses: dict[tuple[int, int, bool], tuple[_CardUse, object]] = {}
        self._hosts: dict[
            tuple[int, ...], tuple[tuple[_CardUse, ...], float, object]
        ] = {}

    def compute(
        self,
        cards: Sequence[providers.Provider],
        added: Mapping[str, Sequence[flavors.RequestGroup]],
        room: HostRoom = UNLIMITED,
        remaining: HostRoom = UNLIMITED,
    ) -> HostLoss:
        """Return what a host loses with a server.

        :param cards: all of the host.
        :param added: the server's groups by the uuid of their card.
        :param room: CPU and memory that are free without the server.
        :param remaining: those that remain free.
        """
        table = self._table
        before, free = self._read_cards(cards)
        after: Sequence[_CardUse] = before
        if added:
            after = [
                table.read_card(card, added[card.uuid])
                if card.uuid in added
                else self._read_card(card)
                for card in cards
            ]
        usable = table.read_value(before, room) - table.read_value(
            after, remaining
        )
        return HostLoss(round(usable, _DIGITS), free, room.vcpus)

    def _read_cards(
        self, cards: Sequence[providers.Provider]
    ) -> tuple[tuple[_CardUse, ...], float]:
        """Return the uses of a host's cards, and their free share."""
        key = tuple(map(id, cards))
        if key not in self._hosts:
            uses = tuple(map(self._read_card, cards))
            free = round(sum(use.free for use in uses), _DIGITS)
            # The cards are stored to keep their ids in use.
            self._hosts[key] = uses, free, cards
        return self._hosts[key][:2]

    def _read_card(self, card: providers.Provider) -> _CardUse:
        if card.allocations:
            return self._table.read_card(card, ())
        is_known = card.allocations is not None
        key = id(card.traits), id(card.capacities), is_known
        if key not in self._uses:
            # The card is stored to keep its ids in use.
            self._uses[key] = self._table.read_card(card, ()), card
        return self._uses[key][0]


class _Table:
    """Values for one mix of requests, computed once."""

    def __init__(self, geometry: VgpuGeometry, usual: Usual) -> None:
        self.usual = usual
        self._geometry = geometry
        kinds = tuple(dict.fromkeys(g for s, _ in usual for g in s.groups))
        self._kinds = tuple(map(self._build_kind, kinds))
        self._requests = tuple(
            _Usual(
                part,
                shape.vcpus,
                shape.memory_mb,
                tuple(
                    (kinds.index(group), number)
                    for group, number in collections.Counter(
                        shape.groups
                    ).items()
                ),
            )
            for shape, part in usual
        )
        self._cards: dict[Hashable, _CardUse] = {}
        self._sums: dict[Hashable, _Sums] = {}
        self._values: dict[Hashable, float] = {}

    def _build_kind(
        self, shape: GroupShape
    ) -> tuple[flavors.RequestGroup, vgpu_types.CatalogVgpuType | None]:
        group = flavors.RequestGroup(
            suffix="",
            resources=dict(shape.resources),
            required=shape.required,
            forbidden=shape.forbidden,
        )
        return group, self._geometry.states.find_type(group)

    def read_card(
        self,
        card: providers.Provider,
        groups: Sequence[flavors.RequestGroup],
    ) -> _CardUse:
        """Return the use of a card once it has some more groups."""
        key = (
            card.traits,
            *(
                (name, capacity.capacity, capacity.used)
                for name, capacity in card.capacities.items()
            ),
            *(tuple(units.items()) for units in card.allocations or ()),
            len(groups),
            *((group.required, *group.resources.items()) for group in groups),
        )
        use = self._cards.get(key)
        if use is None:
            _limit(self._cards)
            use = self._cards[key] = self._compute_card(card, groups)
        return use

    def _compute_card(
        self,
        card: providers.Provider,
        groups: Sequence[flavors.RequestGroup],
    ) -> _CardUse:
        room = ProviderRoom(self._geometry, card, tuple(groups))
        counts = tuple(
            room.count(group, vgpu_type) for group, vgpu_type in self._kinds
        )
        filled = tuple(
            count * _compute_share(card, group)
            for (group, _), count in zip(self._kinds, counts, strict=True)
        )
        reachable = tuple(
            share
            if vgpu_type or not share
            else _compute_free_share(card, group, groups)
            for (group, vgpu_type), share in zip(
                self._kinds, filled, strict=True
            )
        )
        return _CardUse(
            counts=counts,
            filled=filled,
            reachable=reachable,
            usable=sum(
                usual.part
                * (_FILLED * filled[k] + _REACHABLE * reachable[k])
                / len(usual.kinds)
                for usual in self._requests
                for k, _ in usual.kinds
            ),
            free=min(
                (
                    capacity.free / capacity.capacity
                    for capacity in card.capacities.values()
                    if capacity.capacity > 0
                ),
                default=0.0,
            ),
        )

    def read_value(self, uses: Sequence[_CardUse], room: HostRoom) -> float:
        """Return the usable share of a host's cards."""
        cards = tuple(sorted(uses, key=id))
        key = cards, room
        value = self._values.get(key)
        if value is None:
            _limit(self._values)
            value = self._compute_value(self._read_sums(cards), room)
            self._values[key] = value
        return value

    def _read_sums(self, cards: tuple[_CardUse, ...]) -> _Sums:
        sums = self._sums.get(cards)
        if sums is None:
            _limit(self._sums)
            counts, filled, reachable = (
                list(map(sum, zip(*vectors, strict=True)))
                for vectors in (
                    [use.counts for use in cards],
                    [use.filled for use in cards],
                    [use.reachable for use in cards],
                )
            )
            sums = []
            for usual in self._requests if cards else ():
                number = min(counts[k] // n for k, n in usual.kinds)
                if number > 0:
                    each = sum(
                        n * filled[k] / counts[k] for k, n in usual.kinds
                    )
                    reach = sum(reachable[k] for k, _ in usual.kinds)
                    sums.append(
                        (
                            usual.vcpus or _LITTLE,
                            usual.memory_mb or _LITTLE,
                            number,
                            usual.part * _FILLED * each,
                            usual.part * _REACHABLE * reach / len(usual.kinds),
                        )
                    )
            self._sums[cards] = sums
        return sums

    def _compute_value(self, sums: _Sums, room: HostRoom) -> float:
        value = 0.0
        for vcpus, memory_mb, number, each, reach in sums:
            if room.vcpus >= vcpus and room.memory_mb >= memory_mb:
                fitting = min(
                    number, room.vcpus // vcpus, room.memory_mb // memory_mb
                )
                value += fitting * each + reach
        return value


def _limit(cache: dict[Hashable, Any]) -> None:
    """Empty a full cache."""
    if len(cache) >= _MAX_VALUES:
        cache.clear()


def _compute_share(
    card: providers.Provider, group: flavors.RequestGroup
) -> float:
    """Return the share of a card that a group takes, of its scarcest class."""
    return max(
        (
            amount / max(1, capacity.capacity)
            for name, amount in group.resources.items()
            if (capacity := card.capacities.get(name))
        ),
        default=0.0,
    )


def _compute_free_share(
    card: providers.Provider,
    group: flavors.RequestGroup,
    added: Sequence[flavors.RequestGroup],
) -> float:
    """Return the free share of the scarcest class that a group needs."""
    return min(
        (
            max(
                0,
                capacity.free - sum(g.resources.get(name, 0) for g in added),
            )
            / max(1, capacity.capacity)
            for name in group.resources
            if (capacity := card.capacities.get(name))
        ),
        default=0.0,
    )
