# SPDX-License-Identifier: Apache-2.0
"""Feasibility of flavors, compared with brute force."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters import provider_facts
from filters.fit import candidate_locality
from nova_accel.catalog import loader
from nova_accel.model import flavors, names
from placement_sync.flavors import (
    feasibility,
    feasibility_search,
    flavor_specs,
    lookup,
    offered_devices,
)
from tests.support.placement import clouds

TYPES = offered_devices.VgpuTypes(loader.load())


def cloud(*devices: offered_devices.OfferedDevice) -> offered_devices.Cloud:
    return offered_devices.Cloud(devices=devices)


def asked(
    there: offered_devices.Cloud, *profiles: str, **settings: str
) -> flavor_specs.FlavorContents:
    """Return what a flavor asks that names these profiles."""
    specs: dict[str, str] = {}
    for number, profile in enumerate(profiles):
        name, _, count = profile.partition("*")
        devices = lookup.find_profile(
            lookup.ProfileQuery(profile=name, count=int(count or 1)),
            there,
            TYPES,
            True,
        )
        word = f"G{chr(ord('A') + number)}"
        wish = flavor_specs.FlavorRequest(
            devices=devices, settings=settings, group=word
        )
        specs = dict(flavor_specs.plan(specs, wish).specs)
    return flavor_specs.read(specs)


def why(there: offered_devices.Cloud, *profiles: str, **settings: str) -> str:
    wanted = asked(there, *profiles, **settings)
    return feasibility.explain_infeasibility(wanted, there, TYPES)


A = clouds.gpu("A40", ("8Q",), at="node1/0000:41:00.0@0")
B = clouds.gpu("A40", ("8Q",), at="node1/0000:61:00.0@0")
C = clouds.gpu("A40", ("8Q",), at="node1/0000:c1:00.0@1")
TWO = cloud(A, C)


def test_what_fits_is_not_refused() -> None:
    assert why(TWO, "A40-8Q*12") == ""
    assert why(TWO, "A40-48Q*2", locality="different_card") == ""
    assert why(TWO, "A40-8Q*6", numa_policy="required") == ""


def test_full_and_drained_cards_can() -> None:
    full = clouds.gpu("A40", (), used={"VGPU": 6})
    assert why(cloud(full), "A40-16Q") == ""
    drained = clouds.gpu("A40", (), names.DRAINED_TRAIT)
    assert why(cloud(drained), "A40-16Q") == ""


@pytest.mark.parametrize(
    ("profiles", "settings", "words"),
    [
        (["A40-8Q", "A40-8C"], {}, "one series (C, Q)"),
        (["A40-8Q", "A100-8C"], {}, "one model of card"),
        (["A40-1Q*17"], {}, "at most 16"),
        (["A100-8C"], {}, "no host has a card of model A100"),
        (["A40-8Q*13"], {}, "no host can provide more than 12 of them"),
        (["A40-48Q*2"], {"numa_policy": "required"}, "numa_policy=required"),
        (["A40-48Q*2"], {"locality": "numa"}, "more than 1 of them"),
        (["A40-8Q*3"], {"locality": "different_card"}, "more than 2 of them"),
        (["A40-48Q*2"], {"locality": "nvlink"}, "locality=nvlink"),
    ],
)
def test_what_nobody_can_serve_is_refused(
    profiles: list[str], settings: dict[str, str], words: str
) -> None:
    assert words in why(TWO, *profiles, **settings)


def test_links_and_ports_count() -> None:
    one = dataclasses.replace(
        A, traits=A.traits | {names.nvlink_trait("0000:c1:00.0")}
    )
    assert why(cloud(one, C), "A40-48Q*2", locality="nvlink") == ""
    port = names.pcie_trait("0000:40:01.0")
    same = [dataclasses.replace(d, traits=d.traits | {port}) for d in (A, B)]
    assert why(cloud(*same), "A40-48Q*2", locality="pcie") == ""
    other = dataclasses.replace(
        B, traits=B.traits | {names.pcie_trait("0000:60:01.0")}
    )
    assert "pcie" in why(cloud(same[0], other), "A40-48Q*2", locality="pcie")


def test_modes_of_a_card_are_told_apart() -> None:
    sliced = cloud(clouds.gpu("A100", ("8C",)))
    mig = cloud(clouds.gpu("A100", ("1-5C",), layout="mig"))
    assert "MIG" in why(sliced, "A100-1-5C")
    assert "every A100 is in MIG mode" in why(mig, "A100-8C")
    both = cloud(
        *sliced.devices,
        clouds.gpu("A100", ("1-5C",), layout="mig", at="node1/0000:99:00.0"),
    )
    assert why(both, "A100-1-5C", "A100-8C") == ""
    assert why(mig, "A100-3-20C*3") != ""
    assert why(mig, "A100-1-10C*2", "A100-2-10C*2") == ""


def test_a_guest_on_two_nodes_has_devices_of_both() -> None:
    wanted = asked(TWO, "A40-48Q*2", numa_policy="required")
    assert feasibility.explain_infeasibility(wanted, TWO, TYPES)
    spread = dataclasses.replace(wanted, numa_cells=2)
    assert feasibility.explain_infeasibility(spread, TWO, TYPES) == ""


def test_one_card_holds_one_size_in_equal_mode() -> None:
    equal, mixed = (
        cloud(clouds.gpu("A40", (), layout=layout))
        for layout in ("equal", "mixed")
    )
    assert "more than 1 of" in why(equal, "A40-8Q", "A40-16Q")
    assert why(mixed, "A40-8Q", "A40-16Q") == ""


def test_a_console_needs_a_vgpu() -> None:
    there = cloud(clouds.device({"CUSTOM_QAT_VF": 4}, "INTEL_QAT_C62X"))
    assert "console" in why(there, "CUSTOM_QAT_VF", display="on")
    assert why(there, "CUSTOM_QAT_VF") == ""


def test_a_pinned_device_must_make_it() -> None:
    pin = names.pin_trait("node1", "0000:41:00.0")
    other = clouds.gpu("T4", ("4Q",), pin)
    there = cloud(other, C)
    devices = lookup.find_profile(
        lookup.ProfileQuery(profile="A40-8Q"), there, TYPES
    )
    devices = dataclasses.replace(devices, required=devices.required | {pin})
    specs = flavor_specs.plan(
        {}, flavor_specs.FlavorRequest(devices=devices)
    ).specs
    found = feasibility.explain_infeasibility(
        flavor_specs.read(specs), there, TYPES
    )
    assert "node1_accel_0000_41_00_0 does not support it" in found
    nobody = feasibility.explain_infeasibility(
        flavor_specs.read(specs), cloud(C), TYPES
    )
    assert "no device has CUSTOM_DEVICE_AT_NODE1_0000_41_00_0" in nobody


# -- against brute force ----------------------------------------------------

_PORTS = ("0000:00:01.0", "0000:80:01.0")


@st.composite
def hosts(draw: st.DrawFn) -> list[offered_devices.OfferedDevice]:
    """Return a host with some A40."""
    count = draw(st.integers(1, 4))
    addresses = [f"0000:{n + 16:02x}:00.0" for n in range(count)]
    found = []
    for address in addresses:
        node = draw(st.sampled_from(["@0", "@1"]))
        peers = draw(st.lists(st.sampled_from(addresses), max_size=2))
        traits = [names.nvlink_trait(p) for p in peers if p != address]
        traits.append(names.pcie_trait(draw(st.sampled_from(_PORTS))))
        layout = draw(st.sampled_from(["equal", "mixed"]))
        found.append(
            clouds.gpu(
                "A40",
                (),
                *traits,
                layout=layout,
                at=f"node1/{address}{node}",
            )
        )
    return found


def is_possible(
    wanted: flavor_specs.FlavorContents,
    host: list[offered_devices.OfferedDevice],
) -> bool:
    """Try every way, with the scheduler's own rules for places."""
    groups = wanted.groups
    for ways in itertools.product(range(len(host)), repeat=len(groups)):
        chosen = [host[n] for n in ways]
        nodes = {min(feasibility_search.numa_nodes(d)) for d in chosen}
        is_near = wanted.policy.numa is not flavors.NumaPolicy.REQUIRED
        seats = [_seat(host[n], ways.count(n)) for n in sorted(set(ways))]
        if (
            (is_near or len(nodes) == 1)
            and not candidate_locality.find_rejection(
                wanted.policy.locality, seats
            )
            and all(
                _holds(
                    device,
                    [
                        g
                        for g, w in zip(groups, ways, strict=True)
                        if host[w] is device
                    ],
                )
                for device in host
            )
        ):
            return True
    return False


