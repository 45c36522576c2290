# SPDX-License-Identifier: Apache-2.0
"""Servers that the filter places can start, and refused ones can't.

NOVA_ACCEL_SCHEDULED is the number of random clouds, with a dozen requests
each.
"""

import dataclasses
import itertools
import os
from random import Random

import pytest

pytest.importorskip("nova", reason="the judged filter is Nova's")

from nova import objects
from nova.scheduler import request_filter

from nova_accel import model
from nova_accel.geometry import occupancy
from nova_accel.model import flavors, names, providers
from tests.support.scheduler import judge, scheduled
from tests.support.scheduler.judged_hosts import Host, nvidia_card, plain_card
from tests.support.scheduler.judged_placement import new_server
from tests.unit.filters.fit.test_numa_cells import cell

CLOUDS = int(os.environ.get("NOVA_ACCEL_SCHEDULED", "") or 8)
# Failed claims allowed per 1,000 placed servers if one report of ten is
# late.
MOST_FAILING = 5
SIZES = ("L40S-8Q", "L40S-12Q", "L40S-16Q", "L40S-24Q")


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.0, 0.1])
def test_placed_servers_start_and_refused_hosts_could_not_serve(
    monkeypatch: pytest.MonkeyPatch, late: float
) -> None:
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])

    verdict = judge.judge(range(CLOUDS), late)

    print(verdict)
    assert verdict.placed > 4 * CLOUDS
    assert verdict.refused_hosts > CLOUDS / 4
    assert verdict.per_thousand <= MOST_FAILING, verdict
    assert not verdict.false, verdict
    assert not verdict.shared, verdict
    assert not verdict.conflicts, verdict


@pytest.mark.parametrize(
    ("reports", "passing", "calls"),
    [
        # The names of cards on eight refused hosts are read for the log.
        (True, 0, 8),
        # The allocations of 32 cards are read where no trait says what is
        # on them. Nova's retries, or compute nodes, refuse the others.
        (False, 8, 32),
    ],
)
def test_no_impossible_host_passes_in_a_bounded_number_of_calls(
    monkeypatch: pytest.MonkeyPatch,
    reports: bool,
    passing: int,
    calls: int,
) -> None:
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])
    specs = scheduled.vgpus("L40S-16Q", "L40S-16Q")
    groups = tuple(flavors.parse_groups(specs))
    hosts = [_begun(f"host{n}", groups[:1]) for n in range(40)]
    cloud = judge.Cloud(0, judge.Verdict(), hosts=hosts)
    for number, host in enumerate(hosts):
        (node,) = host.tree().nodes
        allocations = {node.uuid: {"resources": groups[0].resources}}
        cloud.placement.claim(f"server{number}", {"allocations": allocations})
        if not reports:  # As a release that reports no places.
            cloud.placement.nodes[node.uuid] = _without_places(node)

    for number in range(2):
        states = cloud.states(groups)
        spec = judge.make_spec(specs)
        spec.instance_uuid = new_server(0)
        cloud.capture(spec, states)
        cloud.placement.read_paths.clear()
        passed = list(cloud.filter.filter_all(states, spec))

        assert len(states) == 40
        assert len(passed) == passing
        # Names are read once.
        has_names = reports and number
        assert len(cloud.placement.read_paths) == (0 if has_names else calls)


@pytest.mark.parametrize("locality", ["any", "different_card"])
def test_calls_for_the_later_servers_of_a_request(
    monkeypatch: pytest.MonkeyPatch, locality: str
) -> None:
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])
    specs = scheduled.vgpus(*["L40S-8Q"] * 3, locality=locality)
    groups = tuple(flavors.parse_groups(specs))
    cards = [
        nvidia_card(
            f"0000:{0x41 + number:02x}:00.0",
            "L40S",
            model.Layout.MIXED,
            Random(0),  # noqa: S311 - no secret
        )
        for number in range(4)
    ]
    hosts = [Host(f"host{n}", cards) for n in range(4)]
    cloud = judge.Cloud(0, judge.Verdict(), hosts=hosts)
    states = cloud.states(groups)
    spec = judge.make_spec(specs)
    cloud.capture(spec, states)
    calls = []
    for number in range(12):
        spec.instance_uuid = new_server(number)
        cloud.placement.read_paths.clear()
        state = next(iter(cloud.filter.filter_all(states, spec)))
        calls.append(len(cloud.placement.read_paths))
        candidate = state.allocation_candidates[0]
        assert cloud.placement.claim(spec.instance_uuid, candidate)
        cloud.consume(state, spec)

    assert not any(calls), calls


