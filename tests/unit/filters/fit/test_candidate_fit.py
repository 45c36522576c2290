# SPDX-License-Identifier: Apache-2.0
"""Candidates are selected by capacity, health and geometry, and ordered."""

import dataclasses
from typing import Any

import pytest

from filters import request
from filters.fit import candidate_fit, numa, provider_facts
from nova_accel import model
from nova_accel.model import flavors, names, providers
from tests.support.scheduler import scheduled

REQUEST = request.parse_request(
    {"resources_A:VGPU": "1", "resources_A:CUSTOM_GPU_MEMORY_MB": "4"}
)

PACK = dataclasses.replace(
    REQUEST, policy=flavors.SelectionPolicy(packing=flavors.Packing.PACK)
)


def provider(
    uuid: str,
    capacity: int,
    used: int,
    memory: tuple[int, int] | None = None,
    **fields: Any,
) -> providers.Provider:
    capacities = {
        "VGPU": providers.ClassCapacity(capacity=capacity, used=used)
    }
    if memory is not None:
        capacities["CUSTOM_GPU_MEMORY_MB"] = providers.ClassCapacity(
            capacity=memory[0], used=memory[1]
        )
    return providers.Provider(uuid=uuid, capacities=capacities, **fields)


def candidate(**vgpus: int) -> provider_facts.Candidate:
    allocations: dict[str, Any] = {"root": {"resources": {"VCPU": 1}}}
    for uuid, amount in vgpus.items():
        allocations[uuid] = {"resources": {"VGPU": amount}}
    return {"allocations": allocations, "mappings": {"_A": list(vgpus)}}


def build_host(
    *providers: providers.Provider,
    cells: numa.Cells = numa.UNKNOWN_CELLS,
) -> candidate_fit.HostFacts:
    return candidate_fit.HostFacts(
        facts={p.uuid: p for p in providers},
        geometry=scheduled.GEOMETRY,
        cells=cells,
    )


def cards(candidates: list[provider_facts.Candidate]) -> list[list[str]]:
    return [c["mappings"]["_A"] for c in candidates]


def test_a_shortage_names_provider_counts_and_server() -> None:
    facts = build_host(
        provider(
            "p",
            2,
            2,
            name="labvm_accel_mtty",
            siblings={"s1": ()},
        )
    )

    assert scheduled.why_not(REQUEST, candidate(p=1), facts) == (
        "labvm_accel_mtty: VGPU 0 left of 2, 1 needed"
        " (taken by server s1 of the same request)"
    )


def test_free_units_are_never_negative() -> None:
    facts = build_host(provider("p", 1, 3))

    reason = scheduled.why_not(REQUEST, candidate(p=1), facts)

    assert "VGPU 0 left of 1" in reason


def test_classes_of_the_compute_node_are_not_checked() -> None:
    root = providers.Provider(
        uuid="root",
        capacities={"VCPU": providers.ClassCapacity(capacity=1, used=1)},
    )

    assert not scheduled.why_not(REQUEST, candidate(p=1), build_host(root))


@pytest.mark.parametrize(
    ("packing", "order"),
    [
        (flavors.Packing.PACK, ["one", "half", "empty"]),
        (flavors.Packing.SPREAD, ["empty", "half", "one"]),
    ],
)
def test_packing_orders_devices_by_their_fullness(
    packing: flavors.Packing, order: list[str]
) -> None:
    facts = build_host(
        provider("empty", 4, 0), provider("half", 4, 2), provider("one", 4, 3)
    )
    accelerators = dataclasses.replace(
        REQUEST, policy=flavors.SelectionPolicy(packing=packing)
    )
    candidates = [candidate(half=1), candidate(one=1), candidate(empty=1)]

    ordered = candidate_fit.select(accelerators, candidates, facts)[0]

    assert cards(ordered) == [[name] for name in order]


def test_fullness_is_that_of_the_scarcest_counter() -> None:
    facts = build_host(
        provider("slots", 32, 1, memory=(48, 40)),
        provider("memory", 32, 2, memory=(48, 0)),
    )
    candidates = [candidate(memory=1), candidate(slots=1)]
    for entry in candidates:
        (uuid,) = entry["mappings"]["_A"]
        entry["allocations"][uuid]["resources"]["CUSTOM_GPU_MEMORY_MB"] = 4

    ordered = candidate_fit.select(PACK, candidates, facts)[0]

    assert cards(ordered) == [["slots"], ["memory"]]


