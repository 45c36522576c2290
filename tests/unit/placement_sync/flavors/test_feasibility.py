# SPDX-License-Identifier: Apache-2.0
"""Feasible flavors and their counts match a search of all candidates."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.fit import candidate_locality
from nova_accel.catalog import loader
from nova_accel.model import flavors, names, providers
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


def contents_of(
    offered: offered_devices.Cloud, *profiles: str, **settings: str
) -> flavor_specs.FlavorContents:
    """Return the contents of a flavor with these profiles."""
    specs: dict[str, str] = {}
    for number, profile in enumerate(profiles):
        name, _, count = profile.partition("*")
        devices = lookup.find_profile(
            lookup.ProfileQuery(profile=name, count=int(count or 1)),
            offered,
            TYPES,
            True,
        )
        group_name = f"G{chr(ord('A') + number)}"
        flavor_request = flavor_specs.FlavorRequest(
            devices=devices, settings=settings, group=group_name
        )
        specs = dict(flavor_specs.plan(specs, flavor_request).specs)
    return flavor_specs.read(specs)


def explain(
    offered: offered_devices.Cloud, *profiles: str, **settings: str
) -> str:
    contents = contents_of(offered, *profiles, **settings)
    return feasibility.explain_infeasibility(contents, offered, TYPES)


A = clouds.gpu("A40", ("8Q",), at="node1/0000:41:00.0@0")
B = clouds.gpu("A40", ("8Q",), at="node1/0000:61:00.0@0")
C = clouds.gpu("A40", ("8Q",), at="node1/0000:c1:00.0@1")
TWO = cloud(A, C)


def test_a_feasible_flavor_is_not_refused() -> None:
    assert explain(TWO, "A40-8Q*12") == ""
    assert explain(TWO, "A40-48Q*2", locality="different_card") == ""
    assert explain(TWO, "A40-8Q*6", numa_policy="required") == ""


def test_full_and_drained_cards_are_feasible() -> None:
    full = clouds.gpu("A40", (), used={"VGPU": 6})
    assert explain(cloud(full), "A40-16Q") == ""
    drained = clouds.gpu("A40", (), names.DRAINED_TRAIT)
    assert explain(cloud(drained), "A40-16Q") == ""


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
def test_an_infeasible_flavor_is_refused(
    profiles: list[str], settings: dict[str, str], words: str
) -> None:
    assert words in explain(TWO, *profiles, **settings)


def test_links_and_ports_count() -> None:
    linked = dataclasses.replace(
        A, traits=A.traits | {names.nvlink_trait("0000:c1:00.0")}
    )
    assert explain(cloud(linked, C), "A40-48Q*2", locality="nvlink") == ""
    port = names.pcie_trait("0000:40:01.0")
    same = [dataclasses.replace(d, traits=d.traits | {port}) for d in (A, B)]
    assert explain(cloud(*same), "A40-48Q*2", locality="pcie") == ""
    other = dataclasses.replace(
        B, traits=B.traits | {names.pcie_trait("0000:60:01.0")}
    )
    assert "pcie" in explain(
        cloud(same[0], other), "A40-48Q*2", locality="pcie"
    )


def test_modes_of_a_card_are_distinguished() -> None:
    sliced = cloud(clouds.gpu("A100", ("8C",)))
    mig = cloud(clouds.gpu("A100", ("1-5C",), layout="mig"))
    assert "MIG" in explain(sliced, "A100-1-5C")
    assert "every A100 is in MIG mode" in explain(mig, "A100-8C")
    both = cloud(
        *sliced.devices,
        clouds.gpu("A100", ("1-5C",), layout="mig", at="node1/0000:99:00.0"),
    )
    assert explain(both, "A100-1-5C", "A100-8C") == ""
    assert explain(mig, "A100-3-20C*3") != ""
    assert explain(mig, "A100-1-10C*2", "A100-2-10C*2") == ""


def test_a_guest_on_two_nodes_has_devices_of_both() -> None:
    contents = contents_of(TWO, "A40-48Q*2", numa_policy="required")
    assert feasibility.explain_infeasibility(contents, TWO, TYPES)
    spread = dataclasses.replace(contents, numa_cells=2)
    assert feasibility.explain_infeasibility(spread, TWO, TYPES) == ""


def test_one_card_holds_one_size_in_equal_mode() -> None:
    equal, mixed = (
        cloud(clouds.gpu("A40", (), layout=layout))
        for layout in ("equal", "mixed")
    )
    assert "more than 1 of" in explain(equal, "A40-8Q", "A40-16Q")
    assert explain(mixed, "A40-8Q", "A40-16Q") == ""


def test_a_console_needs_a_vgpu() -> None:
    offered = cloud(clouds.device({"CUSTOM_QAT_VF": 4}, "INTEL_QAT_C62X"))
    assert "console" in explain(offered, "CUSTOM_QAT_VF", display="on")
    assert explain(offered, "CUSTOM_QAT_VF") == ""


def test_a_pinned_device_must_support_the_profile() -> None:
    pin = names.pin_trait("node1", "0000:41:00.0")
    other = clouds.gpu("T4", ("4Q",), pin)
    offered = cloud(other, C)
    devices = lookup.find_profile(
        lookup.ProfileQuery(profile="A40-8Q"), offered, TYPES
    )
    devices = dataclasses.replace(devices, required=devices.required | {pin})
    specs = flavor_specs.plan(
        {}, flavor_specs.FlavorRequest(devices=devices)
    ).specs
    reason = feasibility.explain_infeasibility(
        flavor_specs.read(specs), offered, TYPES
    )
    assert "node1_accel_0000_41_00_0 does not support it" in reason
    missing_reason = feasibility.explain_infeasibility(
        flavor_specs.read(specs), cloud(C), TYPES
    )
    assert (
        "no device has CUSTOM_DEVICE_AT_NODE1_0000_41_00_0" in missing_reason
    )


# -- against brute force ----------------------------------------------------

_PORTS = ("0000:00:01.0", "0000:80:01.0")


@st.composite
def hosts(draw: st.DrawFn) -> list[offered_devices.OfferedDevice]:
    """Draw a host with some A40."""
    count = draw(st.integers(1, 4))
    addresses = [f"0000:{n + 16:02x}:00.0" for n in range(count)]
    devices = []
    for address in addresses:
        node = draw(st.sampled_from(["@0", "@1"]))
        peers = draw(st.lists(st.sampled_from(addresses), max_size=2))
        traits = [names.nvlink_trait(p) for p in peers if p != address]
        traits.append(names.pcie_trait(draw(st.sampled_from(_PORTS))))
        layout = draw(st.sampled_from(["equal", "mixed"]))
        devices.append(
            clouds.gpu(
                "A40",
                (),
                *traits,
                layout=layout,
                at=f"node1/{address}{node}",
            )
        )
    return devices


def is_possible(
    contents: flavor_specs.FlavorContents,
    host: list[offered_devices.OfferedDevice],
) -> bool:
    """Try every assignment, with the scheduler's locality rules."""
    groups = contents.groups
    for assignment in itertools.product(range(len(host)), repeat=len(groups)):
        chosen = [host[n] for n in assignment]
        nodes = {min(feasibility_search.numa_nodes(d)) for d in chosen}
        is_near = contents.policy.numa is not flavors.NumaPolicy.REQUIRED
        candidate_devices = [
            _candidate_device(host[n], assignment.count(n))
            for n in sorted(set(assignment))
        ]
        if (
            (is_near or len(nodes) == 1)
            and not candidate_locality.find_rejection(
                contents.policy.locality, candidate_devices
            )
            and all(
                _holds(
                    device,
                    [
                        g
                        for g, w in zip(groups, assignment, strict=True)
                        if host[w] is device
                    ],
                )
                for device in host
            )
        ):
            return True
    return False


