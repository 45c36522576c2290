# SPDX-License-Identifier: Apache-2.0
"""The room of a provider is as much as the filter would accept."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.geometry import device_capacity, occupancy
from nova_accel.geometry.scheduling import provider_room
from nova_accel.model import flavors, names, providers
from tests.support.scheduler import scheduled
from tests.support.scheduler.scheduled import GEOMETRY, card

EQUAL, MIXED, MIG = model.Layout.EQUAL, model.Layout.MIXED, model.Layout.MIG
# A model for each layout.
GPUS = {EQUAL: "A40", MIXED: "L40S", MIG: "A100"}


def group_of(name: str, count: int = 1) -> flavors.RequestGroup:
    return flavors.RequestGroup(
        suffix="_A",
        resources=scheduled.charges(name, count),
        required=frozenset({scheduled.trait(name)}),
    )


def count(facts: providers.Provider, name: str) -> int:
    room = provider_room.ProviderRoom(GEOMETRY, facts)
    return room.count(group_of(name))


def placed_card(layout: model.Layout, *types: str) -> providers.Provider:
    """Return a card with vGPUs at the places that its host would choose.

    Those that find no place are left out.
    """
    gpu = GPUS[layout]
    facts = card("c", gpu=gpu, layout=layout)
    state = GEOMETRY.states.build(facts, gpu)
    assert state is not None
    device = GEOMETRY.restore_card(state)
    assert device is not None
    made = []
    for name in types:
        vgpu_type = scheduled.kind(name)
        # The card has one profile for the types of all series.
        profile = next(
            p.name
            for p in device.profiles
            if (p.size, p.instance)
            == (vgpu_type.framebuffer_mb, vgpu_type.instance)
        )
        place = device_capacity.choose_place(device, profile)
        if place is not None:
            device = device_capacity.add_partition(device, profile, place)
            made.append(name)
    numbered = dataclasses.replace(
        device,
        partitions=tuple(
            dataclasses.replace(partition, handle=str(number))
            for number, partition in enumerate(device.partitions)
        ),
    )
    handles = {p.handle for p in numbered.partitions}
    offered = device_capacity.remaining(device)
    shapes = {(p.size, p.instance) for p in device.profiles if offered[p.name]}
    possible = {
        scheduled.trait(t.name)
        for t in scheduled.CATALOG.profiles_of(gpu)
        if (t.framebuffer_mb, t.instance) in shapes
    }
    facts = card(
        "c",
        *made,
        gpu=gpu,
        layout=layout,
        traits=occupancy.build_traits(
            dataclasses.replace(
                numbered,
                geometry=dataclasses.replace(
                    numbered.geometry, is_dynamic=True
                ),
            ),
            handles,
        ),
    )
    others = [t for t in facts.traits if not t.startswith("CUSTOM_VGPU_")]
    return dataclasses.replace(facts, traits=frozenset(others) | possible)


@pytest.mark.parametrize("layout", GPUS)
@given(st.data())
def test_as_many_fit_as_the_filter_accepts(
    layout: model.Layout, data: st.DataObject
) -> None:
    gpu = GPUS[layout]
    empty = GEOMETRY.states.build(card("c", gpu=gpu, layout=layout), gpu)
    assert empty is not None
    device = GEOMETRY.restore_card(empty)
    assert device is not None
    types = st.sampled_from([profile.name for profile in device.profiles])
    facts = placed_card(layout, *data.draw(st.lists(types, max_size=4)))
    name = data.draw(types)
    facts = dataclasses.replace(
        facts, traits=facts.traits | {scheduled.trait(name)}
    )
    number = count(facts, name)
    state = GEOMETRY.states.build(facts, gpu)
    assert state is not None

    def fits(vgpus: int) -> bool:
        return all(
            facts.capacities[c].free >= amount
            for c, amount in scheduled.charges(name, vgpus).items()
        ) and GEOMETRY.has_room(state, ((name, vgpus),))

    assert number == 0 or fits(number)
    assert not fits(number + 1)


def test_places_limit_the_number_more_than_units() -> None:
    """A vGPU of 16 GB begins at 0 and 32 only, whatever the units say."""
    name = "L40S-16Q"
    facts = placed_card(MIXED, name)

    assert facts.capacities[names.GPU_MEMORY_CLASS].free // 16384 == 2
    assert count(facts, name) == 1


def test_groups_that_were_added_take_room() -> None:
    room = provider_room.ProviderRoom(GEOMETRY, placed_card(MIXED))
    large, small = group_of("L40S-16Q"), group_of("L40S-8Q")

    assert (room.count(large), room.add(large).count(large)) == (2, 1)
    assert room.add(large).add(large).count(large) == 0
    assert room.add(small).count(large) <= 2


def test_partitions_with_unknown_places_leave_what_an_empty_card_has() -> None:
    facts = card("c", "L40S-16Q")

    unknown = dataclasses.replace(facts, allocations=None)
    assert count(unknown, "L40S-16Q") == 2


def test_a_device_that_gets_no_server_has_no_room() -> None:
    facts = placed_card(MIXED)
    for trait in names.UNAVAILABLE_TRAITS:
        marked = dataclasses.replace(facts, traits=facts.traits | {trait})
        assert count(marked, "L40S-8Q") == 0


def test_other_classes_are_counted_by_units() -> None:
    group = flavors.RequestGroup(suffix="_A", resources={"FPGA": 2})
    capacities = {"FPGA": providers.ClassCapacity(capacity=7, used=2)}
    region = providers.Provider(uuid="r", capacities=capacities)

    room = provider_room.ProviderRoom(GEOMETRY, region)
    assert (room.count(group), room.add(group).count(group)) == (2, 1)
    assert (
        provider_room.ProviderRoom(
            GEOMETRY, dataclasses.replace(region, capacities={})
        ).count(group)
        == 0
    )
