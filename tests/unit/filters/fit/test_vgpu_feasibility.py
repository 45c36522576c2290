# SPDX-License-Identifier: Apache-2.0
"""What cards may hold together, against every arrangement there is."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from filters import provider_facts
from filters.fit import vgpu_feasibility
from nova_accel import model
from tests.support.scheduler import scheduled
from tests.support.scheduler.scheduled import CARDS, KNOWN, card

EQUAL, MIXED, MIG = (
    model.Layout.EQUAL,
    model.Layout.MIXED,
    model.Layout.MIG,
)


def has_room(
    facts: provider_facts.ProviderFacts, *more: str, gpu: str = "L40S"
) -> bool:
    shape = CARDS.shape(facts, gpu)
    assert shape is not None
    return CARDS.has_room(shape, tuple(sorted(Counter(more).items())))


# -- brute force: sets of units, every place of each, one after the other ---


def mixed_fits(kinds: Iterable[str]) -> bool:
    """Return whether vGPUs have places on one card in mixed-size mode."""

    @functools.cache
    def rest(todo: tuple[str, ...], free: frozenset[int]) -> bool:
        if not todo:
            return True
        one = scheduled.kind(todo[0])
        return any(
            places <= free and rest(todo[1:], free - places)
            for start in one.starts_mixed
            for places in [frozenset(range(start, start + one.span))]
        )

    found = tuple(sorted(kinds))
    gpu = KNOWN.gpu(scheduled.kind(found[0]).gpu)
    assert gpu is not None
    return rest(found, frozenset(range(gpu.region)))


def mig_fits(kinds: Iterable[str]) -> bool:
    """Return whether each of some vGPUs finds a GPU instance.

    One that exists, beside others of its size, or one made for it.
    """
    found = tuple(sorted(kinds))
    gpu = KNOWN.gpu(scheduled.kind(found[0]).gpu)
    assert gpu is not None
    by_name = {k.name: k for k in gpu.kinds}

    @functools.cache
    def rest(
        todo: tuple[str, ...],
        free: frozenset[int],
        slices: int,
        begun: tuple[tuple[str, int, int], ...],
    ) -> bool:
        if not todo:
            return True
        one = scheduled.kind(todo[0])
        inside = (one.instance, one.framebuffer_mb)
        for n, (name, size, left) in enumerate(begun):
            if (name, size) == inside and left:
                less = (*begun[:n], (name, size, left - 1), *begun[n + 1 :])
                if rest(todo[1:], free, slices, tuple(sorted(less))):
                    return True
        kind = by_name[one.instance]
        more = tuple(sorted((*begun, (*inside, one.per_instance - 1))))
        return kind.slices <= slices and any(
            places <= free
            and rest(todo[1:], free - places, slices - kind.slices, more)
            for start in kind.starts
            for places in [frozenset(range(start, start + kind.size))]
        )

    region = frozenset(range(gpu.mig_region))
    return rest(found, region, gpu.mig_slices, ())


def types_of(gpu: str, layout: model.Layout) -> list[str]:
    """Return one type of each size and kind of instance."""
    found: dict[tuple[int, str], str] = {}
    for one in KNOWN.profiles_of(gpu):
        if bool(one.instance) == (layout is MIG):
            found.setdefault((one.framebuffer_mb, one.instance), one.name)
    return list(found.values())


@functools.cache
def weights(gpu: str, layout: model.Layout) -> dict[str, dict[str, int]]:
    return {name: scheduled.charges(name) for name in types_of(gpu, layout)}


def parts(
    gpu: str, layout: model.Layout, most: int
) -> st.SearchStrategy[list[str]]:
    """Draw what Placement would give from one card, at least one."""
    totals = scheduled.capacity(gpu, layout)

    def within(found: list[str]) -> list[str]:
        left = Counter(totals)
        kept = []
        for name in found:
            wanted = weights(gpu, layout)[name]
            if all(left[counter] >= n for counter, n in wanted.items()):
                left.subtract(wanted)
                kept.append(name)
        return kept

    return st.lists(
        st.sampled_from(types_of(gpu, layout)), min_size=1, max_size=most
    ).map(within)


@pytest.mark.parametrize("gpu", ["L40S", "A100", "A30"])
@given(data=st.data())
def test_mixed_sizes_are_refused_only_where_no_arrangement_exists(
    gpu: str, data: st.DataObject
) -> None:
    *held, more = data.draw(parts(gpu, MIXED, 6))

    found = has_room(card("c", *held, gpu=gpu), more, gpu=gpu)

    assert found == mixed_fits([*held, more])


# Of kinds with media engines there is one at most; of how many there are
# nobody tells, and what is not told is not refused.
@pytest.mark.parametrize("gpu", ["A100", "A30", "H100"])
@given(data=st.data())
def test_mig_is_refused_only_where_no_arrangement_exists(
    gpu: str, data: st.DataObject
) -> None:
    *held, more = data.draw(parts(gpu, MIG, 7))

    found = has_room(card("c", *held, gpu=gpu, layout=MIG), more, gpu=gpu)

    assert found == mig_fits([*held, more])


@given(parts("RTXPRO6000", MIG, 6))
def test_vgpus_that_share_instances_are_never_refused_a_place_they_have(
    kinds: list[str],
) -> None:
    *held, more = kinds
    assume(mig_fits(kinds))

    facts = card("c", *held, gpu="RTXPRO6000", layout=MIG)

    assert has_room(facts, more, gpu="RTXPRO6000")


@given(st.lists(st.sampled_from(types_of("L40S", EQUAL)), min_size=1))
def test_equal_size_mode_takes_one_size(kinds: list[str]) -> None:
    *held, more = kinds
    facts = card("c", *held, layout=EQUAL)

    assert has_room(facts, more) == (len(set(kinds)) == 1)


def test_the_worst_cards_take_no_time() -> None:
    # Many small ones, and one too many: no arrangement, of millions.
    held = ["L40S-3Q"] * 7 + ["L40S-2Q"] * 7 + ["L40S-1Q"] * 7

    assert not has_room(card("c", *held), "L40S-6Q")


def test_one_consumer_s_several_vgpus_may_be_of_several_sizes() -> None:
    # 24Q and 8Q, which 16Q stands beside; or 16Q twice, which it does not.
    both = Counter(scheduled.charges("L40S-24Q"))
    both.update(scheduled.charges("L40S-8Q"))

    assert mixed_fits(["L40S-24Q", "L40S-8Q", "L40S-16Q"])
    assert has_room(card("c", both), "L40S-16Q")


def test_a_region_whose_length_nobody_tells_ends_with_the_last_start() -> None:
    profile = model.Profile(
        name="P", trait="T", charges={}, available=1, span=4, starts=(0, 4)
    )
    device = dataclasses.replace(
        model.Device(
            address="c",
            plugin="",
            technology="",
            vendor="",
            model="",
            resource_class="VGPU",
            counters={},
            slots=(),
        ),
        profiles=(profile,),
        geometry=model.Geometry(layout=MIXED),
    )

    assert vgpu_feasibility.is_possible(device, {"P": 2})
    assert not vgpu_feasibility.is_possible(device, {"P": 3})
