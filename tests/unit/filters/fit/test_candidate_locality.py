# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest

from filters import provider_facts
from filters.fit import candidate_locality
from nova_accel.model import flavors, names

DIFFERENT, NVLINK, PCIE, NUMA = (
    flavors.Locality.DIFFERENT_CARD,
    flavors.Locality.NVLINK,
    flavors.Locality.PCIE,
    flavors.Locality.NUMA,
)
A, B, C = "0000:41:00.0", "0000:81:00.0", "0000:c1:00.0"


def seat(
    address: str = A, *traits: str, units: int = 1, name: str | None = None
) -> candidate_locality.CandidateDevice:
    usual = names.provider_name("host", address)
    return candidate_locality.CandidateDevice(
        facts=provider_facts.ProviderFacts(
            uuid=address,
            stock={},
            name=usual if name is None else name,
            traits=frozenset({names.OWNER_TRAIT, *traits}),
        ),
        units=units,
    )


def numa(node: int) -> str:
    return names.custom("ACCELERATOR", "NUMA", str(node))


def nothing_read(address: str) -> candidate_locality.CandidateDevice:
    facts = provider_facts.ProviderFacts(uuid=address, stock={}, name=address)
    return candidate_locality.CandidateDevice(facts=facts)


@pytest.mark.parametrize("locality", flavors.Locality)
def test_one_device_is_always_together(locality: flavors.Locality) -> None:
    assert candidate_locality.objection(locality, [seat()]) == ""
    assert candidate_locality.objection(locality, []) == ""


def test_any_objects_to_nothing() -> None:
    found = [seat(units=3), seat(), seat(B)]

    assert candidate_locality.objection(flavors.Locality.ANY, found) == ""


def test_two_parts_of_one_card_are_not_on_different_cards() -> None:
    assert candidate_locality.objection(DIFFERENT, [seat(A), seat(B)]) == ""
    assert candidate_locality.objection(
        DIFFERENT, [seat(units=2), seat(B)]
    ) == ("host_accel_0000_41_00_0: 2 of one card")


def test_two_regions_are_of_one_card() -> None:
    one, two = seat(f"{A}/region-0"), seat(f"{A}/region-1")

    assert one.card == two.card == "host_accel_0000_41_00_0"
    assert candidate_locality.objection(DIFFERENT, [one, two]) == (
        "host_accel_0000_41_00_0_region_0 and"
        " host_accel_0000_41_00_0_region_1: one card"
    )
    assert (
        candidate_locality.objection(DIFFERENT, [one, seat(f"{B}/region-0")])
        == ""
    )
    for locality in (NVLINK, PCIE, NUMA):
        assert candidate_locality.objection(locality, [one, two]) == ""


def test_a_host_may_have_any_name() -> None:
    for root in ("x_region_1", "gpu_accel_region_2_accel_7"):
        one, two = (
            seat(address, name=names.provider_name(root, address))
            for address in (A, B)
        )
        assert candidate_locality.objection(DIFFERENT, [one, two]) == ""


def test_cards_without_names_are_told_by_their_uuids() -> None:
    one, two = seat(A, name=""), seat(B, name="")

    assert candidate_locality.objection(DIFFERENT, [one, two]) == ""
    assert candidate_locality.objection(DIFFERENT, [one, one])
    # Which card a link leads to is told by its address.
    assert candidate_locality.objection(NVLINK, [one, two]) == ""


def test_each_card_needs_a_link_to_each_other() -> None:
    one = seat(A, names.nvlink_trait(B), names.nvlink_trait(C))
    two, three = seat(B), seat(C)

    for pair in itertools.permutations([one, two]):
        assert candidate_locality.objection(NVLINK, pair) == ""
    assert candidate_locality.objection(NVLINK, [one, two, three]) == (
        "host_accel_0000_81_00_0 and host_accel_0000_c1_00_0:"
        " no NVLink between them"
    )
    # One of the two says so.
    linked = seat(C, names.nvlink_trait(B))
    assert candidate_locality.objection(NVLINK, [one, two, linked]) == ""


@pytest.mark.parametrize(
    ("locality", "here", "there", "words"),
    [
        (NUMA, numa(0), numa(1), "NUMA node 0 and 1"),
        (
            PCIE,
            names.pcie_trait("0000:40:01.0"),
            names.pcie_trait("0000:80:01.0"),
            "PCIe root port 0000_40_01_0 and 0000_80_01_0",
        ),
    ],
)
def test_what_stands_apart_is_not_together(
    locality: flavors.Locality, here: str, there: str, words: str
) -> None:
    assert (
        candidate_locality.objection(locality, [seat(A, here), seat(B, here)])
        == ""
    )
    assert (
        candidate_locality.objection(
            locality, [seat(A, here), seat(B, here), seat(C, there)]
        )
        == f"host_accel_0000_41_00_0 and host_accel_0000_c1_00_0: {words}"
    )


def test_a_place_that_only_one_card_tells_is_not_the_same() -> None:
    assert candidate_locality.objection(NUMA, [seat(A, numa(0)), seat(B)]) == (
        "host_accel_0000_41_00_0 and host_accel_0000_81_00_0:"
        " NUMA node 0 and not known"
    )
    # Of neither: a host with one node tells none.
    assert candidate_locality.objection(NUMA, [seat(A), seat(B)]) == ""


@pytest.mark.parametrize("locality", [NVLINK, PCIE, NUMA])
def test_a_device_of_which_nothing_was_read_is_no_objection(
    locality: flavors.Locality,
) -> None:
    told = seat(A, numa(0), names.pcie_trait("p"), names.nvlink_trait(C))

    for pair in itertools.permutations([told, nothing_read(B)]):
        assert candidate_locality.objection(locality, pair) == ""


def test_a_seat_tells_its_nodes() -> None:
    assert seat(A, numa(3)).nodes == {"3"}
    assert seat(A).nodes == frozenset()


@pytest.mark.parametrize("locality", [DIFFERENT, NVLINK, PCIE, NUMA])
def test_a_pair_is_told_the_same_in_either_order(
    locality: flavors.Locality,
) -> None:
    found = [
        seat(A, numa(0), names.pcie_trait("0000:40:01.0")),
        seat(B, numa(1), names.pcie_trait("0000:80:01.0")),
        seat(A if locality is DIFFERENT else C, numa(1)),
    ]

    told = {
        candidate_locality.objection(locality, order)
        for order in itertools.permutations(found)
    }

    assert len(told) == 1
    assert "" not in told
