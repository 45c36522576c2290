# SPDX-License-Identifier: Apache-2.0
"""Durations and refusals of operations on servers, for the metrics."""

import collections
import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nova_accel import errors

# Upper bounds in seconds: an mdev takes milliseconds, the VFs of a large card
# half a minute, an FPGA minutes.
BOUNDS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Durations of an operation; ``counts`` are cumulative, by bound.

    ``count`` and ``sum_s`` are those of all, also of longer ones.
    """

    counts: tuple[int, ...] = (0,) * len(BOUNDS_S)
    count: int = 0
    sum_s: float = 0.0

    def add(self, seconds: float) -> "Durations":
        return Durations(
            counts=tuple(
                count + (seconds <= bound)
                for count, bound in zip(self.counts, BOUNDS_S, strict=True)
            ),
            count=self.count + 1,
            sum_s=self.sum_s + seconds,
        )


class Operations:
    """Counts operations since the service started. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Count nothing yet."""
        self._clock = clock
        self._lock = threading.Lock()
        self._durations: dict[str, Durations] = {}
        self._refusals: collections.Counter[tuple[str, str]] = (
            collections.Counter()
        )

    @contextlib.contextmanager
    def measure(self, operation: str) -> Iterator[None]:
        """Record the duration of a block, or why it was refused.

        :param operation: ``spawn``, ``attach`` or ``detach``.
        """
        started = self._clock()

        def record(_: Any, error: BaseException | None, __: Any) -> None:
            if error is None:
                self._add_duration(operation, self._clock() - started)
            else:
                with self._lock:
                    self._refusals[operation, get_reason(error)] += 1

        with contextlib.ExitStack() as stack:
            stack.push(record)
            yield

    def _add_duration(self, operation: str, seconds: float) -> None:
        with self._lock:
            durations = self._durations.get(operation, Durations())
            self._durations[operation] = durations.add(seconds)

    def durations(self) -> Mapping[str, Durations]:
        """Return the durations of operations that succeeded, by name."""
        with self._lock:
            return dict(self._durations)

    def refusals(self) -> Mapping[tuple[str, str], int]:
        """Return the number of failures by operation and reason."""
        with self._lock:
            return dict(self._refusals)


def get_reason(error: BaseException) -> str:
    """Return the kind of an error: ``claim``, ``action``, ``service``, ...

    The errors of this library have few kinds; any other error is ``other``.
    """
    if not isinstance(error, errors.AcceleratorError):
        return "other"
    name = type(error).__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
