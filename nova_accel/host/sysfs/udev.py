# SPDX-License-Identifier: Apache-2.0
"""Monitor of kernel uevents; the only import of pyudev.

Nothing is taken from an event but that it came: what has changed is read
from the kernel's files, as in any other pass.
"""

import errno
import logging
import os
import selectors
import threading
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

try:
    import pyudev
except ImportError:  # no pyudev: the interval remains
    pyudev = None

LOG = logging.getLogger(__name__)

#: Whose events tell that discovery would read something else now. pci:
#: cards and VFs come and go, drivers bind, errors are reported by AER.
#: mdev: partitions. dfl, fpga_region: parts of Intel's FPGA cards. drm: a
#: GPU that hangs says so (Documentation/gpu/drm-uapi.rst, WEDGED). Where
#: vfio-dev has events, pci or mdev has them as well.
SUBSYSTEMS = ("pci", "mdev", "dfl", "fpga_region", "drm")

# There while udevd runs (systemd, src/libsystemd/sd-device/
# device-monitor.c looks for the same file).
_UDEVD = "/run/udev/control"
# After so many events in a row the bell is rung once more: events that
# never end must not silence it.
_BURST = 1000


class UdevMonitor:
    """A thread that rings when the kernel tells of a change.

    Where that can't be heard (no pyudev, no netlink in a container), one
    line in the log says so, and nothing else happens.
    """

    def __init__(
        self,
        ring: Callable[[], None],
        subsystems: Iterable[str] = SUBSYSTEMS,
    ) -> None:
        """Listen to nothing yet.

        :param ring: called in the doorbell's own thread, at least once
            after each burst of events; it must return soon.
        :param subsystems: the kernel's names of those to listen to.
        """
        self._ring = ring
        self._subsystems = tuple(subsystems)
        self._thread: threading.Thread | None = None
        self._hang_up: BinaryIO | None = None
        self._guard = threading.Lock()

    def start(self) -> bool:
        """Start to listen; return whether there is something to hear."""
        with self._guard:
            if self._thread is not None:
                return True
            try:
                monitor = self._open()
            except (ImportError, OSError) as error:
                LOG.warning(
                    "no uevents can be received (%s): changes of devices"
                    " are seen at the next interval only",
                    error,
                )
                return False
            ear, mouth = os.pipe()
            self._hang_up = open(mouth, "wb", buffering=0)
            self._thread = threading.Thread(
                target=self._listen,
                args=(monitor, open(ear, "rb", buffering=0)),
                name="accel-doorbell",
                daemon=True,
            )
            self._thread.start()
            return True

    def stop(self, timeout: float = 0.0) -> None:
        """Stop to listen.

        :param timeout: seconds to wait for the end of the thread.
        """
        with self._guard:
            thread, hang_up = self._thread, self._hang_up
            self._thread = self._hang_up = None
            if hang_up is not None:
                with hang_up:
                    hang_up.write(b".")
        if thread is not None and timeout > 0:
            thread.join(timeout)

    def _open(self) -> Any:
        """Return a monitor that receives.

        Udevd's events come when its rules are done; the kernel's own are
        there always.

        :raises ImportError: no pyudev, or no libudev.
        :raises OSError: the kernel gives no such socket.
        """
        if pyudev is None:
            raise ImportError("pyudev is not installed")
        source = "udev" if os.path.exists(_UDEVD) else "kernel"
        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source)
        for subsystem in self._subsystems:
            monitor.filter_by(subsystem)
        monitor.start()
        return monitor

    def _listen(self, monitor: Any, ear: BinaryIO) -> None:
        # The default selector is looked up now: eventlet leaves select
        # only, and native threads may have more files than that can watch.
        with ear, selectors.DefaultSelector() as selector:
            selector.register(ear, selectors.EVENT_READ)
            selector.register(monitor.fileno(), selectors.EVENT_READ)
            try:
                while ear not in _readable(selector):
                    if _drain(monitor):
                        self._ring()
            except OSError as error:
                LOG.warning(
                    "uevents are received no more (%s): changes of devices"
                    " are seen at the next interval only",
                    error,
                )


def _readable(selector: selectors.BaseSelector) -> list[Any]:
    return [key.fileobj for key, _ in selector.select()]


def _drain(monitor: Any) -> bool:
    """Take what has come; return whether the bell is to be rung.

    Monitor.poll() is no way: it asks select.poll, which eventlet takes
    away, and which makes a plain error of a buffer that ran over, without
    clearing it.

    :raises OSError: the socket is gone.
    """
    for count in range(_BURST):
        try:
            if monitor._receive_device() is None:
                return count > 0
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            # Events were lost: whose, nobody knows, so it counts.
    return True
