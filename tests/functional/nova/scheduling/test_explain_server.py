# SPDX-License-Identifier: Apache-2.0
"""``openstack accel explain SERVER`` with Nova's own API and scheduler."""

import contextlib
import io
import uuid

import pytest

from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness
from tests.functional.sync.commands import programs


class ExplainServer(scheduled.CommandTestBase):
    def explain(self, *words: str, status: int) -> tuple[str, dict[str, str]]:
        """Return the command's table, and the reason of each card by host."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = programs.main(
                [
                    *("explain", *words),
                    *("--endpoint", self.placement.fixture.endpoint),
                    *("--compute-endpoint", self.api_fixture.base_url),
                ]
            )
        self.assertEqual(status, code)
        table = out.getvalue()
        rows = [line.split(" | ") for line in table.splitlines()]
        return table, {
            row[0].strip("| "): row[3] for row in rows if len(row) > 3
        }

    def add_to_zone(self, host: str, zone: str) -> None:
        body = {"aggregate": {"name": zone, "availability_zone": zone}}
        aggregate = self.admin_api.post_aggregate(body)
        self.admin_api.add_host_to_aggregate(aggregate["id"], host)

    def test_a_server_in_error_has_its_zone_and_its_fault(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self.start_host(harness.TWO_T4[0], name="host2")
        self.add_to_zone("host2", "east")
        whole = harness.vgpu_group("_A", "16Q")
        self.boot(whole, az="east")
        server = self.boot(
            whole, az="east", name="painter", expected_state="ERROR"
        )
        table, whys = self.explain("painter", status=1)
        for text in (server["id"], "ERROR", "east", "No valid host"):
            self.assertIn(text, table)
        self.assertIn("zone nova, the server was requested", whys["host1"])
        self.assertIn("CUSTOM_VGPU_NVIDIA_T4_16Q", whys["host2"])

    @pytest.mark.long
    def test_a_name_is_one_of_the_own_project(self) -> None:
        self.start_host(harness.TWO_T4[0])
        small = harness.vgpu_group("_A", "4Q")
        own = self.boot(small, name="painter")
        project, self.api.project_id = self.api.project_id, "films"
        for name in ("painter", "sculptor"):
            self.boot(small, name=name)
        self.api.project_id = project
        table, _ = self.explain("painter", status=0)
        self.assertIn(own["id"], table)
        deleted = str(uuid.uuid4())
        self.api.put_server(own["id"], {"server": {"name": deleted}})
        for name in ("sculptor", deleted):
            err = io.StringIO()
            with contextlib.redirect_stderr(err):
                self.explain(name, status=2)
            self.assertIn(f"{name!r} is not a flavor", err.getvalue())

    @pytest.mark.long
    def test_a_name_may_be_that_of_a_flavor(self) -> None:
        self.start_host(harness.TWO_T4[0])
        self._create_flavor(
            name="gpu.small",
            extra_spec=harness.vgpu_group("_A", "4Q"),
            memory_mb=256,
            vcpu=1,
            disk=1,
            ephemeral=0,
        )
        table, _ = self.explain("gpu.small", status=0)
        self.assertIn("1 of 1 hosts can serve", table)

    @pytest.mark.long
    def test_a_server_does_not_hide_the_flavor_of_its_name(self) -> None:
        self.start_host(harness.TWO_T4[0])
        server = self.boot(harness.vgpu_group("_A", "4Q"))
        name = self.api.get_server(server["id"])["flavor"]["original_name"]
        self.api.put_server(server["id"], {"server": {"name": name}})
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            self.explain(name, status=2)
        self.assertIn(f"--flavor {name}", err.getvalue())
        self.assertIn(server["id"], err.getvalue())