def _candidate_device(
    device: offered_devices.OfferedDevice, units: int
) -> candidate_locality.CandidateDevice:
    facts = providers.Provider(
        uuid=device.uuid,
        capacities={},
        name=device.name,
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
        vgpu_type = loader.load().find(f"A40-{size // 1024}Q")
        assert vgpu_type is not None
        most = offered_devices.max_partitions(device, vgpu_type)
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
    st.sampled_from([policy.value for policy in flavors.Locality]),
    st.sampled_from([policy.value for policy in flavors.NumaPolicy]),
)
def test_a_flavor_is_refused_only_if_no_assignment_fits(
    host: list[offered_devices.OfferedDevice],
    profiles: list[str],
    locality: str,
    numa_policy: str,
) -> None:
    offered = cloud(*host)
    contents = contents_of(
        offered, *profiles, locality=locality, numa_policy=numa_policy
    )
    reason = feasibility.explain_infeasibility(contents, offered, TYPES)
    assert (not reason) == is_possible(contents, host), reason


# -- number of servers that fit ---------------------------------------------


def test_free_units_are_counted_in_servers() -> None:
    offered = cloud(A, C)
    assert (
        feasibility_search.count_room(
            contents_of(offered, "A40-8Q"), offered, {}
        )
        == 12
    )
    assert (
        feasibility_search.count_room(
            contents_of(offered, "A40-8Q*4"), offered, {}
        )
        == 3
    )
    apart = contents_of(offered, "A40-8Q*2", locality="different_card")
    assert feasibility_search.count_room(apart, offered, {}) == 6
    near = contents_of(offered, "A40-8Q*4", numa_policy="required")
    assert feasibility_search.count_room(near, offered, {}) == 2
    assert (
        feasibility_search.count_room(
            contents_of(offered, "A40-48Q"), offered, {}
        )
        == 0
    )


def test_amounts_of_the_host_limit_the_servers() -> None:
    capacities = {"VCPU": providers.ClassCapacity(capacity=16, used=7)}
    offered = offered_devices.Cloud(
        devices=(A,), hosts={clouds.root(): capacities}
    )
    assert (
        feasibility_search.count_room(
            contents_of(offered, "A40-8Q"), offered, {"VCPU": 4}
        )
        == 2
    )


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(1, 4))
def test_servers_on_separate_devices(free: list[int], count: int) -> None:
    remaining, servers = sorted(free, reverse=True), 0
    while len(remaining) >= count and remaining[count - 1] > 0:
        remaining = sorted(
            [n - 1 for n in remaining[:count]] + remaining[count:],
            reverse=True,
        )
        servers += 1
    assert (
        feasibility_search.count_servers(free, count, is_separate=True)
        == servers
    )
