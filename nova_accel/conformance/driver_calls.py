# SPDX-License-Identifier: Apache-2.0
"""Calls of a driver: its answer, its errors, its side effects."""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import plugin, scan
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import fs, host_reader

# Directories whose files are the host's: a driver reads them through its
# HostReader, or ``nova-accel capture`` would not have them.
_HOST = (f"{fs.TOP}/", "/proc/", "/dev/", "/run/", "/etc/", "/var/")
# Audit events (docs.python.org, "Audit events table") of what a driver may
# not do at all, and of what it may do outside of the host's files.
_NEVER = (
    "ctypes.dlopen",
    "os.chmod",
    "os.chown",
    "os.exec",
    "os.fork",
    "os.link",
    "os.mkdir",
    "os.posix_spawn",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.system",
    "os.truncate",
    "socket.bind",
    "socket.connect",
    "subprocess.Popen",
)
_LOOKS = ("open", "os.listdir", "os.scandir")
# Python writes compiled modules where it imports them first.
_COMPILED = "__pycache__"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What a call gave; ``effects`` are events that it must not cause."""

    value: Any = None
    error: Exception | None = None
    effects: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DriverUnderTest:
    """A driver, the policy and the host it is asked about.

    Each question is asked of a reader of its own, so that nothing is
    remembered between two.
    """

    driver: plugin.Driver
    source: fs.FileSource
    gpus: Mapping[str, gpu_reader.NvmlGpu]
    rules: policy.Policy = dataclasses.field(default_factory=policy.Policy)

    def reader(self) -> host_reader.HostReader:
        """Return a reader that has looked at nothing yet."""
        return host_reader.HostReader(source=self.source, gpus=self.gpus)

    def describe(
        self,
        host: host_reader.HostReader | None = None,
        taken: frozenset[str] = frozenset(),
    ) -> CallResult:
        """Return what the driver describes; the value is a tuple."""
        reader = host or self.reader()
        return ask(
            lambda: tuple(self.driver.describe(reader, self.rules, taken))
        )

    def state(self) -> model.HostState:
        """Return what discovery makes of what the driver describes."""
        drivers = {self.driver.name: self.driver}
        return scan.read(self.reader(), drivers, self.rules)

    def arrange(
        self, host: host_reader.HostReader | None = None
    ) -> CallResult:
        """Return what the driver would arrange."""
        reader = host or self.reader()
        return ask(lambda: self.driver.plan_arrange(reader, self.rules))


def devices(answer: CallResult) -> tuple[model.Device, ...]:
    """Return the devices among what was described."""
    found = answer.value or ()
    return tuple(one for one in found if isinstance(one, model.Device))


def ask(question: Callable[[], object]) -> CallResult:
    """Return what a driver's code answers, whatever it raises."""
    with _watched() as effects:
        try:
            value = question()
        except Exception as error:  # a vendor's own code: it may raise any
            return CallResult(error=error, effects=tuple(effects))
    return CallResult(value=value, effects=tuple(dict.fromkeys(effects)))


_ASKING = threading.local()


@contextlib.contextmanager
def _watched() -> Iterator[list[str]]:
    """Collect what happens in this thread that a driver may not cause."""
    _AuditHook.install()
    seen: list[str] = []
    _ASKING.seen = seen
    try:
        yield seen
    finally:
        _ASKING.seen = None


class _AuditHook:
    """The audit hook; Python keeps one for as long as it runs."""

    is_installed = False

    @classmethod
    def install(cls) -> None:
        if not cls.is_installed:
            sys.addaudithook(_note)
            cls.is_installed = True


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    seen = getattr(_ASKING, "seen", None)
    if seen is None or event not in (*_NEVER, *_LOOKS):
        return
    target = arguments[0] if arguments else ""
    place = target.decode() if isinstance(target, bytes) else str(target)
    if _COMPILED in place:
        return
    if event in _NEVER or _is_written(event, arguments):
        seen.append(f"{event} {place}")
    elif place.startswith(_HOST):
        seen.append(f"{event} {place}")


def _is_written(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a file is opened for writing."""
    if event != "open" or len(arguments) < 2:  # noqa: PLR2004 - path, mode
        return False
    mode = arguments[1]
    return isinstance(mode, str) and not {*mode}.isdisjoint("wax+")
