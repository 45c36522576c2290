# SPDX-License-Identifier: Apache-2.0
"""Feasible partitions of a card are those of a brute-force search."""

import functools
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.geometry.scheduling import vgpu_feasibility
from nova_accel.model import providers
from tests.support.hosts import shapes
from tests.support.scheduler import scheduled
from tests.support.scheduler.scheduled import CATALOG, GEOMETRY, card

EQUAL, MIXED, MIG = (
    model.Layout.EQUAL,
    model.Layout.MIXED,
    model.Layout.MIG,
)


def has_room(
    facts: providers.Provider, *types: str, gpu: str = "L40S"
) -> bool:
    state = GEOMETRY.states.build(facts, gpu)
    assert state is not None
    return GEOMETRY.has_room(state, tuple(sorted(Counter(types).items())))


# -- brute force: sets of units, every place of each, one after the other ---


def mixed_fits(kinds: Iterable[str]) -> bool:
    """Return whether vGPUs have places on one card in mixed-size mode."""

    @functools.cache
    def rest(missing: tuple[str, ...], free: frozenset[int]) -> bool:
        if not missing:
            return True
        vgpu_type = scheduled.kind(missing[0])
        return any(
            places <= free and rest(missing[1:], free - places)
            for start in vgpu_type.starts_mixed
            for places in [frozenset(range(start, start + vgpu_type.span))]
        )

    types = tuple(sorted(kinds))
    gpu = CATALOG.gpu(scheduled.kind(types[0]).gpu)
    assert gpu is not None
    return rest(types, frozenset(range(gpu.region)))


def mig_fits(kinds: Iterable[str]) -> bool:
    """Return whether each of some vGPUs finds a GPU instance.

    One that exists, beside others of its size, or one made for it.
    """
    types = tuple(sorted(kinds))
    gpu = CATALOG.gpu(scheduled.kind(types[0]).gpu)
    assert gpu is not None
    by_name = {k.name: k for k in gpu.kinds}

    @functools.cache
    def rest(
        missing: tuple[str, ...],
        free: frozenset[int],
        slices: int,
        begun: tuple[tuple[str, int, int], ...],
    ) -> bool:
        if not missing:
            return True
        vgpu_type = scheduled.kind(missing[0])
        inside = (vgpu_type.instance, vgpu_type.framebuffer_mb)
        for n, (name, size, free_shares) in enumerate(begun):
            if (name, size) == inside and free_shares:
                with_one_less = (
                    *begun[:n],
                    (name, size, free_shares - 1),
                    *begun[n + 1 :],
                )
                if rest(
                    missing[1:], free, slices, tuple(sorted(with_one_less))
                ):
                    return True
        kind = by_name[vgpu_type.instance]
        with_new = tuple(
            sorted((*begun, (*inside, vgpu_type.per_instance - 1)))
        )
        return kind.slices <= slices and any(
            places <= free
            and rest(
                missing[1:], free - places, slices - kind.slices, with_new
            )
            for start in kind.starts
            for places in [frozenset(range(start, start + kind.size))]
        )

    region = frozenset(range(gpu.mig_region))
    return rest(types, region, gpu.mig_slices, ())


def types_of(gpu: str, layout: model.Layout) -> list[str]:
    """Return one type of each size and kind of instance."""
    types: dict[tuple[int, str], str] = {}
    for vgpu_type in CATALOG.profiles_of(gpu):
        if bool(vgpu_type.instance) == (layout is MIG):
            types.setdefault(
                (vgpu_type.framebuffer_mb, vgpu_type.instance), vgpu_type.name
            )
    return list(types.values())


@functools.cache
def weights(gpu: str, layout: model.Layout) -> dict[str, dict[str, int]]:
    return {name: scheduled.charges(name) for name in types_of(gpu, layout)}


def parts(
    gpu: str, layout: model.Layout, most: int
) -> st.SearchStrategy[list[str]]:
    """Draw types that Placement would allocate on one card, at least one."""
    totals = scheduled.capacity(gpu, layout)

    def within(types: list[str]) -> list[str]:
        free = Counter(totals)
        fitting = []
        for name in types:
            needed = weights(gpu, layout)[name]
            if all(free[counter] >= n for counter, n in needed.items()):
                free.subtract(needed)
                fitting.append(name)
        return fitting

    return st.lists(
        st.sampled_from(types_of(gpu, layout)), min_size=1, max_size=most
    ).map(within)


@pytest.mark.parametrize("gpu", ["L40S", "A100", "A30"])
@given(data=st.data())
def test_mixed_sizes_are_rejected_only_without_an_arrangement(
    gpu: str, data: st.DataObject
) -> None:
    *partitions, new = data.draw(parts(gpu, MIXED, 6))

    is_possible = has_room(card("c", *partitions, gpu=gpu), new, gpu=gpu)

    assert is_possible == mixed_fits([*partitions, new])


# A card has at most one instance with media engines. The number of existing
# ones is not known, so it is no reason to reject.
@pytest.mark.parametrize("gpu", ["A100", "A30", "H100"])
@given(data=st.data())
def test_mig_is_rejected_only_without_an_arrangement(
    gpu: str, data: st.DataObject
) -> None:
    *partitions, new = data.draw(parts(gpu, MIG, 7))

    is_possible = has_room(
        card("c", *partitions, gpu=gpu, layout=MIG), new, gpu=gpu
    )

    assert is_possible == mig_fits([*partitions, new])


@given(parts("RTXPRO6000", MIG, 6))
def test_vgpus_that_share_instances_are_not_rejected_wrongly(
    kinds: list[str],
) -> None:
    *partitions, new = kinds
    assume(mig_fits(kinds))

    facts = card("c", *partitions, gpu="RTXPRO6000", layout=MIG)

    assert has_room(facts, new, gpu="RTXPRO6000")


@given(st.lists(st.sampled_from(types_of("L40S", EQUAL)), min_size=1))
def test_equal_size_mode_takes_one_size(kinds: list[str]) -> None:
    *partitions, new = kinds
    facts = card("c", *partitions, layout=EQUAL)

    assert has_room(facts, new) == (len(set(kinds)) == 1)


def test_the_worst_cards_take_no_time() -> None:
    # Many small ones, and one too many: no arrangement, of millions.
    partitions = ["L40S-3Q"] * 7 + ["L40S-2Q"] * 7 + ["L40S-1Q"] * 7

    assert not has_room(card("c", *partitions), "L40S-6Q")


def test_vgpus_of_one_consumer_may_have_several_sizes() -> None:
    # 24Q and 8Q, with room for 16Q; or 16Q twice, without.
    both = Counter(scheduled.charges("L40S-24Q"))
    both.update(scheduled.charges("L40S-8Q"))

    assert mixed_fits(["L40S-24Q", "L40S-8Q", "L40S-16Q"])
    assert has_room(card("c", both), "L40S-16Q")


def test_a_region_of_unknown_length_ends_with_the_last_start() -> None:
    profile = model.Profile(
        name="P", trait="T", charges={}, available=1, span=4, starts=(0, 4)
    )
    device = shapes.plain_device(
        "c",
        counters={},
        profiles=(profile,),
        geometry=model.Geometry(layout=MIXED),
    )

    assert vgpu_feasibility.is_possible(device, {"P": 2})
    assert not vgpu_feasibility.is_possible(device, {"P": 3})
