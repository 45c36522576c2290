# SPDX-License-Identifier: Apache-2.0
"""A pass asks Nova and libvirt for no server while nothing changes."""

import collections
from typing import Any

import fixtures
from nova import objects
from nova.compute import task_states

from tests.functional.nova.support import harness
from virt_hooks.operations import host_passes

SMALL = harness.vgpu_group("_A", "4Q")


class QuietPass(harness.AccelTestBase):
    def setUp(self) -> None:
        super().setUp()
        #: Number of queries of Nova's database by passes.
        self.queries: collections.Counter[str] = collections.Counter()
        for kind, name in (
            (objects.InstanceList, "get_by_host"),
            (objects.MigrationList, "get_in_progress_and_error"),
        ):
            self.count_calls(kind, name)

    def count_calls(self, kind: Any, name: str) -> None:
        stock = getattr(kind, name)

        def query(_kind: Any, *args: Any, **kwargs: Any) -> Any:
            self.queries[name] += 1
            return stock(*args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(f"{_path(kind)}.{name}", query))

    def refresh(self) -> tuple[int, int]:
        """Run a pass; return its queries of Nova and requests for XML."""
        driver = self.computes["host1"].driver
        requests = driver._host.get_connection().xml_requests
        requests.clear()
        self.queries.clear()
        driver._hooks.passes.refresh()
        return self.queries.total(), requests.total()

    def forget(self, server: Any) -> None:
        """Remove a server's guest, record and allocation by hand."""
        self.domain(server).destroy()
        objects.Instance.get_by_uuid(self.context, server["id"]).destroy()
        self.placement.delete(f"/allocations/{server['id']}")

    def test_nothing_is_asked_while_nothing_changes(self) -> None:
        self.start_host(*harness.TWO_T4)
        servers = [self.boot(SMALL) for _ in range(3)]
        self.assertEqual((2, 3), self.refresh())
        for _ in range(2):
            self.assertEqual((0, 0), self.refresh())
        self._delete_server(servers.pop())
        self.assertEqual((2, 0), self.refresh())
        self.assertEqual((0, 0), self.refresh())

    def test_unchanged_claims_are_compared_every_five_minutes(self) -> None:
        """Nova's record of a server may end without a call of the driver."""
        self.start_host(*harness.TWO_T4)
        server = self.boot(SMALL)
        self.refresh()
        self.forget(server)
        driver = self.computes["host1"].driver
        self.assertEqual((0, 1), self.refresh())
        self.assertEqual(1, len(driver._accel.claims()))
        driver._hooks.passes._compare_at -= host_passes.COMPARE_S
        self.refresh()
        self.assertIn("releasing accelerators of", self.messages())
        self.assertEqual((), driver._accel.claims())

    def test_a_claim_without_its_allocation_is_compared(self) -> None:
        """Its record is gone, too: the server left nothing to wait for."""
        self.start_host(*harness.TWO_T4)
        server = self.boot(SMALL)
        self.refresh()
        self.forget(server)
        driver = self.computes["host1"].driver
        checks = driver._hooks.missing_allocations
        checks._next_check = 0
        checks.update()
        self.refresh()
        self.assertEqual((), driver._accel.claims())

    def test_a_task_in_progress_is_watched(self) -> None:
        self.start_host(*harness.TWO_T4)
        server = self.boot(SMALL)
        self.refresh()
        instance = objects.Instance.get_by_uuid(self.context, server["id"])
        for task in (task_states.SHELVING, None):
            instance.task_state = task
            instance.save()
            accel = self.computes["host1"].driver._accel
            accel.store.renew(server["id"])
            self.assertEqual(2, self.refresh()[0])
            self.assertEqual(2 if task else 0, self.refresh()[0])


def _path(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__name__}"
