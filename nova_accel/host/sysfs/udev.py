# SPDX-License-Identifier: Apache-2.0
"""Monitor of kernel uevents; the only import of pyudev.

An event only starts a pass. Its content is not used: a pass reads the
changes from the kernel's files.
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
except ImportError:  # without pyudev only the interval starts passes
    pyudev = None

LOG = logging.getLogger(__name__)

#: Subsystems whose events may change a reading. pci: cards, VFs, driver
#: bindings, AER errors. mdev: partitions. dfl, fpga_region: parts of
#: Intel's FPGA cards. drm: hung GPUs (Documentation/gpu/drm-uapi.rst,
#: WEDGED). Events of vfio-dev always come with one of pci or mdev.
SUBSYSTEMS = ("pci", "mdev", "dfl", "fpga_region", "drm")

# Exists while udevd runs (systemd checks the same file in
# src/libsystemd/sd-device/device-monitor.c).
_UDEVD = "/run/udev/control"
# Events in a row after which the callback is called, so that an endless
# burst does not suppress it.
_BURST = 1000


class UdevMonitor:
    """Thread that calls back after uevents.

    If uevents can't be received (no pyudev, no netlink in a container), a
    warning is logged once, and no thread runs.
    """

    def __init__(
        self,
        notify: Callable[[], None],
        subsystems: Iterable[str] = SUBSYSTEMS,
    ) -> None:
        """Prepare a monitor; ``start`` opens the socket.

        :param notify: called in the monitor's thread, at least once after
            each burst of events; it must return soon.
        :param subsystems: the kernel's names of the subsystems.
        """
        self._notify = notify
        self._subsystems = tuple(subsystems)
        self._thread: threading.Thread | None = None
        self._stop_pipe: BinaryIO | None = None
        self._lock = threading.Lock()

    def start(self) -> bool:
        """Start the thread; return whether uevents can be received."""
        with self._lock:
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
            read_end, write_end = os.pipe()
            self._stop_pipe = open(write_end, "wb", buffering=0)
            self._thread = threading.Thread(
                target=self._listen,
                args=(monitor, open(read_end, "rb", buffering=0)),
                name="accel-uevents",
                daemon=True,
            )
            self._thread.start()
            return True

    def stop(self, timeout: float = 0.0) -> None:
        """Stop the thread.

        :param timeout: seconds to wait for its end.
        """
        with self._lock:
            thread, stop_pipe = self._thread, self._stop_pipe
            self._thread = self._stop_pipe = None
            if stop_pipe is not None:
                with stop_pipe:
                    stop_pipe.write(b".")
        if thread is not None and timeout > 0:
            thread.join(timeout)

    def _open(self) -> Any:
        """Return a monitor that receives.

        Udevd's events are preferred: they follow the execution of its
        rules. Without udevd, the kernel's events are received.

        :raises ImportError: pyudev or libudev is missing.
        :raises OSError: the kernel refuses the socket.
        """
        if pyudev is None:
            raise ImportError("pyudev is not installed")
        source = "udev" if os.path.exists(_UDEVD) else "kernel"
        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source)
        for subsystem in self._subsystems:
            monitor.filter_by(subsystem)
        monitor.start()
        return monitor

    def _listen(self, monitor: Any, stop_pipe: BinaryIO) -> None:
        # Choose the selector at run time: under eventlet only select
        # exists, and native threads may need more files than it allows.
        with stop_pipe, selectors.DefaultSelector() as selector:
            selector.register(stop_pipe, selectors.EVENT_READ)
            selector.register(monitor.fileno(), selectors.EVENT_READ)
            try:
                while stop_pipe not in _readable(selector):
                    if _drain(monitor):
                        self._notify()
            except OSError as error:
                LOG.warning(
                    "uevents are received no more (%s): changes of devices"
                    " are seen at the next interval only",
                    error,
                )


def _readable(selector: selectors.BaseSelector) -> list[Any]:
    return [key.fileobj for key, _ in selector.select()]


def _drain(monitor: Any) -> bool:
    """Discard pending events; return whether there were any.

    Monitor.poll() can't be used: it needs select.poll, which eventlet
    removes, and fails on an overrun buffer without clearing it.

    :raises OSError: the socket is closed.
    """
    for count in range(_BURST):
        try:
            if monitor._receive_device() is None:
                return count > 0
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            # The buffer overran: events were lost, so there were some.
    return True
