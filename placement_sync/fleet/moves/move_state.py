# SPDX-License-Identifier: Apache-2.0
"""State of a cloud after some moves, and the cards that a server can get.

nova-scheduler chooses the card of a host. Where the host has several with
room, the production code orders them, with what Placement would show then;
where that is not certain, the host gets no server.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from filters import request as requests
from filters.fit import candidate_fit
from nova_accel.geometry import occupancy
from nova_accel.model import flavors, names, providers
from placement_sync.fleet.devices import fleet_state
from placement_sync.fleet.flavors import offered_devices
from placement_sync.fleet.moves import card_contents, movable_servers

Contents = card_contents.Contents
KnownCard = card_contents.KnownCard
Server = movable_servers.MovableServer
# Combinations of possible contents of a host's cards for which the choice of
# the scheduler is computed.
_MOST_COMBINATIONS = 8


class MoveState:
    """A cloud after some moves; ``move`` returns the next state.

    ``contents`` are those of the known cards by uuid, ``moves`` pairs of
    server and card, in order; ``touched`` are the cards that gave or got one.
    """

    def __init__(
        self,
        site: "MoveSite",
        contents: Mapping[str, Contents],
        used: Mapping[tuple[str, str], int],
        members: Mapping[tuple[str, str], int],
        moves: tuple[tuple[str, str], ...] = (),
        touched: frozenset[str] = frozenset(),
    ) -> None:
        self._site = site
        self.contents = contents
        self._used = used
        self._members = members
        self.moves = moves
        self.moved = frozenset(uuid for uuid, _ in moves)
        self.touched = touched
        self.touched_hosts = frozenset(
            site.cards[uuid].root for uuid in touched
        )

    def move(self, server: Server, target: KnownCard) -> "MoveState":
        """Return the state after one more move.

        :param target: one of ``list_targets``.
        :raises ValueError: it has no place.
        """
        added = self.contents[target.uuid].add(server.profile)
        if added is None:
            raise ValueError(server.profile, target.uuid)
        used, members = dict(self._used), dict(self._members)
        for name, amount in server.needs.items():
            for root, change in (
                (server.root, -amount),
                (target.root, amount),
            ):
                used[root, name] = used.get((root, name), 0) + change
        for group, _ in server.separated:
            for root, change in ((server.root, -1), (target.root, 1)):
                members[group, root] = members.get((group, root), 0) + change
        return MoveState(
            self._site,
            {
                **self.contents,
                server.card: self.contents[server.card].remove(server.profile),
                target.uuid: added,
            },
            used,
            members,
            (*self.moves, (server.uuid, target.uuid)),
            self.touched | {server.card, target.uuid},
        )

    def list_targets(self, server: Server) -> Iterator[KnownCard]:
        """Yield the card of each host that would get a server."""
        for root, cards in self._site.list_offers(server).items():
            if root == server.root or not self._has_room(server, root):
                continue
            free = [
                card
                for card in cards
                if self.contents[card.uuid].add(server.profile) is not None
            ]
            chosen = self._choose(server, root, free) if free else None
            if chosen is not None:
                yield chosen

    def describe(self, root: str) -> tuple[object, ...]:
        """Return what decides about moves to a host besides its traits."""
        site = self._site
        return (
            tuple(id(self.contents[c.uuid]) for c in site.cards_by_root[root]),
            tuple(
                sorted(
                    (name, capacity.free - self._used.get((root, name), 0))
                    for name, capacity in site.nodes.get(root, {}).items()
                )
            ),
        )

    def _has_room(self, server: Server, root: str) -> bool:
        node = self._site.nodes.get(root, {})
        return (
            root not in server.excluded
            and all(
                name not in node
                or node[name].free - self._used.get((root, name), 0) >= amount
                for name, amount in server.needs.items()
            )
            and all(
                self._members.get((group, root), 0) < most
                for group, most in server.separated
            )
        )

    def _choose(
        self, server: Server, root: str, cards: Sequence[KnownCard]
    ) -> KnownCard | None:
        """Return the card that Nova would choose, None if not certain."""
        if any(
            self._site.may_serve(device, server)
            for device in self._site.unknown_by_root.get(root, ())
        ):
            return None
        if len(cards) == 1:
            return cards[0]
        nodes = {_list_nodes(card.row.device.traits) for card in cards}
        if server.policy.numa is not flavors.NumaPolicy.NONE and (
            len(nodes) > 1
        ):
            return None  # no API shows the room of a host's NUMA nodes
        combinations = itertools.islice(
            itertools.product(
                *(
                    range(len(self.contents[card.uuid].devices))
                    for card in cards
                )
            ),
            _MOST_COMBINATIONS + 1,
        )
        chosen = set()
        for number, combination in enumerate(combinations):
            if number == _MOST_COMBINATIONS:
                return None
            facts = [
                self._build_facts(card, index)
                for card, index in zip(cards, combination, strict=True)
            ]
            chosen.add(self._site.choose(server, facts))
        (uuid, *others) = chosen
        if others:
            return None
        return next((card for card in cards if card.uuid == uuid), None)

    def _build_facts(self, card: KnownCard, index: int) -> providers.Provider:
        """Return a card's provider as Placement will have it."""
        contents = self.contents[card.uuid]
        device = contents.devices[index]
        handles = {partition.handle for partition in device.partitions}
        own = card.row.device
        used = {name: 0 for name in own.capacities}
        for partition in device.partitions:
            for name, amount in device.charges(partition.profile).items():
                if name in used:
                    used[name] += amount
        return dataclasses.replace(
            own,
            traits=frozenset(
                trait
                for trait in own.traits
                if not trait.startswith(occupancy.PLACE_PREFIX)
            )
            | occupancy.build_traits(device, handles),
            capacities=own.with_used(used).capacities,
            allocations=None,
        )


