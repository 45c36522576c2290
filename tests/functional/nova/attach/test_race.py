# SPDX-License-Identifier: Apache-2.0
"""Concurrent attachments get at most the free slots."""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from nova import policy

from placement_sync.fleet import host_bus
from tests.functional.nova.attach import attaching
from tests.functional.nova.support import harness, technologies
from virt_hooks.attach import attach_allocations

PROFILE = "T4-4Q"


class Race(attaching.AttachingTestBase):
    technology = technologies.MDEV

    def all_at_once(self, *servers: Any) -> list[str]:
        """Attach to all at the same time; return why some are refused."""
        refusals: list[str] = []

        def attach(server: Any) -> None:
            try:
                self.attach(server, PROFILE)
            except host_bus.RpcRefusedError as error:
                refusals.append(str(error))

        threads = [
            threading.Thread(target=attach, args=(server,))
            for server in servers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return refusals

    @pytest.mark.long
    def test_three_servers_for_one_slot(self) -> None:
        self.start_host(harness.TWO_T4[0])
        four = harness.vgpu_group("_A", "4Q")
        servers = [self.boot(four) for _ in range(3)]
        refusals = self.all_at_once(*servers)
        self.assertEqual(2, len(refusals), refusals)
        self.assertEqual(
            {"VGPU": 4, "CUSTOM_GPU_MEMORY_MB": 16384}, self.usages(harness.T4)
        )
        self.assert_agreement("three at once", is_passed=True)
        states = {self.instance(server).task_state for server in servers}
        self.assertEqual({None}, states)
        for server in servers:
            self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_the_same_server_twice(self) -> None:
        """One after the other, by the lock that Nova itself uses."""
        self.start_hosts("host1")
        server = self.boot({})
        self.assertEqual([], self.all_at_once(server, server))
        names = [name for name, _, _ in self.list_accelerators(server)]
        self.assertEqual(["attached-1", "attached-2"], names)
        self.assert_agreement("twice", is_passed=True)

    @pytest.mark.long
    def test_first_requests_at_once(self) -> None:
        """The policy rules are registered once."""
        self.start_hosts("host1")
        server = self.boot({})
        policy.reset()
        policy.init()
        enforcer = policy._ENFORCER
        stock = enforcer.register_default

        def register(rule: Any) -> None:
            time.sleep(0.1)
            stock(rule)

        with mock.patch.object(enforcer, "register_default", register):
            self.assertEqual([], self.all_at_once(server, server))

    # -- concurrent changes by Nova ----------------------------------------

    def after_first(self, name: str, then: Callable[[], Any]) -> Any:
        """Call a function after the first run of an allocation step."""
        stock = getattr(attach_allocations.AttachAllocations, name)
        todo = [then]

        def step(*arguments: Any, **words: Any) -> Any:
            result = stock(*arguments, **words)
            if todo:
                todo.pop()()
            return result

        return mock.patch.object(
            attach_allocations.AttachAllocations, name, step
        )

    @pytest.mark.long
    def test_a_slot_is_freed_before_its_allocation(self) -> None:
        """The tracker frees the slot before Placement is written."""
        self.start_hosts("host1")
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        before = self.assigned("host1")
        self.attach(server, PROFILE)
        seen: list[set[tuple[str, str]]] = []

        def record_slots() -> None:
            seen.append(self.assigned("host1"))

        with self.after_first("allocate", record_slots):
            self.detach(server)
        self.assertEqual([before], seen)
        self.assert_agreement("detach", is_passed=True)

    def test_concurrent_metadata_is_not_lost(self) -> None:
        """Metadata that Nova's API writes meanwhile is not lost."""
        self.start_hosts("host1")
        server = self.boot({})

        def write_metadata(word: str) -> None:
            instance = self.instance(server)
            instance.system_metadata[word] = "written"
            instance.save()

        for name in ("find_candidates", "allocate"):
            with self.after_first(
                name, functools.partial(write_metadata, f"in_{name}")
            ):
                self.attach(server, PROFILE)
        with self.after_first("allocate", lambda: write_metadata("in_detach")):
            self.detach(server, "attached-1")
        metadata = self.instance(server).system_metadata
        for word in ("in_find_candidates", "in_allocate", "in_detach"):
            self.assertIn(word, metadata)
        self.assertEqual(1, len(self.attachments(server)))

    @pytest.mark.long
    def test_a_server_that_was_stopped_meanwhile(self) -> None:
        """Nova has finished its work meanwhile."""
        self.start_hosts("host1")
        server = self.boot({})
        before = self.collect_state(server)

        def stop() -> None:
            instance = self.instance(server)
            instance.vm_state = "stopped"
            instance.save()

        with self.after_first("find_candidates", stop):
            reason = self.refused(server, "attach", profile=PROFILE)
        self.assertIn("Nova is at work with it", reason)
        self.assertEqual(before, self.collect_state(server))
