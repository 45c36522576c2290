# SPDX-License-Identifier: Apache-2.0
"""Reports of fleets: bars, sums, and the page."""

import dataclasses
import json

import pytest
from hypothesis import given, settings

from nova_accel.catalog import loader
from nova_accel.geometry import occupancy
from nova_accel.model import names, providers
from placement_sync.fleet.devices import device_rows, fleet_state, holder_rows
from placement_sync.fleet.flavors import offered_devices
from placement_sync.fleet.report import (
    card_bars,
    fleet_report,
    report_page,
    report_text,
)
from tests.support import examples, golden
from tests.support.placement import clouds, fleets

TYPES = offered_devices.VgpuTypes(loader.load())
FLAVOR = fleet_report.FlavorSpecs(
    name="gpu.8q",
    specs={
        "resources_GPU1:VGPU": "1",
        f"resources_GPU1:{names.GPU_MEMORY_CLASS}": "8192",
        "trait_GPU1:CUSTOM_VGPU_NVIDIA_A40_8Q": "required",
    },
    needs={},
)
SERVER = card_bars.PartKind.SERVER
FREE = card_bars.PartKind.FREE


def make_fleet(
    *holdings: providers.Allocation,
    devices: tuple[offered_devices.OfferedDevice, ...],
    project: str = "red",
) -> fleet_state.Fleet:
    """Return a fleet in which each consumer is a server."""
    used = tuple(
        fleets.with_used(d, [h for h in holdings if h.provider == d.uuid])
        for d in devices
    )
    servers = {
        h.consumer: dataclasses.replace(
            fleets.server(0, project),
            uuid=h.consumer,
            name=f"vm-{int(h.consumer[:8])}",
        )
        for h in holdings
    }
    return fleet_state.Fleet(
        cloud=offered_devices.Cloud(devices=used),
        holdings=holdings,
        servers=servers,
    )


def build_bar(fleet: fleet_state.Fleet) -> card_bars.CardBar:
    """Return the bar of a fleet's only card."""
    (row,) = device_rows.list_devices(fleet, TYPES)
    allocations = holder_rows.list_allocations(fleet, TYPES)
    return card_bars.build_bar(row, allocations, TYPES)


def build_report(
    fleet: fleet_state.Fleet, *flavors: fleet_report.FlavorSpecs
) -> fleet_report.FleetReport:
    return fleet_report.build(fleets.HEADER, fleet, flavors, TYPES)


@given(fleets.fleets())
@settings(max_examples=examples.examples(100))
def test_the_parts_fill_each_bar_without_overlap(
    fleet: fleet_state.Fleet,
) -> None:
    report = build_report(fleet)
    bars = [bar for section in report.hosts for bar in section.bars]
    assert len(bars) == len(fleet.devices)
    for bar in bars:
        position = 0.0
        for part in bar.parts:
            assert part.start == pytest.approx(position)
            assert part.size > 0
            position += part.size
        assert position == pytest.approx(bar.total)
        size = sum(part.size for part in bar.parts if part.kind is SERVER)
        assert size == bar.row.usage.used


@given(fleets.fleets())
@settings(max_examples=examples.examples(50))
def test_each_format_has_each_device_and_server(
    fleet: fleet_state.Fleet,
) -> None:
    report = build_report(fleet)
    for text in (
        report_page.render(report),
        report_text.as_text(report),
        json.dumps(report_text.as_dict(report)),
    ):
        assert all(device.address in text for device in fleet.devices)
        assert all(
            fleet.servers[h.consumer].name in text
            for h in fleet.holdings
            if h.consumer in fleet.servers
        )


def test_parts_of_a_card_in_mig_mode_are_where_they_start() -> None:
    """The A100 has eight memory slices; a 3g instance begins at 0 or 4."""
    place = f"{occupancy.PLACE_PREFIX}4_1_VGPU_NVIDIA_A100_3_20C"
    card = clouds.gpu("A100", ("3-20C",), place, layout="mig")
    holding = providers.Allocation(
        provider=card.uuid,
        consumer=fleets.consumer(7),
        amounts=TYPES.terms(
            TYPES.by_trait["CUSTOM_VGPU_NVIDIA_A100_3_20C"]
        ).charges,
    )
    bar = build_bar(make_fleet(holding, devices=(card,)))
    assert [(p.kind, p.start, p.size) for p in bar.parts] == [
        (FREE, 0, 4),
        (SERVER, 4, 4),
    ]
    assert bar.parts[0].text == "free, fits 1 x A100-3-20C"


