# SPDX-License-Identifier: Apache-2.0
"""Number of servers of a flavor that there is room for."""

from hypothesis import given
from hypothesis import strategies as st

from nova_accel.catalog import loader
from nova_accel.geometry import occupancy
from nova_accel.model import names, providers
from placement_sync.fleet.flavors import (
    flavor_specs,
    lookup,
    offered_devices,
    room,
)
from tests.support.placement import clouds

TYPES = offered_devices.VgpuTypes(loader.load())


def cloud(*devices: offered_devices.OfferedDevice) -> offered_devices.Cloud:
    return offered_devices.Cloud(devices=devices)


def contents_of(
    offered: offered_devices.Cloud, *profiles: str, **settings: str
) -> flavor_specs.FlavorContents:
    """Return the contents of a flavor with these profiles."""
    specs: dict[str, str] = {}
    for number, profile in enumerate(profiles):
        name, _, count = profile.partition("*")
        devices = lookup.find_profile(
            lookup.ProfileQuery(profile=name, count=int(count or 1)),
            offered,
            TYPES,
            True,
        )
        group_name = f"G{chr(ord('A') + number)}"
        flavor_request = flavor_specs.FlavorRequest(
            devices=devices, settings=settings, group=group_name
        )
        specs = dict(flavor_specs.plan(specs, flavor_request).specs)
    return flavor_specs.read(specs)


A = clouds.gpu("A40", ("8Q",), at="node1/0000:41:00.0@0")
C = clouds.gpu("A40", ("8Q",), at="node1/0000:c1:00.0@1")


def test_free_units_are_counted_in_servers() -> None:
    offered = cloud(A, C)
    assert (
        room.count_room(
            contents_of(offered, "A40-8Q"), offered, {}, TYPES.geometry
        )
        == 12
    )
    assert (
        room.count_room(
            contents_of(offered, "A40-8Q*4"), offered, {}, TYPES.geometry
        )
        == 3
    )
    apart = contents_of(offered, "A40-8Q*2", locality="different_card")
    assert room.count_room(apart, offered, {}, TYPES.geometry) == 6
    near = contents_of(offered, "A40-8Q*4", numa_policy="required")
    assert room.count_room(near, offered, {}, TYPES.geometry) == 2
    assert (
        room.count_room(
            contents_of(offered, "A40-48Q"), offered, {}, TYPES.geometry
        )
        == 0
    )


def test_a_request_without_a_group_has_the_room_of_all_cards() -> None:
    offered = cloud(A, C)
    contents = flavor_specs.read({"resources:VGPU": "5"})
    assert (
        room.count_room(contents, offered, {}, TYPES.geometry)
        == sum(card.capacities["VGPU"].free for card in (A, C)) // 5
    )


def test_amounts_of_the_host_limit_the_servers() -> None:
    capacities = {"VCPU": providers.ClassCapacity(capacity=16, used=7)}
    offered = offered_devices.Cloud(
        devices=(A,), hosts={clouds.root(): capacities}
    )
    assert (
        room.count_room(
            contents_of(offered, "A40-8Q"),
            offered,
            {"VCPU": 4},
            TYPES.geometry,
        )
        == 2
    )


def test_places_limit_the_servers_more_than_units() -> None:
    """A vGPU of 16 GB begins at 0 and 32 only, and units are left for two."""
    offered = cloud(
        clouds.gpu(
            "L40S",
            ("16Q",),
            f"{occupancy.PLACE_PREFIX}0_1_VGPU_NVIDIA_L40S_16Q",
            layout="mixed",
            used={names.GPU_CLASS: 1, names.GPU_MEMORY_CLASS: 16384},
        )
    )
    contents = contents_of(offered, "L40S-16Q")
    assert room.count_room(contents, offered, {}, TYPES.geometry) == 1


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(1, 4))
def test_servers_on_separate_devices(free: list[int], count: int) -> None:
    remaining, servers = sorted(free, reverse=True), 0
    while len(remaining) >= count and remaining[count - 1] > 0:
        remaining = sorted(
            [n - 1 for n in remaining[:count]] + remaining[count:],
            reverse=True,
        )
        servers += 1
    assert room.count_servers(free, count, is_separate=True) == servers
