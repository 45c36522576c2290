# SPDX-License-Identifier: Apache-2.0
"""Daemon of placement-sync: signals, readiness, journal."""

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable

from nova_accel import errors, model
from nova_accel.host.sysfs import udev
from placement_sync.daemon import loop
from placement_sync.sync import sync_pass

LOG = logging.getLogger(__name__)

# Priorities of journald (sd-daemon(3), SD_WARNING).
_PRIORITIES = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}


class Journal(logging.Formatter):
    """Formatter that prefixes each line with its priority for journald."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text and traceback, prefixed for journald."""
        text = super().format(record)
        # systemd sets it if standard error is the journal (systemd.exec(5)).
        if not os.environ.get("JOURNAL_STREAM"):
            return text
        priority = _PRIORITIES.get(record.levelno, 6)
        return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))


def serve(
    run: Callable[[], sync_pass.PassResult],
    interval_s: float,
    host_problems: Callable[[], Iterable[model.Problem]],
    watch: Callable[[], bool] | None = None,
) -> None:
    """Run passes until SIGTERM or SIGINT; a running pass is completed.

    SIGHUP and kernel events request a pass at once.

    :param run: makes one pass.
    :param interval_s: seconds between passes.
    :param host_problems: returns the problems of the host and of its
        configuration, as the last pass read them.
    :param watch: requests a pass, too; see ``loop.Loop``.
    """
    _log_to_stderr()
    passes = loop.Loop(
        NotifyingPasses(run, host_problems).run, interval_s, watch=watch
    )
    monitor = udev.UdevMonitor(passes.wake)
    # The passes run in another thread; this one handles signals.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: bool(passes.stop()))
    signal.signal(signal.SIGHUP, lambda *_: passes.wake())
    monitor.start()
    LOG.info("placement-sync started: one pass each %g s", interval_s)
    notify("READY=1")
    passes.run_forever()
    notify("STOPPING=1")
    monitor.stop()
    LOG.info("placement-sync stopped")


class NotifyingPasses:
    """Passes that report their result to systemd, and problems to the log.

    The pass itself logs each change.
    """

    def __init__(
        self,
        run: Callable[[], sync_pass.PassResult],
        host_problems: Callable[[], Iterable[model.Problem]] = tuple,
    ) -> None:
        """Wrap ``run``; see ``serve``."""
        self._run = run
        self._host_problems = host_problems
        self._last_host_problems: frozenset[model.Problem] = frozenset()
        self._last_problems: frozenset[model.Problem] = frozenset()

    def run(self) -> None:
        """Run a pass; log only problems that the last pass did not have."""
        try:
            result = self._run()
        except errors.AcceleratorError as error:
            line = " ".join(str(error).split())
            notify(f"STATUS=last pass failed: {line}")
            raise
        for problem in result.problems:
            if problem not in self._last_problems:
                LOG.warning(
                    "Left undone: %s: %s", problem.where, problem.reason
                )
        self._last_problems = frozenset(result.problems)
        host_problems = tuple(self._host_problems())
        for problem in host_problems:
            if problem not in self._last_host_problems:
                LOG.warning("%s: %s", problem.where, problem.reason)
        self._last_host_problems = frozenset(host_problems)
        notify(
            f"STATUS=last pass: {len(result.calls)} calls,"
            f" {len(result.problems)} left undone, {result.seconds:.1f} s"
        )


def notify(state: str) -> None:
    """Send the service state to systemd, if it wants it (sd_notify(3)).

    A closed socket is ignored.
    """
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    if path.startswith("@"):  # abstract socket
        path = "\0" + path[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.connect(path)
        sender.sendall(state.encode())


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Journal("%(message)s"))
    for name in ("nova_accel", "placement_sync"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
