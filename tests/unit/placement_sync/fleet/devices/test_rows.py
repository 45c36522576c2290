# SPDX-License-Identifier: Apache-2.0
"""Laws of the rows of a fleet, and rows of single cards."""

import collections
from typing import Any

import pytest
from hypothesis import given, settings

from nova_accel.catalog import loader
from nova_accel.geometry import occupancy
from nova_accel.model import names
from placement_sync.fleet.devices import (
    device_rows,
    fleet_query,
    fleet_state,
    holder_rows,
)
from placement_sync.fleet.flavors import offered_devices
from tests.support import examples
from tests.support.placement import clouds, fleets

TYPES = offered_devices.VgpuTypes(loader.load())
Fleet = fleet_state.Fleet


def card(*devices: offered_devices.OfferedDevice) -> device_rows.DeviceRow:
    """Return the row of the first of some devices."""
    fleet = Fleet(cloud=offered_devices.Cloud(devices=devices))
    return device_rows.list_devices(fleet, TYPES)[0]


@given(fleets.fleets())
@settings(max_examples=examples.examples(100))
def test_units_of_holders_and_free_units_are_the_capacity(
    fleet: Fleet,
) -> None:
    rows = holder_rows.list_allocations(fleet, TYPES)
    for device in fleet.devices:
        for name, capacity in device.capacities.items():
            allocated = sum(
                row.amounts.get(name, 0)
                for row in rows
                if row.device is not None and row.device.uuid == device.uuid
            )
            assert capacity.used == allocated
            if not device.is_unavailable and allocated <= capacity.capacity:
                assert allocated + capacity.free == capacity.total


@given(fleets.fleets())
@settings(max_examples=examples.examples(100))
def test_the_parts_of_a_holding_add_up_to_it(fleet: Fleet) -> None:
    for row in holder_rows.list_allocations(fleet, TYPES):
        total: collections.Counter[str] = collections.Counter()
        for part in row.parts:
            total.update(part.amounts)
        assert dict(total) == dict(row.amounts)


@given(fleets.fleets())
@settings(max_examples=examples.examples(100))
def test_projects_and_hosts_have_the_units_of_the_devices(
    fleet: Fleet,
) -> None:
    rows = device_rows.list_devices(fleet, TYPES)
    by_class: collections.Counter[str] = collections.Counter()
    for usage in holder_rows.sum_by_project(fleet):
        by_class[usage.resource_class] += usage.units
    used = {
        name: sum(d.capacities[name].used for d in fleet.devices)
        for name in by_class
    }
    assert dict(by_class) == used
    hosts = holder_rows.list_hosts(fleet, rows)
    assert sum(sum(host.states.values()) for host in hosts) == len(rows)
    by_unit = holder_rows.sum_usages(u for host in hosts for u in host.usages)
    assert by_unit == holder_rows.sum_usages(row.usage for row in rows)


@given(fleets.fleets())
@settings(max_examples=examples.examples(100))
def test_what_fits_does_not_exceed_the_free_units(fleet: Fleet) -> None:
    for row in device_rows.list_devices(fleet, TYPES):
        for profile in row.fits:
            assert row.state == "ok"
            for name, amount in profile.charges.items():
                free = row.device.capacities[name].free
                assert profile.count * amount <= free


@given(fleets.fleets())
@settings(max_examples=examples.examples(50))
def test_the_states_of_a_query_divide_the_devices(fleet: Fleet) -> None:
    by_state = [
        fleet_query.FleetQuery(state=state).select(fleet.devices)
        for state in fleet_query.STATES
    ]
    assert sorted(d.uuid for each in by_state for d in each) == sorted(
        d.uuid for d in fleet.devices
    )


def test_a_card_in_mig_mode_counts_slices() -> None:
    row = card(
        clouds.gpu(
            "A100",
            ("1-5C", "3-20C"),
            layout="mig",
            used={
                "VGPU": 1,
                names.MIG_SLICE_CLASS: 2,
                names.GPU_MEMORY_CLASS: 10240,
            },
        )
    )
    assert (row.mode, str(row.usage)) == ("mig", "2/7 slices")
    assert str(row.largest) == "1 x A100-3-20C"
    assert [profile.name for profile in row.fits] == [
        "A100-3-20C",
        "A100-1-5C",
    ]


