# SPDX-License-Identifier: Apache-2.0
"""Placing of servers by the real scheduler, conductor and Placement.

There are three simulated hosts beside the lab's own: four L40S, two T4,
and one without devices. Flavors are written by our own command.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from nova_accel.model import names
from tests.e2e.support import fpga_site, simulated_site
from tests.e2e.support.simulated_site import (
    CARDS,
    FAR,
    L40S,
    LAST,
    NEAR,
    PLAIN,
    T4,
    T4_B,
    T4S,
    Simulated,
    place,
)
from tests.e2e.support.site import Site, fault
from tests.lab.cloud import settings
from tests.lab.vm import topology

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("clean"),
]

A, B, C, D = (place(L40S, address) for address in (CARDS, NEAR, FAR, LAST))
REAL = "labvm"
_WHOLE = ("--profile", "L40S-48Q")


def land(hosts: Simulated, flavor: Any, **arguments: Any) -> set[str]:
    """Boot a server; return the devices that it got."""
    server = hosts.lab.boot("e2e-server", flavor, **arguments)
    return hosts.places(server)


def boot_many(
    hosts: Simulated, flavor: Any, count: int, **arguments: Any
) -> list[str]:
    """Boot servers by one request; return the device of each, sorted."""
    hosts.lab.request("e2e-many", flavor, min_count=count, **arguments)
    servers = [
        hosts.lab.await_build(server)
        for server in hosts.lab.api.compute.servers()
        if server.name.startswith("e2e-many")
    ]
    assert [server.status for server in servers] == ["ACTIVE"] * count, [
        fault(server) for server in servers
    ]
    return sorted(name for server in servers for name in hosts.places(server))


def take(hosts: Simulated, host: str, address: str, profile: str) -> None:
    """Have a server take a vGPU of this very card."""
    where = f"{host}/{address}"
    flavor = hosts.flavor("--profile", profile, "--device", where)
    assert land(hosts, flavor) == {place(host, address)}


def refuse(hosts: Simulated, flavor: Any) -> tuple[Any, str]:
    """Request a server that no host can have.

    Return it, and what the filter says of its host in the log.
    """
    offset = hosts.lab.log_offset("nova-scheduler")
    server = hosts.lab.await_build(hosts.lab.request("e2e-refused", flavor))
    assert server.status == "ERROR", hosts.places(server)
    (line,) = hosts.lab.logged(
        "nova-scheduler", f"AcceleratorFilter refuses host {L40S}", offset
    )
    assert " INFO " in line
    assert re.search(r"\[(None )?req-[0-9a-f-]{36}", line), line
    return server, line.partition(f"refuses host {L40S}: ")[2]


# -- locality ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("locality", "taken", "pair", "other", "why"),
    [
        ("nvlink", [], {B, C}, FAR, "no NVLink between them"),
        ("pcie", [], {A, B}, CARDS, "PCIe root port 0000_40_01_1 and"),
        ("numa", [CARDS], {C, D}, FAR, "NUMA node 0 and 1"),
    ],
)
def test_two_cards_are_near_each_other(
    hosts: Simulated,
    locality: str,
    taken: list[str],
    pair: set[str],
    other: str,
    why: str,
) -> None:
    """And when one of the pair is used up, those left are no pair."""
    for address in taken:
        take(hosts, L40S, address, "L40S-4Q")
    flavor = hosts.flavor(*_WHOLE, "--count", "2", "--locality", locality)
    server = hosts.lab.boot("e2e-pair", flavor)
    assert hosts.places(server) == pair

    hosts.lab.delete(server)
    hosts.lab.wait_gone(server)
    take(hosts, L40S, other, "L40S-4Q")
    _, reason = refuse(hosts, flavor)
    assert why in reason
    assert place(L40S, other) not in reason


def test_different_cards_though_one_has_room_for_both(
    hosts: Simulated,
) -> None:
    both = ("--profile", "L40S-8Q", "--count", "2")

    assert len(land(hosts, hosts.flavor(*both))) == 1
    apart = hosts.flavor(*both, "--locality", "different_card")
    assert len(land(hosts, apart)) == 2


# -- NUMA -------------------------------------------------------------------


def cells(lab: Site, server: Any) -> set[int]:
    """Return the host's NUMA nodes on which Nova put a guest."""
    answer = lab.api.compute.get(
        f"/servers/{server.id}/topology", microversion="2.78"
    )
    assert answer.status_code == 200, answer.text
    return {node["host_node"] for node in answer.json()["nodes"]}


