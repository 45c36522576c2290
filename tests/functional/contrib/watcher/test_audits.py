# SPDX-License-Identifier: Apache-2.0
"""Audits of Watcher plan the moves that make room, and carry them out.

Watcher's API, decision engine and applier run in this process, with Watcher's
own emulator of Nova and a real Placement.
"""

import contextlib
import datetime
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import fixtures
import pecan
from keystoneauth1 import session, token_endpoint
from openstack import connection
from watcher.tests.functional import base, topology
from watcher.tests.local_fixtures import nova_api_emulator

from tests.functional.sync.fleet import moving_cloud
from tests.functional.sync.support import nova_standin, servers
from tests.support.placement import clouds, fleets, fragmented

NAME = "accelerator_defragmentation"
PROFILE = "L40S-48A"
VM = {number: fleets.consumer(number) for number in range(1, 7)}
# First server of a host, and the profiles of it and the next ones. The quarter
# of the second or third host leaves, then the half of the first one takes its
# place.
CARDS = {
    1: ("L40S-24Q",),
    2: ("L40S-24Q", "L40S-12Q"),
    5: ("L40S-24Q", "L40S-12Q"),
}
HOSTS = tuple(f"node{number}" for number in range(1, len(CARDS) + 1))


class _ServerGroups(pecan.rest.RestController):
    """Server groups, which the emulator has not."""

    def __init__(self, emulator: object) -> None:
        del emulator

    @pecan.expose("json")
    def get_all(self) -> dict[str, list[object]]:
        return {"server_groups": []}


_find = nova_api_emulator._V21Controller._lookup


@pecan.expose()
def _lookup(controller: Any, segment: str, *rest: str) -> Any:
    if segment == "os-server-groups":
        return _ServerGroups(controller._emulator), rest
    return _find(controller, segment, *rest)