def test_places_that_contradict_the_allocations_are_not_drawn() -> None:
    place = f"{occupancy.PLACE_PREFIX}4_1_VGPU_NVIDIA_A100_3_20C"
    card = clouds.gpu("A100", ("3-20C",), place, layout="mig")
    holding = providers.Allocation(
        provider=card.uuid,
        consumer=fleets.consumer(7),
        amounts={"VGPU": 1, names.MIG_SLICE_CLASS: 2},
    )
    bar = build_bar(make_fleet(holding, devices=(card,)))
    assert [(p.kind, p.start, p.size) for p in bar.parts] == [
        (SERVER, 0, 2),
        (FREE, 2, 5),
    ]


def test_a_partition_without_an_allocation_has_its_place() -> None:
    place = f"{occupancy.UNALLOCATED_PREFIX}0_1_VGPU_NVIDIA_A40_24Q"
    card = clouds.gpu("A40", ("24Q",), place, layout="mixed")
    kinds = [
        part.kind for part in build_bar(make_fleet(devices=(card,))).parts
    ]
    assert kinds == [card_bars.PartKind.UNALLOCATED, FREE]


def test_partitions_of_one_gpu_instance_are_beside_each_other() -> None:
    """Four vGPUs share an instance, and one has no allocation."""
    trait = "VGPU_NVIDIA_RTX_PRO_6000_BLACKWELL_DC_1_6Q"
    card = clouds.gpu(
        "RTXPRO6000",
        (),
        f"{occupancy.PLACE_PREFIX}3_2_{trait}",
        f"{occupancy.UNALLOCATED_PREFIX}3_1_{trait}",
        layout="mig",
    )
    charges = TYPES.terms(TYPES.by_trait[f"CUSTOM_{trait}"]).charges
    holdings = [
        providers.Allocation(
            provider=card.uuid, consumer=fleets.consumer(n), amounts=charges
        )
        for n in (1, 2)
    ]
    parts = build_bar(make_fleet(*holdings, devices=(card,))).parts
    assert [(p.kind, p.start, p.size) for p in parts] == [
        (FREE, 0, 3),
        (SERVER, 3, 0.75),
        (SERVER, 3.75, 0.75),
        (card_bars.PartKind.UNALLOCATED, 4.5, 0.75),
        (FREE, 5.25, 6.75),
    ]


@pytest.mark.parametrize(
    ("resource_class", "amount", "size"),
    [(names.MIG_SLICE_CLASS, 2, 2), (names.GPU_MEMORY_CLASS, 5120, 1)],
)
def test_a_reserve_of_a_card_in_mig_mode_is_drawn(
    resource_class: str, amount: int, size: int
) -> None:
    """An operator's reserve has no place: it is the last free units.

    The partition without an allocation is in ``reserved``, too.
    """
    trait = "VGPU_NVIDIA_A100_1_5C"
    charges = TYPES.terms(TYPES.by_trait[f"CUSTOM_{trait}"]).charges
    card = clouds.gpu(
        "A100",
        ("3-20C",),
        f"{occupancy.UNALLOCATED_PREFIX}0_1_{trait}",
        layout="mig",
    )
    reserved = {**charges}
    reserved[resource_class] += amount
    card = dataclasses.replace(
        card,
        capacities={
            name: dataclasses.replace(
                c,
                capacity=c.capacity - reserved[name],
                reserved=reserved[name],
            )
            for name, c in card.capacities.items()
        },
    )
    parts = build_bar(make_fleet(devices=(card,))).parts
    assert [(p.kind, p.start, p.size) for p in parts] == [
        (card_bars.PartKind.UNALLOCATED, 0, 1),
        (FREE, 1, 7 - size),
        (card_bars.PartKind.RESERVED, 8 - size, size),
    ]
    assert parts[-1].text == "reserved"


