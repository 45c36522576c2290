# SPDX-License-Identifier: Apache-2.0
"""Traits that tell the places of a card's partitions.

Allocations say how many partitions of which size a card holds. Whether
several more fit depends on where these are, which only the host knows, so
it reports that with the card's other traits:

- ``CUSTOM_ACCELERATOR_PLACE_16_1_VGPU_NVIDIA_L40S_8Q``: from unit 16 of the
  region on there is one partition of that profile. On a card in MIG mode
  the unit is the first memory slice of the GPU instance, which several
  partitions of one profile may share.
- ``CUSTOM_ACCELERATOR_UNALLOCATED_16_1_VGPU_NVIDIA_L40S_8Q``: the same of a
  partition without an allocation; the inventory's ``reserved`` counts it.
- ``CUSTOM_ACCELERATOR_INSTANCE_4_3G_20GB``: a GPU instance that the operator
  made. Instances that come and go with partitions are not reported.

The names are bounded by the starts that profiles have, so a cloud adds a
few hundred of them to Placement for each GPU model.
"""

import collections
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.model import names

PLACE_PREFIX = "CUSTOM_ACCELERATOR_PLACE_"
UNALLOCATED_PREFIX = "CUSTOM_ACCELERATOR_UNALLOCATED_"
INSTANCE_PREFIX = "CUSTOM_ACCELERATOR_INSTANCE_"
_PLACE = re.compile(rf"({PLACE_PREFIX}|{UNALLOCATED_PREFIX})(\d+)_(\d+)_(\w+)")
_INSTANCE = re.compile(rf"{INSTANCE_PREFIX}(\d+)_(\w+)")
_LAYOUTS = frozenset({model.Layout.MIXED, model.Layout.MIG})


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class OccupiedPlace:
    """Partitions of one profile that begin at one unit of a card.

    ``trait`` is the profile's.
    """

    start: int
    count: int
    trait: str


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class FixedInstance:
    """A GPU instance that the operator made, under its kind's token."""

    start: int
    token: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """What the traits of a card say, in order.

    ``places`` are those of partitions that are allocated, ``unallocated``
    those of the others.
    """

    places: tuple[OccupiedPlace, ...] = ()
    unallocated: tuple[OccupiedPlace, ...] = ()
    instances: tuple[FixedInstance, ...] = ()


def kind_token(name: str) -> str:
    """Return the name of a kind of GPU instance as a trait spells it.

    ``1g.24gb+me`` and ``1g.24gb-me`` are two kinds.
    """
    spelt = name.replace("+", "_WITH_").replace("-", "_WITHOUT_")
    return names.custom(spelt).removeprefix(names.CUSTOM)


def build_traits(
    device: model.Device, allocated: Collection[str]
) -> frozenset[str]:
    """Return the traits that say where a card's partitions are.

    None where a place is not known: then the traits would not add up to
    what is allocated.

    :param allocated: handles of the partitions that allocations stand for.
    """
    geometry = device.geometry
    if geometry.layout not in _LAYOUTS:
        return frozenset()
    starts: collections.Counter[tuple[str, int, str]] = collections.Counter()
    for partition in device.partitions:
        profile = device.profile(partition.profile)
        start = _start(device, partition)
        if profile is None or start is None:
            return frozenset()
        is_allocated = partition.handle in allocated
        prefix = PLACE_PREFIX if is_allocated else UNALLOCATED_PREFIX
        starts[prefix, start, profile.trait] += 1
    fixed = list(_fixed(geometry))
    if None in fixed:
        return frozenset()
    return frozenset(
        f"{prefix}{start}_{count}_{trait.removeprefix(names.CUSTOM)}"
        for (prefix, start, trait), count in starts.items()
    ).union(
        f"{INSTANCE_PREFIX}{one.start}_{one.token}" for one in fixed if one
    )


def parse_traits(traits: Iterable[str]) -> Occupancy:
    """Return what a card's traits say; other traits are left out."""
    places: dict[str, list[OccupiedPlace]] = {
        PLACE_PREFIX: [],
        UNALLOCATED_PREFIX: [],
    }
    instances = []
    for trait in traits:
        if found := _PLACE.fullmatch(trait):
            prefix, start, count, profile = found.groups()
            places[prefix].append(
                OccupiedPlace(
                    start=int(start),
                    count=int(count),
                    trait=f"{names.CUSTOM}{profile}",
                )
            )
        elif found := _INSTANCE.fullmatch(trait):
            start, token = found.groups()
            instances.append(FixedInstance(start=int(start), token=token))
    return Occupancy(
        places=tuple(sorted(places[PLACE_PREFIX])),
        unallocated=tuple(sorted(places[UNALLOCATED_PREFIX])),
        instances=tuple(sorted(instances)),
    )


def restore(
    device: model.Device,
    occupied: Occupancy,
    profiles: Mapping[str, model.Profile],
) -> model.Device | None:
    """Return an empty card with partitions where the traits say.

    None if the card can't have them there.

    :param profiles: the card's own, by the traits that places name.
    """
    if occupied.instances:
        kinds = {kind_token(k.name): k for k in device.geometry.kinds}
        if any(one.token not in kinds for one in occupied.instances):
            return None
        device = dataclasses.replace(
            device,
            geometry=dataclasses.replace(
                device.geometry,
                is_dynamic=False,
                instances=tuple(
                    _instance(kinds[one.token], one.start)
                    for one in occupied.instances
                ),
            ),
        )
    for place in (*occupied.places, *occupied.unallocated):
        profile = profiles.get(place.trait)
        if profile is None:
            return None
        device = _with_place(device, profile, place)
    return device


def _instance(kind: model.InstanceKind, start: int) -> model.Instance:
    return model.Instance(
        kind=kind.name,
        handle=f"at-{start}",
        span=model.Span(start=start, size=kind.size),
    )


def _with_place(
    device: model.Device, profile: model.Profile, place: OccupiedPlace
) -> model.Device:
    """Return a card with the partitions of a place."""
    geometry, kind = device.geometry, device.geometry.kind(profile.instance)
    is_mig = geometry.layout is model.Layout.MIG
    if is_mig and geometry.is_dynamic and kind is not None:
        # Profiles of one size share an instance, each with its own place.
        made = _instance(kind, place.start)
        geometry = dataclasses.replace(
            geometry,
            instances=(*(i for i in geometry.instances if i != made), made),
        )
    partitions = tuple(
        model.Partition(
            profile=profile.name,
            parent=device.address,
            handle=f"{place.start}-{number}",
            start=None if is_mig else place.start,
            instance=f"at-{place.start}" if is_mig else None,
        )
        for number in range(place.count)
    )
    return dataclasses.replace(
        device,
        geometry=geometry,
        partitions=(*device.partitions, *partitions),
    )


def _start(device: model.Device, partition: model.Partition) -> int | None:
    """Return where a partition, or the GPU instance it is in, begins."""
    if device.geometry.layout is model.Layout.MIXED:
        return partition.start
    return next(
        (
            instance.span.start
            for instance in device.geometry.instances
            if instance.handle == partition.instance and instance.span
        ),
        None,
    )


def _fixed(geometry: model.Geometry) -> Iterator[FixedInstance | None]:
    """Yield the operator's GPU instances, None for one without a place."""
    if geometry.is_dynamic:
        return
    for instance in geometry.instances:
        yield (
            FixedInstance(
                start=instance.span.start, token=kind_token(instance.kind)
            )
            if instance.span
            else None
        )
