# SPDX-License-Identifier: Apache-2.0
"""GPU instances, inferred from creatable types without NVML.

Without NVML the host shows no GPU instances. But each MIG vGPU is in one,
and a type is creatable only if an instance of its kind has room for it. The
inferred instances are therefore the minimum.
"""

import dataclasses
from collections.abc import Iterable

from nova_accel import model
from nova_accel.vendors.nvidia import type_sources


def infer_instances(
    types: type_sources.Types, partitions: Iterable[model.Partition]
) -> tuple[tuple[model.Instance, ...], tuple[model.Partition, ...]]:
    """Return the instances that must exist, and partitions with theirs.

    The handle of an instance is made up if its id is unknown. A vGPU that
    may share an instance of unknown id gets none.
    """
    inside_by_handle: dict[str, list[type_sources.TypeProperties]] = {}
    placed = []
    for partition in partitions:
        properties = _find_mig_properties(types, partition.profile)
        handle = partition.instance
        if handle is None and properties and properties.per_instance == 1:
            handle = f"that of {partition.handle}"
        if handle is not None and properties:
            inside_by_handle.setdefault(handle, []).append(properties)
        placed.append(dataclasses.replace(partition, instance=handle))
    instances = [
        model.Instance(kind=inside[0].instance, handle=handle)
        for handle, inside in inside_by_handle.items()
    ]
    empty_kinds = {
        properties.instance
        for offer, properties in types.values()
        if properties.instance
        and offer.ready
        and not any(
            _has_room(inside, properties)
            for inside in inside_by_handle.values()
        )
    }
    instances += [
        model.Instance(kind=kind, handle=f"an empty {kind}")
        for kind in sorted(empty_kinds)
    ]
    return tuple(instances), tuple(placed)


def _find_mig_properties(
    types: type_sources.Types, name: str
) -> type_sources.TypeProperties | None:
    """Return the properties of a MIG type, None for other types."""
    if name not in types or not types[name][1].instance:
        return None
    return types[name][1]


def _has_room(
    inside: list[type_sources.TypeProperties],
    properties: type_sources.TypeProperties,
) -> bool:
    """Return whether an instance has room for one more of a type."""
    return (
        inside[0].instance == properties.instance
        and len(inside) < properties.per_instance
        and all(other.size == properties.size for other in inside)
    )
