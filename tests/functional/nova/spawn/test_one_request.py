# SPDX-License-Identifier: Apache-2.0
"""A spawn parses its instance once, and makes its partitions once."""

import collections
from typing import Any

import pytest

from nova_accel.model import flavors
from tests.functional.nova.support import harness, operations, striking
from virt_hooks.instance import instance_request
from virt_hooks.operations import nova_database
from virt_hooks.spawn import lifecycle

ONCE = (
    f"{flavors.__name__}.parse_groups",
    f"{flavors.__name__}.parse_options",
    f"{instance_request.__name__}.parse",
    f"{lifecycle.__name__}.Lifecycle.ensure",
    f"{nova_database.__name__}.is_rebuilt",
)


class OneRequest(operations.OperationsTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host(harness.TWO_T4[0])

    def count(self, name: str) -> collections.Counter[str]:
        """Count the calls of functions in each later call of a hook."""
        calls: collections.Counter[str] = collections.Counter()
        hook_name, method = name.split(".")
        hook = getattr(self.computes["host1"].driver._hooks, hook_name)
        run = getattr(hook, method)
        functions = striking.all_functions()

        def run_traced(*args: Any, **kwargs: Any) -> Any:
            traced = {name: functions[name] for name in ONCE}
            with striking.traced(traced) as called:
                result = run(*args, **kwargs)
            calls.update(called)
            return result

        setattr(hook, method, run_traced)
        return calls

    def test_spawn(self) -> None:
        calls = self.count("spawn.spawn")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        self.assertEqual(dict.fromkeys(ONCE, 1), dict(calls))
        self.assertEqual(1, len(self.mdevs_of(server)))

    @pytest.mark.long
    def test_a_claim_that_is_missing_meanwhile_is_made(self) -> None:
        """It is, for example, released by a delete."""
        driver = self.computes["host1"].driver
        publish = driver._hooks.partitions.publish

        def publish_and_lose(context: Any) -> None:
            publish(context)
            for claim in driver._accel.claims():
                driver._accel.release(
                    claim.consumer,
                    driver._accel.slots_of(claim.consumer),
                    lambda _: False,
                )

        driver._hooks.partitions.publish = publish_and_lose
        calls = self.count("spawn.spawn")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        self.assertEqual(2, calls[f"{lifecycle.__name__}.Lifecycle.ensure"])
        self.assertEqual(1, calls[f"{instance_request.__name__}.parse"])
        self.assertEqual(
            set(self.mdevs_of(server)), set(self.hosts["host1"].mdevs())
        )

    @pytest.mark.long
    def test_a_hard_reboot_makes_the_partitions_again(self) -> None:
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        calls = self.count("reboot.hard_reboot")
        self.reboot_hard(server)
        self.assertEqual(1, calls[f"{lifecycle.__name__}.Lifecycle.ensure"])
