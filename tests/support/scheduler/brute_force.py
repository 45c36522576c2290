# SPDX-License-Identifier: Apache-2.0
"""Brute-force search of the partitions that fit on a card.

Independent of the code under test: placements are sets of units, and
partitions are created in every order.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

from nova_accel import model
from nova_accel.model import names


def units(device: model.Device) -> set[int]:
    """Return the units of the region that partitions occupy."""
    occupied: set[int] = set()
    for part in device.partitions:
        kind = device.profile(part.profile)
        assert kind is not None
        assert part.start is not None
        span = set(range(part.start, part.start + kind.span))
        assert not span & occupied, "partitions overlap"
        occupied |= span
    assert all(unit < device.geometry.region for unit in occupied)
    return occupied


def places(device: model.Device, kind: model.Profile) -> set[int]:
    """Return the possible starts of one more of a profile."""
    occupied = units(device)
    return {
        start
        for start in kind.starts
        if start + kind.span <= device.geometry.region
        and not occupied & set(range(start, start + kind.span))
    }


def slices(device: model.Device) -> set[int]:
    """Return the memory slices that instances occupy."""
    occupied: set[int] = set()
    for instance in device.geometry.instances:
        assert instance.span is not None
        end = instance.span.start + instance.span.size
        span = set(range(instance.span.start, end))
        assert not span & occupied, "instances overlap"
        occupied |= span
    return occupied


def new_instances(device: model.Device) -> Iterator[model.Instance]:
    """Yield every instance that could be made."""
    occupied = slices(device)
    existing = [i.kind for i in device.geometry.instances]
    by_name = {k.name: k for k in device.geometry.kinds}
    free_slices = device.counters[names.MIG_SLICE_CLASS] - sum(
        by_name[name].slices for name in existing
    )
    for kind in device.geometry.kinds:
        if kind.slices > free_slices:
            continue
        if kind.limit is not None and existing.count(kind.name) >= kind.limit:
            continue
        for start in kind.starts:
            span = model.Span(start=start, size=kind.size)
            if start + kind.size <= device.geometry.region and not (
                occupied & set(range(start, start + kind.size))
            ):
                yield model.Instance(
                    kind=kind.name, handle=f"b{start}", span=span
                )


def _next_mig(
    device: model.Device, kind: model.Profile
) -> Iterator[model.Device]:
    for instance in device.geometry.instances:
        inside = [
            device.profile(p.profile)
            for p in device.partitions
            if p.instance == instance.handle
        ]
        if (
            instance.kind == kind.instance
            and all(p is not None and p.size == kind.size for p in inside)
            and len(inside) < kind.per_instance
        ):
            yield _with_partition(device, kind, instance=instance.handle)
    if device.geometry.is_dynamic:
        for instance in new_instances(device):
            if instance.kind == kind.instance:
                grown = dataclasses.replace(
                    device.geometry,
                    instances=(*device.geometry.instances, instance),
                )
                yield _with_partition(
                    dataclasses.replace(device, geometry=grown),
                    kind,
                    instance=instance.handle,
                )


def _with_partition(
    device: model.Device,
    kind: model.Profile,
    start: int | None = None,
    instance: str | None = None,
) -> model.Device:
    partition = model.Partition(
        profile=kind.name,
        parent=device.address,
        handle="x",
        start=start,
        instance=instance,
    )
    return dataclasses.replace(
        device, partitions=(*device.partitions, partition)
    )


def _next_mixed(
    device: model.Device, kind: model.Profile
) -> Iterator[model.Device]:
    for start in places(device, kind):
        yield _with_partition(device, kind, start=start)


def _next_equal(
    device: model.Device, kind: model.Profile
) -> Iterator[model.Device]:
    sizes = {
        p.size
        for part in device.partitions
        for p in device.profiles
        if p.name == part.profile
    }
    room = kind.limit is None or len(device.partitions) < kind.limit
    if sizes <= {kind.size} and room:
        yield _with_partition(device, kind)


_Next = Callable[[model.Device, model.Profile], Iterator[model.Device]]
_NEXT: dict[model.Layout, _Next] = {
    model.Layout.EQUAL: _next_equal,
    model.Layout.MIXED: _next_mixed,
    model.Layout.MIG: _next_mig,
}


def after_one(
    device: model.Device, kind: model.Profile
) -> Iterator[model.Device]:
    """Yield each device with one more partition of a profile."""
    names_ = [p.profile for p in device.partitions]
    limit = device.geometry.limit
    if limit is not None and len(names_) >= limit:
        return
    if kind.limit is not None and names_.count(kind.name) >= kind.limit:
        return
    yield from _NEXT[device.geometry.layout](device, kind)


def most(device: model.Device, *kinds: model.Profile) -> int:
    """Return the largest number of further partitions of some profiles."""

    @functools.cache
    def search(
        partitions: tuple[model.Partition, ...],
        instances: tuple[model.Instance, ...],
    ) -> int:
        now = dataclasses.replace(
            device,
            partitions=partitions,
            geometry=dataclasses.replace(device.geometry, instances=instances),
        )
        return max(
            (
                1 + search(*_state(then))
                for kind in kinds
                for then in after_one(now, kind)
            ),
            default=0,
        )

    return search(*_state(device))


def _state(
    device: model.Device,
) -> tuple[tuple[model.Partition, ...], tuple[model.Instance, ...]]:
    """Return partitions and instances, sorted: their order does not count."""
    partitions = sorted(
        device.partitions,
        key=lambda p: (p.profile, p.start or 0, p.instance or ""),
    )
    instances = sorted(device.geometry.instances, key=lambda i: i.handle)
    return tuple(partitions), tuple(instances)
