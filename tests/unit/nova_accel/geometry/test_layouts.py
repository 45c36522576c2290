# SPDX-License-Identifier: Apache-2.0
"""Capacity agrees with brute force on small cards of every layout."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.geometry import device_capacity
from tests.support.hosts import shapes
from tests.support.scheduler import brute_force


def names_of(device: model.Device) -> st.SearchStrategy[str]:
    return st.sampled_from([p.name for p in device.profiles])


@given(shapes.any_cards, st.data())
def test_chosen_places_do_not_overlap_and_respect_limits(
    device: model.Device, data: st.DataObject
) -> None:
    for name in data.draw(st.lists(names_of(device), max_size=8)):
        choice = device_capacity.choose_place(device, name)
        if choice is None:
            continue
        device = device_capacity.add_partition(device, name, choice)
        geometry = device.geometry
        profiles = [p.profile for p in device.partitions]
        profile = device.profile(name)
        assert profile is not None
        assert geometry.limit is None or len(profiles) <= geometry.limit
        assert profile.limit is None or profiles.count(name) <= profile.limit
        if geometry.layout is model.Layout.MIXED:
            assert choice.start in profile.starts
            brute_force.units(device)
        elif geometry.layout is model.Layout.MIG:
            check_instances(device)
        else:
            assert same_size(device)


def same_size(device: model.Device) -> bool:
    sizes = {p.name: p.size for p in device.profiles}
    return len({sizes[p.profile] for p in device.partitions}) == 1


def check_instances(device: model.Device) -> None:
    """Check that instances don't overlap and hold what they may."""
    brute_force.slices(device)
    kinds = {k.name: k for k in device.geometry.kinds}
    existing = [i.kind for i in device.geometry.instances]
    assert sum(kinds[k].slices for k in existing) <= 3
    for instance in device.geometry.instances:
        kind = kinds[instance.kind]
        assert instance.span is not None
        assert instance.span.start in kind.starts
        assert kind.limit is None or existing.count(kind.name) <= kind.limit
        inside = [
            p
            for part in device.partitions
            for p in device.profiles
            if part.instance == instance.handle and p.name == part.profile
        ]
        assert len({p.size for p in inside}) <= 1
        assert all(p.instance == instance.kind for p in inside)
        assert all(len(inside) <= p.per_instance for p in inside)


@given(shapes.any_cards, st.data())
def test_one_more_planned_partition_frees_nothing(
    device: model.Device, data: st.DataObject
) -> None:
    planned = data.draw(st.lists(names_of(device), max_size=3))
    extended = [*planned, data.draw(names_of(device))]
    before = device_capacity.remaining(device, planned)
    after = device_capacity.remaining(device, extended)
    assert all(after[name] <= before[name] for name in before)


@given(shapes.any_cards)
def test_remaining_equals_brute_force(device: model.Device) -> None:
    remaining = device_capacity.remaining(device)
    for profile in device.profiles:
        room = brute_force.most(device, profile)
        if blind(device):
            room = max(room, 1)
        assert remaining[profile.name] == min(profile.available, room)


def blind(device: model.Device) -> bool:
    """Return whether only counts of the device itself are known."""
    geometry = device.geometry
    return (
        geometry.layout is model.Layout.MIG
        and not geometry.is_dynamic
        and not geometry.instances
    )


@given(shapes.any_cards, st.data())
def test_a_place_exists_while_a_profile_remains(
    device: model.Device, data: st.DataObject
) -> None:
    for name in data.draw(st.lists(names_of(device), max_size=6)):
        remaining = device_capacity.remaining(device)
        choice = device_capacity.choose_place(device, name)
        assert choice == device_capacity.choose_place(device, name)
        assert (choice is None) is (remaining[name] == 0)
        if choice is not None:
            device = device_capacity.add_partition(device, name, choice)
            after = device_capacity.remaining(device)
            assert after[name] == remaining[name] - 1
            assert all(after[other] <= remaining[other] for other in remaining)


@given(shapes.free_cards)
def test_capacity_equals_brute_force(
    device: model.Device,
) -> None:
    additional = brute_force.most(device, *device.profiles)
    if blind(device):
        additional = 1
    assert (
        device_capacity.capacity(device) == len(device.partitions) + additional
    )


@given(shapes.any_cards, st.data())
def test_capacity_is_at_least_the_number_of_choices(
    device: model.Device, data: st.DataObject
) -> None:
    capacity = device_capacity.capacity(device)
    count, limit = len(device.partitions), device.geometry.limit
    assert count <= capacity <= len(device.slots)
    assert limit is None or capacity <= max(limit, count)
    for name in data.draw(st.lists(names_of(device), max_size=8)):
        choice = device_capacity.choose_place(device, name)
        if choice is not None:
            device = device_capacity.add_partition(device, name, choice)
    assert len(device.partitions) <= capacity


@given(shapes.any_cards)
def test_recalculate_is_idempotent(device: model.Device) -> None:
    recalculated = device_capacity.recalculate(device)
    assert device_capacity.recalculate(recalculated) == recalculated
    remaining = device_capacity.remaining(device)
    assert device_capacity.remaining(recalculated) == remaining
    assert {p.name: p.available for p in recalculated.profiles} == remaining
    assert recalculated.counters["VGPU"] == device_capacity.capacity(device)


@given(shapes.any_cards, st.data())
def test_a_recalculated_device_has_the_same_choices(
    device: model.Device, data: st.DataObject
) -> None:
    recalculated = device_capacity.recalculate(device)
    for name in data.draw(st.lists(names_of(device), max_size=6)):
        choice = device_capacity.choose_place(recalculated, name)
        if choice is None:
            continue
        assert device_capacity.choose_place(device, name) == choice
        recalculated = device_capacity.add_partition(
            recalculated, name, choice
        )
        device = device_capacity.add_partition(device, name, choice)


@given(shapes.free_cards, st.data())
def test_removing_a_partition_restores_the_room(
    device: model.Device, data: st.DataObject
) -> None:
    """An instance that is removed with its partition frees even more."""
    name = data.draw(names_of(device))
    before = device_capacity.remaining(device)
    choice = device_capacity.choose_place(device, name)
    if choice is None:
        return
    full = device_capacity.add_partition(device, name, choice)
    real = dataclasses.replace(full.partitions[-1], handle="stale")
    seen = device_capacity.recalculate(
        dataclasses.replace(full, partitions=(*full.partitions[:-1], real))
    )
    after = device_capacity.remaining(
        device_capacity.remove_partitions(seen, {"stale"})
    )
    assert after[name] >= 1
    if not device.geometry.instances:
        assert all(after[n] <= max(before[n], 1) for n in before)
    if not blind(device):
        assert all(after[n] >= min(before[n], 1) for n in before)