def test_a_freed_card_on_the_guests_node_is_preferred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Placement raises no generation when a server is deleted."""
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])
    cards = [
        dataclasses.replace(
            plain_card(
                f"0000:4{number + 1}:00.0", "vf", names.QAT_VF_CLASS, 4, "QAT"
            ),
            traits=frozenset({f"{names.NUMA_PREFIX}{number}"}),
        )
        for number in (0, 1)
    ]
    host = Host("host", cards)
    cloud = judge.Cloud(0, judge.Verdict(), hosts=[host])
    near, far = host.tree().nodes
    cells = objects.NUMATopology(cells=[cell(0), cell(1, memory=0)])

    def order_cards(count: int) -> list[str]:
        specs = {
            f"resources_A:{names.QAT_VF_CLASS}": str(count),
            "accelerator:numa_policy": "preferred",
            "hw:numa_nodes": "1",
        }
        cloud.cells[host.root.uuid] = cells
        groups = tuple(g for g in flavors.parse_groups(specs) if g.suffix)
        states = cloud.states(groups)
        spec = judge.make_spec(specs)
        spec.instance_uuid = new_server(count)
        cloud.capture(spec, states)
        cloud.placement.read_paths.clear()
        (state,) = cloud.filter.filter_all(states, spec)
        return [
            candidate["mappings"]["_A"][0]
            for candidate in state.allocation_candidates
        ]

    first = {near.uuid: {"resources": {names.QAT_VF_CLASS: 3}}}
    assert cloud.placement.claim("first", {"allocations": first})
    assert order_cards(1) == [near.uuid, far.uuid]
    cloud.placement.release("first")

    assert order_cards(2) == [near.uuid, far.uuid]
    assert not cloud.placement.read_paths


@pytest.mark.parametrize("server", ["", "server"])
@pytest.mark.parametrize("reserved", ["L40S-16Q", "L40S-8Q"])
def test_a_card_with_a_partition_without_a_server(
    monkeypatch: pytest.MonkeyPatch, reserved: str, server: str
) -> None:
    """The filter passes exactly the candidates that would start."""
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])
    made = tuple(flavors.parse_groups(scheduled.vgpus(reserved)))
    host = _begun("host", made)
    host.claims.clear()
    (node,) = host.tree().nodes
    cloud = judge.Cloud(0, judge.Verdict(), hosts=[host])
    if server:
        groups = tuple(flavors.parse_groups(scheduled.vgpus("L40S-8Q")))
        allocated = {node.uuid: dict(groups[0].resources)}
        assert not host.start(server, groups, allocated)
        allocations = {node.uuid: {"resources": allocated[node.uuid]}}
        assert cloud.placement.claim(server, {"allocations": allocations})
    cloud.placement.publish(host.tree())
    for types in itertools.chain(
        itertools.combinations_with_replacement(SIZES, 1),
        itertools.combinations_with_replacement(SIZES, 2),
    ):
        specs = scheduled.vgpus(*types)
        groups = tuple(flavors.parse_groups(specs))
        spec = judge.make_spec(specs)
        spec.instance_uuid = new_server(1)
        states = cloud.states(groups)
        cloud.capture(spec, states)
        passed = list(cloud.filter.filter_all(states, spec))
        needed: dict[str, int] = {}
        for group in groups:
            for name, amount in group.resources.items():
                needed[name] = needed.get(name, 0) + amount
        if states:
            reason = host.copy().start("new", groups, {node.uuid: needed})
            assert bool(passed) is not bool(reason), (types, reason)


def _begun(name: str, groups: tuple[flavors.RequestGroup, ...]) -> Host:
    """Return a host whose only card has no places for two more 16Q."""
    chance = Random(0)  # noqa: S311 - no secret
    card = nvidia_card("0000:41:00.0", "L40S", model.Layout.MIXED, chance)
    host = Host(name, [card])
    (node,) = host.tree().nodes
    allocated = {node.uuid: dict(groups[0].resources)}
    assert not host.start(new_server(0), groups, allocated)
    return host


def _without_places(
    node: providers.ProviderNode,
) -> providers.ProviderNode:
    return dataclasses.replace(
        node,
        traits=frozenset(
            t for t in node.traits if not t.startswith(occupancy.PLACE_PREFIX)
        ),
    )
