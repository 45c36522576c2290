# SPDX-License-Identifier: Apache-2.0
"""Partitions are added and removed without exceeding the capacity."""

from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.geometry import device_capacity
from tests.support import strategies
from tests.support.hosts import shapes

devices = strategies.mdev_devices() | strategies.whole_devices()


@given(devices, st.data())
def test_one_more_planned_partition_frees_nothing(
    device: model.Device, data: st.DataObject
) -> None:
    choices = st.sampled_from([p.name for p in device.profiles])
    planned = data.draw(st.lists(choices, max_size=4))
    extended = [*planned, data.draw(choices)]
    before = device_capacity.remaining(device, planned)
    after = device_capacity.remaining(device, extended)
    assert all(after[name] <= before[name] for name in before)
    free = device_capacity.free_counters(device, planned)
    counters_after = device_capacity.free_counters(device, extended)
    assert all(counters_after[name] <= free[name] for name in free)


@given(devices, st.data())
def test_remaining_profiles_can_be_planned_one_by_one(
    device: model.Device, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([p.name for p in device.profiles]))
    planned: list[str] = []
    for expected in range(device_capacity.remaining(device)[name], 0, -1):
        assert device_capacity.remaining(device, planned)[name] == expected
        planned.append(name)
    assert device_capacity.remaining(device, planned)[name] == 0


@given(devices)
def test_remaining_is_at_most_the_devices_count(device: model.Device) -> None:
    for profile in device.profiles:
        remaining = device_capacity.remaining(device)[profile.name]
        assert 0 <= remaining <= profile.available


@given(devices, st.data())
def test_counters_stay_positive_while_a_profile_remains(
    device: model.Device, data: st.DataObject
) -> None:
    planned: list[str] = []
    for profile in data.draw(st.permutations(device.profiles)):
        if device_capacity.remaining(device, planned)[profile.name]:
            planned.append(profile.name)
            free = device_capacity.free_counters(device, planned)
            assert all(free[name] >= 0 for name in profile.charges)


def test_a_partition_of_an_unknown_profile_takes_one_slot() -> None:
    device = shapes.plain_device(
        "mtty",
        resource_class="CUSTOM_MDEV",
        counters={"CUSTOM_MDEV": 3},
        slots=("slot-0", "slot-1", "slot-2"),
        partitions=(
            model.Partition(profile="gone", parent="mtty", handle="u"),
        ),
    )
    assert device_capacity.free_counters(device) == {"CUSTOM_MDEV": 2}
