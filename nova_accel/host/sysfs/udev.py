# SPDX-License-Identifier: Apache-2.0
"""Monitor of kernel uevents; the only import of pyudev.

An event starts a pass and names a function; the pass reads that function's
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

from nova_accel.config import logs
from nova_accel.model import pci

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


class UeventLog:
    """PCI functions that uevents have named. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = False
        self._names: set[str] | None = None

    def set_open(self, is_open: bool) -> None:
        """Set whether all events are recorded from now on."""
        with self._lock:
            self._is_open, self._names = is_open, None

    def add(self, name: str) -> None:
        """Record a function; empty for an event that names none."""
        with self._lock:
            if not name:
                self._names = None
            elif self._names is not None:
                self._names.add(name)

    def take(self) -> frozenset[str] | None:
        """Return the functions recorded since the last call.

        None if events may be missing: read the whole host then.
        """
        with self._lock:
            names, self._names = self._names, set() if self._is_open else None
        return None if names is None else frozenset(names)


class UdevMonitor:
    """Thread that calls back after uevents.

    If uevents can't be received (no pyudev, no netlink in a container), a
    warning is logged once, and no thread runs.
    """

    def __init__(
        self,
        notify: Callable[[], None],
        subsystems: Iterable[str] = SUBSYSTEMS,
        log: UeventLog | None = None,
    ) -> None:
        """Prepare a monitor; ``start`` opens the socket.

        :param notify: called in the monitor's thread, at least once after
            each burst of events; it must return soon.
        :param subsystems: the kernel's names of the subsystems.
        :param log: records the functions that the events name.
        """
        self._notify = notify
        self._subsystems = tuple(subsystems)
        self._log = log or UeventLog()
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
                logs.warning(
                    LOG,
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
            self._log.set_open(True)
            self._thread.start()
            return True

    def stop(self, timeout: float = 0.0) -> None:
        """Stop the thread.

        :param timeout: seconds to wait for its end.
        """
        with self._lock:
            thread, stop_pipe = self._thread, self._stop_pipe
            self._thread = self._stop_pipe = None
            self._log.set_open(False)
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
            raise ImportError("pyudev is missing; install nova-accel[compute]")
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
                    if _drain(monitor, self._log):
                        self._notify()
            except OSError as error:
                self._log.set_open(False)
                logs.warning(
                    LOG,
                    "uevents are no longer received (%s): changes of devices"
                    " are seen at the next interval only",
                    error,
                )


def _readable(selector: selectors.BaseSelector) -> list[Any]:
    return [key.fileobj for key, _ in selector.select()]


def _drain(monitor: Any, log: UeventLog) -> bool:
    """Record pending events; return whether there were any.

    Monitor.poll() can't be used: it needs select.poll, which eventlet
    removes, and fails on an overrun buffer without clearing it.

    :raises OSError: the socket is closed.
    """
    for count in range(_BURST):
        try:
            event = monitor._receive_device()
            if event is None:
                return count > 0
            log.add(
                parse_function(
                    event.subsystem, event.action, event.device_path
                )
            )
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            # The buffer overran: events were lost, so there were some.
            log.add("")
    return True


def parse_function(subsystem: str, action: str, path: str) -> str:
    """Return the PCI function whose files an event is about, or "".

    Empty also where functions come or go: any card may be affected.

    :param path: the event's DEVPATH; mdevs and FPGA regions are below the
        directory of their function.
    """
    if subsystem == "pci" and action in ("add", "remove"):
        return ""
    return next(filter(pci.is_address, reversed(path.split("/"))), "")
