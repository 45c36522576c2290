# SPDX-License-Identifier: Apache-2.0
"""vGPU types fit beside a card's partitions, with the right loss."""

import dataclasses
import itertools
import pathlib
from collections import Counter
from collections.abc import Iterable

import pytest

from nova_accel import model
from nova_accel.geometry import device_capacity, occupancy
from nova_accel.geometry.scheduling import card_state
from nova_accel.host import nvml_gpus
from nova_accel.model import names, providers
from tests.hosts import build, look
from tests.support.scheduler import scheduled
from tests.support.scheduler.scheduled import CATALOG, GEOMETRY, card

EQUAL, MIXED, MIG = (
    model.Layout.EQUAL,
    model.Layout.MIXED,
    model.Layout.MIG,
)


def state_of(
    facts: providers.Provider, gpu: str = "L40S"
) -> card_state.CardState:
    state = GEOMETRY.states.build(facts, gpu)
    assert state is not None
    return state


def has_room(
    facts: providers.Provider, *types: str, gpu: str = "L40S"
) -> bool:
    return GEOMETRY.has_room(
        state_of(facts, gpu), tuple(sorted(Counter(types).items()))
    )


def test_types_of_one_size_in_several_kinds_of_instances_are_ambiguous() -> (
    None
):
    # Four of them share one instance of 4g.96gb, two one of 2g.48gb.
    name = "RTX Pro 6000 Blackwell DC-4-24Q"
    facts = card("c", name, name, name, gpu="RTXPRO6000", layout=MIG)

    assert has_room(facts, name, gpu="RTXPRO6000")
    assert (
        GEOMETRY.compute_loss(state_of(facts, "RTXPRO6000"), ((name, 1),))
        is None
    )


def test_two_series_of_one_size_share_a_card_in_equal_size_mode() -> None:
    facts = card("c", "L40S-8Q", layout=EQUAL)

    assert has_room(facts, "L40S-8C")
    assert not has_room(facts, "L40S-4Q")


def test_several_new_types_are_checked_together() -> None:
    facts = card("c", "L40S-16Q")

    assert has_room(facts, "L40S-16Q")
    assert has_room(facts, "L40S-16Q", "L40S-8Q")
    # 16Q begins at 0 and 32 only, whatever the counters say.
    assert not has_room(facts, "L40S-16Q", "L40S-16Q")


@pytest.mark.parametrize(
    ("gpu", "types"),
    [
        ("A30", ("A30-1-6CME", "A30-1-6CME")),
        ("A30", ("A30-1-6CME", "A30-2-12CME")),
        ("A100", ("A100-1-5CME", "A100-1-5CME")),
    ],
)
def test_a_card_has_one_instance_with_media_engines(
    gpu: str, types: tuple[str, str]
) -> None:
    empty = card("c", gpu=gpu, layout=MIG)

    assert has_room(empty, types[0], gpu=gpu)
    assert not has_room(empty, *types, gpu=gpu)


# -- places that NVML lists and the catalog does not have -------------------

H200 = "H200-7C"
MOST_H200 = 20


def h200(count: int, starts: Iterable[int]) -> providers.Provider:
    """Return a card with ``count`` vGPUs, of which ``starts`` are reported."""
    suffix = scheduled.trait(H200).removeprefix(names.CUSTOM)
    return card(
        "c",
        *[H200] * count,
        gpu="H200",
        traits=[f"{occupancy.PLACE_PREFIX}{n}_1_{suffix}" for n in starts],
    )


@pytest.mark.parametrize("count", range(MOST_H200))
def test_offered_types_are_not_rejected(count: int) -> None:
    starts = range(0, 7 * MOST_H200, 7)

    assert has_room(h200(count, starts[:count]), H200, gpu="H200")


def test_an_offered_type_fits_beside_places_of_the_catalog() -> None:
    starts = scheduled.kind(H200).starts_mixed
    offering = h200(len(starts), starts)
    withdrawn = dataclasses.replace(
        offering, traits=offering.traits - {scheduled.trait(H200)}
    )

    assert has_room(offering, H200, gpu="H200")
    assert not has_room(offering, H200, H200, gpu="H200")
    assert not has_room(withdrawn, H200, gpu="H200")


@pytest.mark.parametrize("reported", [16, 18])
def test_the_catalog_does_not_reject_beside_unknown_places(
    reported: int,
) -> None:
    facts = h200(18, range(0, 7 * reported, 7))
    siblings = (((H200, 1),),) * (18 - reported)

    assert has_room(facts, H200, H200, gpu="H200")
    state = GEOMETRY.states.build(facts, "H200", siblings)
    assert state is not None
    assert state.occupancy is not None
    assert GEOMETRY.has_room(state, ((H200, 2),))


