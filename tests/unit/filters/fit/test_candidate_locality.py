# SPDX-License-Identifier: Apache-2.0
"""Devices that violate a locality policy are rejected."""

import itertools
from collections.abc import Sequence

import pytest

from filters.fit import candidate_locality
from nova_accel.model import flavors, names, providers

DIFFERENT, NVLINK, PCIE, NUMA = (
    flavors.Locality.DIFFERENT_CARD,
    flavors.Locality.NVLINK,
    flavors.Locality.PCIE,
    flavors.Locality.NUMA,
)
A, B, C = "0000:41:00.0", "0000:81:00.0", "0000:c1:00.0"


def device(
    address: str = A, *traits: str, units: int = 1, name: str | None = None
) -> candidate_locality.CandidateDevice:
    default = names.provider_name("host", address)
    name = default if name is None else name
    card, is_region, _ = address.partition("/")
    return candidate_locality.CandidateDevice(
        facts=providers.Provider(
            uuid=address,
            capacities={},
            name=name,
            parent=card if is_region else "root",
            root="root",
            traits=frozenset({names.OWNER_TRAIT, *traits}),
        ),
        units=units,
    )


def reject(
    locality: flavors.Locality,
    devices: Sequence[candidate_locality.CandidateDevice],
) -> str:
    """Return the text of the rejection, empty without one."""
    return str(candidate_locality.find_rejection(locality, devices) or "")


def numa(node: int) -> str:
    return names.custom_name("ACCELERATOR", "NUMA", str(node))


def unread_device(address: str) -> candidate_locality.CandidateDevice:
    facts = providers.Provider(uuid=address, capacities={}, name=address)
    return candidate_locality.CandidateDevice(facts=facts)


@pytest.mark.parametrize("locality", flavors.Locality)
def test_one_device_satisfies_every_policy(locality: flavors.Locality) -> None:
    assert reject(locality, [device()]) == ""
    assert reject(locality, []) == ""


def test_any_rejects_nothing() -> None:
    devices = [device(units=3), device(), device(B)]

    assert reject(flavors.Locality.ANY, devices) == ""


def test_two_parts_of_one_card_are_not_on_different_cards() -> None:
    assert reject(DIFFERENT, [device(A), device(B)]) == ""
    assert reject(DIFFERENT, [device(units=2), device(B)]) == (
        "host_accel_0000_41_00_0: 2 of one card"
    )


def test_two_regions_are_of_one_card() -> None:
    first, second = device(f"{A}/region-0"), device(f"{A}/region-1")

    assert first.card == second.card == A
    assert first.address == second.address == "0000_41_00_0"
    assert reject(DIFFERENT, [first, second]) == (
        "host_accel_0000_41_00_0_region_0 and"
        " host_accel_0000_41_00_0_region_1: one card"
    )
    assert reject(DIFFERENT, [first, device(f"{B}/region-0")]) == ""
    for locality in (NVLINK, PCIE, NUMA):
        assert reject(locality, [first, second]) == ""


def test_a_host_may_have_any_name() -> None:
    for root in ("x_region_1", "gpu_accel_region_2_accel_7"):
        first, second = (
            device(address, name=names.provider_name(root, address))
            for address in (A, B)
        )
        assert reject(DIFFERENT, [first, second]) == ""


def test_cards_without_names_are_compared_by_uuid() -> None:
    first, second = device(A, name=""), device(B, name="")

    assert reject(DIFFERENT, [first, second]) == ""
    assert reject(DIFFERENT, [first, first])
    # NVLink traits name the address of the other card.
    assert reject(NVLINK, [first, second]) == ""


def test_each_card_needs_a_link_to_each_other() -> None:
    first = device(A, names.nvlink_trait(B), names.nvlink_trait(C))
    second, third = device(B), device(C)

    for pair in itertools.permutations([first, second]):
        assert reject(NVLINK, pair) == ""
    assert reject(NVLINK, [first, second, third]) == (
        "host_accel_0000_81_00_0 and host_accel_0000_c1_00_0:"
        " no NVLink between them"
    )
    # The trait of one of the two cards is sufficient.
    linked = device(C, names.nvlink_trait(B))
    assert reject(NVLINK, [first, second, linked]) == ""


def test_cards_on_a_switch_are_linked_with_those_of_a_former_release() -> None:
    former = device(A, names.nvlink_trait(B), names.nvlink_trait(C))
    second, third = (device(n, names.NVLINK_SWITCH) for n in (B, C))
    assert reject(NVLINK, [former, second, third]) == ""
    alone = device(A)
    assert reject(NVLINK, [second, alone]) != ""


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
def test_devices_apart_are_rejected(
    locality: flavors.Locality, here: str, there: str, words: str
) -> None:
    assert reject(locality, [device(A, here), device(B, here)]) == ""
    assert (
        reject(locality, [device(A, here), device(B, here), device(C, there)])
        == f"host_accel_0000_41_00_0 and host_accel_0000_c1_00_0: {words}"
    )


def test_a_trait_that_only_one_card_has_is_a_difference() -> None:
    assert reject(NUMA, [device(A, numa(0)), device(B)]) == (
        "host_accel_0000_41_00_0 and host_accel_0000_81_00_0:"
        " NUMA node 0 and not known"
    )
    # A host with one node reports no trait.
    assert reject(NUMA, [device(A), device(B)]) == ""


@pytest.mark.parametrize("locality", [NVLINK, PCIE, NUMA])
def test_an_unread_device_is_not_rejected(
    locality: flavors.Locality,
) -> None:
    known_device = device(
        A, numa(0), names.pcie_trait("p"), names.nvlink_trait(C)
    )

    for pair in itertools.permutations([known_device, unread_device(B)]):
        assert reject(locality, pair) == ""


def test_nodes_of_a_device() -> None:
    assert device(A, numa(3)).nodes == {"3"}
    assert device(A).nodes == frozenset()


@pytest.mark.parametrize("locality", [DIFFERENT, NVLINK, PCIE, NUMA])
def test_a_pair_gives_the_same_text_in_either_order(
    locality: flavors.Locality,
) -> None:
    devices = [
        device(A, numa(0), names.pcie_trait("0000:40:01.0")),
        device(B, numa(1), names.pcie_trait("0000:80:01.0")),
        device(A if locality is DIFFERENT else C, numa(1)),
    ]

    texts = {
        reject(locality, permutation)
        for permutation in itertools.permutations(devices)
    }

    assert len(texts) == 1
    assert "" not in texts
