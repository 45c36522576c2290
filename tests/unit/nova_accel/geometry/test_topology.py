# SPDX-License-Identifier: Apache-2.0
"""Root ports and NVLinks determine traits and locality."""

import re
from collections.abc import Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.geometry import topology
from nova_accel.geometry.topology import GpuLinks
from nova_accel.model import names
from tests.support import strategies
from tests.support.hosts.shapes import plain_device

A, B, C, D = (f"0000:{bus}:00.0" for bus in ("41", "61", "81", "a1"))


@pytest.mark.parametrize(
    ("place", "port"),
    [
        ("pci0000:40/0000:40:01.1/0000:41:00.0", "0000:40:01.1"),
        (
            "pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:00.0/0000:43:00.0",
            "0000:40:01.1",
        ),
        ("platform/soc/pci0000:00/0000:00:00.0/0000:01:00.0", "0000:00:00.0"),
        (
            "pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0",
            "10000:00:02.0",
        ),
        ("pci0000:00/0000:00:02.0", "0000:00:02"),
        ("pci0000:00/0000:00:02.7", "0000:00:02"),
        ("virtual/mtty/mtty", ""),
        ("pci0000:40", ""),
        ("pci0000:40/0000:40:01.1/elsewhere/0000:41:00.0", ""),
        ("../bus/pci/devices/0000:41:00.0", ""),
        ("", ""),
    ],
)
def test_the_port_is_the_first_bridge_below_the_host_bridge(
    place: str, port: str
) -> None:
    assert topology.parse_port(f"/devices/{place}") == port


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[str, ...]]:
    """Draw paths from host bridges to devices of one tree."""
    ways = draw(
        st.lists(
            st.lists(
                st.sampled_from(["00.0", "00.1", "01.0", "02.3"]),
                min_size=1,
                max_size=4,
            ),
            min_size=2,
            max_size=6,
        )
    )
    bridges = draw(
        st.lists(
            st.sampled_from(["00", "40"]),
            min_size=len(ways),
            max_size=len(ways),
        )
    )
    # One bus number at each depth: names differ where paths do.
    return [
        (
            f"pci0000:{root}",
            *(
                f"0000:{int(root, 16) + depth:02x}:{step}"
                for depth, step in enumerate(way)
            ),
        )
        for root, way in zip(bridges, ways, strict=True)
    ]


@given(trees())
def test_equal_ports_mean_one_bridge_or_one_slot(
    ways: list[tuple[str, ...]],
) -> None:
    """Ports are equal below one bridge, or on the root bus in one slot."""
    for first in ways:
        for second in ways:
            is_equal = topology.parse_port("/".join(first)) == (
                topology.parse_port("/".join(second))
            )
            are_below = len(first) > 2 and len(second) > 2
            are_on_root = len(first) == len(second) == 2
            slots = first[1].split(".")[0], second[1].split(".")[0]
            assert is_equal == (
                (are_below and first[:2] == second[:2])
                or (are_on_root and slots[0] == slots[1])
            )


@given(st.from_regex(r"\A[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f](\.[0-7])?\Z"))
def test_traits_are_valid_names_of_placement(place: str) -> None:
    for trait in (names.pcie_trait(place), names.nvlink_trait(place)):
        assert re.fullmatch(r"CUSTOM_[A-Z0-9_]+", trait)
        assert len(trait) <= names.MAX_NAME
        assert names.is_managed_trait(trait)
    assert names.pcie_trait(place).startswith(names.PCIE_PREFIX)
    assert names.nvlink_trait(place).startswith(names.NVLINK_PREFIX)


# -- NVLinks --------------------------------------------------------------

links = st.builds(
    GpuLinks,
    peers=st.frozensets(st.sampled_from([A, B, C, D]), max_size=3),
    is_switched=st.booleans(),
)
hosts = st.dictionaries(st.sampled_from([A, B, C, D]), st.none() | links)


@given(hosts)
def test_peers_are_symmetric(
    host: dict[str, GpuLinks | None],
) -> None:
    peers = topology.resolve_peers(host)
    assert peers.keys() >= host.keys()
    for address, linked in peers.items():
        assert address not in linked
        assert all(address in peers[peer] for peer in linked)


