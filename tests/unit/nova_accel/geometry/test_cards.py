# SPDX-License-Identifier: Apache-2.0
"""Capacity of real cards, also with unknown sizes and places."""

import dataclasses

import pytest

from nova_accel import model
from nova_accel.geometry import device_capacity
from nova_accel.model import names
from tests.support.hosts import shapes

EQUAL, MIXED = model.Layout.EQUAL, model.Layout.MIXED

# -- equal-size mode -------------------------------------------------------

T4 = shapes.card(
    model.Geometry(layout=EQUAL, limit=32),
    *(
        shapes.profile(f"T4-{gib}Q", size=gib * 1024, limit=16 // gib)
        for gib in (1, 2, 4, 8, 16)
    ),
    shapes.profile("T4-1B", size=1024, limit=16),
    slots=16,
)


def test_beside_an_unknown_partition_counts_of_the_device_apply() -> None:
    strange = shapes.word(
        shapes.cut(T4, shapes.partition("gone", 0)),
        **dict.fromkeys((p.name for p in T4.profiles), 0) | {"T4-4Q": 3},
    )
    remaining = device_capacity.remaining(strange)
    assert {n: c for n, c in remaining.items() if c} == {"T4-4Q": 3}
    assert device_capacity.capacity(strange) == 4


def test_a_profile_of_unknown_size_has_the_count_of_the_device() -> None:
    device = dataclasses.replace(
        T4, profiles=(*T4.profiles, shapes.profile("new", 2))
    )
    assert device_capacity.remaining(device)["new"] == 2
    begun = shapes.cut(device, shapes.partition("T4-1B", 0))
    assert device_capacity.remaining(begun)["new"] == 2
    # The device's counts exclude planned partitions: nothing fits beside.
    assert device_capacity.remaining(device, ["T4-1B"])["new"] == 0
    assert device_capacity.remaining(device, ["new"])["T4-1B"] == 0
    assert device_capacity.remaining(device, ["new"])["new"] == 1


# -- mixed-size mode -------------------------------------------------------

# Four-GiB profiles of a 40 GiB card have eight places only.
A100 = shapes.card(
    model.Geometry(layout=MIXED, region=40, limit=32),
    shapes.profile("A100-4C", span=4, starts=(0, 6, 10, 16, 20, 26, 30, 36)),
    shapes.profile("A100-8C", span=8, starts=(0, 10, 20, 30)),
    shapes.profile("A100-10C", span=10, starts=(0, 10, 20, 30)),
    shapes.profile("A100-20C", span=20, starts=(0, 20)),
    shapes.profile("A100-40C", span=40, starts=(0,)),
)


def test_small_partitions_are_packed_for_large_ones() -> None:
    device = A100
    starts = []
    for _ in range(4):
        choice = device_capacity.choose_place(device, "A100-4C")
        assert choice is not None
        starts.append(choice.start)
        device = device_capacity.add_partition(device, "A100-4C", choice)
        assert device_capacity.remaining(device)["A100-20C"] == 1
    assert starts == [0, 6, 10, 16]


def test_a_gap_is_filled_before_a_large_place_is_split() -> None:
    device = shapes.card(
        model.Geometry(layout=MIXED, region=8),
        shapes.profile("P-1", span=1, starts=(0, 2, 4, 5, 6)),
        shapes.profile("P-4", span=4, starts=(0, 4)),
    )
    device = shapes.cut(device, shapes.partition("P-1", 0, start=5))
    assert device_capacity.choose_place(
        device, "P-1"
    ) == device_capacity.PartitionPlace(start=4)


def test_a_place_excludes_no_second_place_of_its_kind() -> None:
    """The middle place would exclude both other places of its kind."""
    device = shapes.card(
        model.Geometry(layout=MIXED, region=8),
        shapes.profile("P-2", span=2, starts=(2, 3, 4)),
        shapes.profile("P-3", span=3, starts=(0, 5)),
    )
    assert device_capacity.choose_place(
        device, "P-2"
    ) == device_capacity.PartitionPlace(start=2)


@pytest.mark.parametrize(
    "part",
    [
        shapes.partition("A100-4C", 0),
        shapes.partition("gone", 0),
        shapes.partition("gone", 0, start=4),
    ],
)
def test_beside_an_unknown_place_one_more_is_offered(
    part: model.Partition,
) -> None:
    device = shapes.word(shapes.cut(A100, part), **{"A100-40C": 0})
    remaining = device_capacity.remaining(device)
    assert remaining == {n: int(n != "A100-40C") for n in remaining}
    assert (
        device_capacity.choose_place(device, "A100-20C")
        == device_capacity.PartitionPlace()
    )
    assert device_capacity.choose_place(device, "A100-40C") is None
    assert set(device_capacity.remaining(device, ["A100-4C"]).values()) == {0}
    assert device_capacity.capacity(device) == 2


def test_a_profile_without_known_places_is_offered_once() -> None:
    device = dataclasses.replace(
        A100, profiles=(*A100.profiles, shapes.profile("new", 3))
    )
    assert device_capacity.remaining(device)["new"] == 1
    assert (
        device_capacity.choose_place(device, "new")
        == device_capacity.PartitionPlace()
    )
    assert set(device_capacity.remaining(device, ["new"]).values()) == {0}


# -- bounds -----------------------------------------------------------------


def test_memory_limits_the_capacity() -> None:
    memory = names.GPU_MEMORY_CLASS
    device = dataclasses.replace(
        A100,
        counters={memory: 10},
        profiles=tuple(
            dataclasses.replace(p, charges={"VGPU": 1, memory: p.span})
            for p in A100.profiles
        ),
    )
    assert device_capacity.remaining(device)["A100-4C"] == 2
    assert device_capacity.capacity(device) == 2
