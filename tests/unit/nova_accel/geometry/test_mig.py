# SPDX-License-Identifier: Apache-2.0
"""Capacity of real cards in MIG mode."""

import dataclasses
import time

import pytest

from nova_accel import model
from nova_accel.geometry import device_capacity
from nova_accel.model import names
from tests.support.hosts import shapes

KINDS = (
    model.InstanceKind(name="1g.5gb", size=1, slices=1, starts=(*range(7),)),
    model.InstanceKind(name="2g.10gb", size=2, slices=2, starts=(0, 2, 4)),
    model.InstanceKind(name="3g.20gb", size=4, slices=3, starts=(0, 4)),
    model.InstanceKind(name="4g.20gb", size=4, slices=4, starts=(0,)),
    model.InstanceKind(name="7g.40gb", size=8, slices=7, starts=(0,)),
)
NAMES = {
    "1g.5gb": "A100-1-5C",
    "2g.10gb": "A100-2-10C",
    "3g.20gb": "A100-3-20C",
    "4g.20gb": "A100-4-20C",
    "7g.40gb": "A100-7-40C",
}
DYNAMIC = shapes.card(
    model.Geometry(
        layout=model.Layout.MIG, region=8, kinds=KINDS, is_dynamic=True
    ),
    *(
        shapes.profile(name, 16, size=5120, instance=kind)
        for kind, name in NAMES.items()
    ),
    slots=16,
    counters={names.MIG_SLICE_CLASS: 7},
)
STATIC = dataclasses.replace(
    DYNAMIC,
    geometry=dataclasses.replace(DYNAMIC.geometry, is_dynamic=False),
)


def with_instances(
    device: model.Device, *instances: model.Instance
) -> model.Device:
    return dataclasses.replace(
        device,
        geometry=dataclasses.replace(device.geometry, instances=instances),
    )


def instance(
    kind: str, handle: str, start: int | None = None
) -> model.Instance:
    size = next(k.size for k in KINDS if k.name == kind)
    span = None if start is None else model.Span(start=start, size=size)
    return model.Instance(kind=kind, handle=handle, span=span)


def test_remaining_profiles_of_an_empty_card() -> None:
    assert device_capacity.remaining(DYNAMIC) == {
        "A100-1-5C": 7, "A100-2-10C": 3, "A100-3-20C": 2, "A100-4-20C": 1,
        "A100-7-40C": 1,
    }  # fmt: skip
    assert device_capacity.capacity(DYNAMIC) == 7


def test_a_card_makes_one_instance_with_media_engines() -> None:
    kinds = (
        model.InstanceKind(name="1g.6gb", size=1, slices=1, starts=(0, 1)),
        model.InstanceKind(
            name="1g.6gb+me", size=1, slices=1, starts=(0, 1), limit=1
        ),
        model.InstanceKind(
            name="2g.12gb+me", size=2, slices=2, starts=(0, 2), limit=1
        ),
    )
    profiles = (
        shapes.profile(kind.name, 16, size=6144, instance=kind.name)
        for kind in kinds
    )
    geometry = model.Geometry(
        layout=model.Layout.MIG, region=4, kinds=kinds, is_dynamic=True
    )
    card = shapes.card(
        geometry, *profiles, counters={names.MIG_SLICE_CLASS: 4}
    )

    remaining = device_capacity.remaining(card, ["1g.6gb+me"])

    assert remaining == {"1g.6gb": 1, "1g.6gb+me": 0, "2g.12gb+me": 0}


@pytest.mark.parametrize(
    "device",
    [
        with_instances(DYNAMIC, instance("1g.5gb", "1")),
        with_instances(
            DYNAMIC, model.Instance(kind="new", handle="1", span=None)
        ),
        shapes.cut(DYNAMIC, shapes.partition("A100-1-5C", 0)),
    ],
)
def test_no_new_instance_beside_unknown_ones(device: model.Device) -> None:
    remaining = device_capacity.remaining(device)
    existing = {i.kind for i in device.geometry.instances}
    existing_names = {
        p.name for p in device.profiles if p.instance in existing
    }
    assert {n for n, count in remaining.items() if count} == existing_names


def test_fixed_instances_limit_the_profiles() -> None:
    device = with_instances(
        STATIC,
        instance("3g.20gb", "1", 4),
        *(instance("2g.10gb", str(n), n) for n in (0, 2)),
    )
    device = shapes.cut(device, shapes.partition("A100-2-10C", 0))
    remaining = device_capacity.remaining(device)
    assert {n: c for n, c in remaining.items() if c} == {
        "A100-3-20C": 1,
        "A100-2-10C": 1,
    }
    assert (
        device_capacity.choose_place(device, "A100-2-10C")
        == device_capacity.PartitionPlace()
    )
    assert device_capacity.capacity(device) == 3


def test_without_known_instances_one_more_is_offered() -> None:
    device = shapes.word(STATIC, **{"A100-1-5C": 16, "A100-2-10C": 0})
    remaining = device_capacity.remaining(device)
    assert remaining["A100-1-5C"] == 1
    assert remaining["A100-2-10C"] == 0
    assert set(device_capacity.remaining(device, ["A100-1-5C"]).values()) == {
        0
    }


SHARED = shapes.card(
    model.Geometry(
        layout=model.Layout.MIG,
        region=4,
        kinds=(
            model.InstanceKind(
                name="1g.24gb", size=1, slices=1, starts=(0, 1, 2, 3)
            ),
        ),
        instances=tuple(
            model.Instance(
                kind="1g.24gb",
                handle=str(n),
                span=model.Span(start=n, size=1),
            )
            for n in range(2)
        ),
    ),
    shapes.profile(
        "DC-1-8Q", size=8192, instance="1g.24gb", per_instance=3, limit=12
    ),
    shapes.profile(
        "DC-1-12Q", size=12288, instance="1g.24gb", per_instance=2, limit=8
    ),
)


