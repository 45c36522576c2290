# SPDX-License-Identifier: Apache-2.0
"""Small cards of every layout, in every division."""

import dataclasses
from collections.abc import Mapping

from hypothesis import strategies as st

from nova_accel import model
from nova_accel.model import names
from tests.support.scheduler import brute_force

ADDRESS = "0000:3b:00.0"
PLENTY = 100


def plain_device(address: str, **facts: object) -> model.Device:
    """Return a device without profiles."""
    plain = model.Device(
        address=address,
        plugin="test",
        technology="test",
        vendor="test",
        model="Test",
        resource_class="CUSTOM_TEST",
        counters={"CUSTOM_TEST": 1},
        slots=(address,),
    )
    return dataclasses.replace(plain, **facts)  # type: ignore[arg-type]


def whole_card(address: str, **facts: object) -> model.Device:
    """Return a whole GPU, whose only profile is named after its ids."""
    whole = plain_device(
        address,
        plugin="pci_passthrough",
        technology="passthrough",
        resource_class=names.WHOLE_GPU_CLASS,
        counters={names.WHOLE_GPU_CLASS: 1},
        profiles=(
            model.Profile(
                name="10de:1e30",
                trait="CUSTOM_GPU_PCI_10DE_1E30",
                charges={names.WHOLE_GPU_CLASS: 1},
                available=1,
            ),
        ),
    )
    return dataclasses.replace(whole, **facts)  # type: ignore[arg-type]


def profile(
    name: str, available: int = PLENTY, **facts: object
) -> model.Profile:
    """Return a profile that charges one slot only."""
    plain = model.Profile(
        name=name,
        trait=names.custom_name("VGPU", "TEST", name),
        charges={names.GPU_CLASS: 1},
        available=available,
    )
    return dataclasses.replace(plain, **facts)  # type: ignore[arg-type]


def card(
    geometry: model.Geometry,
    *profiles: model.Profile,
    partitions: tuple[model.Partition, ...] = (),
    slots: int = 32,
    counters: Mapping[str, int] | None = None,
) -> model.Device:
    """Return a card as described, before available is recalculated."""
    return model.Device(
        address=ADDRESS,
        plugin="test",
        technology="vendor-vfio",
        vendor="test",
        model="Test",
        resource_class=names.GPU_CLASS,
        counters=counters or {},
        slots=tuple(f"0000:3b:{n // 8 + 1:02x}.{n % 8}" for n in range(slots)),
        profiles=profiles,
        partitions=partitions,
        geometry=geometry,
    )


def partition(
    name: str,
    number: int,
    start: int | None = None,
    instance: str | None = None,
) -> model.Partition:
    """Return a partition that exists."""
    where = f"0000:3b:{number // 8 + 1:02x}.{number % 8}"
    return model.Partition(
        profile=name,
        parent=where,
        handle=where,
        start=start,
        instance=instance,
    )


def cut(device: model.Device, *parts: model.Partition) -> model.Device:
    """Return the device with these partitions and no other."""
    return dataclasses.replace(device, partitions=parts)


def word(device: model.Device, **available: int) -> model.Device:
    """Return the device with other available numbers of some profiles."""
    return dataclasses.replace(
        device,
        profiles=tuple(
            dataclasses.replace(
                p, available=available.get(p.name, p.available)
            )
            for p in device.profiles
        ),
    )


words = st.sampled_from([0, 1, 2, PLENTY, PLENTY, PLENTY])
limits = st.none() | st.integers(1, 4)