def test_vgpus_of_one_consumer_have_one_size_in_equal_mode() -> None:
    facts = card("c", scheduled.charges("L40S-8Q", 2), layout=EQUAL)

    assert state_of(facts).partitions == ((8192, 0, 2),)
    assert not has_room(facts, "L40S-16Q")


def test_no_new_type_always_fits() -> None:
    for layout in (EQUAL, MIXED):
        assert GEOMETRY.has_room(state_of(card("c", layout=layout)), ())


@pytest.mark.parametrize(
    "usage",
    [
        {names.GPU_CLASS: 1},  # allocated by Nova's own vGPU code
        {names.WHOLE_GPU_CLASS: 1},
        {names.GPU_CLASS: 2, names.GPU_MEMORY_CLASS: 3},
        {names.GPU_CLASS: 2, names.GPU_MEMORY_CLASS: 2048, "CUSTOM_Z": 1}
        | {names.MIG_SLICE_CLASS: 1},
    ],
)
def test_allocations_of_other_devices_are_ambiguous(
    usage: dict[str, int],
) -> None:
    assert GEOMETRY.states.build(card("c", usage), "L40S") is None


def test_a_size_that_no_type_has_is_ambiguous() -> None:
    odd = {names.GPU_CLASS: 1, names.GPU_MEMORY_CLASS: 1000}
    facts = card("c", odd)

    assert has_room(facts, "L40S-48Q")
    assert GEOMETRY.compute_loss(state_of(facts), (("L40S-1Q", 1),)) is None


def test_a_type_of_another_mode_is_not_rejected() -> None:
    assert has_room(card("c", gpu="A100"), "A100-7-40C", gpu="A100")


def test_a_card_needs_exactly_one_layout() -> None:
    facts = card("c")
    none = facts.traits - {names.layout_trait("mixed")}
    two = facts.traits | {names.layout_trait("equal")}

    for traits in (none, two):
        odd = dataclasses.replace(facts, traits=traits)
        assert GEOMETRY.states.build(odd, "L40S") is None


def test_used_units_suffice_only_in_equal_size_mode() -> None:
    for layout, partitions in [
        (EQUAL, ((8192, 0, 2),)),
        (MIXED, None),
        (MIG, None),
    ]:
        facts = card("c", "A100-8C", "A100-8C", gpu="A100", layout=layout)
        unread = dataclasses.replace(facts, allocations=None)
        state = GEOMETRY.states.build(unread, "A100")
        assert (state and state.partitions) == partitions
    for layout in (EQUAL, MIXED, MIG):
        empty = dataclasses.replace(card("c", layout=layout), allocations=None)
        assert state_of(empty).partitions == ()


def test_the_type_of_a_group() -> None:
    (group,) = scheduled.asks("L40S-8Q").groups
    two = dataclasses.replace(
        group, required=group.required | {scheduled.trait("L40S-4Q")}
    )
    none = dataclasses.replace(group, required=frozenset({"CUSTOM_X"}))

    assert GEOMETRY.states.find_type(group) == scheduled.kind("L40S-8Q")
    assert GEOMETRY.states.find_type(two) is None
    assert GEOMETRY.states.find_type(none) is None


def test_the_text_of_partitions() -> None:
    types = ["A100-1-5C", "A100-1-5C", "A100-3-20C"]
    mig = card("c", *types, gpu="A100", layout=MIG)

    for facts, words in [
        (card("c"), "nothing (mixed sizes)"),
        (
            card("c", "L40S-8Q", "L40S-24Q", "L40S-8Q"),
            "1 of 24576 MB, 2 of 8192 MB (mixed sizes)",
        ),
        (mig, "1 of 20480 MB, 2 of 5120 MB"),
    ]:
        assert str(state_of(facts, "A100")) == words


# -- loss, compared with real cards -----------------------------------------

A100, T4, L40S = "0000:41:00.0", "0000:3b:00.0", "0000:3e:00.0"
PLENTY = 100


def real_card(name: str, root: pathlib.Path) -> model.Device:
    """Return an empty card as its vendor's driver describes it."""
    if name == "A100 MIG":
        gpu = CATALOG.gpu("A100")
        assert gpu is not None
        description = build.load("a100-mig-mdev")
        description["mdevs"] = []
        for parent in description["parents"]:
            # Of drivers newer than this host's.
            parent["types"].append(["9", "GRID A100-1-10C", 0, [10240, 4]])
        nvml_gpu = nvml_gpus.NvmlGpu(
            address=A100, is_mig=True, kinds=gpu.kinds
        )
        spec = ['{"vendor_id": "10de", "mig_instances": "dynamic"}']
        state = look.read(build.build(description, root), spec, [nvml_gpu])
        return look.device(state, A100)
    if name == "T4":
        return look.device(look.read(look.make("t4-mdev", root)), T4)
    nvml_gpu = nvml_gpus.NvmlGpu(
        address=L40S, is_mig=False, is_mixed=name == "L40S mixed"
    )
    host = look.make("l40s-vendor-vfio", root)
    return look.device(look.read(host, gpus=[nvml_gpu]), L40S)