def _seat(
    device: offered_devices.OfferedDevice, units: int
) -> candidate_locality.CandidateDevice:
    facts = provider_facts.ProviderFacts(
        uuid=device.uuid,
        capacities={},
        name=device.name,
        card_address=device.address,
        traits=device.traits,
    )
    return candidate_locality.CandidateDevice(facts=facts, units=units)


def _holds(
    device: offered_devices.OfferedDevice, groups: list[flavors.RequestGroup]
) -> bool:
    sizes = [g.resources[names.GPU_MEMORY_CLASS] for g in groups]
    if names.layout_trait("equal") in device.traits and len(set(sizes)) > 1:
        return False
    for size in set(sizes):
        one = loader.load().find(f"A40-{size // 1024}Q")
        assert one is not None
        most = offered_devices.max_partitions(device, one)
        if most is not None and sizes.count(size) > most:
            return False
    return sum(sizes) <= device.capacities[names.GPU_MEMORY_CLASS].total


@given(
    hosts(),
    st.lists(
        st.sampled_from(["A40-8Q", "A40-24Q", "A40-48Q"]),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([one.value for one in flavors.Locality]),
    st.sampled_from([one.value for one in flavors.NumaPolicy]),
)
def test_it_is_refused_only_where_no_way_is_left(
    host: list[offered_devices.OfferedDevice],
    profiles: list[str],
    locality: str,
    numa_policy: str,
) -> None:
    there = cloud(*host)
    wanted = asked(
        there, *profiles, locality=locality, numa_policy=numa_policy
    )
    found = feasibility.explain_infeasibility(wanted, there, TYPES)
    assert (not found) == is_possible(wanted, host), found


# -- how many fit now -------------------------------------------------------


def test_room_counts_servers() -> None:
    there = cloud(A, C)
    assert (
        feasibility_search.count_room(asked(there, "A40-8Q"), there, {}) == 12
    )
    assert (
        feasibility_search.count_room(asked(there, "A40-8Q*4"), there, {}) == 3
    )
    apart = asked(there, "A40-8Q*2", locality="different_card")
    assert feasibility_search.count_room(apart, there, {}) == 6
    near = asked(there, "A40-8Q*4", numa_policy="required")
    assert feasibility_search.count_room(near, there, {}) == 2
    assert (
        feasibility_search.count_room(asked(there, "A40-48Q"), there, {}) == 0
    )


def test_room_is_what_the_host_has_beside_its_cards() -> None:
    capacities = {
        "VCPU": offered_devices.ListedCapacity(total=16, capacity=16, used=7)
    }
    there = offered_devices.Cloud(
        devices=(A,), hosts={clouds.root(): capacities}
    )
    assert (
        feasibility_search.count_room(
            asked(there, "A40-8Q"), there, {"VCPU": 4}
        )
        == 2
    )


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(1, 4))
def test_servers_apart_are_as_many_as_can_be_dealt(
    free: list[int], count: int
) -> None:
    left, dealt = sorted(free, reverse=True), 0
    while len(left) >= count and left[count - 1] > 0:
        left = sorted(
            [n - 1 for n in left[:count]] + left[count:], reverse=True
        )
        dealt += 1
    assert (
        feasibility_search.count_servers(free, count, is_separate=True)
        == dealt
    )
