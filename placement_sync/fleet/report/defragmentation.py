# SPDX-License-Identifier: Apache-2.0
"""Moves of servers that make room for a larger vGPU profile.

A card is emptied by moves of its servers to cards of other hosts. Each
move is placed with the host's own geometry, beside the partitions that are
on the card by then. Where that is not certain there is no hint: cards whose
partitions are not all known, servers with several partitions, and hosts
without room for the rest of a server do not count.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from nova_accel import errors, model
from nova_accel.catalog import vgpu_types
from nova_accel.geometry import device_capacity, vgpu_geometry
from nova_accel.model import flavors, names, providers
from placement_sync.client import nova_api
from placement_sync.fleet.devices import device_rows, fleet_state
from placement_sync.fleet.flavors import flavor_specs, offered_devices

_Capacities = Mapping[str, providers.ClassCapacity]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerMove:
    """Move of a server's partition to another card."""

    consumer: str
    target: offered_devices.OfferedDevice


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Defragmentation:
    """Moves, in order, that empty a card, and the name of a profile.

    No card of the model can create the profile before; the emptied one
    can do so afterwards.
    """

    card: offered_devices.OfferedDevice
    moves: tuple[ServerMove, ...]
    profile: str


def find(
    cards: Sequence[device_rows.DeviceRow],
    fleet: fleet_state.Fleet,
    types: offered_devices.VgpuTypes,
) -> Defragmentation | None:
    """Return the fewest moves that make a larger profile possible, or None.

    :param cards: all devices of one model that offer something.
    """
    return _Search(cards, fleet, types).run()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """A card with its partitions; ``holders`` are the profiles by server."""

    row: device_rows.DeviceRow
    device: model.Device
    holders: Mapping[str, str]

    @property
    def free_mb(self) -> int:
        free = device_capacity.free_counters(self.device)
        return free.get(names.GPU_MEMORY_CLASS, 0)

    def list_shapes(self) -> Iterator[vgpu_geometry.Shape]:
        """Yield the shapes of the profiles that have a place now."""
        counts = device_capacity.remaining(self.device)
        for profile in self.device.profiles:
            if counts[profile.name] > 0:
                yield profile.size, profile.instance

    def place(self, profile: str) -> "_Card | None":
        """Return the card with one more partition, None without a place."""
        place = device_capacity.choose_place(self.device, profile)
        if place is None:
            return None
        return dataclasses.replace(
            self,
            device=device_capacity.add_partition(self.device, profile, place),
        )


class _Search:
    """Search for the card that the fewest moves make empty."""

    def __init__(
        self,
        rows: Sequence[device_rows.DeviceRow],
        fleet: fleet_state.Fleet,
        types: offered_devices.VgpuTypes,
    ) -> None:
        self._rows, self._fleet, self._types = rows, fleet, types
        self._cards = {
            row.device.uuid: card
            for row in rows
            if (card := build_card(row, fleet, types)) is not None
        }
        self._holdings = collections.Counter(
            holding.consumer for holding in fleet.holdings
        )

    def run(self) -> Defragmentation | None:
        possible = set(self._list_possible())
        for row in sorted(
            self._rows, key=lambda r: (len(r.consumers), r.usage.used)
        ):
            card = self._cards.get(row.device.uuid)
            if card is None or not row.consumers:
                continue
            profile = self._find_gain(card, possible)
            moves = self._move_all(card) if profile else None
            if moves:
                return Defragmentation(
                    card=row.device, moves=moves, profile=profile
                )
        return None

    def _list_possible(self) -> Iterator[vgpu_geometry.Shape]:
        """Yield the shapes that some card can create now."""
        for card in self._cards.values():
            yield from card.list_shapes()
        for row in self._rows:
            fits = {profile.name for profile in row.fits}
            for vgpu_type in self._types.of_device(row.device):
                if vgpu_type.name in fits:
                    yield _shape_of(vgpu_type)

    def _find_gain(
        self, card: _Card, possible: set[vgpu_geometry.Shape]
    ) -> str:
        """Return the largest profile that only the emptied card can create.

        It is named in the series of the card's profiles, "" without one.
        """
        handles = [p.handle for p in card.device.partitions]
        emptied = dataclasses.replace(
            card,
            device=device_capacity.remove_partitions(card.device, handles),
        )
        shape = max(emptied.list_shapes(), default=None)
        if shape is None or shape in possible:
            return ""
        device, alike = card.row.device, []
        for vgpu_type in self._types.of_device(device):
            if _shape_of(vgpu_type) == shape:
                alike.append(vgpu_type)
        series = {t[-1:] for t in device.traits if _is_nvidia(t)}
        return min(
            (t.name for t in alike),
            key=lambda name: (name[-1:] not in series, name),
        )

    def _move_all(self, card: _Card) -> tuple[ServerMove, ...] | None:
        """Return a move of each server of a card, the largest first.

        None if one has no place. Each goes where it leaves least memory.
        """
        cards = dict(self._cards)
        nodes: dict[str, _Capacities] = dict(self._fleet.cloud.hosts)
        moves = []
        holders = sorted(
            card.holders.items(),
            key=lambda item: (-_size(card.device, item[1]), item[0]),
        )
        for consumer, profile in holders:
            server = self._fleet.servers.get(consumer)
            if server is None or self._holdings[consumer] > 1:
                return None
            placed = self._place(card, profile, server, cards, nodes)
            if placed is None:
                return None
            target = placed.row.device
            cards[target.uuid] = placed
            nodes[target.root] = _take(nodes.get(target.root, {}), server)
            moves.append(ServerMove(consumer=consumer, target=target))
        return tuple(moves)

    def _place(
        self,
        card: _Card,
        profile: str,
        server: nova_api.Server,
        cards: Mapping[str, _Card],
        nodes: Mapping[str, _Capacities],
    ) -> _Card | None:
        """Return the best card for a server, with its partition."""
        options = [
            placed
            for other in cards.values()
            if other.row.device.root != card.row.device.root
            and other.row.device.root not in self._fleet.cloud.disabled
            and _has_room(nodes.get(other.row.device.root, {}), server)
            and self._is_offered(card, profile, server, other)
            and (placed := other.place(profile)) is not None
        ]
        return min(
            options,
            key=lambda c: (c.free_mb, c.row.device.host, c.row.device.name),
            default=None,
        )

    def _is_offered(
        self, card: _Card, profile: str, server: nova_api.Server, other: _Card
    ) -> bool:
        offered = other.row.device.traits
        group = _find_group(server)
        if group is not None:
            return group.required <= offered and not group.forbidden & offered
        shape = next(
            (p.size, p.instance)
            for p in card.device.profiles
            if p.name == profile
        )
        return any(
            vgpu_type.trait in offered
            for vgpu_type in self._types.of_device(other.row.device)
            if _shape_of(vgpu_type) == shape
        )


