# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import inventory, model, names, policy
from tests import strategies

NO_RULES = policy.Policy()


@given(strategies.hosts())
def test_every_inventory_is_one_that_placement_takes(
    host: model.HostState,
) -> None:
    tree = inventory.build_tree(strategies.ROOT, host, NO_RULES)
    for node in tree.nodes:
        for record in node.inventories.values():
            assert 0 < record.total
            assert 0 <= record.reserved <= record.total
            assert 1 <= record.min_unit <= record.max_unit <= record.total


@given(strategies.hosts())
def test_each_device_is_one_owned_provider_below_the_root(
    host: model.HostState,
) -> None:
    tree = inventory.build_tree(strategies.ROOT, host, NO_RULES)
    assert len(tree.nodes) == len(host.devices)
    assert len({n.uuid for n in tree.nodes}) == len(tree.nodes)
    assert len({n.name for n in tree.nodes}) == len(tree.nodes)
    for node in tree.nodes:
        assert node.parent == strategies.ROOT_UUID
        assert node.traits >= strategies.OWNED


@given(strategies.hosts())
def test_the_same_host_gives_the_same_tree(host: model.HostState) -> None:
    again = model.HostState(devices=host.devices[::-1])
    assert inventory.build_tree(
        strategies.ROOT, host, NO_RULES
    ) == inventory.build_tree(strategies.ROOT, again, NO_RULES)


@given(strategies.hosts())
def test_the_profile_traits_are_those_that_can_be_made(
    host: model.HostState,
) -> None:
    tree = inventory.build_tree(strategies.ROOT, host, NO_RULES)
    for device in host.devices:
        node = tree.node(
            names.provider_uuid(strategies.ROOT_UUID, device.address)
        )
        assert node is not None
        for profile in device.profiles:
            assert (profile.trait in node.traits) is (profile.available > 0)


@given(strategies.hosts(), st.integers(1, 5))
def test_max_slots_limits_slots_and_nothing_else(
    host: model.HostState, limit: int
) -> None:
    rules = policy.parse_policy([f'{{"max_slots": {limit}}}'])
    free = inventory.build_tree(strategies.ROOT, host, NO_RULES)
    tied = inventory.build_tree(strategies.ROOT, host, rules)
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
def test_what_a_claim_holds_is_not_reserved_again(
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
    tree = inventory.build_tree(strategies.ROOT, host, NO_RULES, claims)
    for node in tree.nodes:
        assert all(r.reserved == 0 for r in node.inventories.values())
