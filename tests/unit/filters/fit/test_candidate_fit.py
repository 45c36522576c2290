# SPDX-License-Identifier: Apache-2.0
import dataclasses
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters import provider_facts, request
from filters.fit import candidate_fit, numa
from nova_accel.model import flavors, names
from tests.support.scheduler import scheduled

WANTED = request.parse_request(
    {"resources_A:VGPU": "1", "resources_A:CUSTOM_GPU_MEMORY_MB": "4"}
)

PACK = dataclasses.replace(
    WANTED, placing=flavors.PlacementPolicy(packing=flavors.Packing.PACK)
)


def provider(
    uuid: str,
    capacity: int,
    used: int,
    memory: tuple[int, int] | None = None,
    **more: Any,
) -> provider_facts.ProviderFacts:
    stock = {
        "VGPU": provider_facts.ClassCapacity(capacity=capacity, used=used)
    }
    if memory is not None:
        stock["CUSTOM_GPU_MEMORY_MB"] = provider_facts.ClassCapacity(
            capacity=memory[0], used=memory[1]
        )
    return provider_facts.ProviderFacts(uuid=uuid, stock=stock, **more)


def candidate(**vgpus: int) -> provider_facts.Candidate:
    allocations: dict[str, Any] = {"root": {"resources": {"VCPU": 1}}}
    for uuid, amount in vgpus.items():
        allocations[uuid] = {"resources": {"VGPU": amount}}
    return {"allocations": allocations, "mappings": {"_A": list(vgpus)}}


def facts_of(
    *providers: provider_facts.ProviderFacts,
) -> dict[str, provider_facts.ProviderFacts]:
    return {p.uuid: p for p in providers}


def view(
    *providers: provider_facts.ProviderFacts, cells: numa.Cells = numa.UNTOLD
) -> candidate_fit.HostFacts:
    return candidate_fit.HostFacts(
        facts=facts_of(*providers), cards=scheduled.CARDS, cells=cells
    )


def cards(found: list[provider_facts.Candidate]) -> list[list[str]]:
    return [c["mappings"]["_A"] for c in found]


def test_a_shortage_names_the_provider_the_counts_and_the_taker() -> None:
    facts = view(
        provider(
            "p", 2, 2, name="labvm_accel_mtty", exact=True, taken_by=("s1",)
        )
    )

    assert scheduled.why_not(WANTED, candidate(p=1), facts) == (
        "labvm_accel_mtty: VGPU 0 left of 2, 1 needed"
        " (taken by server s1 of the same request)"
    )


def test_facts_that_are_not_exact_never_refuse() -> None:
    facts = view(provider("p", 2, 2))

    assert not scheduled.why_not(WANTED, candidate(p=1), facts)


def test_a_total_below_what_is_used_leaves_nothing_not_less() -> None:
    facts = view(provider("p", 1, 3, exact=True))

    found = scheduled.why_not(WANTED, candidate(p=1), facts)

    assert "VGPU 0 left of 1" in found


def test_other_classes_of_the_server_are_not_ours_to_judge() -> None:
    root = provider_facts.ProviderFacts(
        uuid="root",
        stock={"VCPU": provider_facts.ClassCapacity(capacity=1, used=1)},
        exact=True,
    )

    assert not scheduled.why_not(WANTED, candidate(p=1), view(root))


def test_the_fullest_device_comes_first_and_whole_ones_stay_free() -> None:
    facts = view(
        provider("empty", 4, 0), provider("half", 4, 2), provider("one", 4, 3)
    )
    found = candidate_fit.order(
        PACK,
        [candidate(empty=1), candidate(half=1), candidate(one=1)],
        facts,
    )

    assert cards(found) == [["one"], ["half"], ["empty"]]


def test_the_scarcest_counter_says_how_full_a_device_is() -> None:
    facts = view(
        provider("slots", 32, 1, memory=(48, 40)),
        provider("memory", 32, 2, memory=(48, 0)),
    )
    several = [candidate(memory=1), candidate(slots=1)]
    for one in several:
        (uuid,) = one["mappings"]["_A"]
        one["allocations"][uuid]["resources"]["CUSTOM_GPU_MEMORY_MB"] = 4

    found = candidate_fit.order(PACK, several, facts)

    assert cards(found) == [["slots"], ["memory"]]


@pytest.mark.parametrize("packing", list(flavors.Packing))
def test_a_card_that_was_read_as_full_comes_last(
    packing: flavors.Packing,
) -> None:
    # Nova claims the first candidate only, and drops the host on a 409.
    request_ = dataclasses.replace(
        WANTED, placing=flavors.PlacementPolicy(packing=packing)
    )
    facts = view(provider("full", 1, 1), provider("free", 1, 0))

    found = candidate_fit.order(
        request_,
        [candidate(full=1), candidate(unread=1), candidate(free=1)],
        facts,
    )

    assert cards(found) == [["free"], ["unread"], ["full"]]


