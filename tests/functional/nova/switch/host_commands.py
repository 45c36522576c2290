# SPDX-License-Identifier: Apache-2.0
"""Commands on a host that goes from Nova's driver to this one, and back."""

import contextlib
import io
import os
from typing import Any

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import audit
from tests.functional.nova.switch import stock_driver
from tests.functional.sync.commands import programs

LIBVIRT = "qemu:///host1"


class HostCommandsTestBase(stock_driver.StockTestBase):
    """host1, and `nova-accel` on it."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(scheduled.without_keystone())
        audit.hide_uptime(self)
        self.useFixture(
            fixtures.MonkeyPatch(
                f"{fakelibvirt.__name__}.openReadOnly", self._open_libvirt
            )
        )

    def _open_libvirt(self, _uri: str) -> Any:
        connection = self.computes["host1"].driver._host.get_connection()
        return _Closable(connection)

    def run_program(self, *words: str, status: int = 0) -> str:
        """Return the output of `nova-accel` on host1.

        Of a document, without the error output, which shows the progress of
        what takes longer than two seconds.
        """
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            exit_status = programs.main(
                [
                    *words,
                    *("--endpoint", self.placement.fixture.endpoint),
                    *("--compute-endpoint", self.api_fixture.base_url),
                    *("--root", str(self.hosts["host1"].root)),
                    *("--state-dir", self.state_dir()),
                ]
            )
        text = out.getvalue() + err.getvalue()
        self.assertEqual(status, exit_status, text)
        return out.getvalue() if "json" in words else text

    def run_here(self, *words: str, status: int = 0) -> str:
        """Return the output of a command that reads libvirt, too."""
        words = (*words, "--host", "host1", "--connect", LIBVIRT)
        return self.run_program(*words, status=status)

    def end_service(self) -> None:
        """End nova-compute of host1: the kernel releases its lock."""
        lock = self.computes["host1"].driver._accel._service_lock
        if lock is not None and lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None


class _Closable:
    """Connection whose end does not close that of nova-compute."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def close(self) -> None:
        pass
