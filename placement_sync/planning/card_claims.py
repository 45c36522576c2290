# SPDX-License-Identifier: Apache-2.0
"""Devices as their hosts will report them: empty, and with more servers.

A host reports a card again once a server has started: fewer profiles fit, a
card in mixed or MIG mode has the place of the new partition, and the total of
partitions may be lower. The places are those that the host itself chooses
(``device_capacity.choose_place``). Of a card whose partitions are not known,
and of devices without places, only the units change.
"""

import collections
import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from nova_accel import model
from nova_accel.catalog import vgpu_types
from nova_accel.geometry import device_capacity, occupancy
from nova_accel.geometry.scheduling import card_state
from nova_accel.model import flavors, names, providers
from placement_sync.fleet.flavors import offered_devices

_VENDOR_ID = "10de"
_Capacities = Mapping[str, providers.ClassCapacity]
# First unit and trait of a partition.
_Place = tuple[int, str]


class CardClaims:
    """Reports of devices with claims of further servers.

    Equal devices get equal sets of traits and of capacities as one object:
    the choice of hosts computes equal cards once.
    """

    def __init__(self, types: offered_devices.VgpuTypes) -> None:
        self._types = types
        self._reports: dict[Hashable, tuple[frozenset[str], _Capacities]] = {}

    def add(
        self,
        device: offered_devices.OfferedDevice,
        groups: Sequence[flavors.RequestGroup],
        units: Mapping[str, int],
    ) -> offered_devices.OfferedDevice:
        """Return a device with the claims of one more server.

        :param groups: those of the server that the device serves.
        :param units: what the server is allocated of it, by class.
        """
        allocations = device.allocations
        key = (
            device.traits,
            *((n, c, c.reserved) for n, c in device.capacities.items()),
            *(tuple(amounts.items()) for amounts in allocations or ()),
            allocations is None,
            *units.items(),
            *((group.required, *group.resources.items()) for group in groups),
        )
        if key not in self._reports:
            self._reports[key] = self._report(device, groups, units)
        traits, capacities = self._reports[key]
        return dataclasses.replace(
            device,
            traits=traits,
            capacities=capacities,
            allocations=(
                None if allocations is None else (*allocations, units)
            ),
        )

    def _report(
        self,
        device: offered_devices.OfferedDevice,
        groups: Iterable[flavors.RequestGroup],
        units: Mapping[str, int],
    ) -> tuple[frozenset[str], _Capacities]:
        capacities = {
            name: dataclasses.replace(c, used=c.used + units.get(name, 0))
            for name, c in device.capacities.items()
        }
        vgpus = list(self._list_vgpus(groups))
        card = self._restore(device, vgpus[0].gpu) if vgpus else None
        placed = _place_all(card, vgpus) if card else None
        if card is None or placed is None:
            return device.traits, capacities
        after, places = placed
        return (
            self._report_traits(device.traits, vgpus[0].gpu, after, places),
            _report_total(capacities, card, after),
        )

    def _list_vgpus(
        self, groups: Iterable[flavors.RequestGroup]
    ) -> Iterator[vgpu_types.CatalogVgpuType]:
        """Yield the type of each vGPU of some groups."""
        for group in groups:
            vgpu_type = self._types.geometry.states.find_type(group)
            if vgpu_type is not None:
                count = group.resources.get(names.GPU_CLASS, 0)
                yield from [vgpu_type] * count

    def _restore(
        self, device: offered_devices.OfferedDevice, gpu: str
    ) -> model.Device | None:
        """Return a card with its partitions, None if they are not known."""
        geometry = self._types.geometry
        state = geometry.states.build(device, gpu)
        if state is None or not state.is_certain:
            return None
        return geometry.restore_card(state)

    def _report_traits(
        self,
        traits: frozenset[str],
        gpu: str,
        card: model.Device,
        places: Iterable[_Place],
    ) -> frozenset[str]:
        """Return a card's traits with new places, without full profiles."""
        former = occupancy.parse_traits(traits).places
        counts = collections.Counter(
            {(place.start, place.trait): place.count for place in former}
        )
        counts.update(places)
        possible = _list_possible(self._types.catalog, gpu, card)
        own = {t.trait for t in self._types.catalog.profiles_of(gpu)}
        return frozenset(
            trait
            for trait in traits
            if not trait.startswith(occupancy.PLACE_PREFIX)
            and (trait not in own or trait in possible)
        ) | {
            f"{occupancy.PLACE_PREFIX}{start}_{count}_"
            f"{trait.removeprefix(names.CUSTOM)}"
            for (start, trait), count in counts.items()
        }


def _place_all(
    card: model.Device, vgpus: Iterable[vgpu_types.CatalogVgpuType]
) -> tuple[model.Device, list[_Place]] | None:
    """Return a card with more vGPUs, and their places, None without room.

    The order is that of the host: the largest first.
    """
    pairs = []
    for vgpu_type in vgpus:
        profile = _find_profile(card, vgpu_type)
        if profile is None:
            return None
        pairs.append((profile, vgpu_type.trait))
    pairs.sort(key=lambda pair: device_capacity.size_key(card, pair[0]))
    places = []
    for profile, trait in pairs:
        place = device_capacity.choose_place(card, profile.name)
        if place is None:
            return None
        card = device_capacity.add_partition(card, profile.name, place)
        start = _find_start(card, card.partitions[-1])
        if start is not None:
            places.append((start, trait))
    return card, places