class TestAudits(base.WatcherFunctionalTestCase):
    """Audits of three hosts, each with one card."""

    COMPUTE_TOPOLOGY = topology.ComputeTopology()

    def setUp(self) -> None:
        super().setUp()
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        place = stack.enter_context(tempfile.TemporaryDirectory())
        self._placement = stack.enter_context(
            servers.start_sqlite(pathlib.Path(place))
        )
        nova = nova_standin.Nova()
        moving_cloud.MovingCloud(
            self._placement,
            nova,
            {
                f"{host}/0000:41:00.0": fragmented.fill(
                    "L40S", "mixed", first, *profiles
                )
                for host, (first, profiles) in zip(
                    HOSTS, CARDS.items(), strict=True
                )
            },
        )
        self._emulate(nova)

    def _emulate(self, nova: nova_standin.Nova) -> None:
        """Give Watcher's emulator the hosts and servers."""
        node = moving_cloud.NODE
        self.load_topology(
            topology.ComputeTopology(
                compute_nodes=[
                    topology.ComputeNode(
                        hostname=host,
                        uuid=clouds.root(host),
                        vcpus=node["VCPU"],
                        memory=node["MEMORY_MB"],
                        disk=node["DISK_GB"],
                    )
                    for host in HOSTS
                ],
                instances=[
                    topology.Instance(
                        uuid=uuid,
                        name=server["name"],
                        host=server["OS-EXT-SRV-ATTR:host"],
                        hypervisor_hostname=server["OS-EXT-SRV-ATTR:host"],
                        vcpus=server["flavor"]["vcpus"],
                        memory=server["flavor"]["ram"],
                        disk=server["flavor"]["disk"],
                    )
                    for uuid, server in nova.servers.items()
                ],
            )
        )
        self._nova = self.env.nova_fixture.nova_emulator
        for uuid, server in nova.servers.items():
            self._nova.servers[uuid]["flavor"] |= server["flavor"]
        for number in (2, 5):  # their halves stay
            state = {"OS-EXT-STS:task_state": "rebuilding"}
            self._nova.servers[VM[number]] |= state
        now = datetime.datetime.now(datetime.UTC).isoformat()
        for service in self._nova.services.values():
            service["updated_at"] = now
        keystone = session.Session(
            auth=token_endpoint.Token(self._placement.url, "admin")
        )
        connected = connection.Connection(
            session=keystone,
            compute_endpoint_override=f"{self.env.nova_fixture.nova_url}/v2.1",
            placement_endpoint_override=self._placement.url,
        )
        for name, value in (
            (
                "watcher.common.clients.get_sdk_connection",
                lambda *_, **__: connected,
            ),
            (
                "watcher.tests.local_fixtures.nova_api_emulator"
                "._V21Controller._lookup",
                _lookup,
            ),
        ):
            self.useFixture(fixtures.MonkeyPatch(name, value))

    def audit(
        self, *, excluded: Sequence[str] = (), **parameters: Any
    ) -> tuple[str, Sequence[Any]]:
        """Return the uuid of the action plan of an audit, and its actions.

        :param excluded: hosts outside of its scope.
        """
        nodes = [{"name": host} for host in excluded]
        scope = [{"compute": [{"exclude": [{"compute_nodes": nodes}]}]}]
        template = self.admin_api.post(
            "/audit_templates",
            {
                "name": "room",
                "goal": NAME,
                "strategy": NAME,
                "scope": scope if excluded else [],
            },
        ).json()
        answer = self.admin_api.post(
            "/audits",
            {
                "audit_type": "ONESHOT",
                "audit_template_uuid": template["uuid"],
                "parameters": parameters,
            },
        )
        assert answer.status_code == 201, answer.text
        audit = answer.json()["uuid"]
        self._wait_for_audit_state(audit, "SUCCEEDED")
        path = f"/action_plans?audit_uuid={audit}"
        (plan,) = self.admin_api.get(path).json()["action_plans"]
        path = f"/actions/detail?action_plan_uuid={plan['uuid']}"
        return plan["uuid"], self.admin_api.get(path).json()["actions"]

    def read_efficacy(self, plan: str) -> dict[str, float]:
        """Return the indicators of an action plan."""
        body = self.admin_api.get(f"/action_plans/{plan}").json()
        return {
            row["name"]: row["value"] for row in body["efficacy_indicators"]
        }

    def list_hosts(self) -> dict[str, str]:
        """Return the hosts of the servers by uuid."""
        return {
            uuid: server["OS-EXT-SRV-ATTR:host"]
            for uuid, server in self._nova.servers.items()
        }

    def test_moves_are_planned_and_carried_out(self) -> None:
        plan, actions = self.audit(profile=PROFILE)
        first, second = sorted(actions, key=lambda action: action["parents"])
        assert second["input_parameters"]["resource_id"] == VM[1]
        assert second["parents"] == [first["uuid"]]
        assert self.read_efficacy(plan) == {
            "profile_room_before": 0,
            "profile_room_after": 1,
            "instance_migrations_count": 2,
        }
        before = self.list_hosts()
        self.admin_api.patch(
            f"/action_plans/{plan}",
            [{"op": "replace", "path": "/state", "value": "PENDING"}],
        )
        self._wait_for_action_plan_state(plan, "SUCCEEDED")
        expected = {
            action["input_parameters"]["resource_id"]: action[
                "input_parameters"
            ]["destination_node"]
            for action in actions
        }
        assert self.list_hosts() == before | expected

    def test_hosts_outside_of_the_scope_have_no_part(self) -> None:
        _, actions = self.audit(profile=PROFILE, excluded=["node2", "node3"])
        assert actions == []

    def test_an_audit_without_a_plan_has_no_actions(self) -> None:
        plan, actions = self.audit(profile=PROFILE, count=3)
        assert actions == []
        assert self.read_efficacy(plan)["instance_migrations_count"] == 0

    def test_the_largest_profile_is_raised_by_default(self) -> None:
        _, actions = self.audit()
        assert len(actions) == 2
