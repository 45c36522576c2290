# SPDX-License-Identifier: Apache-2.0
"""The daemon: signals, readiness, journal."""

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

# How journald takes a line's priority (sd-daemon(3), SD_WARNING).
_PRIORITIES = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}


class Journal(logging.Formatter):
    """One line for people; with its priority where journald reads."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text, a traceback below it if it has one."""
        text = super().format(record)
        # Set for whose standard error is the journal (systemd.exec(5)).
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
    """Make passes until SIGTERM or SIGINT; the last one is ended.

    SIGHUP and the kernel's events ask for a pass at once.

    :param interval_s: seconds from pass to pass.
    :param host_problems: returns those of the host and its configuration,
        as the last pass read them.
    :param watch: asks for a pass, too; see ``loop.Loop``.
    """
    _log_to_stderr()
    passes = loop.Loop(
        NotifyingPasses(run, host_problems).run, interval_s, watch=watch
    )
    bell = udev.UdevMonitor(passes.wake)
    # The passes run in a thread of their own: this one is free for these.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: bool(passes.stop()))
    signal.signal(signal.SIGHUP, lambda *_: passes.wake())
    bell.start()
    LOG.info("placement-sync makes a pass each %g s", interval_s)
    notify("READY=1")
    passes.run_forever()
    notify("STOPPING=1")
    bell.stop()
    LOG.info("placement-sync ends")


class NotifyingPasses:
    """Passes whose outcome systemd is told, and the log what is left.

    What was changed is in the log already.
    """

    def __init__(
        self,
        run: Callable[[], sync_pass.PassResult],
        host_problems: Callable[[], Iterable[model.Problem]] = tuple,
    ) -> None:
        """Tell of what ``run`` does, see ``serve``."""
        self._run = run
        self._host_problems = host_problems
        self._host_known: frozenset[model.Problem] = frozenset()
        self._known: frozenset[model.Problem] = frozenset()

    def run(self) -> None:
        """Make a pass; a problem that was there already is not repeated."""
        try:
            result = self._run()
        except errors.AcceleratorError as error:
            line = " ".join(str(error).split())
            notify(f"STATUS=last pass failed: {line}")
            raise
        for problem in result.problems:
            if problem not in self._known:
                LOG.warning(
                    "left undone: %s: %s", problem.where, problem.reason
                )
        self._known = frozenset(result.problems)
        host_problems = tuple(self._host_problems())
        for problem in host_problems:
            if problem not in self._host_known:
                LOG.warning("%s: %s", problem.where, problem.reason)
        self._host_known = frozenset(host_problems)
        notify(
            f"STATUS=last pass: {len(result.calls)} calls,"
            f" {len(result.problems)} left undone, {result.seconds:.1f} s"
        )


def notify(state: str) -> None:
    """Tell systemd of our state, where it has asked for it (sd_notify(3)).

    Whoever does not listen any more is not told.
    """
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    if path.startswith("@"):  # in the abstract name space
        path = "\0" + path[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker,
    ):
        speaker.connect(path)
        speaker.sendall(state.encode())


def _log_to_stderr() -> None:
    speaker = logging.StreamHandler(sys.stderr)
    speaker.setFormatter(Journal("%(message)s"))
    for name in ("nova_accel", "placement_sync"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(speaker)
