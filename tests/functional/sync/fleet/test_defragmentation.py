# SPDX-License-Identifier: Apache-2.0
"""Plans of moves against a real Placement, and their execution."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from nova_accel import model
from nova_accel.model import names
from tests.functional.sync.commands import programs
from tests.functional.sync.fleet import moving_cloud
from tests.functional.sync.support import nova_standin, servers
from tests.support.placement import fleets, fragmented

HALVES = ("plan", "defragment", "--profile", "L40S-48A")
VM = {number: fleets.consumer(number) for number in range(1, 9)}


def fill(first: int, *profiles: str) -> model.Device:
    return fragmented.fill("L40S", "mixed", first, *profiles)


class Site:
    """A cloud, and commands with its endpoints."""

    def __init__(
        self,
        placement: servers.Server,
        nova: nova_standin.Nova,
        place: pathlib.Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.placement, self.nova, self.place = placement, nova, place
        self.capsys = capsys
        # Two moves, of which the first one makes room for the second: the
        # halves of node2 and node3 stay, as they are being rebuilt.
        self.cloud = moving_cloud.MovingCloud(
            placement,
            nova,
            {
                "node1/0000:41:00.0": fill(1, "L40S-24Q"),
                "node2/0000:41:00.0": fill(2, "L40S-24Q", "L40S-12Q"),
                "node3/0000:41:00.0": fill(5, "L40S-24Q", "L40S-12Q"),
            },
        )
        for number in (2, 5):
            nova.servers[VM[number]]["OS-EXT-STS:task_state"] = "rebuilding"

    def execute(self, *words: str) -> tuple[int, str, str]:
        status = programs.main(
            [
                *words,
                *("--endpoint", self.placement.url),
                *("--compute-endpoint", self.nova.url),
            ]
        )
        return status, *self.capsys.readouterr()

    @property
    def plan(self) -> str:
        return str(self.place / "plan.json")

    def make_plan(self) -> dict[str, Any]:
        status, _, err = self.execute(*HALVES, "--output", self.plan)
        assert status == 0, err
        plan: dict[str, Any] = json.loads(pathlib.Path(self.plan).read_text())
        return plan

    def list_hosts(self) -> dict[str, str]:
        """Return the hosts of the servers by name."""
        return {
            record["name"]: record["OS-EXT-SRV-ATTR:host"]
            for record in self.nova.servers.values()
        }


@pytest.fixture
def site(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Site]:
    with nova_standin.serve() as nova:
        yield Site(placement, nova, tmp_path, capsys)


def test_a_plan_is_complete(site: Site) -> None:
    plan = site.make_plan()
    assert plan["format"] == 1 and plan["is_shortest"]
    quarter, half = plan["moves"]
    assert (half["name"], half["source"]["service"]) == ("vm-1", "node1")
    assert half["target"] == {
        **quarter["source"],
        "generation": half["target"]["generation"],
    }
    assert half["resources"] == {
        "VGPU": 1,
        names.GPU_MEMORY_CLASS: 24 * 1024,
    }
    assert plan["gain"] == {
        "profile": "L40S-48A",
        "before": 0,
        "after": 1,
        "largest_before": "L40S-24A",
        "largest_after": "L40S-48A",
        "cards": ["node1/0000:41:00.0"],
    }
    _, out, _ = site.execute(*HALVES, "-f", "json")
    assert {**json.loads(out), "created": ""} == {**plan, "created": ""}


def test_a_plan_is_carried_out(site: Site) -> None:
    site.make_plan()
    status, out, err = site.execute("plan", "apply", site.plan)
    assert status == 0, out + err
    assert "L40S-48A fits 1 time" in out
    moved = [server for server, _ in site.cloud.requests]
    assert moved[1] == VM[1] and moved[0] in {VM[3], VM[6]}
    assert site.list_hosts()["vm-1"] in {"node2", "node3"}
    assert site.cloud.list_cards(VM[1]) == {site.list_hosts()["vm-1"]}
    _, out, _ = site.execute(*HALVES)
    assert out == "L40S-48A fits 1 time: no move is needed\n"
    # Moves that are done are not requested again.
    status, out, _ = site.execute("plan", "apply", site.plan)
    assert status == 0 and "is on node" in out
    assert len(site.cloud.requests) == 2


def test_a_difference_before_the_first_move_stops_all(site: Site) -> None:
    """Another server has got the place meanwhile."""
    plan = site.make_plan()
    target = plan["moves"][0]["target"]
    traits = site.cloud.read_traits(target["uuid"])
    site.cloud.set_traits(target["uuid"], traits | {names.DRAINED_TRAIT})
    status, out, _ = site.execute("plan", "apply", site.plan)
    assert status == 1
    assert "has no place on" in out and "no more servers were moved" in out
    assert site.cloud.requests == []


def test_a_difference_between_two_moves_stops_the_next(site: Site) -> None:
    """The second target is drained while the first server moves."""
    plan = site.make_plan()
    target = plan["moves"][1]["target"]["uuid"]
    before = site.nova.before

    def drain(path: str) -> None:
        before(path)
        if len(site.cloud.requests) == 1:
            traits = site.cloud.read_traits(target)
            site.cloud.set_traits(target, traits | {names.DRAINED_TRAIT})

    site.nova.before = drain
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "placement_sync.planning.defragmentation.move_run.PUBLISH_SECONDS",
            1.0,
        )
        status, out, _ = site.execute("plan", "apply", site.plan)
    assert status == 1
    assert "no more servers were moved" in out and "drained" in out
    assert len(site.cloud.requests) == 1
    assert site.list_hosts()["vm-1"] == "node1"


@pytest.mark.long
def test_a_stopped_server_moves_by_a_cold_migration(site: Site) -> None:
    for record in site.nova.servers.values():
        record["status"] = "SHUTOFF"
    status, out, _ = site.execute(*HALVES)
    assert status == 1 and "moves only with --cold" in out
    status, _, _ = site.execute(*HALVES, "--cold", "-o", site.plan)
    assert status == 0
    status, out, err = site.execute("plan", "apply", site.plan)
    assert status == 0, out + err
    kinds = [next(iter(body)) for _, body in site.cloud.requests]
    assert kinds == ["migrate", "confirmResize"] * 2


def test_hosts_that_nova_excludes_are_no_target(site: Site) -> None:
    """Only node2 remains for vm-1: node3 is of another project."""
    site.nova.aggregates = [
        {
            "name": "films",
            "availability_zone": None,
            "hosts": ["node3"],
            "metadata": {"filter_tenant_id": "films"},
        }
    ]
    status, out, _ = site.execute(*HALVES)
    # The quarter of node2 would have to move to node3.
    assert status == 1 and "no plan of at most" in out