def unlimited(device: model.Device) -> model.Device:
    """Return a card that only its geometry and its counters limit.

    Placement counts its VFs and its available profiles.
    """
    return dataclasses.replace(
        device,
        slots=names.slot_names(PLENTY),
        counters={
            name: total
            for name, total in device.counters.items()
            if name != names.GPU_CLASS
        },
        profiles=tuple(
            dataclasses.replace(p, available=PLENTY) for p in device.profiles
        ),
        geometry=dataclasses.replace(device.geometry, limit=None),
    )


def place_profiles(
    device: model.Device, profiles: Iterable[str]
) -> model.Device | None:
    """Return a device with profiles on it, the largest one made first."""

    def largest_first(name: str) -> tuple[int, str]:
        profile = device.profile(name)
        assert profile is not None
        return -profile.size, name

    for name in sorted(profiles, key=largest_first):
        choice = device_capacity.choose_place(device, name)
        if choice is None:
            return None
        device = device_capacity.add_partition(device, name, choice)
    return device


def count_by_size(device: model.Device) -> dict[int, int]:
    """Return the number of new partitions of each size."""
    remaining = device_capacity.remaining(device)
    counts: dict[int, int] = {}
    for profile in device.profiles:
        count = max(counts.get(profile.size, 0), remaining[profile.name])
        counts[profile.size] = count
    return counts


def build_facts(
    device: model.Device, profiles: Iterable[str]
) -> providers.Provider:
    """Return the provider of a device with partitions."""
    allocations = []
    for name in profiles:
        profile = device.profile(name)
        assert profile is not None
        allocations.append(profile.charges)
    return providers.Provider(
        uuid="c",
        capacities={
            name: providers.ClassCapacity(
                capacity=total, used=sum(u.get(name, 0) for u in allocations)
            )
            for name, total in device.counters.items()
        },
        traits=frozenset(
            {
                names.layout_trait(device.geometry.layout.value),
                *(p.trait for p in device.profiles),
            }
        ),
        allocations=tuple(allocations),
    )


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("T4", EQUAL),
        ("L40S", EQUAL),
        ("L40S mixed", MIXED),
        ("A100 MIG", MIG),
    ],
)
def test_the_loss_is_that_of_the_real_card(
    name: str, layout: model.Layout, tmp_path: pathlib.Path
) -> None:
    device = real_card(name, tmp_path)
    assert device.geometry.layout is layout
    gpu = CATALOG.of_card(p.name for p in device.profiles)
    assert gpu is not None
    sizes = {(p.size, p.instance): p.name for p in device.profiles}
    bare = unlimited(device)
    compared = 0
    for *profiles, new in itertools.chain.from_iterable(
        itertools.combinations_with_replacement(sizes.values(), n)
        for n in (1, 2, 3)
    ):
        now, then = (
            place_profiles(bare, profiles),
            place_profiles(bare, [*profiles, new]),
        )
        if now is None or then is None:
            continue
        before, after = count_by_size(now), count_by_size(then)
        state = GEOMETRY.states.build(build_facts(device, profiles), gpu.key)
        assert state is not None

        loss = GEOMETRY.compute_loss(state, ((new, 1),))

        assert loss == tuple(
            (size, before[size] - after[size])
            for size in sorted(before, reverse=True)
            if before[size] > after[size]
        ), (profiles, new)
        compared += 1
    assert compared > len(sizes)


def test_a_small_type_loses_least_on_a_fragmented_card() -> None:
    types = (("L40S-4Q", 1),)
    empty = GEOMETRY.compute_loss(state_of(card("c")), types)
    begun = GEOMETRY.compute_loss(
        state_of(card("c", "L40S-24Q", "L40S-4Q")), types
    )

    assert empty is not None
    assert begun is not None
    assert dict(empty)[49152] == 1
    assert 49152 not in dict(begun)
    assert begun < empty


def test_types_that_the_host_can_not_make_are_not_lost() -> None:
    facts = card("c")
    no_48 = frozenset(t for t in facts.traits if "_L40S_48" not in t)
    limited = dataclasses.replace(facts, traits=no_48)

    loss = GEOMETRY.compute_loss(state_of(limited), (("L40S-4Q", 1),))

    assert loss is not None
    assert 49152 not in dict(loss)
