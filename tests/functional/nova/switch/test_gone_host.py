# SPDX-License-Identifier: Apache-2.0
"""A host that is gone, and a controller that removes what it left."""

import contextlib
import io
import json
import pathlib
from typing import Any

import fixtures
import pytest

from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import audit, harness
from tests.functional.sync.commands import programs

# A consumer that Nova does not have.
LEAKED = "dddddddd-0000-4000-8000-00000000000d"


class GoneHost(harness.AccelTestBase):
    """Nova refuses to delete providers with allocations."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(scheduled.without_keystone())
        audit.hide_uptime(self)
        place = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        # A machine with a kernel, and without cards and nova-compute.
        (place / "sys/bus/pci/devices").mkdir(parents=True)
        self.controller = place

    def audit(self, *words: str, status: int) -> dict[str, Any]:
        """Return the report of `nova-accel audit` on a controller."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            exit_status = programs.main(
                [
                    *("audit", "-f", "json", "--pause=0", "--host=host1"),
                    *words,
                    *("--endpoint", self.placement.fixture.endpoint),
                    *("--compute-endpoint", self.api_fixture.base_url),
                    *("--root", str(self.controller)),
                ]
            )
        self.assertEqual(status, exit_status, out.getvalue() + err.getvalue())
        report: dict[str, Any] = json.loads(out.getvalue())
        return report

    def remove_service(self) -> None:
        """End nova-compute of host1, and delete its service from Nova."""
        self.computes["host1"].stop()
        (service,) = self.admin_api.get_services(
            host="host1", binary="nova-compute"
        )
        self.admin_api.put_service_force_down(service["id"], True)
        self.admin_api.api_delete(f"/os-services/{service['id']}")

    def list_names(self) -> list[str]:
        return sorted(record["name"] for record in self._get_all_providers())

    def allocate(self, amounts: dict[str, Any]) -> None:
        answer = self.placement.put(
            f"/allocations/{LEAKED}",
            {
                "allocations": amounts,
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
                "project_id": "p",
                "user_id": "u",
            },
            version="1.38",
        )
        self.assertEqual(204, answer.status, answer.body)

    @pytest.mark.each_release
    def test_nova_deletes_providers_that_nobody_uses(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self.start_host(name="host2")
        self.remove_service()
        self.assertEqual(["host2"], self.list_names())

    @pytest.mark.long
    def test_what_is_left_is_removed_from_a_controller(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self.start_host(name="host2")
        card = self.provider(harness.T4)
        root = self.compute_rp_uuids["host1"]
        self.allocate({card: {"resources": {"VGPU": 1}}})
        self.remove_service()
        self.assertEqual(3, len(self.list_names()))
        # In use: a person decides.
        report = self.audit("--heal", status=1)
        (finding,) = [
            f for f in report["findings"] if f["kind"] == "gone-host"
        ]
        self.assertEqual(card, finding["provider"])
        self.assertFalse(finding["heals"])
        self.assertIn(f"show --allocations {card}", finding["mend"])
        self.assertEqual(3, len(self.list_names()))
        # The allocation is removed, as the finding says.
        self.placement.delete(f"/allocations/{LEAKED}")
        report = self.audit("--heal", status=0)
        self.assertEqual([card], [f["provider"] for f in report["mended"]])
        # Nova's own provider can be deleted now, as the page says.
        self.assertEqual(["host1", "host2"], self.list_names())
        answer = self.placement.delete(f"/resource_providers/{root}")
        self.assertEqual(204, answer.status)

    def test_a_host_that_nova_has_is_not_gone(self) -> None:
        """Its nova-compute is down: it may come back with its servers."""
        self.start_host(harness.TWO_T4[0])
        self.start_host(name="host2")
        self.computes["host1"].stop()
        (service,) = self.admin_api.get_services(
            host="host1", binary="nova-compute"
        )
        self.admin_api.put_service_force_down(service["id"], True)
        before = self.list_names()
        self.audit("--heal", status=0)
        self.assertEqual(before, self.list_names())
