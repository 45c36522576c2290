# SPDX-License-Identifier: Apache-2.0
"""AcceleratorWeigher and ``openstack accel explain`` with real computes."""

import contextlib
import io
import json
from typing import Any

import pytest

from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness
from tests.functional.sync.commands import programs

NAME = "gpu.small"


class Weigher(scheduled.CommandTestBase):
    weighers = ("filters.accelerator_weigher.AcceleratorWeigher",)

    def landed(self, extra_specs: dict[str, str]) -> str:
        """Return the host that a server was started on."""
        server = self.boot(extra_specs)
        return str(server["OS-EXT-SRV-ATTR:host"])

    def explain(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        """Return the command's status and its rows."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = programs.main(
                [
                    *("explain", "--long", "-f", "json"),
                    *("--endpoint", self.placement.fixture.endpoint),
                    *("--compute-endpoint", self.api_fixture.base_url),
                    *words,
                ]
            )
        return status, json.loads(out.getvalue())

    @pytest.mark.long
    def test_hosts_are_chosen_and_explained(self) -> None:
        self.start_host(*harness.TWO_T4)
        self.start_host(*harness.TWO_T4, name="host2")
        self.start_host(name="host3")

        # Nova's own weighers would spread all of these.
        self.assertEqual(["host3"] * 3, [self.landed({}) for _ in range(3)])
        small = harness.vgpu_group("_A", "4Q")
        used = self.landed(small)
        self.assertEqual([used] * 2, [self.landed(small) for _ in range(2)])

        self._create_flavor(
            name=NAME,
            extra_spec=harness.vgpu_group("_A", "16Q"),
            memory_mb=256,
            vcpu=1,
            disk=1,
            ephemeral=0,
        )
        status, rows = self.explain("--flavor", NAME)
        self.assertEqual(0, status)
        fits = {row["Host"]: row["Fits"] for row in rows}
        self.assertEqual({"host1", "host2"}, set(fits))
        (other,) = fits.keys() - {used}
        self.assertEqual(2, fits[other])
        self.assertEqual(
            {"first", "left out"},
            {row["Verdict"] for row in rows if row["Host"] == used},
        )
        status, rows = self.explain(
            "--flavor", NAME, "--extra-spec", "resources:MEMORY_MB=99999999"
        )
        self.assertEqual((1, {0}), (status, {row["Fits"] for row in rows}))
