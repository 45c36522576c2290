# SPDX-License-Identifier: Apache-2.0
"""Places survive a round trip through traits."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.geometry import device_capacity, occupancy
from tests.support.hosts import shapes


def without_partitions(device: model.Device) -> model.Device:
    return dataclasses.replace(
        device,
        partitions=(),
        geometry=dataclasses.replace(device.geometry, instances=()),
    )


@given(
    st.one_of(
        shapes.mixed_cards(raw=False),
        shapes.mig_cards(raw=False, is_dynamic=True),
    )
)
def test_a_card_restored_from_traits_has_the_same_room(
    device: model.Device,
) -> None:
    if device.geometry.is_dynamic:
        # Instances without partitions exist only until the next pass.
        used = {p.instance for p in device.partitions}
        device = dataclasses.replace(
            device,
            geometry=dataclasses.replace(
                device.geometry,
                instances=tuple(
                    i for i in device.geometry.instances if i.handle in used
                ),
            ),
        )
    traits = occupancy.build_traits(
        device, {p.handle for p in device.partitions}
    )

    restored = occupancy.restore_partitions(
        without_partitions(device),
        occupancy.parse_traits(traits),
        {p.trait: p for p in device.profiles},
    )

    assert restored is not None
    assert device_capacity.remaining(restored) == device_capacity.remaining(
        device
    )


def test_fixed_instances_are_reported_without_partitions() -> None:
    kind = model.InstanceKind(name="1g.5gb+me", size=1, slices=1, starts=(0,))
    device = shapes.card(
        model.Geometry(
            layout=model.Layout.MIG,
            region=4,
            kinds=(kind,),
            instances=(
                model.Instance(
                    kind=kind.name,
                    handle="7",
                    span=model.Span(start=0, size=1),
                ),
            ),
        )
    )

    assert occupancy.build_traits(device, ()) == {
        "CUSTOM_ACCELERATOR_INSTANCE_0_1G_5GB_WITH_ME"
    }


@pytest.mark.parametrize("start", [None, 4])
def test_nothing_is_reported_beside_an_unknown_place(
    start: int | None,
) -> None:
    profile = shapes.profile("P", span=4, starts=(0, 4))
    device = shapes.card(
        model.Geometry(layout=model.Layout.MIXED, region=8),
        profile,
        partitions=(
            shapes.partition("P", 0, start=0),
            shapes.partition("P", 1, start=start),
        ),
    )
    claimed = [p.handle for p in device.partitions]

    assert len(occupancy.build_traits(device, claimed)) == (
        0 if start is None else 2
    )


def test_a_partition_without_an_allocation_is_reported_as_reserved() -> None:
    device = shapes.card(
        model.Geometry(layout=model.Layout.MIXED, region=8),
        shapes.profile("P", span=4, starts=(0, 4)),
        partitions=(
            shapes.partition("P", 0, start=0),
            shapes.partition("P", 1, start=4),
        ),
    )
    (profile,) = device.profiles

    traits = occupancy.build_traits(device, {device.partitions[0].handle})
    parsed = occupancy.parse_traits(traits)

    assert parsed.places == (
        occupancy.OccupiedPlace(start=0, count=1, trait=profile.trait),
    )
    assert parsed.unallocated == (
        occupancy.OccupiedPlace(start=4, count=1, trait=profile.trait),
    )


@pytest.mark.parametrize(
    "trait",
    [
        f"{prefix}{start}_{count}_VGPU_NVIDIA_L40S_8Q"
        for prefix in (occupancy.PLACE_PREFIX, occupancy.UNALLOCATED_PREFIX)
        for start, count in (
            (0, 10**15),
            (0, 129),
            (0, 999),
            (10**15, 1),
            ("9" * 200, 1),
            ("\N{ARABIC-INDIC DIGIT ONE}", 1),
        )
    ]
    + [f"{occupancy.INSTANCE_PREFIX}{10**15}_3G_20GB"],
)
def test_a_trait_with_what_no_card_has_is_ignored(trait: str) -> None:
    assert occupancy.parse_traits([trait]) == occupancy.Occupancy()


def test_as_many_partitions_as_a_card_can_have_are_read() -> None:
    trait = f"{occupancy.PLACE_PREFIX}0_128_VGPU_NVIDIA_L40S_8Q"
    (place,) = occupancy.parse_traits([trait]).places
    assert place.count == 128
