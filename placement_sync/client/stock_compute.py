# SPDX-License-Identifier: Apache-2.0
"""Evidence that nova-compute of this host runs without this library.

Stock Nova goes on to offer our providers, which it does not know, and starts
servers without their devices. The proof has two parts. No nova-compute with
this library runs: it would hold the lock of the service, which it takes
before Nova's first report of it. And Nova receives new reports of the
service, without a new holder of the lock in between. A missing heartbeat of
our own proves nothing.
"""

import logging
import os
import time
from collections.abc import Callable

from nova_accel.config import logs
from nova_accel.host.state import directories, ended_service

LOG = logging.getLogger(__name__)

# Reports with different times, after the first one: a process that ended may
# have sent one, which the conductor stored later.
_PROOF = 2
# Seconds of a proof: report_interval is 10 s by default.
TIMEOUT_S = 60.0
_POLL_S = 2.0
_NOTE, _MODE, _MAX_BYTES = "stock-compute", 0o644, 64


class StockComputeWatch:
    """Collects the evidence, in one process for one host.

    A proof holds until a nova-compute with this library starts. It is stored
    in the state directory: later commands need no time to repeat it.
    """

    def __init__(self, state_dir: str, read_report: Callable[[], str]) -> None:
        """Read nothing yet.

        :param state_dir: that of nova-compute.
        :param read_report: returns the time of Nova's last report of the
            service, "" unless the service is up; it may raise
            AcceleratorError.
        """
        self._state_dir, self._read_report = state_dir, read_report
        self._path = os.path.join(state_dir, _NOTE)
        self._identity = ""
        self._reports: list[str] = []

    def is_proved(self) -> bool:
        """Return whether it is proved by now.

        :raises AcceleratorError: Nova can't be read.
        """
        identity = ended_service.identify(self._state_dir)
        if identity != self._identity:
            self._identity, self._reports = identity, []
        if not identity:
            return False
        if self._read_note() == identity:
            return True
        report = self._read_report()
        if ended_service.identify(self._state_dir) != identity:
            return False
        if report and report not in self._reports:
            self._reports.append(report)
        if len(self._reports) <= _PROOF:
            return False
        self._write_note(identity)
        return True

    def prove(
        self,
        timeout_s: float = TIMEOUT_S,
        sleep: Callable[[float], object] = time.sleep,
    ) -> bool:
        """Return whether it is proved, after a wait for new reports.

        It waits only if the service is up, and no nova-compute with this
        library runs.

        :raises AcceleratorError: Nova can't be read.
        """
        until = time.monotonic() + timeout_s
        while not self.is_proved():
            if not self._reports or time.monotonic() >= until:
                return False
            sleep(_POLL_S)
        return True

    def _read_note(self) -> str:
        try:
            text = directories.read_path(self._path, _MAX_BYTES)
        except OSError:
            return ""
        return text.decode("ascii", "replace")

    def _write_note(self, identity: str) -> None:
        try:
            directories.replace_file(self._path, identity.encode(), _MODE)
        except OSError as error:
            logs.warning(LOG, "%s can't be written: %s", self._path, error)