@pytest.mark.parametrize("guest", [{"hw__numa_nodes": "1"}, {}])
def test_cards_are_where_the_guest_is(
    hosts: Simulated, guest: dict[str, str]
) -> None:
    """A server that fills node 0 leaves room on node 1 only."""
    filler = hosts.flavor(
        *("--profile", "L40S-1Q", "--device", f"{L40S}/{CARDS}"),
        ram=1000,
        hw__numa_nodes="1",
    )
    server = hosts.lab.boot("e2e-filler", filler)
    assert cells(hosts.lab, server) == {0}
    must, should = (
        hosts.flavor(*_WHOLE, "--numa-policy", word, ram=128, **guest)
        for word in ("required", "preferred")
    )

    anywhere = hosts.flavor(
        *("--profile", "L40S-8Q", "--numa-policy", "none"),
        *("--packing", "pack"),
        ram=128,
        **guest,
    )
    assert land(hosts, anywhere) == {A}
    near = hosts.lab.boot("e2e-near", must)
    assert land(hosts, must) | hosts.places(near) == {C, D}
    assert not guest or cells(hosts.lab, near) == {1}
    _, why = refuse(hosts, must)
    assert f"{B}: on NUMA node 0" in why
    assert land(hosts, should) == {B}


# -- packing and geometry ---------------------------------------------------


def test_each_way_of_packing_takes_another_card(hosts: Simulated) -> None:
    """Spread: the empty card. Pack: the fullest with room.

    Best remaining: where the half that takes a 24Q stays whole.
    """
    take(hosts, L40S, NEAR, "L40S-24Q")
    for profile in ("L40S-8Q", "L40S-4Q"):
        take(hosts, L40S, FAR, profile)
    take(hosts, L40S, LAST, "L40S-48Q")

    for packing, chosen in [
        ("spread", A),
        ("pack", B),
        ("best_remaining", C),
    ]:
        flavor = hosts.flavor("--profile", "L40S-4Q", "--packing", packing)
        server = hosts.lab.boot("e2e-packed", flavor)
        assert hosts.places(server) == {chosen}, packing
        hosts.lab.delete(server)
        hosts.lab.wait_gone(server)


def test_servers_of_one_request_share_what_geometry_allows(
    hosts: Simulated,
) -> None:
    """Counters would let three 16Q on one card, its places let two."""
    for address in (FAR, LAST):
        take(hosts, L40S, address, "L40S-48Q")
    flavor = hosts.flavor("--profile", "L40S-16Q")
    assert boot_many(hosts, flavor, 4) == [A, A, B, B]

    _, why = refuse(hosts, flavor)
    assert f"{A}: 1 L40S-16Q has no place beside 2 of 16384 MB" in why


def test_two_servers_of_three_units_on_two_cards_of_three(
    hosts: Simulated,
) -> None:
    """Nova alone gives both servers the same card: its bug 1874664."""
    flavor = hosts.lab.flavor(
        "three",
        resources_A__VGPU="3",
        resources_A__CUSTOM_GPU_MEMORY_MB=str(3 * 4096),
        trait_A__CUSTOM_VGPU_NVIDIA_T4_4Q="required",
    )
    cards = [place(T4S, T4), place(T4S, T4_B)]
    assert boot_many(hosts, flavor, 2, host=T4S) == cards
    for address in (T4, T4_B):
        card = hosts.device(T4S, address)
        assert card.inventories["VGPU"]["total"] == 3


