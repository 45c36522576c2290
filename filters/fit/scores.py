# SPDX-License-Identifier: Apache-2.0
"""Scores of hosts for a request: numbers from 0 to 1."""

import functools
import operator
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Sequence,
)
from fractions import Fraction
from typing import Any

from filters.fit import provider_facts
from filters.request import AcceleratorRequest
from nova_accel.geometry.scheduling import (
    provider_room,
    usable_share,
    vgpu_geometry,
)
from nova_accel.model import flavors, names, providers

#: Takes a compute node's uuid, and those of cards that need their uuids;
#: returns its cards.
ListCards = Callable[[str, Container[str]], Sequence[providers.Provider]]


def trait_share(
    request: AcceleratorRequest,
    candidates: Iterable[provider_facts.Candidate],
    cards: Iterable[providers.Provider],
    traits: frozenset[str],
) -> Fraction:
    """Return the share of the traits that the best candidate's cards have.

    :param candidates: of one host.
    :param cards: of the same host.
    """
    traits_by_card = {card.uuid: card.traits for card in cards}
    best = 0
    for candidate in candidates:
        provided = traits.intersection(
            trait
            for uuid in provider_facts.list_providers(
                request.classes, (candidate,)
            )
            for trait in traits_by_card.get(uuid, ())
        )
        best = max(best, len(provided))
    return Fraction(best, max(1, len(traits)))


def room_share(
    groups: Collection[flavors.RequestGroup],
    cards: Iterable[providers.Provider],
    geometry: vgpu_geometry.VgpuGeometry,
) -> Fraction:
    """Return the share of some request groups that a host has room for.

    Each takes the first of the cards that has room.
    """
    rooms = [provider_room.ProviderRoom(geometry, card) for card in cards]
    served = 0
    for group in groups:
        for number, room in enumerate(rooms):
            if room.count(group):
                rooms[number] = room.add(group)
                served += 1
                break
    return Fraction(served, max(1, len(groups)))


def fullness(
    request: AcceleratorRequest,
    cards: Iterable[providers.Provider],
    uuids: Collection[str],
) -> Fraction | None:
    """Return the used share of a host's cards of the requested kind.

    The share is that of all these cards together, of the resource class
    used most. A full card counts although it offers no profile now; a card
    with nothing to allocate does not. None if no card is of this kind.

    :param uuids: cards that could serve the request; all cards of the same
        models count, and those that serve earlier servers of the request.
    """
    cards = tuple(cards)
    models = frozenset(
        model
        for card in cards
        if card.uuid in uuids
        for model in _list_models(card.traits)
    )
    of_this_kind = [
        card
        for card in cards
        if card.uuid in uuids
        or card.siblings
        or models & _list_models(card.traits)
    ]
    used_shares = [
        Fraction(
            sum(c.used for c in capacities),
            sum(c.capacity for c in capacities),
        )
        for capacities in _group_by_class(
            of_this_kind, request.classes
        ).values()
    ]
    return min(Fraction(1), max(used_shares)) if used_shares else None


def read_size(spec: Any) -> tuple[int, int]:
    """Return the vCPUs and MiB of a server, 0 where its flavor has none.

    :param spec: the nova.objects.RequestSpec.
    """
    flavor = spec.flavor
    return (
        flavor.vcpus if "vcpus" in flavor else 0,
        flavor.memory_mb if "memory_mb" in flavor else 0,
    )


def read_room(host: Any) -> usable_share.HostRoom:
    """Return the free vCPUs and memory of a host.

    ``PLENTY`` where the host has reported none, or offers none this way.

    :param host: nova.scheduler.host_manager.HostState.
    """
    vcpus = memory = usable_share.PLENTY
    if host.vcpus_total:
        ratio = host.cpu_allocation_ratio or 1.0
        vcpus = host.vcpus_total * ratio - host.vcpus_used
    if host.total_usable_ram_mb:
        total = host.total_usable_ram_mb
        ratio = host.ram_allocation_ratio or 1.0
        memory = total * ratio - (total - host.free_ram_mb)
    return usable_share.HostRoom(vcpus, memory)


# What ``read_room`` reads, as one tuple.
_read_fields = operator.attrgetter(
    *("vcpus_total", "vcpus_used", "cpu_allocation_ratio"),
    *("total_usable_ram_mb", "free_ram_mb", "ram_allocation_ratio"),
)


class RequestLosses:
    """Losses of the hosts that get a server of one request.

    Of a host whose candidates and room are the same as for the server before
    it is computed once.

    :param losses: of hosts, by one mix of requests.
    """

    def __init__(
        self, request: AcceleratorRequest, losses: usable_share.HostLosses
    ) -> None:
        self._request = request
        self._losses = losses
        self._by_host: dict[
            str, tuple[object, object, usable_share.HostLoss]
        ] = {}

    def compute(
        self,
        host: Any,
        size: tuple[int, int],
        list_cards: ListCards,
    ) -> usable_share.HostLoss:
        """Return what a host loses; Nova claims its first candidate.

        :param size: vCPUs and MiB of the server.
        """
        candidates, fields = host.allocation_candidates, _read_fields(host)
        stored = self._by_host.get(host.uuid)
        if stored and stored[0] is candidates and stored[1] == fields:
            return stored[2]
        room = read_room(host)
        added = (
            provider_facts.list_added(self._request.groups, candidates[0])
            if candidates and self._request.groups
            else {}
        )
        loss = self._losses.compute(
            list_cards(host.uuid, added),
            added,
            room,
            usable_share.HostRoom(
                room.vcpus - size[0], room.memory_mb - size[1]
            ),
        )
        self._by_host[host.uuid] = candidates, fields, loss
        return loss


def rank(losses: Sequence[usable_share.HostLoss]) -> list[float]:
    """Return a score for each loss: 1 for the least, then 1/2, 1/3 and so on.

    Equal losses have equal scores. The best host's is so far above the next
    that weighers of multiplier 1 do not outweigh the default 10, however
    little the losses differ.
    """
    ranks = {loss: n for n, loss in enumerate(sorted(set(losses)), start=1)}
    return [1 / ranks[loss] for loss in losses]


@functools.lru_cache(maxsize=4096)
def _list_models(traits: frozenset[str]) -> frozenset[str]:
    return frozenset(
        trait for trait in traits if trait.startswith(names.MODEL_PREFIX)
    )


def _group_by_class(
    cards: Sequence[providers.Provider], classes: Collection[str]
) -> dict[str, list[providers.ClassCapacity]]:
    by_class: dict[str, list[providers.ClassCapacity]] = {}
    for card in cards:
        for name, capacity in card.capacities.items():
            if name in classes and capacity.capacity > 0:
                by_class.setdefault(name, []).append(capacity)
    return by_class