def build_card(
    row: device_rows.DeviceRow,
    fleet: fleet_state.Fleet,
    types: offered_devices.VgpuTypes,
) -> _Card | None:
    """Return a card with its partitions, None where one is not known."""
    gpu = types.gpu_of(row.device)
    if gpu is None or any(c.reserved for c in row.device.capacities.values()):
        return None  # partitions of others, or an operator's reserve
    holdings = [h for h in fleet.holdings if h.provider == row.device.uuid]
    allocations = tuple(holding.amounts for holding in holdings)
    state = types.geometry.states.build(
        dataclasses.replace(row.device, allocations=allocations), gpu.key
    )
    device = types.geometry.restore_card(state) if state else None
    if device is None:
        return None
    holders = {}
    for holding in holdings:
        profile = _find_profile(device, holding.amounts)
        if profile is None:
            return None
        holders[holding.consumer] = profile.name
    placed = collections.Counter(p.profile for p in device.partitions)
    if placed != collections.Counter(holders.values()):
        return None
    return _Card(row=row, device=device, holders=holders)


def _find_profile(
    device: model.Device, amounts: Mapping[str, int]
) -> model.Profile | None:
    """Return the profile of one partition with these charges.

    None without exactly one: a server may have several partitions.
    """
    profiles = [
        profile
        for profile in device.profiles
        if dict(profile.charges) == {n: a for n, a in amounts.items() if a}
    ]
    return profiles[0] if len(profiles) == 1 else None


def _find_group(server: nova_api.Server) -> flavors.RequestGroup | None:
    """Return the group of a server's flavor, None if it is not known."""
    if server.flavor is None:
        return None
    try:
        groups = flavor_specs.read(server.flavor.extra_specs).groups
    except errors.MalformedError:
        return None
    return groups[0] if len(groups) == 1 else None


def _amounts_of(server: nova_api.Server) -> dict[str, int]:
    """Return a server's processors and memory, as far as they are known."""
    if server.flavor is None:
        return {}
    return {
        "VCPU": server.flavor.vcpus,
        "MEMORY_MB": server.flavor.memory_mb,
        "DISK_GB": server.flavor.other_gb,
    }


def _has_room(node: _Capacities, server: nova_api.Server) -> bool:
    """Return whether a node has room; what is not known has."""
    return all(
        name not in node or node[name].free >= amount
        for name, amount in _amounts_of(server).items()
    )


def _take(node: _Capacities, server: nova_api.Server) -> _Capacities:
    """Return a node's capacities with one more server."""
    amounts = _amounts_of(server)
    return {
        name: dataclasses.replace(
            capacity, used=capacity.used + amounts.get(name, 0)
        )
        for name, capacity in node.items()
    }


def _shape_of(vgpu_type: vgpu_types.CatalogVgpuType) -> vgpu_geometry.Shape:
    return vgpu_type.framebuffer_mb, vgpu_type.instance


def _size(device: model.Device, profile: str) -> int:
    return next(p.size for p in device.profiles if p.name == profile)


def _is_nvidia(trait: str) -> bool:
    return trait.startswith(names.NVIDIA_VGPU_PREFIX)