@pytest.mark.parametrize("packing", list(flavors.Packing))
def test_a_full_card_is_rejected_and_unread_ones_are_last(
    packing: flavors.Packing,
) -> None:
    # Nova claims the first candidate only, and drops the host on a 409.
    accelerators = dataclasses.replace(
        REQUEST, policy=flavors.SelectionPolicy(packing=packing)
    )
    facts = build_host(provider("full", 1, 1), provider("free", 1, 0))

    ordered = candidate_fit.select(
        accelerators,
        [
            candidate(full=1),
            candidate(unread=1),
            candidate(another=1),
            candidate(free=1),
        ],
        facts,
    )[0]

    assert cards(ordered) == [["free"], ["unread"], ["another"]]


def test_a_shortage_of_several_candidates_is_named_once() -> None:
    facts = build_host(provider("p", 1, 1))

    fitting, rejections = candidate_fit.select(
        REQUEST, [candidate(p=1, q=1), candidate(p=1, r=1)], facts
    )

    assert fitting == []
    (rejection,) = rejections.values()
    assert list(rejections) == [("p", "VGPU")]
    assert str(rejection) == "p: VGPU 0 left of 1, 1 needed"
    assert rejection.is_about("p")


def test_preferred_traits_come_before_packing() -> None:
    facts = build_host(
        provider("full", 4, 3),
        provider("empty", 4, 0, traits=frozenset({"CUSTOM_FUNCTION"})),
    )
    prefers = dataclasses.replace(
        PACK, preferred_traits={"_A": "CUSTOM_FUNCTION"}
    )

    ordered = candidate_fit.select(
        prefers, [candidate(full=1), candidate(empty=1)], facts
    )[0]

    assert cards(ordered) == [["empty"], ["full"]]


def test_an_unhealthy_device_is_rejected() -> None:
    for trait, words in [
        (names.DRAINED_TRAIT, "drained by its operator"),
        (names.FAULTED_TRAIT, "at fault"),
        (names.MISSING_TRAIT, "missing on its host"),
        (
            names.UNKNOWN_TRAIT,
            "its host can't read its fault and drain marks",
        ),
    ]:
        device = provider("p", 4, 0, traits=frozenset({trait}))

        assert (
            scheduled.why_not(REQUEST, candidate(p=1), build_host(device))
            == f"p: {words}"
        )


def test_a_type_without_a_place_is_rejected() -> None:
    accelerators = scheduled.asks("L40S-16Q")
    full = scheduled.card("c", "L40S-16Q", "L40S-16Q")
    (first,) = scheduled.candidates(accelerators, "c")

    assert scheduled.why_not(accelerators, first, build_host(full)) == (
        "host_accel_c: 1 L40S-16Q has no place beside"
        " 2 of 16384 MB (mixed sizes)"
    )


def test_a_card_with_unknown_partitions_comes_after_the_known_ones() -> None:
    accelerators = scheduled.asks("L40S-16Q", packing="pack")
    unknown = scheduled.card("a", "L40S-16Q", allocations=None)
    cards = [
        unknown,
        scheduled.card("b"),
        scheduled.card("c", layout=model.Layout.EQUAL, allocations=None),
    ]
    states = scheduled.GEOMETRY.states

    fitting, rejections = candidate_fit.select(
        accelerators,
        scheduled.candidates(accelerators, "abc"),
        build_host(*cards),
    )

    assert not rejections
    assert scheduled.list_mapped(fitting[-1]) == ("a",)
    assert candidate_fit.find_ambiguous(accelerators, cards, states) == {"a"}
    any_class = dataclasses.replace(REQUEST, policy=accelerators.policy)
    assert not candidate_fit.find_ambiguous(any_class, cards, states)


def test_best_remaining_spares_places_of_large_types() -> None:
    accelerators = scheduled.asks("L40S-4Q")
    facts = build_host(
        scheduled.card("a"),
        # 24Q fits in its second half, until a 4Q is there.
        scheduled.card("b", "L40S-24Q"),
        # Nothing large fits here any more.
        scheduled.card("c", "L40S-24Q", "L40S-12Q", "L40S-4Q"),
    )
    ordered = candidate_fit.select(
        accelerators, scheduled.candidates(accelerators, "abc"), facts
    )[0]

    assert [scheduled.list_mapped(entry) for entry in ordered] == [
        ("c",),
        ("b",),
        ("a",),
    ]
