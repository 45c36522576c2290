# SPDX-License-Identifier: Apache-2.0
"""Devices, policy and claims give the expected provider tree."""

import dataclasses
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import model
from nova_accel.catalog import loader
from nova_accel.config import policy
from nova_accel.geometry import device_capacity, topology
from nova_accel.inventory import tree_builder
from nova_accel.model import names, providers
from placement_sync.client import calls
from placement_sync.sync import diff
from tests.benchmark.schedule import goals
from tests.hosts import look
from tests.support import strategies
from tests.support.hosts import shapes

NO_RULES = policy.DeviceRules()


@given(strategies.hosts())
def test_inventories_are_valid_in_placement(
    host: model.HostState,
) -> None:
    tree = tree_builder.build_tree(strategies.ROOT, host, NO_RULES)
    for node in tree.nodes:
        for record in node.inventories.values():
            assert 0 < record.total
            assert 0 <= record.reserved <= record.total
            assert 1 <= record.min_unit <= record.total <= record.max_unit
            assert record.max_unit - record.total == record.reserved


@given(strategies.hosts())
def test_each_device_is_one_owned_provider_below_the_root(
    host: model.HostState,
) -> None:
    tree = tree_builder.build_tree(strategies.ROOT, host, NO_RULES)
    assert len(tree.nodes) == len(host.devices)
    assert len({n.uuid for n in tree.nodes}) == len(tree.nodes)
    assert len({n.name for n in tree.nodes}) == len(tree.nodes)
    for node in tree.nodes:
        assert node.parent == strategies.ROOT_UUID
        assert node.traits >= strategies.OWNED


@given(strategies.hosts())
def test_the_same_host_gives_the_same_tree(host: model.HostState) -> None:
    again = model.HostState(devices=host.devices[::-1])
    assert tree_builder.build_tree(
        strategies.ROOT, host, NO_RULES
    ) == tree_builder.build_tree(strategies.ROOT, again, NO_RULES)


@given(strategies.hosts())
def test_profile_traits_are_those_of_available_profiles(
    host: model.HostState,
) -> None:
    tree = tree_builder.build_tree(strategies.ROOT, host, NO_RULES)
    for device in host.devices:
        node = tree.node(
            names.provider_uuid(strategies.ROOT_UUID, device.address)
        )
        assert node is not None
        for profile in device.profiles:
            assert (profile.trait in node.traits) is (profile.available > 0)


@given(strategies.hosts())
def test_profiles_outside_the_catalog_have_a_trait_while_there_is_no_room(
    host: model.HostState,
) -> None:
    tree = tree_builder.build_tree(strategies.ROOT, host, NO_RULES)
    in_catalog = loader.load().by_trait().keys()
    for device in host.devices:
        node = tree.node(
            names.provider_uuid(strategies.ROOT_UUID, device.address)
        )
        assert node is not None
        for profile in device.profiles:
            is_full = profile.trait not in node.traits | in_catalog
            trait = names.supported_trait(profile.trait)
            assert (trait in node.traits) is is_full
    none_offered = policy.parse_rules(['{"profiles": "no-such-*"}'])
    tree = tree_builder.build_tree(strategies.ROOT, host, none_offered)
    assert not any(
        trait.startswith(names.SUPPORTED_PREFIX)
        for node in tree.nodes
        for trait in node.traits
    )


@given(strategies.hosts(), st.integers(1, 5))
def test_max_slots_limits_only_the_slots(
    host: model.HostState, limit: int
) -> None:
    rules = policy.parse_rules([f'{{"max_slots": {limit}}}'])
    free = tree_builder.build_tree(strategies.ROOT, host, NO_RULES)
    tied = tree_builder.build_tree(strategies.ROOT, host, rules)
    for device in host.devices:
        uuid = names.provider_uuid(strategies.ROOT_UUID, device.address)
        before, after = free.node(uuid), tied.node(uuid)
        assert before is not None
        assert after is not None
        for name, record in after.inventories.items():
            total = before.inventories[name].total
            slots = name == device.resource_class
            assert record.total == (min(total, limit) if slots else total)