# -- health -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("trait", "words"),
    [
        (names.DRAINED_TRAIT, "drained by its operator"),
        (names.FAULTED_TRAIT, "at fault"),
    ],
)
def test_an_ill_card_is_passed_over_and_named(
    hosts: Simulated, trait: str, words: str
) -> None:
    """Its profiles are still on offer: no pass has been made since."""
    for address in (CARDS, NEAR, FAR):
        take(hosts, L40S, address, "L40S-48Q")
    last = hosts.device(L40S, LAST)
    flavor = hosts.flavor("--profile", "L40S-8Q")
    hosts.set_traits(last, {*last.traits, trait})
    try:
        server, why = refuse(hosts, flavor)
        assert why.startswith(f"{D}: {words}")
        assert "No valid host was found" in server.fault["message"]
        command = ("explain", "--flavor", flavor.name, "--host", L40S)
        done = hosts.lab.command("nova-accel", *command, "--json")
        assert done.returncode == 1, done.stderr
        table = hosts.lab.command("nova-accel", *command).stdout
        row = rf"{LAST} +\| refused +\| {words}"
        assert re.search(row, table), table
        assert json.loads(done.stdout)
    finally:
        hosts.set_traits(last, last.traits)
    assert land(hosts, flavor) == {D}
    hosts.lab.commanded("nova-accel", *command)


# -- across hosts -----------------------------------------------------------


def test_servers_without_accelerators_leave_cards_alone(
    hosts: Simulated,
) -> None:
    flavor = hosts.lab.flavor("plain")
    for _ in range(2):
        server = hosts.lab.boot("e2e-plain", flavor)
        assert server.hypervisor_hostname == PLAIN


@pytest.fixture
def spread(lab: Site) -> Iterator[Any]:
    """Return an aggregate that spreads the servers over its hosts."""
    compute = lab.api.compute
    made = compute.create_aggregate(name="e2e-spread")
    compute.set_aggregate_metadata(
        made, {"accelerator_packing_weight_multiplier": "-10"}
    )
    yield made
    for host in compute.get_aggregate(made).hosts or ():
        compute.remove_host_from_aggregate(made, host)
    compute.delete_aggregate(made)


def test_the_real_host_and_a_simulated_one_are_packed_and_spread(
    hosts: Simulated, spread: Any
) -> None:
    """The real host's card has a server, the other host's have none."""
    lab = hosts.lab
    take(hosts, REAL, topology.T4_ADDRESS, "T4-4Q")
    used = lab.mdevs()
    assert len(used) == 1
    flavor = hosts.flavor("--profile", "T4-4Q")

    packed = lab.boot("e2e-packed", flavor)
    assert hosts.places(packed) == {place(REAL, topology.T4_ADDRESS)}
    assert set(lab.hostdevs(packed, "mdev")) == lab.mdevs() - used

    used = lab.mdevs()
    for host in (settings.HOST, T4S):
        lab.api.compute.add_host_to_aggregate(spread, host)
    (card,) = land(hosts, flavor)
    assert card in {place(T4S, T4), place(T4S, T4_B)}
    assert lab.mdevs() == used


@pytest.mark.parametrize("host", [L40S, T4S])
def test_the_host_that_holds_the_function_comes_first(
    hosts: Simulated, host: str
) -> None:
    content = fpga_site.raw(simulated_site.function(host))
    image = hosts.lab.image(
        f"bitstream-{host}",
        content,
        accelerator_function_id=simulated_site.FUNCTIONS[host],
        accelerator_interface_id=simulated_site.INTERFACE,
    )
    flavor = hosts.lab.flavor(
        "programmed",
        resources_A__FPGA="1",
        accelerator__fpga_bitstream=image,
    )
    (region,) = land(hosts, flavor)
    assert region.startswith(f"{host}_accel_0000_05_00_0_region")


# -- the flavor author ------------------------------------------------------


def offered(hosts: Simulated, profile: str) -> dict[str, Any]:
    """Return what ``profile list`` says of a profile."""
    output = hosts.lab.commanded("nova-accel", "profile", "list", "--json")
    (listed,) = (
        record
        for record in json.loads(output)["profiles"]
        if record["name"] == profile
    )
    return dict(listed)


def test_what_is_on_offer_is_listed(hosts: Simulated) -> None:
    before = offered(hosts, "L40S-48Q")
    assert before["hosts"] == [L40S]
    assert (before["cards"], before["free"]) == (4, 4)
    both = offered(hosts, "T4-4Q")
    assert sorted(both["hosts"]) == sorted([REAL, T4S])

    take(hosts, L40S, LAST, "L40S-48Q")
    assert offered(hosts, "L40S-48Q")["free"] == 3