@pytest.mark.parametrize("packing", list(flavors.Packing))
def test_a_card_without_a_place_comes_last_until_it_is_confirmed(
    packing: flavors.Packing,
) -> None:
    asks = scheduled.asks("L40S-16Q", packing=packing.value)
    facts = view(
        scheduled.card("a", "L40S-16Q", "L40S-16Q"), scheduled.card("b")
    )

    found = candidate_fit.order(asks, scheduled.candidates(asks, "ab"), facts)

    assert [scheduled.taken_by(one) for one in found] == [("b",), ("a",)]


def test_unknown_providers_come_last_in_their_own_order() -> None:
    facts = view(provider("known", 4, 0))

    found = candidate_fit.order(
        WANTED, [candidate(z=1), candidate(a=1), candidate(known=1)], facts
    )

    assert cards(found) == [["known"], ["z"], ["a"]]


def test_a_shortage_met_in_several_candidates_is_named_once() -> None:
    facts = view(provider("p", 1, 1, exact=True))

    fits, lacks = candidate_fit.fitting(
        WANTED, [candidate(p=1, q=1), candidate(p=1, r=1)], facts
    )

    assert fits == []
    assert lacks == {("p", "VGPU"): "p: VGPU 0 left of 1, 1 needed"}


def test_spread_takes_the_emptiest() -> None:
    facts = view(
        provider("empty", 4, 0), provider("half", 4, 2), provider("one", 4, 3)
    )
    spread = dataclasses.replace(
        WANTED, placing=flavors.PlacementPolicy(packing=flavors.Packing.SPREAD)
    )

    found = candidate_fit.order(
        spread,
        [candidate(one=1), candidate(half=1), candidate(empty=1)],
        facts,
    )

    assert cards(found) == [["empty"], ["half"], ["one"]]


def test_preferred_traits_come_before_packing() -> None:
    facts = view(
        provider("full", 4, 3),
        provider("empty", 4, 0, traits=frozenset({"CUSTOM_FUNCTION"})),
    )
    prefers = dataclasses.replace(PACK, preferred={"_A": "CUSTOM_FUNCTION"})

    found = candidate_fit.order(
        prefers, [candidate(full=1), candidate(empty=1)], facts
    )

    assert cards(found) == [["empty"], ["full"]]


def test_health_refuses_where_it_was_read_just_now() -> None:
    for trait, words in [
        (names.DRAINED_TRAIT, "drained by its operator"),
        (names.FAULTED_TRAIT, "at fault"),
        (names.MISSING_TRAIT, "missing on its host"),
        (
            names.UNKNOWN_TRAIT,
            "its host can't read its fault and drain marks",
        ),
    ]:
        ill = provider("p", 4, 0, traits=frozenset({trait}))
        sure = dataclasses.replace(ill, exact=True)

        one = candidate(p=1)
        assert not scheduled.why_not(WANTED, one, view(ill))
        assert scheduled.why_not(WANTED, one, view(sure)) == f"p: {words}"
        assert candidate_fit.doubts(WANTED, [[candidate(p=1)]], view(ill)) == {
            "p"
        }
        # What was read just now needs no second look.
        assert not candidate_fit.doubts(WANTED, [[candidate(p=1)]], view(sure))


def test_a_shortage_is_a_doubt_where_a_host_has_a_choice() -> None:
    known = view(provider("p", 2, 2), provider("q", 2, 0))
    p, q = candidate(p=1), candidate(q=1)

    # Placement counts it again when the server is claimed.
    assert not candidate_fit.doubts(WANTED, [[p], [q]], known)
    assert candidate_fit.doubts(WANTED, [[p, q]], known) == {"p"}
    exact = provider("p", 2, 2, exact=True)
    assert not candidate_fit.doubts(WANTED, [[p, q]], view(exact))


def test_a_type_without_a_place_is_a_doubt_and_then_a_refusal() -> None:
    asks = scheduled.asks("L40S-16Q")
    full = scheduled.card("c", "L40S-16Q", "L40S-16Q")
    (one,) = scheduled.candidates(asks, "c")

    assert not scheduled.why_not(asks, one, view(full))
    assert candidate_fit.doubts(asks, [[one]], view(full)) == {"c"}
    sure = dataclasses.replace(full, exact=True)
    assert scheduled.why_not(asks, one, view(sure)) == (
        "host_accel_c: 1 L40S-16Q has no place beside"
        " 2 of 16384 MB (mixed sizes)"
    )