@given(strategies.hosts())
def test_partitions_of_claims_are_not_reserved(
    host: model.HostState,
) -> None:
    claims = [
        model.Claim(
            consumer="c",
            provider="p",
            device=device.address,
            profile=partition.profile,
            slot="s",
            parent=partition.parent,
            handle=partition.handle,
            technology=device.technology,
        )
        for device in host.devices
        for partition in device.partitions
    ]
    tree = tree_builder.build_tree(strategies.ROOT, host, NO_RULES, claims)
    for node in tree.nodes:
        assert all(r.reserved == 0 for r in node.inventories.values())
    lost = [dataclasses.replace(claim, is_allocated=False) for claim in claims]
    expected, unclaimed = (
        tree_builder.build_tree(strategies.ROOT, host, NO_RULES, claimed)
        for claimed in (lost, ())
    )
    for node, other in zip(expected.nodes, unclaimed.nodes, strict=True):
        assert node.inventories == other.inventories


# -- functions that are slots ----------------------------------------------

ROOT = strategies.ROOT


def vfs(technology: str, count: int = 4) -> model.Device:
    """Return a card with a number of VFs of one profile."""
    device = shapes.card(
        model.Geometry(), shapes.profile("vf", count), slots=count
    )
    return device_capacity.recalculate(
        dataclasses.replace(device, technology=technology)
    )


def node(
    device: model.Device,
    rule: policy.Rule | None = None,
    claims: tuple[model.Claim, ...] = (),
    occupied: frozenset[str] = frozenset(),
) -> providers.ProviderNode:
    tree = tree_builder.build_tree(
        ROOT,
        model.HostState(devices=(device,)),
        policy.DeviceRules(rules=(rule or policy.Rule(),)),
        claims,
        occupied=occupied,
    )
    (provider,) = tree.nodes
    return provider


def claim(device: model.Device, number: int, profile: str) -> model.Claim:
    slot = device.slots[number]
    return model.Claim(
        consumer="c",
        provider=names.provider_uuid(ROOT.uuid, device.address),
        device=device.address,
        profile=profile,
        slot=slot,
        parent=slot,
        handle=slot,
        technology=device.technology,
    )


@pytest.mark.parametrize("state", list(model.ClaimState))
@pytest.mark.parametrize("technology", sorted(model.UNDIVIDED))
def test_unallocated_claims_are_reserved(
    technology: str, state: model.ClaimState
) -> None:
    """An occupied function is not reserved a second time."""
    device = vfs(technology)
    claims = [
        dataclasses.replace(claim(device, n, "vf"), state=state)
        for n in range(2)
    ]
    claims[1] = dataclasses.replace(claims[1], is_allocated=False)
    for occupied in (frozenset[str](), frozenset({claims[1].slot})):
        provider = node(device, claims=tuple(claims), occupied=occupied)
        record = provider.inventories[device.resource_class]
        assert (record.total, record.reserved) == (4, 1)
        assert claims[1].slot in provider.slots[device.resource_class]


def test_only_the_unallocated_amount_of_a_claim_is_reserved() -> None:
    memory = names.GPU_MEMORY_CLASS
    device = shapes.card(
        model.Geometry(),
        dataclasses.replace(
            shapes.profile("vf", 4), charges={"VGPU": 1, memory: 512}
        ),
        slots=4,
    )
    device = device_capacity.recalculate(
        dataclasses.replace(device, counters={"VGPU": 4, memory: 2048})
    )
    lost = dataclasses.replace(
        claim(device, 0, "vf"),
        is_allocated=False,
        unallocated={memory: 512},
    )
    inventories = node(device, claims=(lost,)).inventories
    assert (inventories["VGPU"].reserved, inventories[memory].reserved) == (
        0,
        512,
    )


def test_an_occupied_vf_without_a_claim_is_reserved() -> None:
    device = vfs("vf")
    first, second, *rest = device.slots
    provider = node(
        device,
        claims=(claim(device, 0, "vf"),),
        occupied=frozenset({first, second, "0000:af:00.0"}),
    )
    record = provider.inventories["VGPU"]
    assert (record.total, record.reserved) == (4, 1)
    assert provider.slots == {"VGPU": frozenset({first, *rest})}