@given(hosts)
def test_peers_have_a_link_that_one_end_reports(
    host: dict[str, GpuLinks | None],
) -> None:
    for address, linked in topology.resolve_peers(host).items():
        for peer in linked:
            links, other = host.get(address), host.get(peer)
            assert (
                (links and peer in links.peers)
                or (other and address in other.peers)
                or (
                    links and other and links.is_switched and other.is_switched
                )
            )


def test_cards_on_switches_are_peers_of_each_other_only() -> None:
    switched = GpuLinks(is_switched=True)
    peers = topology.resolve_peers(
        {
            A: switched,
            B: switched,
            C: GpuLinks(),
            D: GpuLinks(peers=frozenset({C})),
        }
    )
    assert peers == {A: {B}, B: {A}, C: {D}, D: {C}}


# -- devices --------------------------------------------------------------


def placed(
    places: topology.HostTopology, *devices: model.Device
) -> dict[str, tuple[Set[str], tuple[str, ...]]]:
    return {
        placed_device.address: (
            placed_device.traits,
            placed_device.unread_traits,
        )
        for placed_device in topology.add_topology_traits(devices, places)
    }


def test_a_region_has_the_port_of_its_card() -> None:
    places = topology.HostTopology(ports={A: "0000:40:01.1"})
    part = plain_device(
        f"{A}/region-0", parent=A, traits=frozenset({"CUSTOM_X"})
    )
    traits = placed(places, plain_device(A), part)
    trait = "CUSTOM_ACCELERATOR_PCIE_0000_40_01_1"
    assert traits[A] == ({trait}, ())
    assert traits[part.address] == ({"CUSTOM_X", trait}, ())


def test_devices_off_the_bus_have_no_topology_traits() -> None:
    traits = placed(
        topology.HostTopology(), plain_device("mtty"), plain_device("0.0.0052")
    )
    assert set(traits.values()) == {(frozenset(), ())}


def test_an_unreadable_trait_is_unread_not_absent() -> None:
    gpu = plain_device(A, unread_traits=("CUSTOM_ACCELERATOR_MINE",))
    places = topology.HostTopology(links={A: None})
    assert placed(places, gpu)[A] == (
        frozenset(),
        ("CUSTOM_ACCELERATOR_MINE", names.PCIE_PREFIX, names.NVLINK_PREFIX),
    )


def test_a_link_that_one_end_reports_counts_for_both() -> None:
    places = topology.HostTopology(
        ports={A: "p", B: "p"},
        links={A: GpuLinks(peers=frozenset({B})), B: None},
    )
    traits = placed(places, plain_device(A), plain_device(B))
    port = names.pcie_trait("p")
    assert traits[A] == ({port, names.nvlink_trait(B)}, ())
    assert traits[B] == (
        {port, names.nvlink_trait(A)},
        (names.NVLINK_PREFIX,),
    )


def test_links_to_an_unreadable_card_are_unread() -> None:
    places = topology.HostTopology(
        ports=dict.fromkeys((A, B, C, D), "p"),
        links={
            A: GpuLinks(is_switched=True),
            B: GpuLinks(is_switched=True),
            C: None,
            D: GpuLinks(),
        },
    )
    traits = placed(places, *map(plain_device, (A, B, C, D)))
    port = names.pcie_trait("p")
    assert traits[A] == (
        {port, names.nvlink_trait(B), names.NVLINK_SWITCH},
        (names.nvlink_trait(C),),
    )
    assert traits[D] == ({port}, ())


@given(st.lists(strategies.pci_addresses, max_size=4, unique=True), hosts)
def test_topology_traits_are_added_to_existing_ones(
    addresses: list[str], links: dict[str, GpuLinks | None]
) -> None:
    before = [
        plain_device(address, traits=frozenset({"X"})) for address in addresses
    ]
    places = topology.HostTopology(
        ports=dict.fromkeys(addresses, A), links=links
    )
    after = topology.add_topology_traits(before, places)
    assert [placed_device.address for placed_device in after] == addresses
    for placed_device in after:
        assert placed_device.traits >= {"X", names.pcie_trait(A)}
