# SPDX-License-Identifier: Apache-2.0
"""Faults on demand: an errno, a hang, or a directory that vanishes."""

from __future__ import annotations

import fnmatch
import threading
from dataclasses import dataclass, field

#: Operations that a fault can hit.
OPERATIONS = ("open", "read", "write", "list", "ioctl")


@dataclass(kw_only=True)
class Fault:
    """Effect on the next matching operations.

    ``path`` may have the wildcards of fnmatch. The parts combine: first
    ``vanish`` (a path removed from the tree), then ``hang_s`` (seconds,
    ``inf`` until released), then ``errno``. ``times`` counts down; None is
    for ever.
    """

    path: str
    on: str
    errno: int = 0
    hang_s: float = 0
    vanish: str = ""
    times: int | None = None
    hits: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        """Block for ``hang_s`` or until the fault is taken back."""
        if self.hang_s:
            limit = None if self.hang_s == float("inf") else self.hang_s
            self.released.wait(limit)


class Faults:
    """The faults now set; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Set ``fault``; the latest one set wins."""
        with self._lock:
            self._faults.insert(0, fault)

    def take(self, path: str, on: str) -> Fault | None:
        """Return the fault that hits this operation and count it."""
        with self._lock:
            for fault in self._faults:
                if fault.on != on or fault.times == 0:
                    continue
                if fnmatch.fnmatchcase(path, fault.path):
                    fault.hits += 1
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def clear(self, path: str | None = None) -> int:
        """Take back the faults of ``path`` (or all); returns how many."""
        with self._lock:
            gone = [f for f in self._faults if path in {None, f.path}]
            self._faults = [f for f in self._faults if f not in gone]
        for fault in gone:
            fault.released.set()
        return len(gone)
