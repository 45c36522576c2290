# SPDX-License-Identifier: Apache-2.0
"""Xid errors of GPUs, received by one listener process per GPU.

Listening holds a GPU: it can't be reset then, and its driver can't let it
go. So only GPUs are listened to that servers hold anyway, and each has a
process of its own that ends with that (see ``xid_listener``).

What the listeners write lies in files without a name. A pipe would do,
were it not that the service may run under a library that turns a read
from a pipe into one that waits.
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
from collections.abc import Callable, Iterable
from typing import IO

from nova_accel import errors
from nova_accel.host.nvml import gpu_reader, nvml_library
from nova_accel.host.state import faults
from nova_accel.inventory import health

LOG = logging.getLogger(__name__)

# When a GPU is listened to anew that did not allow it, in seconds.
RETRY_S = 600
_PROGRAM = "nova_accel.host.nvml.xid_listener"
# How much of what a listener wrote is taken at once, in bytes.
_PIECE = 64 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error that NVIDIA's driver told of a GPU, by PCI address."""

    address: str
    number: int


class _Listener:
    """A process that listens to one GPU, and what it has written."""

    def __init__(self, address: str) -> None:
        self.began = time.monotonic()
        self._file: IO[bytes] = tempfile.TemporaryFile()
        self._taken = 0
        # -P: nothing of the directory in which the service happens to be.
        self._child = subprocess.Popen(  # noqa: S603 - our own words
            [sys.executable, "-P", "-m", _PROGRAM, address, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.DEVNULL,
        )

    @property
    def is_alive(self) -> bool:
        """Return whether it listens still."""
        return self._child.poll() is None

    def take(self) -> list[int]:
        """Return the numbers written since the last time."""
        text = os.pread(self._file.fileno(), _PIECE, self._taken)
        whole = text[: text.rfind(b"\n") + 1]
        self._taken += len(whole)
        return [int(line) for line in whole.split() if line.isdigit()]

    def end(self) -> None:
        """End it; it is not waited for, as it may hang in the driver."""
        with contextlib.suppress(OSError):
            self._child.kill()
        self._file.close()


class XidWatcher:
    """Listens to some GPUs. Thread-safe.

    Nothing of it fails: where NVML is missing, or too old, it hears
    nothing.
    """

    def __init__(self) -> None:
        """Listen to none; ``watch`` says to whom."""
        self._guard = threading.Lock()
        self._listeners: dict[str, _Listener] = {}
        self._ended: list[_Listener] = []

    def watch(self, addresses: Iterable[str]) -> None:
        """Listen to these GPUs from now on, and to no others.

        One to whom nobody can listen is tried again after RETRY_S.

        :param addresses: PCI addresses of GPUs that are in use.
        """
        wanted = set(addresses) if nvml_library.is_installed() else set()
        with self._guard:
            for address in self._listeners.keys() - wanted:
                self._end(address)
            for address in sorted(wanted):
                self._begin(address)
            self._ended = [one for one in self._ended if one.is_alive]

    def drain(self) -> tuple[Xid, ...]:
        """Return the errors that were told since the last time."""
        with self._guard:
            return tuple(
                Xid(address=address, number=number)
                for address, listener in sorted(self._listeners.items())
                for number in listener.take()
            )

    def _begin(self, address: str) -> None:
        known = self._listeners.get(address)
        if known is not None:
            if known.is_alive or time.monotonic() - known.began < RETRY_S:
                return
            self._end(address)
        try:
            self._listeners[address] = _Listener(address)
        except OSError as error:
            LOG.warning("Xid errors of %s can't be told: %s", address, error)

    def _end(self, address: str) -> None:
        listener = self._listeners.pop(address)
        listener.end()
        self._ended.append(listener)  # until it is buried, by polling it


def listening(
    read_gpus: Callable[[], gpu_reader.NvmlGpus],
    in_use: Callable[[], Iterable[str]],
    faulted: faults.FaultNotes,
) -> Callable[[], gpu_reader.NvmlGpus]:
    """Return what reads GPUs, and sets those aside that told of an error.

    :param in_use: returns the addresses of the GPUs to listen to.
    """
    watcher = XidWatcher()

    def read() -> gpu_reader.NvmlGpus:
        set_aside(watcher.drain(), faulted)
        watcher.watch(in_use())
        return read_gpus()

    return read


def set_aside(xids: Iterable[Xid], faulted: faults.FaultNotes) -> None:
    """Write down which GPUs failed; what applications cause is left out."""
    for xid in xids:
        reason = health.judge_xid(xid.number)
        LOG.debug("%s told of Xid %d", xid.address, xid.number)
        known = _known(faulted, xid.address)
        if reason and reason not in known:
            faulted.put(
                xid.address, "; ".join(filter(None, (known, reason))), None
            )


def _known(faulted: faults.FaultNotes, address: str) -> str:
    with contextlib.suppress(errors.UnreadableError, LookupError):
        return faulted.read()[address].reason
    return ""