def test_a_profile_fits_as_often_as_it_has_places() -> None:
    """A vGPU of 16 GB begins at 0 and 32 only, and units are left for two."""
    row = card(
        clouds.gpu(
            "L40S",
            ("8Q", "16Q"),
            f"{occupancy.PLACE_PREFIX}0_1_VGPU_NVIDIA_L40S_16Q",
            layout="mixed",
            used={names.GPU_CLASS: 1, names.GPU_MEMORY_CLASS: 16384},
        )
    )
    assert str(row.largest) == "1 x L40S-16Q"


def test_a_drained_card_keeps_its_total_and_fits_nothing() -> None:
    row = card(
        clouds.gpu("T4", ("4Q",), names.DRAINED_TRAIT, names.FAULTED_TRAIT)
    )
    assert (row.state, row.usage.total) == ("drained", 16384)
    assert row.fits == () and row.largest is None


def test_a_device_without_measures_counts_itself() -> None:
    row = card(
        clouds.device({names.QAT_VF_CLASS: 16}, used={names.QAT_VF_CLASS: 3})
    )
    assert str(row.usage) == f"3/16 {names.QAT_VF_CLASS}"
    assert row.mode == ""
    region = card(clouds.region("f" * 32))
    assert region.device.address == "0000:05:00.0/region-0"


def test_an_attached_part_is_apart_from_the_flavors_parts() -> None:
    device = clouds.gpu("A40", ("4Q", "8Q"))
    fleet = Fleet(
        cloud=offered_devices.Cloud(devices=(device,)),
        holdings=(fleets.holding(device, 1, "4Q", "8Q"),),
        servers={fleets.consumer(1): fleets.server(1, "red", "8Q")},
    )
    (row,) = holder_rows.list_allocations(fleet, TYPES)
    assert [str(part) for part in row.parts] == ["A40-8Q", "4096 MB"]


def test_a_part_of_another_model_is_not_of_the_flavor() -> None:
    device = clouds.gpu("A10", ("8Q", "16Q"))
    fleet = Fleet(
        cloud=offered_devices.Cloud(devices=(device,)),
        holdings=(fleets.holding(device, 1, "8Q"),),
        servers={fleets.consumer(1): fleets.server(1, "red", "8Q")},
    )
    (row,) = holder_rows.list_allocations(fleet, TYPES)
    assert [str(part) for part in row.parts] == ["8192 MB"]


def test_a_consumer_that_nova_hides_keeps_its_row() -> None:
    device = clouds.gpu("A40", ("4Q",))
    fleet = Fleet(
        cloud=offered_devices.Cloud(devices=(device,)),
        holdings=(fleets.holding(device, 1, "4Q"),),
    )
    (row,) = holder_rows.list_allocations(fleet, TYPES)
    assert row.server is None
    assert [str(part) for part in row.parts] == ["4096 MB"]
    usage = holder_rows.sum_by_project(fleet)[0]
    assert (usage.project, usage.units) == ("", 4096)


DEVICES = (
    clouds.gpu("T4", ("4Q",)),
    clouds.gpu("A40", ("8Q",), at="node1.org/0000:42:00.0"),
    clouds.region("f" * 32),
)


@pytest.mark.parametrize(
    ("query", "addresses"),
    [
        ({}, ["0000:41:00.0", "0000:42:00.0", "0000:05:00.0/region-0"]),
        ({"model": "A40"}, ["0000:42:00.0"]),
        ({"hosts": ["node1.org"]}, ["0000:42:00.0"]),
        ({"device": "node1/0000:41:00.0"}, ["0000:41:00.0"]),
        ({"device": "0000:41:00.0"}, ["0000:41:00.0"]),
        ({"device": DEVICES[0].uuid.upper()}, ["0000:41:00.0"]),
        ({"device": "0000:05:00.0"}, ["0000:05:00.0/region-0"]),
        ({"device": "0000:05:00.0/region-0"}, ["0000:05:00.0/region-0"]),
        ({"device": "node1/0000:05:00.0/region-0"}, ["0000:05:00.0/region-0"]),
        ({"state": "faulted"}, []),
    ],
)
def test_a_query_selects(query: dict[str, Any], addresses: list[str]) -> None:
    selected = fleet_query.FleetQuery(**query).select(DEVICES)
    assert [device.address for device in selected] == addresses
