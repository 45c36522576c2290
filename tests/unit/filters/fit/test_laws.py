# SPDX-License-Identifier: Apache-2.0
"""The filter equals a brute-force check for all policies."""

import dataclasses
import functools
import itertools
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from filters import request
from filters.fit import candidate_fit, numa, provider_facts
from nova_accel import model
from nova_accel.model import flavors, names, providers
from tests.support.scheduler import scheduled

EQUAL, MIXED = model.Layout.EQUAL, model.Layout.MIXED
TYPES = ("L40S-6Q", "L40S-16Q", "L40S-24C", "L40S-24Q")
UUIDS = ("0000_41_00_0", "0000_42_00_0", "0000_81_00_0")
UNHEALTHY = (names.DRAINED_TRAIT, names.FAULTED_TRAIT, names.MISSING_TRAIT)


@st.composite
def card_facts(draw: st.DrawFn, uuid: str) -> providers.Provider:
    layout = draw(st.sampled_from([EQUAL, MIXED]))
    partitions = draw(st.lists(st.sampled_from(TYPES), max_size=3))
    traits = {
        names.custom_name("ACCELERATOR", "NUMA", str(n))
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
    traits.update(t for t in UNHEALTHY if draw(st.integers(0, 9)) == 0)
    card = scheduled.card(
        uuid,
        *partitions,
        layout=layout,
        traits=traits,
    )
    return draw(
        st.sampled_from(
            [
                card,
                card,
                card,
                dataclasses.replace(card, allocations=None),
                dataclasses.replace(card, traits=frozenset()),
            ]
        )
    )


@st.composite
def hosts(draw: st.DrawFn) -> candidate_fit.HostFacts:
    uuids = [u for u in UUIDS if draw(st.integers(0, 5))]
    facts = [draw(card_facts(uuid)) for uuid in uuids]
    cells = st.frozensets(st.sampled_from([0, 1]))
    return candidate_fit.HostFacts(
        facts=scheduled.facts_of(*facts),
        geometry=scheduled.GEOMETRY,
        cells=numa.Cells(
            present=draw(cells),
            chosen=draw(st.none() | cells),
            spacious=draw(cells),
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


# -- the expected result ----------------------------------------------------


def is_valid(
    accelerators: request.AcceleratorRequest,
    candidate: provider_facts.Candidate,
    host_facts: candidate_fit.HostFacts,
) -> bool:
    return (
        has_capacity(candidate, host_facts)
        and has_places(accelerators, candidate, host_facts)
        and is_near_the_guest(accelerators, candidate, host_facts)
        and is_together(accelerators, candidate, host_facts)
        and has_cards_alone(accelerators, candidate, host_facts)
    )


def cards_of(
    candidate: provider_facts.Candidate, host_facts: candidate_fit.HostFacts
) -> list[providers.Provider]:
    """Return the known cards that a candidate takes from."""
    return [
        host_facts.facts[u]
        for u in candidate["allocations"]
        if u in host_facts.facts
    ]


def has_capacity(
    candidate: provider_facts.Candidate, host_facts: candidate_fit.HostFacts
) -> bool:
    for facts in cards_of(candidate, host_facts):
        needed = candidate["allocations"][facts.uuid]["resources"]
        if facts.traits & set(UNHEALTHY) or any(
            facts.capacities[c].used + n > facts.capacities[c].capacity
            for c, n in needed.items()
        ):
            return False
    return True


def has_places(
    accelerators: request.AcceleratorRequest,
    candidate: provider_facts.Candidate,
    host_facts: candidate_fit.HostFacts,
) -> bool:
    """Try every placement of a card's partitions and the new vGPUs."""
    for facts in cards_of(candidate, host_facts):
        sizes = [
            group.resources[names.GPU_MEMORY_CLASS] // 1024
            for group in accelerators.groups
            if candidate["mappings"][group.suffix] == [facts.uuid]
        ]
        is_equal = names.layout_trait("equal") in facts.traits
        is_mixed = names.layout_trait("mixed") in facts.traits
        if not (is_equal or is_mixed):
            continue
        if facts.allocations is not None:
            partitions = [
                units[names.GPU_MEMORY_CLASS] // 1024
                for units in facts.allocations
            ]
        elif is_equal and facts.capacities[names.GPU_CLASS].used:
            # All are of one size, which follows from the sum.
            memory = facts.capacities[names.GPU_MEMORY_CLASS].used // 1024
            count = facts.capacities[names.GPU_CLASS].used
            if memory % count or memory // count not in STARTS:
                continue
            partitions = [memory // count] * count
        elif facts.capacities[names.GPU_CLASS].used:
            continue
        else:
            partitions = []
        if is_equal and len({*partitions, *sizes}) > 1:
            return False
        if is_mixed and not placeable(tuple(sorted((*partitions, *sizes)))):
            return False
    return True


STARTS = {
    vgpu_type.framebuffer_mb // 1024: vgpu_type.starts_mixed
    for vgpu_type in scheduled.CATALOG.profiles_of("L40S")
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


def node_of(facts: providers.Provider) -> set[int]:
    return {
        n
        for n in range(8)
        if names.custom_name("ACCELERATOR", "NUMA", str(n)) in facts.traits
    }


def is_near_the_guest(
    accelerators: request.AcceleratorRequest,
    candidate: provider_facts.Candidate,
    host_facts: candidate_fit.HostFacts,
) -> bool:
    cells = host_facts.cells
    if accelerators.policy.numa is not flavors.NumaPolicy.REQUIRED:
        return True
    if len(cells.present) < 2:
        return True
    nodes = [node_of(f) for f in cards_of(candidate, host_facts) if f.traits]
    if any(len(node) != 1 for node in nodes):
        return False
    used = {node for (node,) in nodes}
    if cells.chosen is not None:
        return used <= cells.chosen
    return used <= cells.spacious and len(used) < 2


def is_together(
    accelerators: request.AcceleratorRequest,
    candidate: provider_facts.Candidate,
    host_facts: candidate_fit.HostFacts,
) -> bool:
    locality = accelerators.policy.locality
    used = [
        candidate["mappings"][group.suffix][0] for group in accelerators.groups
    ]
    pairs = [
        (host_facts.facts[a], host_facts.facts[b])
        for a, b in itertools.combinations(sorted(set(used)), 2)
        if a in host_facts.facts and b in host_facts.facts
    ]
    if locality is flavors.Locality.DIFFERENT_CARD:
        known_uuids = [uuid for uuid in used if uuid in host_facts.facts]
        return len(set(known_uuids)) == len(known_uuids)
    read_pairs = [(a, b) for a, b in pairs if a.traits and b.traits]
    if locality is flavors.Locality.NVLINK:
        return all(
            names.nvlink_trait(b.uuid) in a.traits
            or names.nvlink_trait(a.uuid) in b.traits
            for a, b in read_pairs
        )
    prefix = {
        flavors.Locality.PCIE: names.PCIE_PREFIX,
        flavors.Locality.NUMA: names.NUMA_PREFIX,
    }.get(locality)
    return prefix is None or all(
        {t for t in a.traits if t.startswith(prefix)}
        == {t for t in b.traits if t.startswith(prefix)}
        for a, b in read_pairs
    )


def has_cards_alone(
    accelerators: request.AcceleratorRequest,
    candidate: provider_facts.Candidate,
    host_facts: candidate_fit.HostFacts,
) -> bool:
    return accelerators.policy.packing is not flavors.Packing.EXCLUSIVE or all(
        candidate["allocations"][facts.uuid]["resources"][
            names.GPU_MEMORY_CLASS
        ]
        == facts.capacities[names.GPU_MEMORY_CLASS].capacity
        for facts in cards_of(candidate, host_facts)
    )


# -- properties -------------------------------------------------------------


@given(requests(), hosts())
def test_exactly_the_valid_candidates_are_selected(
    accelerators: request.AcceleratorRequest,
    host_facts: candidate_fit.HostFacts,
) -> None:
    candidates = scheduled.candidates(accelerators, UUIDS)

    fitting, rejections = candidate_fit.select(
        accelerators, candidates, host_facts
    )

    valid = {
        id(candidate)
        for candidate in candidates
        if is_valid(accelerators, candidate, host_facts)
    }
    assert {id(candidate) for candidate in fitting} == valid
    assert len(fitting) == len(valid)
    assert bool(rejections) == (len(fitting) < len(candidates))
    for candidate in candidates:
        reason = scheduled.why_not(accelerators, candidate, host_facts)
        assert bool(reason) == (id(candidate) not in valid)


@given(requests(), hosts())
def test_a_second_pass_changes_nothing(
    accelerators: request.AcceleratorRequest,
    host_facts: candidate_fit.HostFacts,
) -> None:
    once, _ = candidate_fit.select(
        accelerators, scheduled.candidates(accelerators, UUIDS), host_facts
    )

    twice, rejections = candidate_fit.select(accelerators, once, host_facts)

    assert list(map(id, twice)) == list(map(id, once))
    assert not rejections


@given(requests(), hosts(), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_the_input(
    accelerators: request.AcceleratorRequest,
    host_facts: candidate_fit.HostFacts,
    random: Random,
) -> None:
    candidates = scheduled.candidates(accelerators, sorted(host_facts.facts))
    shuffled = random.sample(candidates, len(candidates))

    once = candidate_fit.select(accelerators, candidates, host_facts)[0]

    assert list(
        map(
            id,
            candidate_fit.select(accelerators, shuffled, host_facts)[0],
        )
    ) == list(map(id, once))