def test_a_passthrough_card_is_reserved_with_any_of_its_functions() -> None:
    device = dataclasses.replace(
        vfs("passthrough", 1),
        slots=(shapes.ADDRESS,),
        members=("0000:3b:00.1",),
    )
    assert node(device).inventories["VGPU"].reserved == 0
    for address in (shapes.ADDRESS, "0000:3b:00.1"):
        provider = node(device, occupied=frozenset({address}))
        assert provider.inventories["VGPU"].reserved == 1
        assert provider.slots == {"VGPU": frozenset()}
        provider = node(
            device,
            claims=(claim(device, 0, "vf"),),
            occupied=frozenset({address}),
        )
        assert provider.inventories["VGPU"].reserved == 0
        assert provider.slots == {"VGPU": frozenset({shapes.ADDRESS})}


@pytest.mark.parametrize("technology", ["vendor-vfio", "vf"])
def test_a_typed_vf_without_a_claim_is_reserved_once(
    technology: str,
) -> None:
    """The VF of a running guest is a partition and occupied as well."""
    device = dataclasses.replace(
        vfs(technology), partitions=(shapes.partition("vf", 1),)
    )
    used = frozenset({device.slots[1]})
    provider = node(device, occupied=used)
    assert provider.inventories["VGPU"].reserved == 1
    assert provider.slots == {"VGPU": frozenset(device.slots) - used}
    provider = node(device, claims=(claim(device, 1, "vf"),), occupied=used)
    assert provider.inventories["VGPU"].reserved == 0
    assert provider.slots == {"VGPU": frozenset(device.slots)}


def test_an_occupied_vf_that_makes_vgpus_is_no_slot() -> None:
    """The driver does not count this VF: nothing is reserved for it."""
    device = vfs("vendor-vfio")
    used = frozenset({device.slots[1]})
    provider = node(device, occupied=used)
    assert provider.inventories["VGPU"].reserved == 0
    assert provider.slots == {"VGPU": frozenset(device.slots) - used}


# -- layouts and places ------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (model.Layout.ANY, set()),
        (model.Layout.EQUAL, {"CUSTOM_ACCELERATOR_LAYOUT_EQUAL"}),
        (model.Layout.MIXED, {"CUSTOM_ACCELERATOR_LAYOUT_MIXED"}),
        (model.Layout.MIG, {"CUSTOM_ACCELERATOR_LAYOUT_MIG"}),
    ],
)
def test_a_trait_names_the_layout_of_a_card(
    layout: model.Layout, expected: set[str]
) -> None:
    device = shapes.card(model.Geometry(layout=layout))
    traits = {t for t in node(device).traits if t.startswith("CUSTOM_ACC")}
    assert traits == expected
    assert all(t.startswith(names.LAYOUT_PREFIX) for t in traits)


def test_a_changed_layout_changes_the_trait() -> None:
    def tree(layout: model.Layout) -> providers.ProviderTree:
        device = shapes.card(model.Geometry(layout=layout))
        host = model.HostState(devices=(device,))
        return tree_builder.build_tree(ROOT, host, NO_RULES)

    (change,) = diff.plan(
        tree(model.Layout.EQUAL), tree(model.Layout.MIXED), diff.Guard()
    )
    assert isinstance(change, calls.ChangeTraits)
    assert change.added == {names.layout_trait("mixed")}
    assert change.removed == {names.layout_trait("equal")}


def test_unread_traits_of_a_device_are_those_of_its_provider() -> None:
    device = dataclasses.replace(
        EQUAL, unread_traits=("CUSTOM_ACCELERATOR_A",)
    )
    assert node(device).unread_traits == ("CUSTOM_ACCELERATOR_A",)
    region = dataclasses.replace(
        vfs("fpga"),
        region=model.Region(card=shapes.ADDRESS, number=0, function=None),
        unread_traits=("CUSTOM_ACCELERATOR_A",),
    )
    assert node(region).unread_traits == ("CUSTOM_ACCELERATOR_A",)
    provider = node(region, occupied=frozenset(region.slots))
    assert provider.unread_traits == (
        "CUSTOM_ACCELERATOR_A",
        *tree_builder.FPGA_TRAITS,
    )


# -- what policy offers ----------------------------------------------------

