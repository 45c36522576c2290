# SPDX-License-Identifier: Apache-2.0
"""Moves that make room: applied to the cards, they do what they say."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.catalog import vgpu_types
from nova_accel.geometry import device_capacity
from nova_accel.model import names, providers
from placement_sync.fleet.devices import fleet_state
from placement_sync.fleet.moves import defragmentation, movable_servers
from tests.support import examples, golden
from tests.support.placement import fleets, fragmented
from tests.support.placement.fragmented import CATALOG, TYPES, World, fill
from tests.support.scheduler import brute_force

PLACE = golden.PLACE / "fleet" / "moves"
RULES = movable_servers.MoveRules()
Rearrangement = defragmentation.Rearrangement


def never() -> bool:
    return False


def search(
    fleet: fleet_state.Fleet,
    rules: movable_servers.MoveRules = RULES,
    hosts: Mapping[str, str] | None = None,
    is_over: Callable[[], bool] = never,
) -> defragmentation.Defragmentation:
    return defragmentation.Defragmentation(fleet, TYPES, rules, is_over, hosts)


def find(
    fleet: fleet_state.Fleet,
    rules: movable_servers.MoveRules = RULES,
    hosts: Mapping[str, str] | None = None,
) -> Rearrangement | None:
    """Return moves after which a larger profile fits, None without any."""
    moves = search(fleet, rules, hosts)
    for gpu in moves.list_models():
        try:
            return moves.raise_largest(gpu, 4)
        except defragmentation.NoPlanError as error:
            assert error.is_certain
    return None


def apply(
    devices: Mapping[str, model.Device], plan: Rearrangement
) -> dict[str, model.Device]:
    """Return the cards after moves that the hosts carry out.

    Each server keeps its profile, and gets it where it has a place.
    """
    after = dict(devices)
    for move in plan.moves:
        source, target = move.source.uuid, move.target.uuid
        assert move.source.root != move.target.root
        (partition,) = (
            p for p in after[source].partitions if p.handle == move.server.uuid
        )
        possible = fragmented.list_possible(after[target])
        assert partition.profile in possible
        after[target] = fragmented.add(
            after[target], partition.profile, move.server.uuid
        )
        after[source] = device_capacity.remove_partitions(
            after[source], [move.server.uuid]
        )
        check_valid(after[source])
        check_valid(after[target])
    return after


def check_valid(device: model.Device) -> None:
    """Check a card by the rules of the catalog alone."""
    layout = device.geometry.layout
    profiles = {p.name: p for p in device.profiles}
    counts = collections.Counter(p.profile for p in device.partitions)
    for name, number in counts.items():
        assert number <= (profiles[name].limit or number)
    if layout is model.Layout.MIXED:
        brute_force.units(device)
    elif layout is model.Layout.MIG:
        brute_force.slices(device)
        inside = collections.Counter(p.instance for p in device.partitions)
        kinds = {p.instance: profiles[p.profile] for p in device.partitions}
        for instance in device.geometry.instances:
            profile = kinds[instance.handle]
            assert instance.kind == profile.instance
            assert inside[instance.handle] <= profile.per_instance
    else:
        assert len(counts) <= 1


def count(devices: Mapping[str, model.Device], profile: str) -> int:
    """Return how many of a type fit on the cards."""
    total = 0
    for device in devices.values():
        counts = device_capacity.remaining(device)
        for name in fragmented.find_profiles(device, profile):
            total += counts[name]
    return total


def list_servers(devices: Mapping[str, model.Device]) -> list[tuple[str, str]]:
    """Return the servers with their profiles."""
    return sorted(
        (p.handle, p.profile)
        for device in devices.values()
        for p in device.partitions
    )


@pytest.mark.slow
@given(fragmented.worlds())
@settings(max_examples=examples.examples(300))
def test_moves_do_what_they_say(world: World) -> None:
    plan = find(world.fleet)
    event("plan" if plan else "no plan")
    if plan is None:
        return
    assert plan.is_shortest
    after = apply(world.devices, plan)
    assert count(world.devices, plan.profile) == plan.before == 0
    assert count(after, plan.profile) >= plan.after >= 1
    assert list_servers(after) == list_servers(world.devices)


@pytest.mark.slow
@given(fragmented.worlds(), st.data())
@settings(max_examples=examples.examples(300))
def test_a_profile_fits_so_many_times(
    world: World, data: st.DataObject
) -> None:
    moves = search(world.fleet)
    types = [
        vgpu_type.name
        for device in world.fleet.devices
        for vgpu_type in TYPES.of_device(device)
    ]
    name = data.draw(st.sampled_from(sorted({*types})))
    now = count(world.devices, name)
    number = max(1, now + data.draw(st.integers(0, 2)))
    try:
        plan = moves.make_room(moves.find_type(name), number, 3)
    except errors.MalformedError:
        event("no card offers it")
        return
    except defragmentation.NoPlanError as error:
        assert error.is_certain
        event("no plan")
        return
    event(f"{len(plan.moves)} moves")
    after = apply(world.devices, plan)
    assert count(world.devices, plan.profile) >= plan.before
    assert count(after, plan.profile) >= plan.after >= number
    assert (plan.before >= number) == (plan.moves == ())
    assert list_servers(after) == list_servers(world.devices)


@given(fragmented.worlds(), st.data())
@settings(max_examples=examples.examples(150))
def test_devices_that_are_out_of_service_take_no_part(
    world: World, data: st.DataObject
) -> None:
    device = data.draw(st.sampled_from(world.fleet.devices))
    trait = data.draw(st.sampled_from(sorted(names.UNAVAILABLE_TRAITS)))
    out = dataclasses.replace(device, traits=device.traits | {trait})
    cloud = dataclasses.replace(
        world.fleet.cloud,
        devices=tuple(
            out if d.uuid == device.uuid else d for d in world.fleet.devices
        ),
    )
    plan = find(dataclasses.replace(world.fleet, cloud=cloud))
    for move in plan.moves if plan else ():
        assert device.uuid not in {move.source.uuid, move.target.uuid}
    assert plan is None or out not in plan.cards


def find_type(name: str) -> vgpu_types.CatalogVgpuType:
    """Return a type of the series A, in which the servers are."""
    vgpu_type = CATALOG.find(name)
    assert vgpu_type is not None
    return vgpu_type


def make_halves(number: int = 2, first: int = 1) -> World:
    """Return a card on each host with one server of half of it."""
    return fragmented.make_world(
        {
            f"node{n}/0000:41:00.0": fill("L40S", "mixed", n, "L40S-24Q")
            for n in range(first, first + number)
        },
        "L40S",
        "mixed",
    )


def test_free_memory_of_two_cards_does_not_hold_one_server() -> None:
    """The 24 GB server fits on no card with 16 GB free; their sum is 32."""
    cards = {
        f"node{n}/0000:41:00.0": fill(
            "L40S", "mixed", 10 * n, "L40S-16Q", "L40S-16Q"
        )
        for n in (1, 2)
    }
    cards["node3/0000:41:00.0"] = fill("L40S", "mixed", 50, "L40S-24Q")
    plan = find(fragmented.make_world(cards, "L40S", "mixed").fleet)
    assert plan is None


def test_a_server_goes_where_its_size_has_a_place() -> None:
    plan = find(make_halves().fleet)
    assert plan is not None
    assert (plan.largest_before[:7], plan.largest_after[:7]) == (
        "L40S-24",
        "L40S-48",
    )
    assert len(plan.moves) == 1


def test_a_card_of_several_is_not_emptied_for_less() -> None:
    """One move of the half, not two of the quarters, frees a whole card."""
    cards = {
        "node1/0000:41:00.0": fill("L40S", "mixed", 1, "L40S-24Q"),
        "node2/0000:41:00.0": fill("L40S", "mixed", 2, "L40S-12Q", "L40S-12Q"),
    }
    world = fragmented.make_world(cards, "L40S", "mixed")
    plan = search(world.fleet).make_room(find_type("L40S-48A"), 1, 4)
    assert [move.server.uuid for move in plan.moves] == [fleets.consumer(1)]


def test_only_what_is_certain_counts() -> None:
    """The place of each of two equal servers is not known.

    The first and the third quarter of a card are in use: the departure of
    one of them frees a half, but which half is not free decides nothing. With
    the two quarters in one half, the departure of either frees no more.
    """
    quarters = fill("L40S", "mixed", 1, *["L40S-12Q"] * 4)
    spread = device_capacity.remove_partitions(
        quarters,
        [quarters.partitions[i].handle for i in (1, 3)],
    )
    cards = {
        "node1/0000:41:00.0": spread,
        "node2/0000:41:00.0": fill("L40S", "mixed", 9, *["L40S-12Q"] * 3),
    }
    world = fragmented.make_world(cards, "L40S", "mixed")
    plan = search(world.fleet).make_room(find_type("L40S-24A"), 1, 4)
    assert len(plan.moves) == 1
    assert count(apply(world.devices, plan), "L40S-24Q") >= 1


def with_cloud(world: World, **changes: Any) -> fleet_state.Fleet:
    cloud = dataclasses.replace(world.fleet.cloud, **changes)
    return dataclasses.replace(world.fleet, cloud=cloud)


def test_hosts_that_can_take_no_server_are_no_target() -> None:
    world = make_halves()
    roots = frozenset(d.root for d in world.fleet.devices)
    full = {"MEMORY_MB": providers.ClassCapacity(capacity=1, used=1)}
    assert find(with_cloud(world, disabled=roots)) is None
    assert find(with_cloud(world, hosts=dict.fromkeys(roots, full))) is None


def test_memory_that_a_server_leaves_is_free_for_the_next() -> None:
    """Two halves swap no cards: the third host has room for one server."""
    world = make_halves(3)
    roots = [d.root for d in world.fleet.devices]
    full = {"MEMORY_MB": providers.ClassCapacity(capacity=1, used=1)}
    free = {"MEMORY_MB": providers.ClassCapacity(capacity=2, used=1)}
    fleet = with_cloud(
        world, hosts=dict(zip(roots, (full, full, free), strict=True))
    )
    plan = find(fleet)
    assert plan is not None
    assert [move.target.root for move in plan.moves] == [roots[2]]


def test_a_server_that_nova_does_not_show_is_not_moved() -> None:
    """It may be a migration in progress."""
    fleet = dataclasses.replace(make_halves().fleet, servers={})
    assert find(fleet) is None
    reasons = {*search(fleet).terms.fixed.values()}
    assert reasons == {
        "Nova does not show it: a migration, or a leaked allocation"
    }


def test_partitions_without_an_allocation_keep_a_card_in_use() -> None:
    world = make_halves()
    for number in (0, 1):
        fleet = dataclasses.replace(
            world.fleet, holdings=world.fleet.holdings[:number]
        )
        assert find(fleet) is None


def change_servers(world: World, **changes: Any) -> fleet_state.Fleet:
    """Return a fleet whose servers have other fields."""
    servers = {
        uuid: dataclasses.replace(server, **changes)
        for uuid, server in world.fleet.servers.items()
    }
    return dataclasses.replace(world.fleet, servers=servers)


def add_specs(world: World, **specs: str) -> fleet_state.Fleet:
    """Return a fleet whose flavors have more extra specs."""
    servers = {}
    for uuid, server in world.fleet.servers.items():
        assert server.flavor is not None
        flavor = dataclasses.replace(
            server.flavor, extra_specs={**server.flavor.extra_specs, **specs}
        )
        servers[uuid] = dataclasses.replace(server, flavor=flavor)
    return dataclasses.replace(world.fleet, servers=servers)


def list_fixed(fleet: fleet_state.Fleet) -> list[str]:
    """Return why servers stay, none if a plan moves one."""
    return sorted({*search(fleet).terms.fixed.values()}) * (
        find(fleet) is None
    )


def test_servers_that_could_lose_something_stay() -> None:
    world = make_halves()
    group = movable_servers.MoveRules(
        groups=(
            movable_servers.ServerGroup(
                uuid="d1f5",
                policy="soft-affinity",
                members=frozenset(world.fleet.servers),
            ),
        )
    )
    holding = world.fleet.holdings[0]
    texts = [
        *list_fixed(dataclasses.replace(world.fleet, servers={})),
        *list_fixed(change_servers(world, task="migrating")),
        *list_fixed(change_servers(world, status="ERROR")),
        *list_fixed(change_servers(world, status="SHUTOFF")),
        *list_fixed(change_servers(world, flavor=None)),
        *list_fixed(add_specs(world, **{"accelerator:packing": "tight"})),
        *list_fixed(add_specs(world, **{"hw:numa_nodes": "1"})),
        *list_fixed(
            add_specs(world, **{"accelerator:numa_policy": "required"})
        ),
        *list_fixed(add_specs(world, **{"trait:HW_CPU_X86": "required"})),
        *list_fixed(add_specs(world, **{"resources_B:VGPU": "1"})),
        *list_fixed(
            add_specs(world, **{"resources_A:CUSTOM_GPU_MEMORY_MB": "8192"})
        ),
        *search(world.fleet, group).terms.fixed.values(),
        *search(
            dataclasses.replace(
                world.fleet,
                holdings=(
                    *world.fleet.holdings,
                    dataclasses.replace(holding, provider="another"),
                ),
            )
        ).terms.fixed.values(),
    ]
    golden.check(PLACE / "staying.txt", "\n".join(texts) + "\n")


def test_why_there_is_no_plan() -> None:
    moves = search(make_halves(1).fleet)
    card = make_halves(1).fleet.devices[0].uuid
    whole = find_type("L40S-48A")
    texts = []
    for call in (
        lambda: moves.make_room(whole, 1, 4),
        lambda: moves.raise_largest("L40S", 4),
        lambda: moves.find_type("A40-8Q"),
        lambda: moves.replay([(fleets.consumer(8), card)]),
        lambda: moves.replay([(fleets.consumer(1), card)]),
        lambda: moves.replay([(fleets.consumer(1), "another")]),
        lambda: search(fleet_state.Fleet()).find_type("A40-8Q"),
        lambda: search(fleet_state.Fleet()).raise_any_largest((), 4),
    ):
        with pytest.raises(errors.AcceleratorError) as caught:
            call()
        texts.append(str(caught.value))
    golden.check(PLACE / "no-plan.txt", "\n".join(texts) + "\n")


def test_a_stopped_server_moves_cold_if_permitted() -> None:
    fleet = change_servers(make_halves(), status="SHUTOFF")
    plan = find(fleet, movable_servers.MoveRules(has_cold=True))
    assert plan is not None
    assert [move.server.kind.value for move in plan.moves] == ["cold"]


def make_group(policy: str, *members: int) -> movable_servers.MoveRules:
    group = movable_servers.ServerGroup(
        uuid="group",
        policy=policy,
        members=frozenset(map(fleets.consumer, members)),
    )
    return movable_servers.MoveRules(groups=(group,))


def list_hosts(world: World) -> dict[str, str]:
    """Return the compute nodes of the servers."""
    roots = {d.uuid: d.root for d in world.fleet.devices}
    return {h.consumer: roots[h.provider] for h in world.fleet.holdings}


def test_servers_of_a_group_stay_on_different_hosts() -> None:
    world = make_halves()
    rules = make_group("anti-affinity", 1, 2)
    assert find(world.fleet, rules, list_hosts(world)) is None
    rules = make_group("anti-affinity", 1, 3)
    assert find(world.fleet, rules, list_hosts(world)) is not None


def test_servers_of_a_group_stay_on_one_host() -> None:
    world = make_halves()
    rules = make_group("affinity", 1, 2)
    assert find(world.fleet, rules, list_hosts(world)) is None
    rules = make_group("affinity", 1, 7)
    plan = find(world.fleet, rules, list_hosts(world))
    assert plan is not None
    assert [m.server.uuid for m in plan.moves] == [fleets.consumer(2)]


def test_a_server_moves_first_to_make_room_for_another() -> None:
    """The half has no place until a quarter has left the only card for it."""
    cards = {
        "node1/0000:41:00.0": fill("L40S", "mixed", 1, "L40S-24Q"),
        "node2/0000:41:00.0": fill("L40S", "mixed", 2, "L40S-24Q", "L40S-12Q"),
        "node3/0000:41:00.0": fill("L40S", "mixed", 5, "L40S-24Q", "L40S-12Q"),
    }
    world = fragmented.make_world(cards, "L40S", "mixed")
    rules = movable_servers.MoveRules(
        pinned={fleets.consumer(n): "a test" for n in (2, 5)}
    )
    moves = search(world.fleet, rules)
    plan = moves.make_room(find_type("L40S-48A"), 1, 4)
    quarter, half = (move.server.uuid for move in plan.moves)
    assert quarter in {fleets.consumer(3), fleets.consumer(6)}
    assert half == fleets.consumer(1)
    assert count(apply(world.devices, plan), "L40S-48A") == 1


def test_nova_chooses_the_card_of_a_host() -> None:
    """The fullest card with room is chosen: the empty one stays empty."""
    cards = {
        "node1/0000:41:00.0": fill("L40S", "mixed", 1, "L40S-24Q"),
        "node2/0000:41:00.0": fill("L40S", "mixed", 2, "L40S-24Q"),
        "node2/0000:81:00.0": fragmented.make_device("L40S", "mixed"),
    }
    world = fragmented.make_world(cards, "L40S", "mixed")
    plan = search(world.fleet).make_room(find_type("L40S-48A"), 2, 4)
    (move,) = plan.moves
    assert move.source.address == move.target.address == "0000:41:00.0"


def test_a_stopped_search_says_so() -> None:
    world = make_halves(4)
    calls = itertools.count()
    moves = search(world.fleet, is_over=lambda: next(calls) > 0)
    plan = moves.make_room(find_type("L40S-48A"), 2, 4)
    assert not plan.is_shortest
    assert count(apply(world.devices, plan), "L40S-48Q") == 2


def test_a_plan_is_replayed_before_it_is_carried_out() -> None:
    world = make_halves()
    moves = search(world.fleet)
    plan = moves.make_room(find_type("L40S-48A"), 1, 4)
    pairs = [(m.server.uuid, m.target.uuid) for m in plan.moves]
    state = moves.replay(pairs)
    assert moves.count(find_type("L40S-48A"), state) == 1
    with pytest.raises(defragmentation.NoPlanError, match="any more"):
        moves.replay([*pairs, pairs[0]])
