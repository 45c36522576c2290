# SPDX-License-Identifier: Apache-2.0
"""Laws of the filter, for all policies, against brute force."""

import dataclasses
import functools
import itertools
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from filters import provider_facts, request
from filters.fit import candidate_fit, numa
from nova_accel import model
from nova_accel.model import flavors, names
from tests.support.scheduler import scheduled

EQUAL, MIXED = model.Layout.EQUAL, model.Layout.MIXED
TYPES = ("L40S-6Q", "L40S-16Q", "L40S-24C", "L40S-24Q")
UUIDS = ("0000_41_00_0", "0000_42_00_0", "0000_81_00_0")
ILL = (names.DRAINED_TRAIT, names.FAULTED_TRAIT, names.MISSING_TRAIT)


@st.composite
def known_cards(draw: st.DrawFn, uuid: str) -> provider_facts.ProviderFacts:
    layout = draw(st.sampled_from([EQUAL, MIXED]))
    held = draw(st.lists(st.sampled_from(TYPES), max_size=3))
    traits = {
        names.custom("ACCELERATOR", "NUMA", str(n))
        for n in draw(st.sampled_from([(0,), (1,), (), (0, 1)]))
    }
    traits.update(
        names.pcie_trait(port)
        for port in draw(st.sampled_from([("0000:40:01.0",), ("b",), ()]))
    )
    traits.update(
        names.nvlink_trait(peer.replace("_", ":", 2))
        for peer in UUIDS
        if peer != uuid and draw(st.booleans())
    )
    traits.update(t for t in ILL if draw(st.integers(0, 9)) == 0)
    one = scheduled.card(
        uuid,
        *held,
        layout=layout,
        traits=traits,
        exact=draw(st.booleans()),
    )
    return draw(
        st.sampled_from(
            [
                one,
                one,
                one,
                dataclasses.replace(one, held=None),
                dataclasses.replace(one, traits=frozenset()),
            ]
        )
    )


@st.composite
def hosts(draw: st.DrawFn) -> candidate_fit.HostFacts:
    known = [u for u in UUIDS if draw(st.integers(0, 5))]
    facts = [draw(known_cards(uuid)) for uuid in known]
    cells = st.frozensets(st.sampled_from([0, 1]))
    return candidate_fit.HostFacts(
        facts=scheduled.facts_of(*facts),
        cards=scheduled.CARDS,
        cells=numa.Cells(
            present=draw(cells),
            chosen=draw(st.none() | cells),
            roomy=draw(cells),
        ),
    )


@st.composite
def requests(draw: st.DrawFn) -> request.AcceleratorRequest:
    return scheduled.asks(
        *draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=2)),
        numa_policy=draw(st.sampled_from(flavors.NumaPolicy)).value,
        locality=draw(st.sampled_from(flavors.Locality)).value,
        packing=draw(st.sampled_from(flavors.Packing)).value,
    )


# -- what is right, said once more ------------------------------------------


def is_right(
    asks: request.AcceleratorRequest,
    one: provider_facts.Candidate,
    view: candidate_fit.HostFacts,
) -> bool:
    return (
        has_stock(one, view)
        and has_places(asks, one, view)
        and is_near_the_guest(asks, one, view)
        and is_together(asks, one, view)
    )


def cards_of(
    one: provider_facts.Candidate, view: candidate_fit.HostFacts
) -> list[provider_facts.ProviderFacts]:
    """Return the known cards that a candidate takes from."""
    return [view.facts[u] for u in one["allocations"] if u in view.facts]


def has_stock(
    one: provider_facts.Candidate, view: candidate_fit.HostFacts
) -> bool:
    for facts in cards_of(one, view):
        taken = one["allocations"][facts.uuid]["resources"]
        if facts.exact and (
            facts.traits & set(ILL)
            or any(
                facts.stock[c].used + n > facts.stock[c].capacity
                for c, n in taken.items()
            )
        ):
            return False
    return True