def test_a_drained_card_with_a_server_has_no_free_part() -> None:
    card = clouds.gpu("A40", ("8Q",), names.DRAINED_TRAIT)
    fleet = make_fleet(fleets.holding(card, 1, "8Q"), devices=(card,))
    bar = build_bar(fleet)
    assert [(p.kind, p.size) for p in bar.parts] == [
        (SERVER, 8192),
        (card_bars.PartKind.RESERVED, fleets.MEMORY_MB - 8192),
    ]
    (problem,) = build_report(fleet).problems
    assert problem.where == "node1/0000:41:00.0"
    assert "undrain 0000:41:00.0" in problem.remedy


def test_fragmentation_names_the_fewest_servers_to_move() -> None:
    cards = (
        clouds.gpu("A40", ("8Q",)),
        clouds.gpu("A40", ("8Q",), at="node2/0000:42:00.0"),
    )
    fleet = make_fleet(
        fleets.holding(cards[0], 1, "8Q"),
        fleets.holding(cards[0], 2, "8Q"),
        fleets.holding(cards[1], 3, "8Q"),
        devices=cards,
    )
    owners = [fleets.server(number, "red", "8Q") for number in (1, 2, 3)]
    fleet = dataclasses.replace(fleet, servers={s.uuid: s for s in owners})
    text = report_text.as_text(build_report(fleet))
    golden.check(golden.PLACE / "fleet/report-fragmented.txt", text)


def test_no_server_moves_where_a_card_is_empty() -> None:
    cards = (
        clouds.gpu("A40", ("8Q",)),
        clouds.gpu("A40", ("8Q",), at="node2/0000:42:00.0"),
    )
    with_empty = make_fleet(fleets.holding(cards[0], 1, "8Q"), devices=cards)
    assert build_report(with_empty).fragmentation[0].moved_servers == ()


def test_flavors_have_room_or_a_problem() -> None:
    card = clouds.gpu("A40", ("8Q",))
    broken = dataclasses.replace(
        FLAVOR, name="bad", specs={"accelerator:packing": "no"}
    )
    plain = dataclasses.replace(FLAVOR, name="plain", specs={})
    fleet = make_fleet(fleets.holding(card, 1, "8Q"), devices=(card,))
    bad, row = build_report(fleet, FLAVOR, plain, broken).flavors
    assert (row.request, row.room) == ("1 x A40-8Q", 5)
    assert "accelerator:packing" in bad.problem


def test_the_text_of_an_example() -> None:
    text = report_text.as_text(build_report(fleets.example(), FLAVOR))
    golden.check(golden.PLACE / "fleet/report.txt", text)


def test_a_missing_device_without_servers_needs_no_work() -> None:
    card = clouds.gpu("A40", ("8Q",), names.MISSING_TRAIT)
    (problem,) = build_report(make_fleet(devices=(card,))).problems
    assert problem.problem == "missing, 0 servers"
    assert "its next pass removes it" in problem.remedy

    in_use = make_fleet(fleets.holding(card, 1, "8Q"), devices=(card,))
    (problem,) = build_report(in_use).problems
    assert problem.problem == "missing, 1 server"
    assert "delete these servers" in problem.remedy


def test_a_device_without_inventories_counts_for_nothing() -> None:
    """Such as an FPGA whose regions have them."""
    card, region = clouds.device({}, "INTEL_PAC"), clouds.region("f")
    report = build_report(make_fleet(devices=(card, region)))

    assert report_text.summarize(report).endswith(", 0/1 FPGA in use")
    assert "]  -  ok" in report_text.as_text(report)


def test_an_empty_fleet_with_a_gap_says_both() -> None:
    fleet = fleet_state.Fleet(gaps=("names of servers (403)",))
    report = build_report(fleet)
    for text in (report_page.render(report), report_text.as_text(report)):
        assert "Not known: names of servers (403)" in text
    assert "No host offers any accelerator" in report_page.render(report)