@st.composite
def equal_cards(draw: st.DrawFn, raw: bool = True) -> model.Device:
    """Draw a card in equal-size mode with partitions."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3))
    profiles = tuple(
        profile(
            f"P-{size}{letter}",
            draw(words) if raw else PLENTY,
            size=size,
            limit=8 // size,
        )
        for size, letter in zip(sizes, "QBC", strict=False)
    )
    chosen = draw(st.sampled_from(profiles))
    count = draw(st.integers(0, chosen.limit or 0))
    geometry = model.Geometry(
        layout=model.Layout.EQUAL, limit=draw(limits) if raw else None
    )
    count = min(count, geometry.limit or count)
    return card(
        geometry,
        *profiles,
        partitions=tuple(partition(chosen.name, n) for n in range(count)),
    )


@st.composite
def mixed_cards(draw: st.DrawFn, raw: bool = True) -> model.Device:
    """Draw a card in mixed-size mode with partitions and gaps."""
    region = draw(st.integers(4, 8))
    profiles = tuple(
        profile(
            f"P-{span}",
            draw(words) if raw else PLENTY,
            span=span,
            starts=tuple(
                draw(
                    st.lists(
                        st.integers(0, region),
                        min_size=1,
                        max_size=6,
                        unique=True,
                    )
                )
            ),
            limit=draw(limits) if raw else None,
        )
        for span in draw(
            st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True)
        )
    )
    geometry = model.Geometry(
        layout=model.Layout.MIXED,
        region=region,
        limit=draw(limits) if raw else None,
    )
    device = card(geometry, *profiles)
    for number in range(draw(st.integers(0, 3))):
        options = [
            (p.name, start)
            for p in profiles
            for start in sorted(brute_force.places(device, p))
        ]
        if options:
            name, start = draw(st.sampled_from(options))
            cut = partition(name, number, start=start)
            device = dataclasses.replace(
                device, partitions=(*device.partitions, cut)
            )
    return device


KINDS = (
    model.InstanceKind(name="1g", size=1, slices=1, starts=(0, 1, 2)),
    model.InstanceKind(name="1g.x", size=2, slices=1, starts=(0, 2), limit=1),
    model.InstanceKind(name="2g", size=2, slices=2, starts=(0, 2)),
    model.InstanceKind(name="3g", size=4, slices=3, starts=(0,)),
)


@st.composite
def mig_cards(
    draw: st.DrawFn, raw: bool = True, is_dynamic: bool | None = None
) -> model.Device:
    """Draw a card in MIG mode, with empty and used instances."""
    dynamic = draw(st.booleans()) if is_dynamic is None else is_dynamic
    kinds = tuple(
        draw(st.lists(st.sampled_from(KINDS), min_size=1, unique=True))
    )
    profiles = tuple(
        profile(
            f"{kind.name}-{share}",
            draw(words) if raw else PLENTY,
            size=kind.size * 12 // share,
            instance=kind.name,
            per_instance=share,
            limit=draw(limits) if raw else None,
        )
        for kind in kinds
        for share in sorted(draw(st.sets(st.integers(1, 3), min_size=1)))
    )
    geometry = model.Geometry(
        layout=model.Layout.MIG,
        region=4,
        kinds=kinds,
        is_dynamic=dynamic,
        limit=draw(limits) if raw else None,
    )
    device = card(geometry, *profiles, counters={names.MIG_SLICE_CLASS: 3})
    for number in range(draw(st.integers(0, 3))):
        device = _with_instance(draw, device, number)
    return device


def _with_instance(
    draw: st.DrawFn, device: model.Device, number: int
) -> model.Device:
    options = list(brute_force.new_instances(device))
    if not options:
        return device
    made = dataclasses.replace(
        draw(st.sampled_from(options)), handle=str(number)
    )
    inside = [p for p in device.profiles if p.instance == made.kind]
    chosen = draw(st.sampled_from(inside))
    count = draw(st.integers(0, chosen.per_instance))
    return dataclasses.replace(
        device,
        geometry=dataclasses.replace(
            device.geometry,
            instances=(*device.geometry.instances, made),
        ),
        partitions=(
            *device.partitions,
            *(
                partition(chosen.name, number * 8 + n, instance=made.handle)
                for n in range(count)
            ),
        ),
    )


any_cards = st.one_of(equal_cards(), mixed_cards(), mig_cards())
# Cards that only their layout limits.
free_cards = st.one_of(
    equal_cards(raw=False), mixed_cards(raw=False), mig_cards(raw=False)
)
