# SPDX-License-Identifier: Apache-2.0
"""Contents of a card: the partitions that it may have, and what fits.

Placement has the profile of each server and the places of each profile, but
not which of several servers of one profile has which place. So the contents
are all cards that are possible, and a profile fits if it fits on each.
"""

import collections
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.catalog import mdev_names, vgpu_types
from nova_accel.geometry import device_capacity
from nova_accel.geometry.scheduling import vgpu_geometry
from placement_sync.fleet.devices import device_rows, fleet_state
from placement_sync.fleet.flavors import offered_devices

# A place: profile, start or start of the GPU instance, and whether the
# partition exists.
_Place = tuple[str, int, bool]
_Key = tuple[object, ...]


class Contents:
    """Partitions of a card; equal contents are one object of their pool.

    ``devices`` are the cards that are possible.
    """

    __slots__ = ("_added", "_counts", "_pool", "_removed", "devices")

    def __init__(
        self, pool: "ContentsPool", devices: tuple[model.Device, ...]
    ) -> None:
        self._pool = pool
        self.devices = devices
        self._counts: Mapping[str, int] | None = None
        self._added: dict[str, Contents | None] = {}
        self._removed: dict[str, Contents] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Return how many more of each profile fit, by its name."""
        if self._counts is None:
            all_counts = [device_capacity.remaining(d) for d in self.devices]
            self._counts = {
                name: min(counts[name] for counts in all_counts)
                for name in all_counts[0]
            }
        return self._counts

    def add(self, profile: str) -> "Contents | None":
        """Return the contents with one more partition, None if it can't fit.

        The host chooses its place.
        """
        if profile not in self._added:
            self._added[profile] = self._add(profile)
        return self._added[profile]

    def _add(self, profile: str) -> "Contents | None":
        if self.counts.get(profile, 0) < 1:
            return None
        devices = []
        for device in self.devices:
            place = device_capacity.choose_place(device, profile)
            if place is None:
                return None
            devices.append(
                device_capacity.add_partition(device, profile, place)
            )
        return self._pool.intern(devices)

    def remove(self, profile: str) -> "Contents":
        """Return the contents without one partition of a profile.

        Any of those that existed at first: which one is not known.
        """
        if profile not in self._removed:
            self._removed[profile] = self._pool.intern(
                [
                    device_capacity.remove_partitions(device, [handle])
                    for device in self.devices
                    for handle in _list_distinct(device, profile)
                ]
            )
        return self._removed[profile]


def _list_distinct(device: model.Device, profile: str) -> Iterator[str]:
    """Yield a handle for each place of a profile's existing partitions."""
    handles: dict[_Place, str] = {}
    for partition in device.partitions:
        if partition.handle and partition.profile == profile:
            handles.setdefault(
                _find_place(device, partition), partition.handle
            )
    yield from handles.values()


def _find_place(device: model.Device, partition: model.Partition) -> _Place:
    start = partition.start
    instance = device.geometry.instance(partition.instance)
    if instance is not None and instance.span is not None:
        start = instance.span.start
    return (
        partition.profile,
        -1 if start is None else start,
        bool(partition.handle),
    )


class ContentsPool:
    """All contents of a search."""

    def __init__(self) -> None:
        self._all: dict[_Key, Contents] = {}

    def intern(self, devices: list[model.Device]) -> Contents:
        """Return the contents of possible cards."""
        by_key = {_build_key(device): device for device in devices}
        key = tuple(sorted(by_key, key=repr))
        if key not in self._all:
            self._all[key] = Contents(self, tuple(by_key[k] for k in key))
        return self._all[key]


def _build_key(device: model.Device) -> _Key:
    """Return what decides about the room on a card.

    Capacity counters may have the partitions' own class, which a removal
    drops, so they are part of it.
    """
    geometry = device.geometry
    return (
        device.model,
        geometry.layout.value,
        geometry.is_dynamic,
        tuple(sorted(device.counters.items())),
        tuple(sorted(_find_place(device, p) for p in device.partitions)),
        tuple(
            sorted(
                (i.kind, i.span.start if i.span else -1)
                for i in geometry.instances
            )
        ),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownCard:
    """A card whose partitions are all known.

    ``holders`` are the names of the profiles by server. ``series`` are the
    letters of NVIDIA's series that its host offers, as far as traits and
    servers show: a host does not list types that have no room now.
    """

    row: device_rows.DeviceRow
    gpu: str
    device: model.Device
    holders: Mapping[str, str]
    series: frozenset[str] = frozenset()

    @property
    def uuid(self) -> str:
        return self.row.device.uuid

    @property
    def root(self) -> str:
        return self.row.device.root

    @property
    def profiles(self) -> Mapping[str, model.Profile]:
        """Return the profiles of the card in its layout, by name."""
        return {profile.name: profile for profile in self.device.profiles}


def build_card(
    row: device_rows.DeviceRow,
    fleet: fleet_state.Fleet,
    types: offered_devices.VgpuTypes,
) -> KnownCard | None:
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
    if state is None or device is None or not state.is_certain:
        return None
    device = _name_partitions(device)
    placed = collections.Counter(p.profile for p in device.partitions)
    holders = {}
    for holding in holdings:
        profile = _find_profile(device, holding.amounts, placed)
        if profile is None:
            return None
        holders[holding.consumer] = profile.name
    if placed != collections.Counter(holders.values()):
        return None
    return KnownCard(
        row=row,
        gpu=gpu.key,
        device=device,
        holders=holders,
        series=_list_series(row, fleet, types, holders),
    )


def _list_series(
    row: device_rows.DeviceRow,
    fleet: fleet_state.Fleet,
    types: offered_devices.VgpuTypes,
    holders: Iterable[str],
) -> frozenset[str]:
    servers = (fleet.servers.get(uuid) for uuid in holders)
    traits = {
        key.partition(":")[2]
        for server in servers
        if server is not None and server.flavor is not None
        for key in server.flavor.extra_specs
        if key.startswith("trait")
    }
    listed = (
        types.by_trait.get(trait) for trait in traits | row.device.traits
    )
    return frozenset(
        mdev_names.parse_series(vgpu_type.name)
        for vgpu_type in listed
        if vgpu_type is not None
    )


def _name_partitions(device: model.Device) -> model.Device:
    """Return a card whose partitions have handles: they exist.

    Those of an arrangement have none.
    """
    return dataclasses.replace(
        device,
        partitions=tuple(
            dataclasses.replace(partition, handle=str(number))
            for number, partition in enumerate(device.partitions)
        ),
    )


def _find_profile(
    device: model.Device, amounts: Mapping[str, int], placed: Collection[str]
) -> model.Profile | None:
    """Return the profile of one partition with these charges.

    None without exactly one: a server may have several partitions.

    :param placed: names of the profiles that the card has.
    """
    profiles = [
        profile
        for profile in device.profiles
        if profile.name in placed
        and dict(profile.charges) == {n: a for n, a in amounts.items() if a}
    ]
    return profiles[0] if len(profiles) == 1 else None


def offers(card: KnownCard, vgpu_type: vgpu_types.CatalogVgpuType) -> bool:
    """Return whether a card's host offers a type, once it has room."""
    return (
        vgpu_type.trait in card.row.device.traits
        or mdev_names.parse_series(vgpu_type.name) in card.series
    )


def shape_of(profile: model.Profile) -> vgpu_geometry.Shape:
    """Return size and kind of GPU instance of a profile."""
    return profile.size, profile.instance
