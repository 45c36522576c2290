# SPDX-License-Identifier: Apache-2.0
import dataclasses
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from filters import fit, request

WANTED = request.parse_request(
    {"resources_A:VGPU": "1", "resources_A:CUSTOM_GPU_MEMORY_MB": "4"}
)


def provider(
    uuid: str,
    capacity: int,
    used: int,
    memory: tuple[int, int] | None = None,
    **more: Any,
) -> fit.ProviderFacts:
    stock = {"VGPU": fit.Stock(capacity=capacity, used=used)}
    if memory is not None:
        stock["CUSTOM_GPU_MEMORY_MB"] = fit.Stock(
            capacity=memory[0], used=memory[1]
        )
    return fit.ProviderFacts(uuid=uuid, stock=stock, **more)


def candidate(**vgpus: int) -> fit.Candidate:
    allocations: dict[str, Any] = {"root": {"resources": {"VCPU": 1}}}
    for uuid, amount in vgpus.items():
        allocations[uuid] = {"resources": {"VGPU": amount}}
    return {"allocations": allocations, "mappings": {"_A": list(vgpus)}}


def facts_of(
    *providers: fit.ProviderFacts,
) -> dict[str, fit.ProviderFacts]:
    return {p.uuid: p for p in providers}


def cards(found: list[fit.Candidate]) -> list[list[str]]:
    return [c["mappings"]["_A"] for c in found]


def test_a_shortage_names_the_provider_the_counts_and_the_taker() -> None:
    facts = facts_of(
        provider(
            "p", 2, 2, name="labvm_accel_mtty", exact=True, taken_by=("s1",)
        )
    )

    verdict = fit.check(WANTED, candidate(p=1), facts)

    assert verdict == fit.Verdict(
        ok=False,
        reason="labvm_accel_mtty: VGPU 0 left of 2, 1 needed"
        " (taken by server s1 of the same request)",
    )


def test_facts_that_are_not_exact_never_refuse() -> None:
    assert fit.check(WANTED, candidate(p=1), facts_of(provider("p", 2, 2))).ok


def test_a_total_below_what_is_used_leaves_nothing_not_less() -> None:
    facts = facts_of(provider("p", 1, 3, exact=True))

    verdict = fit.check(WANTED, candidate(p=1), facts)

    assert "VGPU 0 left of 1" in verdict.reason


def test_other_classes_of_the_server_are_not_ours_to_judge() -> None:
    root = fit.ProviderFacts(
        uuid="root",
        stock={"VCPU": fit.Stock(capacity=1, used=1)},
        exact=True,
    )

    assert fit.check(WANTED, candidate(p=1), facts_of(root)).ok


def test_the_fullest_device_comes_first_and_whole_ones_stay_free() -> None:
    facts = facts_of(
        provider("empty", 4, 0), provider("half", 4, 2), provider("one", 4, 3)
    )
    found = fit.order(
        WANTED,
        [candidate(empty=1), candidate(half=1), candidate(one=1)],
        facts,
    )

    assert cards(found) == [["one"], ["half"], ["empty"]]


def test_the_scarcest_counter_says_how_full_a_device_is() -> None:
    facts = facts_of(
        provider("slots", 32, 1, memory=(48, 40)),
        provider("memory", 32, 2, memory=(48, 0)),
    )
    several = [candidate(memory=1), candidate(slots=1)]
    for one in several:
        (uuid,) = one["mappings"]["_A"]
        one["allocations"][uuid]["resources"]["CUSTOM_GPU_MEMORY_MB"] = 4

    found = fit.order(WANTED, several, facts)

    assert cards(found) == [["slots"], ["memory"]]


def test_unknown_providers_come_last_in_their_own_order() -> None:
    facts = facts_of(provider("known", 4, 0))

    found = fit.order(
        WANTED, [candidate(z=1), candidate(a=1), candidate(known=1)], facts
    )

    assert cards(found) == [["known"], ["z"], ["a"]]


def test_a_shortage_met_in_several_candidates_is_named_once() -> None:
    facts = facts_of(provider("p", 1, 1, exact=True))

    fits, lacks = fit.fitting(
        WANTED, [candidate(p=1, q=1), candidate(p=1, r=1)], facts
    )

    assert fits == []
    assert lacks == {("p", "VGPU"): "p: VGPU 0 left of 1, 1 needed"}


UUIDS = ("a", "b", "c", "d")
PROVIDERS = st.builds(
    provider,
    uuid=st.sampled_from(UUIDS),
    capacity=st.integers(0, 8),
    used=st.integers(0, 10),
    exact=st.booleans(),
)
FACTS = st.lists(PROVIDERS, unique_by=lambda p: p.uuid).map(
    lambda found: facts_of(*found)
)
CANDIDATES = st.lists(
    st.dictionaries(
        st.sampled_from(UUIDS), st.integers(1, 8), min_size=1
    ).map(lambda vgpus: candidate(**vgpus)),
    max_size=12,
)


def brute_force(
    one: fit.Candidate, facts: dict[str, fit.ProviderFacts]
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
    several: list[fit.Candidate], facts: dict[str, fit.ProviderFacts]
) -> None:
    fits, lacks = fit.fitting(WANTED, several, facts)

    right = [c for c in several if brute_force(c, facts)]
    assert sorted(map(id, fits)) == sorted(map(id, right))
    assert bool(lacks) == (len(fits) < len(several))


@given(CANDIDATES, FACTS)
def test_a_second_pass_changes_nothing(
    several: list[fit.Candidate], facts: dict[str, fit.ProviderFacts]
) -> None:
    once, _ = fit.fitting(WANTED, several, facts)
    twice, lacks = fit.fitting(WANTED, once, facts)

    assert list(map(id, twice)) == list(map(id, once))
    assert lacks == {}


@given(CANDIDATES, FACTS, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_how_they_came(
    several: list[fit.Candidate],
    facts: dict[str, fit.ProviderFacts],
    random: Random,
) -> None:
    known = [
        c
        for c in several
        if all(u in facts for u in c["allocations"] if u != "root")
    ]
    shuffled = list(known)
    random.shuffle(shuffled)

    def ranks(found: list[fit.Candidate]) -> list[list[str]]:
        return [sorted(c["mappings"]["_A"]) for c in found]

    assert ranks(fit.order(WANTED, known, facts)) == ranks(
        fit.order(WANTED, shuffled, facts)
    )


@given(CANDIDATES, FACTS)
def test_without_exact_facts_all_are_kept(
    several: list[fit.Candidate], facts: dict[str, fit.ProviderFacts]
) -> None:
    vague = {
        uuid: dataclasses.replace(one, exact=False)
        for uuid, one in facts.items()
    }

    fits, _ = fit.fitting(WANTED, several, vague)

    assert sorted(map(id, fits)) == sorted(map(id, several))
