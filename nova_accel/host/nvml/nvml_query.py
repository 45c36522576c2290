# SPDX-License-Identifier: Apache-2.0
"""Queries of NVML with a deadline, and readers of optional values.

A lost GPU may never answer: each query has its own thread.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from nova_accel import errors, model
from nova_accel.host.nvml import nvml_library
from nova_accel.host.nvml.nvml_library import NvmlError

# Exceptions caused by an nvidia-ml-py with other names or values.
_OTHER_FORM = (AttributeError, TypeError, ValueError)
_SILENT = (
    "gives no answer in time; look for Xid messages of the NVIDIA driver"
    " in the kernel's log"
)
# Threads of stuck queries, by name.
_stuck: dict[str, threading.Thread] = {}


class NvmlQuery:
    """A query of NVML in its own thread.

    It starts no thread while an earlier query of its name is stuck: one that
    is still in the driver after its deadline.
    """

    def __init__(self, name: str, query: Callable[[], Any]) -> None:
        self.name = name
        self.result: Any = None
        self.error: Exception | None = None
        self._query = query
        self._thread = _stuck.get(name)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, name=name, daemon=True
            )
            self._thread.start()

    def wait(self, deadline: float) -> None:
        """Wait for the end of the query, until the deadline."""
        thread = self._thread
        if thread is None or _stuck.get(self.name) is thread:
            return
        thread.join(max(0.0, deadline - time.monotonic()))
        _stuck.pop(self.name, None)
        if thread.is_alive():
            _stuck[self.name] = thread

    def problem(self) -> model.Problem:
        """Return why there is no result."""
        reason = _SILENT if self.error is None else repr(self.error)
        if isinstance(self.error, NvmlError | errors.MalformedError):
            reason = str(self.error)
        return model.Problem(where=self.name, reason=reason)

    def _run(self) -> None:
        try:
            with nvml_library.session():
                self.result = self._query()
        except (NvmlError, errors.MalformedError, *_OTHER_FORM) as error:
            self.error = error


class ValueReader:
    """Reader of a GPU's optional values; collects the errors.

    ``errors`` has a message by the name of the value, ``faults`` the
    errors of a faulty GPU.
    """

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self.faults: list[str] = []

    def read(self, name: str, query: Callable[[], Any], default: Any) -> Any:
        """Return a value, the default if NVML does not have it."""
        try:
            return query()
        except NvmlError as error:
            if error.is_faulty:
                self.faults.append(f"NVML: {error}")
            if not error.is_unsupported:
                hint = "; run as root" if error.is_forbidden else ""
                self.errors[name] = (
                    f"NVML can't read its {name}: {error}{hint}"
                )
            return default
