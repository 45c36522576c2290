# SPDX-License-Identifier: Apache-2.0
"""Rows of devices and servers agree with the provider tree and the claims."""

import dataclasses

from hypothesis import given

from nova_accel import model
from nova_accel.model import names, usage
from placement_sync.daemon import usage_rows
from tests.support import strategies
from tests.support.hosts.states import CLAIMS, HOST, TREE, claim, tree

CARD = "0000:01:00.0"
COMPUTE = usage.EngineUsage(engine="compute", ratio=0.5)
PROJECTS = {"server": "project"}


def list_servers(
    claims: tuple[model.Claim, ...], *partitions: usage.PartitionUsage
) -> tuple[usage_rows.ServerUsage, ...]:
    return usage_rows.list_servers(
        HOST, claims, PROJECTS, usage.UsageSample(partitions=partitions)
    )


def test_rows_of_devices_have_state_and_room() -> None:
    rooms = usage_rows.list_rooms(HOST, TREE, CLAIMS)
    assert [row.state for row in rooms] == [
        "ok", "faulted", "drained", "drained",
    ]  # fmt: skip
    # One P-2 of the two that fit is claimed.
    assert [row.free for row in rooms] == [{"P-2": 1}, {}, {}, {}]
    assert rooms[0].fragmentation == 0
    assert rooms[1].fragmentation is None


@given(strategies.hosts())
def test_free_profiles_are_those_with_a_trait(host: model.HostState) -> None:
    desired = tree(host)
    nodes = {node.uuid: node for node in desired.nodes}
    for row in usage_rows.list_rooms(host, desired, ()):
        device = host.device(row.address)
        node = nodes[names.provider_uuid(strategies.ROOT_UUID, row.address)]
        assert device is not None
        for name, count in row.free.items():
            profile = device.profile(name)
            assert profile is not None
            assert count > 0
            assert profile.trait in node.traits
            for charged, amount in profile.charges.items():
                record = node.inventories[charged]
                assert count * amount <= record.total - record.reserved
        assert row.fragmentation is None or 0 <= row.fragmentation <= 1


def test_each_claim_has_a_row_without_figures() -> None:
    first, second = list_servers(CLAIMS)
    assert first == usage_rows.ServerUsage(
        server="server",
        project="project",
        device=CARD,
        profile="P-2",
        partition=CLAIMS[0].handle,
        resource_class="VGPU",
        memory_total=200 << 20,
    )
    # Its device is gone.
    assert (second.device, second.memory_total) == ("0000:06:00.0", None)


def test_figures_are_matched_by_handle() -> None:
    figures = usage.PartitionUsage(
        device=CARD, handle=CLAIMS[0].handle, engines=(COMPUTE,), memory_used=7
    )
    other = dataclasses.replace(figures, handle="another", memory_used=8)
    first, second = list_servers(CLAIMS, other, figures)
    assert (first.engines, first.memory_used) == ((COMPUTE,), 7)
    assert (second.engines, second.memory_used) == ((), None)


VFIO = usage.PartitionUsage(
    device=CARD, profile="P-2", server="server", engines=(COMPUTE,)
)


def test_figures_without_handle_are_matched_by_server() -> None:
    (row,) = list_servers((claim(CARD),), VFIO)
    assert row.engines == (COMPUTE,)
    foreign = dataclasses.replace(VFIO, server="another")
    (row,) = list_servers((claim(CARD),), foreign)
    assert row.engines == ()


def test_equal_partitions_of_a_server_get_no_figures() -> None:
    again = dataclasses.replace(claim(CARD), slot="slot-1", handle="other")
    rows = list_servers((claim(CARD), again), VFIO, VFIO)
    assert [row.engines for row in rows] == [(), ()]