class MoveSite:
    """Cards and hosts, and the servers that each may get at any time."""

    def __init__(
        self,
        cards: Iterable[KnownCard],
        fleet: fleet_state.Fleet,
        types: offered_devices.VgpuTypes,
    ) -> None:
        """:param cards: the known ones that are in service."""
        self._types = types
        self.nodes = fleet.cloud.hosts
        self.cards = {card.uuid: card for card in cards}
        self.cards_by_root: dict[str, list[KnownCard]] = {}
        for card in self.cards.values():
            self.cards_by_root.setdefault(card.root, []).append(card)
        self.unknown_by_root: dict[
            str, list[offered_devices.OfferedDevice]
        ] = {}
        for device in fleet.devices:
            if device.uuid not in self.cards and not device.is_unavailable:
                self.unknown_by_root.setdefault(device.root, []).append(device)
        self._offers: dict[object, dict[str, list[KnownCard]]] = {}

    def begin(
        self,
        groups: Iterable[movable_servers.ServerGroup],
        hosts: Mapping[str, str],
    ) -> MoveState:
        """Return the state without any move.

        :param hosts: uuids of the compute nodes of servers, by server.
        """
        pool = card_contents.ContentsPool()
        members = movable_servers.list_members(groups, hosts)
        return MoveState(
            self,
            {
                uuid: pool.intern([card.device])
                for uuid, card in self.cards.items()
            },
            {},
            {key: len(uuids) for key, uuids in members.items()},
        )

    def list_offers(self, server: Server) -> Mapping[str, list[KnownCard]]:
        """Return the cards of a server's kind by host."""
        key = (
            server.gpu,
            server.profile,
            server.group.required,
            server.group.forbidden,
        )
        if key not in self._offers:
            by_root: dict[str, list[KnownCard]] = {}
            for card in self.cards.values():
                if card.gpu == server.gpu and self._is_offered(card, server):
                    by_root.setdefault(card.root, []).append(card)
            self._offers[key] = by_root
        return self._offers[key]

    def _is_offered(self, card: KnownCard, server: Server) -> bool:
        """Return whether a card has the traits that a group requires.

        Those of profiles come and go with the room for them.
        """
        traits, group = card.row.device.traits, server.group
        return (
            server.profile in card.profiles
            and not group.forbidden & traits
            and all(
                trait in traits
                or (
                    (vgpu_type := self._types.by_trait.get(trait)) is not None
                    and card_contents.offers(card, vgpu_type)
                )
                for trait in group.required
            )
        )

    def may_serve(
        self, device: offered_devices.OfferedDevice, server: Server
    ) -> bool:
        """Return whether a card whose partitions are not known has room."""
        gpu = self._types.gpu_of(device)
        return (gpu is None or gpu.key == server.gpu) and _has_units(
            device, server.group
        )

    def choose(
        self, server: Server, facts: Sequence[providers.Provider]
    ) -> str:
        """Return the uuid of the card that the scheduler puts first."""
        candidates = [
            {
                "allocations": {
                    provider.uuid: {"resources": dict(server.group.resources)}
                },
                "mappings": {server.group.suffix: [provider.uuid]},
            }
            for provider in facts
            if _has_units(provider, server.group)
        ]
        fitting, _ = candidate_fit.select(
            requests.AcceleratorRequest(
                groups=(server.group,), policy=server.policy
            ),
            candidates,
            candidate_fit.HostFacts(
                facts={provider.uuid: provider for provider in facts},
                geometry=self._types.geometry,
            ),
        )
        return next(iter(fitting[0]["allocations"])) if fitting else ""


def _has_units(
    provider: providers.Provider, group: flavors.RequestGroup
) -> bool:
    return all(
        name in provider.capacities
        and provider.capacities[name].free >= amount
        for name, amount in group.resources.items()
        if amount
    )


def _list_nodes(traits: frozenset[str]) -> frozenset[str]:
    return frozenset(t for t in traits if t.startswith(names.NUMA_PREFIX))