def test_an_instance_contains_several_partitions_of_one_size() -> None:
    assert device_capacity.remaining(SHARED) == {"DC-1-8Q": 6, "DC-1-12Q": 4}
    begun = shapes.cut(SHARED, shapes.partition("DC-1-12Q", 0, instance="1"))
    assert device_capacity.remaining(begun) == {"DC-1-8Q": 3, "DC-1-12Q": 3}
    planned = device_capacity.remaining(begun, ["DC-1-12Q", "DC-1-8Q"])
    assert planned == {"DC-1-8Q": 2, "DC-1-12Q": 0}


def test_partitions_without_an_instance_fill_those_of_their_kind() -> None:
    """Four of one size need two instances, which ones is unknown."""
    adrift = shapes.cut(
        SHARED, *(shapes.partition("DC-1-8Q", n) for n in range(4))
    )
    assert device_capacity.remaining(
        shapes.word(adrift, **{"DC-1-12Q": 0})
    ) == {
        "DC-1-8Q": 2,
        "DC-1-12Q": 0,
    }


def test_an_instance_excludes_no_second_place_of_its_kind() -> None:
    device = shapes.card(
        model.Geometry(
            layout=model.Layout.MIG,
            region=8,
            kinds=(
                model.InstanceKind(
                    name="2g", size=2, slices=1, starts=(2, 3, 4)
                ),
                model.InstanceKind(name="3g", size=3, slices=1, starts=(0, 5)),
            ),
            is_dynamic=True,
        ),
        shapes.profile("M-2", instance="2g"),
        shapes.profile("M-3", instance="3g"),
    )
    choice = device_capacity.PartitionPlace(instance_start=2)
    assert device_capacity.choose_place(device, "M-2") == choice


def test_a_large_card_is_recalculated_in_time() -> None:
    started = time.monotonic()
    device = device_capacity.recalculate(DYNAMIC)
    for _ in range(7):
        choice = device_capacity.choose_place(device, "A100-1-5C")
        assert choice is not None
        device = device_capacity.add_partition(device, "A100-1-5C", choice)
    assert time.monotonic() - started < 2


HALVES = shapes.card(
    model.Geometry(
        layout=model.Layout.MIG,
        region=8,
        kinds=(KINDS[2],),
        is_dynamic=True,
    ),
    dataclasses.replace(
        shapes.profile("A100-3-10C", 16, size=5120, instance="3g.20gb"),
        per_instance=2,
    ),
    slots=16,
    counters={names.MIG_SLICE_CLASS: 6},
)


def claimed(handle: str, instance_start: int | None) -> model.Claim:
    return model.Claim(
        consumer=handle,
        provider="card",
        device=HALVES.address,
        profile="A100-3-10C",
        slot=handle,
        parent=HALVES.address,
        handle=handle,
        technology=HALVES.technology,
        plugin=HALVES.plugin,
        instance="3g.20gb",
        instance_start=instance_start,
        owns_instance=True,
    )


def test_a_reserved_instance_is_created_by_the_first_server() -> None:
    """Two stopped servers share an instance; either may start first."""
    device = device_capacity.reserve_claims(HALVES, [claimed("one", 0)])
    assert (
        device_capacity.choose_place(device, "A100-3-10C")
        == device_capacity.PartitionPlace()
    )
    assert device_capacity.find_reserved_start(device, "A100-3-10C") == 0
    there = with_instances(HALVES, instance("3g.20gb", "gi-1", 0))
    assert device_capacity.find_reserved_start(there, "A100-3-10C") is None
    assert device_capacity.find_reserved_start(HALVES, "A100-3-10C") is None


def test_the_order_of_claims_does_not_change_reservations() -> None:
    owner, sharer = claimed("one", 0), claimed("two", None)
    reserved = [
        device_capacity.reserve_claims(HALVES, claims)
        for claims in ((owner, sharer), (sharer, owner))
    ]
    for device in reserved:
        assert [p.instance for p in device.partitions] == ["planned-0"] * 2
        assert device_capacity.remaining(device) == {"A100-3-10C": 2}
        assert device_capacity.choose_place(
            device, "A100-3-10C"
        ) == device_capacity.PartitionPlace(instance_start=4)
    assert reserved[0].geometry == reserved[1].geometry


def test_claims_of_one_instance_reserve_it_once() -> None:
    kind = model.InstanceKind(name="2g.48gb", size=2, slices=2, starts=(0, 2))
    card = shapes.card(
        model.Geometry(
            layout=model.Layout.MIG, region=4, kinds=(kind,), is_dynamic=True
        ),
        shapes.profile("P", size=16384, instance=kind.name, per_instance=3),
        counters={names.MIG_SLICE_CLASS: 4},
    )
    claims = [
        model.Claim(
            consumer=f"server-{number}",
            provider="p",
            device=card.address,
            profile="P",
            slot=slot,
            parent=slot,
            handle=slot,
            technology=card.technology,
            plugin=card.plugin,
            # Whichever server starts first makes the instance.
            instance_start=0,
            state=model.ClaimState.PLANNED,
        )
        for number, slot in enumerate(card.slots[:2])
    ]

    reserved = device_capacity.reserve_claims(card, claims)

    assert [i.span.start for i in reserved.geometry.instances if i.span] == [0]
    assert device_capacity.remaining(reserved) == {"P": 4}