def test_groups_on_one_card_need_places_side_by_side() -> None:
    asks = scheduled.asks("L40S-16Q", "L40S-16Q")
    begun = scheduled.card("c", "L40S-16Q", exact=True)
    empty = scheduled.card("d", exact=True)
    found, lacks = candidate_fit.fitting(
        asks, scheduled.candidates(asks, "cd"), view(begun, empty)
    )

    assert {scheduled.taken_by(one) for one in found} == {
        ("c", "d"),
        ("d", "c"),
        ("d", "d"),
    }
    assert list(lacks) == [("c", "geometry")]


def test_best_remaining_spares_the_card_that_a_large_one_needs() -> None:
    asks = scheduled.asks("L40S-4Q")
    facts = view(
        scheduled.card("a"),
        # 24Q fits in its second half, until a 4Q stands there.
        scheduled.card("b", "L40S-24Q"),
        # Nothing large fits here any more.
        scheduled.card("c", "L40S-24Q", "L40S-12Q", "L40S-4Q"),
    )
    found = candidate_fit.order(asks, scheduled.candidates(asks, "abc"), facts)

    assert [scheduled.taken_by(one) for one in found] == [
        ("c",),
        ("b",),
        ("a",),
    ]


def test_what_serves_crosswise_has_an_order_of_its_own() -> None:
    asks = scheduled.asks("L40S-8Q", "L40S-4Q", packing="pack")
    several = [scheduled.candidate(asks, *pair) for pair in ("ab", "ba")]
    facts = view(scheduled.card("a"), scheduled.card("b"))

    assert candidate_fit.order(asks, several, facts) == candidate_fit.order(
        asks, several[::-1], facts
    )


UUIDS = ("a", "b", "c", "d")
PROVIDERS = st.builds(
    provider,
    uuid=st.sampled_from(UUIDS),
    capacity=st.integers(0, 8),
    used=st.integers(0, 10),
    exact=st.booleans(),
)
FACTS = st.lists(PROVIDERS, unique_by=lambda p: p.uuid).map(
    lambda found: view(*found)
)
CANDIDATES = st.lists(
    st.dictionaries(st.sampled_from(UUIDS), st.integers(1, 8), min_size=1).map(
        lambda vgpus: candidate(**vgpus)
    ),
    max_size=12,
)


def brute_force(
    one: provider_facts.Candidate, facts: provider_facts.Facts
) -> bool:
    """Try to take every unit one by one from what is left."""
    for uuid, allocation in one["allocations"].items():
        if uuid not in facts or not facts[uuid].exact:
            continue
        stock = facts[uuid].stock
        free = list(range(stock["VGPU"].capacity))[stock["VGPU"].used :]
        for _ in range(allocation["resources"].get("VGPU", 0)):
            if not free:
                return False
            free.pop()
    return True


@given(CANDIDATES, FACTS)
def test_exactly_what_fits_is_kept_and_nothing_is_added(
    several: list[provider_facts.Candidate], facts: candidate_fit.HostFacts
) -> None:
    fits, lacks = candidate_fit.fitting(WANTED, several, facts)

    right = [c for c in several if brute_force(c, facts.facts)]
    assert sorted(map(id, fits)) == sorted(map(id, right))
    assert bool(lacks) == (len(fits) < len(several))


@given(CANDIDATES, FACTS)
def test_a_second_pass_changes_nothing(
    several: list[provider_facts.Candidate], facts: candidate_fit.HostFacts
) -> None:
    once, _ = candidate_fit.fitting(WANTED, several, facts)
    twice, lacks = candidate_fit.fitting(WANTED, once, facts)

    assert list(map(id, twice)) == list(map(id, once))
    assert lacks == {}


@given(CANDIDATES, FACTS, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_how_they_came(
    several: list[provider_facts.Candidate],
    facts: candidate_fit.HostFacts,
    random: Random,
) -> None:
    known = [
        c
        for c in several
        if all(u in facts.facts for u in c["allocations"] if u != "root")
    ]
    shuffled = list(known)
    random.shuffle(shuffled)

    def ranks(found: list[provider_facts.Candidate]) -> list[list[str]]:
        return [sorted(c["mappings"]["_A"]) for c in found]

    assert ranks(candidate_fit.order(WANTED, known, facts)) == ranks(
        candidate_fit.order(WANTED, shuffled, facts)
    )


@given(CANDIDATES, FACTS)
def test_without_exact_facts_all_are_kept(
    several: list[provider_facts.Candidate], facts: candidate_fit.HostFacts
) -> None:
    vague = view(
        *(
            dataclasses.replace(one, exact=False)
            for one in facts.facts.values()
        )
    )

    fits, _ = candidate_fit.fitting(WANTED, several, vague)

    assert sorted(map(id, fits)) == sorted(map(id, several))