def _find_profile(
    card: model.Device, vgpu_type: vgpu_types.CatalogVgpuType
) -> model.Profile | None:
    """Return the card's profile of a type's size, None if it has none."""
    shape = vgpu_type.framebuffer_mb, vgpu_type.instance
    return next(
        (p for p in card.profiles if (p.size, p.instance) == shape), None
    )


def _find_start(card: model.Device, partition: model.Partition) -> int | None:
    """Return the first unit of a partition, or of its GPU instance."""
    if card.geometry.layout is not model.Layout.MIG:
        return partition.start
    instance = card.geometry.instance(partition.instance)
    return instance.span.start if instance and instance.span else None


def _list_possible(
    catalog: vgpu_types.Catalog, gpu: str, card: model.Device
) -> frozenset[str]:
    """Return the traits of the types that a card can make now."""
    remaining = device_capacity.remaining(card)
    shapes = {
        (profile.size, profile.instance)
        for profile in card.profiles
        if remaining[profile.name] > 0
    }
    return frozenset(
        vgpu_type.trait
        for vgpu_type in catalog.profiles_of(gpu)
        if (vgpu_type.framebuffer_mb, vgpu_type.instance) in shapes
    )


def _report_total(
    capacities: Mapping[str, providers.ClassCapacity],
    before: model.Device,
    after: model.Device,
) -> dict[str, providers.ClassCapacity]:
    """Return capacities with the number of partitions that is possible now.

    It may become lower: partitions of one size exclude smaller ones.
    """
    present = capacities.get(names.GPU_CLASS)
    if present is None:
        return dict(capacities)
    # Partitions of other programs are reserved.
    reserved = before.counters.get(names.GPU_CLASS, 0) - present.capacity
    total = device_capacity.capacity(after) - reserved
    lower = dataclasses.replace(present, capacity=min(present.capacity, total))
    return {**capacities, names.GPU_CLASS: lower}


# -- empty cards ------------------------------------------------------------


def build_empty(
    catalog: vgpu_types.Catalog,
    gpu: vgpu_types.CatalogGpu,
    layout: model.Layout,
    slots: int = vgpu_types.MAX_TIME_SLICED,
    instances: Sequence[str] = (),
) -> tuple[frozenset[str], _Capacities]:
    """Return traits and capacities of an empty card of a model.

    :param slots: number of its virtual functions.
    :param instances: kinds of GPU instances that the operator makes; none
        to create them with servers.
    :raises ValueError: the instances have no place together.
    """
    counters = {
        names.GPU_CLASS: slots,
        names.GPU_MEMORY_CLASS: gpu.memory_mb,
    }
    if layout is model.Layout.MIG:
        counters[names.MIG_SLICE_CLASS] = gpu.mig_slices
    card = card_state.build_empty_card(
        catalog, gpu.key, layout, tuple(counters.items())
    )
    fixed = _place_instances(gpu, instances)
    if fixed:
        restored = occupancy.restore_partitions(
            card, occupancy.Occupancy(instances=fixed), {}
        )
        if restored is None:
            raise ValueError(instances)
        card = restored
    counters[names.GPU_CLASS] = device_capacity.capacity(card)
    board = gpu.pci_ids[0].split(":") if gpu.pci_ids else ["", ""]
    traits = {
        names.OWNER_TRAIT,
        names.NOVA_OWNER_TRAIT,
        names.layout_trait(layout.value),
        names.model_trait(_VENDOR_ID, gpu.key),
        *names.identity_traits(board[0], board[1], None),
        *gpu.traits,
        *_list_possible(catalog, gpu.key, card),
        *occupancy.build_traits(card, ()),
    }
    return (
        frozenset(
            t for t in traits if not t.startswith(names.IMPLIED_PREFIXES)
        ),
        {
            name: providers.ClassCapacity(capacity=total)
            for name, total in counters.items()
            if total > 0
        },
    )


def _place_instances(
    gpu: vgpu_types.CatalogGpu, instances: Sequence[str]
) -> tuple[occupancy.FixedInstance, ...]:
    """Return GPU instances at places where all have room, in any order.

    :raises ValueError: there are no such places, or no such kind.
    """
    kinds = {kind.name: kind for kind in gpu.kinds}
    if not kinds.keys() >= set(instances):
        raise ValueError(instances)
    slices = sum(kinds[name].slices for name in instances)
    counts = collections.Counter(instances)
    is_limited = any(
        (limit := kinds[name].limit) is not None and count > limit
        for name, count in counts.items()
    )
    ordered = sorted(instances, key=lambda name: -kinds[name].size)
    starts = _find_starts([kinds[name] for name in ordered], frozenset())
    if starts is None or is_limited or slices > gpu.mig_slices:
        raise ValueError(instances)
    return tuple(
        occupancy.FixedInstance(start=start, token=occupancy.kind_token(name))
        for name, start in zip(ordered, starts, strict=True)
    )


def _find_starts(
    kinds: Sequence[model.InstanceKind], taken: frozenset[int]
) -> list[int] | None:
    """Return a start for each kind so that none overlap, None without."""
    if not kinds:
        return []
    first, *others = kinds
    for start in first.starts:
        span = frozenset(range(start, start + first.size))
        if taken.isdisjoint(span):
            rest = _find_starts(others, taken | span)
            if rest is not None:
                return [start, *rest]
    return None
