# SPDX-License-Identifier: Apache-2.0
"""Xid errors of GPUs, received by one listener process per GPU.

A listener has its GPU open: the GPU can't be reset or unbound from its
driver meanwhile. So only GPUs in use by servers have a listener, and it
ends with that use (see ``xid_listener``).

Listeners write to unnamed files instead of pipes: eventlet, under which
the service may run, makes a read from a pipe block.
"""

import contextlib
import dataclasses
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import IO

from nova_accel import errors
from nova_accel.config import logs
from nova_accel.host import nvml_gpus
from nova_accel.host.nvml import nvml_library
from nova_accel.host.state import device_notes
from nova_accel.inventory import health

LOG = logging.getLogger(__name__)

# Seconds after which a listener that has ended is started again.
RETRY_S = 600
_PROGRAM = "nova_accel.host.nvml.xid_listener"
# Bytes to read of a listener's output at once.
_READ_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error that NVIDIA's driver reported for a GPU."""

    address: str
    number: int


class _Listener:
    """A listener process of one GPU, and its output."""

    def __init__(self, address: str) -> None:
        self.started_at = time.monotonic()
        self._file: IO[bytes] = tempfile.TemporaryFile()
        self._offset = 0
        # -P: import no module from the service's working directory.
        self._child = subprocess.Popen(  # noqa: S603 - constant arguments
            [sys.executable, "-P", "-m", _PROGRAM, address, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.DEVNULL,
        )

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def read(self) -> list[int]:
        """Return the Xid numbers written since the last call."""
        text = os.pread(self._file.fileno(), _READ_BYTES, self._offset)
        lines = text[: text.rfind(b"\n") + 1]
        self._offset += len(lines)
        return [int(line) for line in lines.split() if line.isdigit()]

    def end(self) -> None:
        """Kill the process without waiting: it may hang in the driver."""
        with contextlib.suppress(OSError):
            self._child.kill()
        self._file.close()


class XidWatcher:
    """Receiver of Xid errors of some GPUs. Thread-safe.

    It never raises: without NVML, or with an old one, it receives nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, _Listener] = {}
        # Killed processes, until polling has reaped them.
        self._ended: list[_Listener] = []

    def watch(self, addresses: Iterable[str]) -> None:
        """Watch these GPUs from now on, and no others.

        A listener that ends by itself is started again after RETRY_S.

        :param addresses: PCI addresses of GPUs that are in use.
        """
        gpus = set(addresses) if nvml_library.is_installed() else set()
        with self._lock:
            for address in self._listeners.keys() - gpus:
                self._end(address)
            for address in sorted(gpus):
                self._begin(address)
            self._ended = [
                listener for listener in self._ended if listener.is_alive
            ]

    def drain(self) -> tuple[Xid, ...]:
        """Return the errors reported since the last call."""
        with self._lock:
            return tuple(
                Xid(address=address, number=number)
                for address, listener in sorted(self._listeners.items())
                for number in listener.read()
            )

    def _begin(self, address: str) -> None:
        listener = self._listeners.get(address)
        if listener is not None:
            age_s = time.monotonic() - listener.started_at
            if listener.is_alive or age_s < RETRY_S:
                return
            self._end(address)
        try:
            self._listeners[address] = _Listener(address)
        except OSError as error:
            logs.warning(
                LOG, "Xid errors of %s can't be read: %s", address, error
            )

    def _end(self, address: str) -> None:
        listener = self._listeners.pop(address)
        listener.end()
        self._ended.append(listener)


def listening(
    read_gpus: nvml_gpus.ReadGpus,
    in_use: Callable[[], Iterable[str]],
    faulted: device_notes.FaultNotes,
) -> nvml_gpus.ReadGpus:
    """Return a GPU reader that sets aside GPUs with a fatal Xid error.

    :param in_use: returns the addresses of the GPUs to watch.
    """
    watcher = XidWatcher()

    def read() -> Mapping[str, nvml_gpus.NvmlGpu]:
        set_aside(watcher.drain(), faulted)
        watcher.watch(in_use())
        return read_gpus()

    return read


def set_aside(xids: Iterable[Xid], faulted: device_notes.FaultNotes) -> None:
    """Store faults of the GPUs; Xids caused by applications are ignored."""
    for xid in xids:
        reason = health.judge_xid(xid.number)
        LOG.debug("Xid %d of GPU %s", xid.number, xid.address)
        stored = _stored_reason(faulted, xid.address)
        if reason and reason not in stored:
            faulted.put(
                xid.address, "; ".join(filter(None, (stored, reason))), None
            )


def _stored_reason(faulted: device_notes.FaultNotes, address: str) -> str:
    with contextlib.suppress(errors.UnreadableError, LookupError):
        return faulted.read()[address].reason
    return ""
