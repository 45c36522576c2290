# SPDX-License-Identifier: Apache-2.0
"""Hosts under Nova's own driver that are adopted, and handed back."""

import json
from collections.abc import Callable
from typing import Any

import fixtures
from nova import objects

from nova_accel.host.state import adoption_plan
from nova_accel.inventory.adoption import records
from tests.functional.nova.support import audit, harness
from tests.functional.nova.switch import host_commands, stock_driver

AGGREGATE = "11111111-1111-4111-8111-111111111111"
TRAIT = "CUSTOM_OPERATORS"
GPU_GROUP = harness.whole_gpu_group("_GPU")


class AdoptionTestBase(host_commands.HostCommandsTestBase):
    """A host of Nova's own driver, and the commands on it."""

    kind = stock_driver.T4_TYPE
    source = "nova-mdev"
    #: Further arguments of the commands.
    program_options: tuple[str, ...] = ()

    # -- a host of Nova's own driver ---------------------------------------

    def start_stock(self, cards: Any, kind: str) -> None:
        self.kind = kind
        self.use(stock_driver.STOCK, kind)
        self.start_host(*cards)

    def add_operators_data(self, server: Any) -> str:
        """Give Nova's provider of a server a trait and an aggregate."""
        (uuid,) = self.allocations(server)
        self._create_trait(TRAIT)
        self._set_provider_traits(
            uuid, [*self._get_provider_traits(uuid), TRAIT]
        )
        path = f"/resource_providers/{uuid}"
        self.placement.put(
            f"{path}/aggregates",
            {
                "aggregates": [AGGREGATE],
                "resource_provider_generation": self.placement.get(path).body[
                    "generation"
                ],
            },
            version="1.19",
        )
        return str(uuid)

    def aggregates(self, uuid: str) -> list[str]:
        path = f"/resource_providers/{uuid}/aggregates"
        aggregates: list[str] = self.placement.get(path, version="1.19").body[
            "aggregates"
        ]
        return aggregates

    def stop(self, server: Any) -> None:
        self.api.post_server_action(server["id"], {"os-stop": None})
        self._wait_for_state_change(server, "SHUTOFF")

    def start_again(self, server: Any) -> None:
        self.api.post_server_action(server["id"], {"os-start": None})
        self._wait_for_state_change(server, "ACTIVE")

    def disable(self, is_disabled: bool = True) -> None:
        (service,) = self.api.get_services(binary="nova-compute", host="host1")
        status = "disabled" if is_disabled else "enabled"
        self.api.put_service(service["id"], {"status": status})

    def snapshot(self, *servers: Any) -> dict[str, Any]:
        """Return all that an undo has to restore."""
        return {
            "providers": {
                uuid: record | {"aggregates": self.aggregates(uuid)}
                for uuid, record in self.stable_providers().items()
            },
            "servers": [self._describe(server) for server in servers],
            "defined": dict(
                stock_driver.DEFINED.get(str(self.hosts["host1"].root), {})
            ),
        }

    def _describe(self, server: Any) -> dict[str, Any]:
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["flavor"]
        )
        records_ = self._get_allocations_by_server_uuid(server["id"])
        return {
            "allocations": {u: r["resources"] for u, r in records_.items()},
            "slots": self.slots(server),
            "specs": dict(instance.flavor.extra_specs),
            "mdevs": self.mdevs_of(server),
            "definition": self.domain(server).definition_xml,
        }

    def assert_whole_card(self, server: Any, old: Any) -> dict[str, Any]:
        """Check that a server has its GPU as a profile now, and return all.

        :param old: as ``snapshot`` has described it before.
        """
        (function,) = old["functions"]
        provider = self.provider(function)
        self.assertEqual([(provider, "PGPU", function)], self.slots(server))
        self.assertEqual({provider: {"PGPU": 1}}, self.allocations(server))
        now = self._describe(server)
        self.assertEqual(old["definition"], now["definition"])
        self.assertEqual(GPU_GROUP, now["specs"])
        return now

    def assert_no_findings(self) -> None:
        report = audit.run(self, "--connect", host_commands.LIBVIRT, status=0)
        self.assertEqual([], report["findings"])

    # -- the commands ------------------------------------------------------

    def run_command(self, *words: str, status: int = 0) -> str:
        """Return the output of `nova-accel adopt` on host1."""
        uuid = self.compute_rp_uuids["host1"]
        if words[0] == "plan":
            words = (*words, "--from", self.source)
        words = ("adopt", *words, "--host-uuid", uuid)
        return self.run_here(*words, *self.program_options, status=status)

    def read_plan(self) -> records.Plan:
        plan = adoption_plan.PlanFile(self.state_dir()).read()
        assert plan is not None
        return plan

    def state(self) -> str:
        return self.read_plan().state.value

    def blockers(self) -> dict[str, str]:
        """Return the subjects of a plan's blockers by their kinds."""
        report = json.loads(self.run_command("plan", "-f", "json", status=1))
        return {b["kind"]: b["subject"] for b in report["blockers"]}

    def plan(self) -> None:
        self.disable()
        self.run_command("plan")
        self.run_command("apply")

    def adopt(self) -> None:
        """Adopt as the manual says."""
        self.plan()
        self.switch(stock_driver.ACCEL)
        self.run_periodics()
        self.assertEqual("adopted", self.state())
        self.run_periodics()
        self.disable(False)

    def undo(self) -> None:
        """Hand the host back as the manual says."""
        self.run_command("undo")
        self.end_service()
        self.restart()
        self.run_periodics()
        self.assertEqual("undone", self.state())
        self.switch(stock_driver.STOCK, self.kind)
        self.run_periodics()

    def fail_to_start(
        self, restart: Callable[[], Any] | None = None
    ) -> BaseException | None:
        """Return the error at which nova-compute ends when it starts.

        None if it has started.

        :param restart: restarts it; under our driver by default.
        """
        services: list[Any] = []
        kind = type(self.computes["host1"])
        start = kind.start
        before = self.computes["host1"], self.compute_rp_uuids["host1"]

        def note(started: Any) -> None:
            services.append(started)
            start(started)

        name = f"{kind.__module__}.{kind.__qualname__}.start"
        with fixtures.MonkeyPatch(name, note):
            try:
                (restart or (lambda: self.switch(stock_driver.ACCEL)))()
            except BaseException as error:
                if services:
                    services[-1].manager.driver.cleanup_host("host1")
                self.computes["host1"], self.compute_rp_uuids["host1"] = before
                return error
        return None