def has_places(
    asks: request.AcceleratorRequest,
    one: provider_facts.Candidate,
    view: candidate_fit.HostFacts,
) -> bool:
    """Try every place of all that stands on a card and is to come."""
    for facts in cards_of(one, view):
        sizes = [
            group.resources[names.GPU_MEMORY_CLASS] // 1024
            for group in asks.groups
            if one["mappings"][group.suffix] == [facts.uuid]
        ]
        is_equal = names.layout_trait("equal") in facts.traits
        is_mixed = names.layout_trait("mixed") in facts.traits
        if not facts.exact or not (is_equal or is_mixed):
            continue
        if facts.held is not None:
            held = [
                each[names.GPU_MEMORY_CLASS] // 1024 for each in facts.held
            ]
        elif is_equal and facts.stock[names.GPU_CLASS].used:
            # All are of one size, and nobody said of which but the sum.
            memory = facts.stock[names.GPU_MEMORY_CLASS].used // 1024
            count = facts.stock[names.GPU_CLASS].used
            if memory % count or memory // count not in STARTS:
                continue
            held = [memory // count] * count
        elif facts.stock[names.GPU_CLASS].used:
            continue
        else:
            held = []
        if is_equal and len({*held, *sizes}) > 1:
            return False
        if is_mixed and not placeable(tuple(sorted((*held, *sizes)))):
            return False
    return True


STARTS = {
    one.framebuffer_mb // 1024: one.starts_mixed
    for one in scheduled.KNOWN.profiles_of("L40S")
}


@functools.cache
def placeable(sizes: tuple[int, ...]) -> bool:
    for starts in itertools.product(*(STARTS[size] for size in sizes)):
        units = [
            unit
            for size, start in zip(sizes, starts, strict=True)
            for unit in range(start, start + size)
        ]
        if len(set(units)) == len(units):
            return True
    return False


def node_of(facts: provider_facts.ProviderFacts) -> set[int]:
    return {
        n
        for n in range(8)
        if names.custom("ACCELERATOR", "NUMA", str(n)) in facts.traits
    }


def is_near_the_guest(
    asks: request.AcceleratorRequest,
    one: provider_facts.Candidate,
    view: candidate_fit.HostFacts,
) -> bool:
    cells = view.cells
    if asks.placing.numa is not flavors.NumaPolicy.REQUIRED:
        return True
    if len(cells.present) < 2:
        return True
    nodes = [node_of(f) for f in cards_of(one, view) if f.traits]
    if any(len(node) != 1 for node in nodes):
        return False
    found = {node for (node,) in nodes}
    if cells.chosen is not None:
        return found <= cells.chosen
    return found <= cells.roomy and len(found) < 2


def is_together(
    asks: request.AcceleratorRequest,
    one: provider_facts.Candidate,
    view: candidate_fit.HostFacts,
) -> bool:
    locality = asks.placing.locality
    used = [one["mappings"][group.suffix][0] for group in asks.groups]
    pairs = [
        (view.facts[a], view.facts[b])
        for a, b in itertools.combinations(sorted(set(used)), 2)
        if a in view.facts and b in view.facts
    ]
    if locality is flavors.Locality.DIFFERENT_CARD:
        known = [uuid for uuid in used if uuid in view.facts]
        return len(set(known)) == len(known)
    told = [(a, b) for a, b in pairs if a.traits and b.traits]
    if locality is flavors.Locality.NVLINK:
        return all(
            names.nvlink_trait(b.uuid) in a.traits
            or names.nvlink_trait(a.uuid) in b.traits
            for a, b in told
        )
    prefix = {
        flavors.Locality.PCIE: names.PCIE_PREFIX,
        flavors.Locality.NUMA: names.NUMA_PREFIX,
    }.get(locality)
    return prefix is None or all(
        {t for t in a.traits if t.startswith(prefix)}
        == {t for t in b.traits if t.startswith(prefix)}
        for a, b in told
    )


# -- the laws ---------------------------------------------------------------


@given(requests(), hosts())
def test_exactly_what_is_right_is_kept(
    asks: request.AcceleratorRequest, view: candidate_fit.HostFacts
) -> None:
    several = scheduled.candidates(asks, UUIDS)

    fits, lacks = candidate_fit.fitting(asks, several, view)

    right = {id(one) for one in several if is_right(asks, one, view)}
    assert {id(one) for one in fits} == right
    assert len(fits) == len(right)
    assert bool(lacks) == (len(fits) < len(several))
    for one in several:
        found = scheduled.why_not(asks, one, view)
        assert bool(found) == (id(one) not in right)


@given(requests(), hosts())
def test_a_second_pass_changes_nothing(
    asks: request.AcceleratorRequest, view: candidate_fit.HostFacts
) -> None:
    once, _ = candidate_fit.fitting(
        asks, scheduled.candidates(asks, UUIDS), view
    )

    twice, lacks = candidate_fit.fitting(asks, once, view)

    assert list(map(id, twice)) == list(map(id, once))
    assert not lacks


@given(requests(), hosts(), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_how_they_came(
    asks: request.AcceleratorRequest,
    view: candidate_fit.HostFacts,
    random: Random,
) -> None:
    several = scheduled.candidates(asks, sorted(view.facts))
    shuffled = random.sample(several, len(several))

    once = candidate_fit.order(asks, several, view)

    assert list(map(id, candidate_fit.order(asks, shuffled, view))) == list(
        map(id, once)
    )


@given(requests(), hosts())
def test_facts_that_are_not_exact_refuse_nobody_for_want_of_room(
    asks: request.AcceleratorRequest, view: candidate_fit.HostFacts
) -> None:
    vague = dataclasses.replace(
        view,
        facts={
            uuid: dataclasses.replace(facts, exact=False)
            for uuid, facts in view.facts.items()
        },
    )
    for one in scheduled.candidates(asks, UUIDS):
        is_near = is_near_the_guest(asks, one, view)
        assert (not scheduled.why_not(asks, one, vague)) == (
            is_near and is_together(asks, one, view)
        )


@given(requests(), hosts())
def test_whoever_is_refused_for_its_state_was_doubted_before(
    asks: request.AcceleratorRequest, view: candidate_fit.HostFacts
) -> None:
    several = scheduled.candidates(asks, UUIDS)
    vague, sure = (
        dataclasses.replace(
            view,
            facts={
                uuid: dataclasses.replace(facts, exact=exact)
                for uuid, facts in view.facts.items()
            },
        )
        for exact in (False, True)
    )

    _, lacks = candidate_fit.fitting(asks, several, sure)

    refused = {uuid for uuid, _ in lacks if uuid in view.facts}
    assert candidate_fit.doubts(asks, [several], vague) == refused
    assert not candidate_fit.doubts(asks, [several], sure)
