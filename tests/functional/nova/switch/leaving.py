# SPDX-License-Identifier: Apache-2.0
"""Hosts that this library is removed from, and its records there."""

import json
import os
from typing import Any

from nova_accel.host.state import adoption_plan
from nova_accel.inventory.adoption import records
from nova_accel.model import providers
from tests.functional.nova.support import harness
from tests.functional.nova.switch import host_commands, stock_driver

SMALL = harness.vgpu_group("_A", "4Q")
WHOLE = harness.whole_gpu_group("_A")
CARDS = (*stock_driver.ON_FUNCTION, *harness.GPU_CARDS)


class LeavingTestBase(host_commands.HostCommandsTestBase):
    """`nova-accel remove` on host1, and its result."""

    def plan(self) -> dict[str, Any]:
        """Return the document of `nova-accel remove plan` on host1."""
        plan: dict[str, Any] = json.loads(self.remove("plan", "-f", "json"))
        return plan

    def apply(self, *words: str, status: int = 0) -> str:
        """Return the output of `nova-accel remove apply` on host1."""
        return self.remove("apply", *words, status=status)

    def remove(self, verb: str, *words: str, status: int = 0) -> str:
        return self.run_here("remove", verb, *words, status=status)

    def assert_closed(self) -> None:
        for record in self.providers().values():
            for name, inventory in record["inventories"].items():
                self.assertEqual(
                    inventory["total"], inventory["reserved"], name
                )

    def assert_removed(self) -> None:
        """Check that host1 has nothing of this library any more."""
        self.assertEqual({}, self.providers())
        self.assertEqual({}, self.hosts["host1"].mdevs())
        self.assertEqual([], os.listdir(self.state_dir()))

    def assert_stock_is_clean(self) -> None:
        """Run Nova's own driver, and look for errors of its passes."""
        errors = self.list_errors()
        self.switch(stock_driver.STOCK)
        self.run_periodics()
        self.run_periodics()
        self.assertEqual(errors, self.list_errors())

    def list_errors(self) -> list[str]:
        return [
            line
            for line in self.messages().splitlines()
            if " ERROR " in line or "Traceback" in line
        ]

    def assert_cleaned_by_hand(self, *functions: str) -> None:
        """Check that functions of deleted servers are named until clean."""
        self.assertEqual({*functions}, {*self.plan()["unclean"]})
        self.apply()
        self.assertEqual({}, self.providers())
        words = [w for name in functions for w in ("--cleaned", name)]
        self.apply(*words)
        self.assert_removed()

    def write_adoption(
        self, server: Any, state: records.AdoptionState
    ) -> None:
        """Write the plan of an adoption with this server."""
        adopted = records.AdoptedServer(
            uuid=server["id"],
            name=server["name"],
            partitions=(),
            specs_before=stock_driver.NATIVE_FLAVOR,
            specs_after=SMALL,
        )
        root = providers.ProviderRoot(
            name="host1", uuid=self.compute_rp_uuids["host1"]
        )
        adoption_plan.PlanFile(self.state_dir()).write(
            records.Plan(
                source=records.Source.NOVA_MDEV,
                root=root,
                state=state,
                servers=(adopted,),
            )
        )
