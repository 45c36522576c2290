# SPDX-License-Identifier: Apache-2.0
"""Traits with the places of a card's partitions.

Allocations have the number and size of a card's partitions. Whether several
more fit depends on their places, which only the host knows. The host
reports them as traits of the card's provider:

- ``CUSTOM_ACCELERATOR_PLACE_16_1_VGPU_NVIDIA_L40S_8Q``: one partition of that
  profile starts at unit 16 of the region. On a card in MIG mode the unit is
  the first memory slice of the GPU instance, which several partitions of
  one profile can share.
- ``CUSTOM_ACCELERATOR_UNALLOCATED_16_1_VGPU_NVIDIA_L40S_8Q``: the same for a
  partition without an allocation; the inventory's ``reserved`` includes it.
- ``CUSTOM_ACCELERATOR_INSTANCE_4_3G_20GB``: a GPU instance that the operator
  made. Instances that are created for claims are not reported.

The starts of the profiles limit the number of such traits: a few hundred
in Placement for each GPU model.
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
# Other services write traits, too. Starts are units of a region, below 1,000,
# and a GPU has at most 64 vGPUs.
_MAX_COUNT = 128
_PLACE = re.compile(
    rf"({PLACE_PREFIX}|{UNALLOCATED_PREFIX})"
    r"([0-9]{1,4})_([0-9]{1,3})_([A-Z0-9_]+)"
)
_INSTANCE = re.compile(rf"{INSTANCE_PREFIX}([0-9]{{1,4}})_([A-Z0-9_]+)")
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
    """A GPU instance that the operator made; ``token`` is its kind's."""

    start: int
    token: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Places of a card's partitions, parsed from its traits, in order.

    ``places`` are those of allocated partitions, ``unallocated`` those of
    the others.
    """

    places: tuple[OccupiedPlace, ...] = ()
    unallocated: tuple[OccupiedPlace, ...] = ()
    instances: tuple[FixedInstance, ...] = ()


def kind_token(name: str) -> str:
    """Return a GPU instance kind's name in the spelling of traits.

    It keeps ``1g.24gb+me`` and ``1g.24gb-me`` distinct.
    """
    spelt = name.replace("+", "_WITH_").replace("-", "_WITHOUT_")
    return names.custom_name(spelt).removeprefix(names.CUSTOM)


def build_traits(
    device: model.Device, allocated: Collection[str]
) -> frozenset[str]:
    """Return the traits with the places of a card's partitions.

    Empty where a place is unknown: an incomplete set would not match the
    allocations.

    :param allocated: handles of the partitions with allocations.
    """
    geometry = device.geometry
    if geometry.layout not in _LAYOUTS:
        return frozenset()
    starts: collections.Counter[tuple[str, int, str]] = collections.Counter()
    for partition in device.partitions:
        profile = device.profile(partition.profile)
        start = _find_start(device, partition)
        if profile is None or start is None:
            return frozenset()
        is_allocated = partition.handle in allocated
        prefix = PLACE_PREFIX if is_allocated else UNALLOCATED_PREFIX
        starts[prefix, start, profile.trait] += 1
    fixed = list(_list_fixed_instances(geometry))
    if None in fixed:
        return frozenset()
    return frozenset(
        f"{prefix}{start}_{count}_{trait.removeprefix(names.CUSTOM)}"
        for (prefix, start, trait), count in starts.items()
    ).union(
        f"{INSTANCE_PREFIX}{instance.start}_{instance.token}"
        for instance in fixed
        if instance
    )


def parse_traits(traits: Iterable[str]) -> Occupancy:
    """Return the places in a card's traits; other traits are ignored.

    So are places with more partitions than any card has.
    """
    places: dict[str, list[OccupiedPlace]] = {
        PLACE_PREFIX: [],
        UNALLOCATED_PREFIX: [],
    }
    instances = []
    for trait in traits:
        if match := _PLACE.fullmatch(trait):
            prefix, start, count, profile = match.groups()
            if int(count) > _MAX_COUNT:
                continue
            places[prefix].append(
                OccupiedPlace(
                    start=int(start),
                    count=int(count),
                    trait=f"{names.CUSTOM}{profile}",
                )
            )
        elif match := _INSTANCE.fullmatch(trait):
            start, token = match.groups()
            instances.append(FixedInstance(start=int(start), token=token))
    return Occupancy(
        places=tuple(sorted(places[PLACE_PREFIX])),
        unallocated=tuple(sorted(places[UNALLOCATED_PREFIX])),
        instances=tuple(sorted(instances)),
    )


def restore_partitions(
    device: model.Device,
    occupied: Occupancy,
    profiles: Mapping[str, model.Profile],
) -> model.Device | None:
    """Return an empty card with the partitions of its traits.

    None if a trait names a profile or GPU instance that the card lacks.

    :param profiles: the card's profiles by trait.
    """
    if occupied.instances:
        kinds = {kind_token(k.name): k for k in device.geometry.kinds}
        if any(i.token not in kinds for i in occupied.instances):
            return None
        device = dataclasses.replace(
            device,
            geometry=dataclasses.replace(
                device.geometry,
                is_dynamic=False,
                instances=tuple(
                    _build_instance(kinds[fixed.token], fixed.start)
                    for fixed in occupied.instances
                ),
            ),
        )
    for place in (*occupied.places, *occupied.unallocated):
        profile = profiles.get(place.trait)
        if profile is None:
            return None
        device = _add_partitions(device, profile, place)
    return device


def _build_instance(kind: model.InstanceKind, start: int) -> model.Instance:
    return model.Instance(
        kind=kind.name,
        handle=f"at-{start}",
        span=model.Span(start=start, size=kind.size),
    )


def _add_partitions(
    device: model.Device, profile: model.Profile, place: OccupiedPlace
) -> model.Device:
    geometry, kind = device.geometry, device.geometry.kind(profile.instance)
    is_mig = geometry.layout is model.Layout.MIG
    if is_mig and geometry.is_dynamic and kind is not None:
        # Profiles of one size share an instance, each with its own place.
        instance = _build_instance(kind, place.start)
        others = (i for i in geometry.instances if i != instance)
        geometry = dataclasses.replace(geometry, instances=(*others, instance))
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


def _find_start(
    device: model.Device, partition: model.Partition
) -> int | None:
    """Return the start of a partition, or of its GPU instance."""
    if device.geometry.layout is model.Layout.MIXED:
        return partition.start
    instance = device.geometry.instance(partition.instance)
    return instance.span.start if instance and instance.span else None


def _list_fixed_instances(
    geometry: model.Geometry,
) -> Iterator[FixedInstance | None]:
    """Yield the operator's GPU instances, None for one without a span."""
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