EQUAL = device_capacity.recalculate(
    shapes.card(
        model.Geometry(layout=model.Layout.EQUAL),
        shapes.profile("T4-1Q", size=1, limit=16),
        shapes.profile("T4-1B", size=1, limit=16),
        shapes.profile("T4-4Q", size=4, limit=4),
    )
)


def offered(
    rule: policy.Rule,
    parts: tuple[str, ...] = (),
    claims: tuple[model.Claim, ...] = (),
) -> set[str]:
    device = dataclasses.replace(
        EQUAL,
        partitions=tuple(
            shapes.partition(name, n) for n, name in enumerate(parts)
        ),
    )
    traits = node(device_capacity.recalculate(device), rule, claims).traits
    return {p.name for p in device.profiles if p.trait in traits}


def test_only_offered_profiles_have_traits_but_all_partitions_count() -> None:
    rule = policy.Rule(profiles=("T4-*Q",))
    assert offered(rule) == {"T4-1Q", "T4-4Q"}
    assert offered(rule, ("T4-1B",)) == {"T4-1Q"}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((), {"T4-1Q", "T4-1B", "T4-4Q"}),
        (("T4-1B",), {"T4-1Q", "T4-1B"}),
        (("T4-1B", "T4-1B"), {"T4-1Q"}),
        (("T4-1Q", "T4-1B", "T4-1B"), {"T4-1Q"}),
    ],
)
def test_a_profile_at_max_instances_has_no_trait(
    parts: tuple[str, ...], expected: set[str]
) -> None:
    rule = policy.Rule(max_instances={"T4-*B": 2, "T4-8Q": 1})
    assert offered(rule, parts) == expected


def test_planned_claims_count_for_max_instances() -> None:
    rule = policy.Rule(max_instances={"T4-1B": 2})
    # One of the two claims is of the existing partition.
    claims = (claim(EQUAL, 0, "T4-1B"), claim(EQUAL, 5, "T4-1B"))
    assert "T4-1B" in offered(rule, ("T4-1B",), claims[:1])
    assert "T4-1B" not in offered(rule, ("T4-1B",), claims)


@pytest.mark.parametrize(
    "name", ["l40s-vendor-vfio", "t4-mdev", "a100-mig-mdev", "passthrough"]
)
def test_a_card_has_few_traits_besides_its_profiles(
    name: str, tmp_path: pathlib.Path
) -> None:
    """Placement returns them for each server that the host could get."""
    host = look.read(look.make(name, tmp_path))
    tree = tree_builder.build_tree(strategies.ROOT, host, NO_RULES)
    for node in tree.nodes:
        fixed = {
            t
            for t in node.traits
            if not t.startswith((*names.PROFILE_PREFIXES, "CUSTOM_MINE"))
            and not t.startswith(names.SUPPORTED_PREFIX)
        }
        assert len(fixed) <= goals.TRAITS[-1].limit, sorted(fixed)


def test_cards_on_a_switch_have_one_trait_for_all_peers() -> None:
    addresses = [f"0000:{bus}:00.0" for bus in ("41", "61", "81")]
    links = dict.fromkeys(addresses, topology.GpuLinks(is_switched=True))
    devices = topology.add_topology_traits(
        map(shapes.plain_device, addresses),
        topology.HostTopology(links=links),
    )
    tree = tree_builder.build_tree(
        strategies.ROOT, model.HostState(devices=devices), NO_RULES
    )
    for node in tree.nodes:
        assert {
            t for t in node.traits if t.startswith(names.NVLINK_PREFIX)
        } == {names.NVLINK_SWITCH}


def test_the_release_of_a_driver_is_a_trait_of_one_card_of_a_host() -> None:
    releases = {"0000:41:00.0": "1", "0000:61:00.0": "1", "0000:81:00.0": "2"}
    devices = tuple(
        shapes.plain_device(
            address, traits=frozenset({names.driver_trait("10de", release)})
        )
        for address, release in releases.items()
    )
    tree = tree_builder.build_tree(
        strategies.ROOT, model.HostState(devices=devices), NO_RULES
    )
    assert [node.traits - strategies.OWNED for node in tree.nodes] == [
        {names.driver_trait("10de", "1")},
        set(),
        {names.driver_trait("10de", "2")},
    ]
