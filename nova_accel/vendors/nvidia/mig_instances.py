# SPDX-License-Identifier: Apache-2.0
"""GPU instances, inferred from creatable types without NVML.

Without NVML the host shows no instance of a GPU in MIG mode. But a vGPU
stands in one, and a type can be made only where one of its kind has room:
so many exist at least.
"""

import dataclasses
from collections.abc import Iterable

from nova_accel import model
from nova_accel.vendors.nvidia import type_sources


def conclude(
    types: type_sources.Types, partitions: Iterable[model.Partition]
) -> tuple[tuple[model.Instance, ...], tuple[model.Partition, ...]]:
    """Return the instances that must exist, and who stands in which.

    Where an instance's id is not known, its handle is made up. A vGPU
    that may share an instance nobody names stays without one.
    """
    begun: dict[str, list[type_sources.TypeProperties]] = {}
    placed = []
    for partition in partitions:
        facts = _mig_facts(types, partition.profile)
        handle = partition.instance
        if handle is None and facts and facts.per_instance == 1:
            handle = f"that of {partition.handle}"
        if handle is not None and facts:
            begun.setdefault(handle, []).append(facts)
        placed.append(dataclasses.replace(partition, instance=handle))
    found = [
        model.Instance(kind=inside[0].instance, handle=handle)
        for handle, inside in begun.items()
    ]
    wanting = {
        facts.instance
        for offer, facts in types.values()
        if facts.instance
        and offer.ready
        and not any(_has_room(inside, facts) for inside in begun.values())
    }
    found += [
        model.Instance(kind=kind, handle=f"an empty {kind}")
        for kind in sorted(wanting)
    ]
    return tuple(found), tuple(placed)


def _mig_facts(
    types: type_sources.Types, name: str
) -> type_sources.TypeProperties | None:
    """Return the facts of a type that stands in an instance, or None."""
    if name not in types or not types[name][1].instance:
        return None
    return types[name][1]


def _has_room(
    inside: list[type_sources.TypeProperties],
    facts: type_sources.TypeProperties,
) -> bool:
    """Return whether an instance explains that a type can be made."""
    return (
        inside[0].instance == facts.instance
        and len(inside) < facts.per_instance
        and all(other.size == facts.size for other in inside)
    )
