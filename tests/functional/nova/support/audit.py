# SPDX-License-Identifier: Apache-2.0
"""``nova-accel audit`` on a host of Nova's functional harness."""

import contextlib
import io
import json
from typing import Any

import fixtures

from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness
from tests.functional.sync.commands import programs


def run(
    test: harness.AccelTestBase, *words: str, status: int
) -> dict[str, Any]:
    """Return the report of `nova-accel audit` on host1."""
    test.useFixture(scheduled.without_keystone())
    hide_uptime(test)
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        exit_status = programs.main(
            [
                *("audit", "-f", "json", "--pause=0", *words),
                *("--endpoint", test.placement.fixture.endpoint),
                *("--compute-endpoint", test.api_fixture.base_url),
                *("--host", "host1"),
                *("--host-uuid", test.compute_rp_uuids["host1"]),
                *("--root", str(test.hosts["host1"].root)),
                *("--state-dir", test.state_dir()),
            ]
        )
    test.assertEqual(status, exit_status, out.getvalue() + err.getvalue())
    report: dict[str, Any] = json.loads(out.getvalue())
    return report


def hide_uptime(test: harness.AccelTestBase) -> None:
    """Have Nova's API show a hypervisor without running a command."""
    test.useFixture(
        fixtures.MonkeyPatch(
            "nova.virt.libvirt.LibvirtDriver.get_host_uptime",
            lambda _: "0:00",
        )
    )
