# SPDX-License-Identifier: Apache-2.0
"""Several at once that want what one can have."""

import threading
from typing import Any

from placement_sync import nova_bus
from tests.functional.nova import attaching, base, technologies

PROFILE = "T4-4Q"


class Race(attaching.AttachingTestBase):
    technology = technologies.MDEV

    def all_at_once(self, *servers: Any) -> list[str]:
        """Attach to all at the same time; return why some are refused."""
        refusals: list[str] = []

        def attach(server: Any) -> None:
            try:
                self.attach(server, PROFILE)
            except nova_bus.RefusedError as error:
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

    def test_one_place_for_three(self) -> None:
        self.start_host(base.TWO_T4[0])
        four = base.vgpu_group("_A", "4Q")
        servers = [self.boot(four) for _ in range(3)]
        refusals = self.all_at_once(*servers)
        self.assertEqual(2, len(refusals), refusals)
        self.assertEqual(
            {"VGPU": 4, "CUSTOM_GPU_MEMORY_MB": 16384}, self.usages(base.T4)
        )
        self.assert_agreement("three at once", is_passed=True)
        states = {self.instance(server).task_state for server in servers}
        self.assertEqual({None}, states)
        for server in servers:
            self._delete_server(server)
        self.assert_nothing_left()

    def test_the_same_server_twice(self) -> None:
        """One after the other, by the lock that Nova itself uses."""
        self.start_hosts("host1")
        server = self.boot({})
        self.assertEqual([], self.all_at_once(server, server))
        names = [name for name, _, _ in self.shown(server)]
        self.assertEqual(["attached-1", "attached-2"], names)
        self.assert_agreement("twice", is_passed=True)
