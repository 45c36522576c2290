# SPDX-License-Identifier: Apache-2.0
"""Calls of a driver, each with result, exception and side effects."""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.discovery import plugin, scan
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import fs, host_reader

# Directories that a driver must read through its HostReader, so that
# ``nova-accel capture`` packs what it reads.
_HOST_DIRECTORIES = (
    f"{fs.TOP}/",
    "/proc/",
    "/dev/",
    "/run/",
    "/etc/",
    "/var/",
)
# Audit events (docs.python.org, "Audit events table") that a driver must not
# cause, and those that it must not cause in the host's directories.
_FORBIDDEN = (
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
_READS = ("open", "os.listdir", "os.scandir")
# Python writes compiled modules on their first import.
_BYTECODE = "__pycache__"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """Result of a call; ``effects`` are events that it must not cause."""

    value: Any = None
    error: Exception | None = None
    effects: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DriverUnderTest:
    """A driver with a policy and a host.

    Each call uses a new reader, so that calls share no cache.
    """

    driver: plugin.Driver
    source: fs.FileSource
    gpus: Mapping[str, nvml_gpus.NvmlGpu]
    rules: policy.DeviceRules = dataclasses.field(
        default_factory=policy.DeviceRules
    )

    def reader(self) -> host_reader.HostReader:
        """Return a new reader without cached files."""
        return host_reader.HostReader(source=self.source, gpus=self.gpus)

    def describe(
        self,
        host: host_reader.HostReader | None = None,
        taken: frozenset[str] = frozenset(),
    ) -> CallResult:
        """Call ``describe`` for each card; the value is a tuple."""
        reader = host or self.reader()
        return call(
            lambda: tuple(
                item
                for card in list_cards(reader)
                for item in self.driver.describe(card, self.rules, taken)
            )
        )

    def describe_card(self, card: host_reader.HostReader) -> CallResult:
        return call(
            lambda: tuple(self.driver.describe(card, self.rules, frozenset()))
        )

    def state(self) -> model.HostState:
        """Return the host state that discovery builds with the driver."""
        drivers = {self.driver.name: self.driver}
        return scan.read(self.reader(), drivers, self.rules)

    def arrange(
        self, host: host_reader.HostReader | None = None
    ) -> CallResult:
        """Call ``plan_arrange``."""
        reader = host or self.reader()
        return call(lambda: self.driver.plan_arrange(reader, self.rules))


def list_cards(
    reader: host_reader.HostReader,
) -> tuple[host_reader.HostReader, ...]:
    """Return the cards of a host; the host itself if they can't be listed."""
    try:
        return reader.cards()
    except errors.UnreadableError:
        return (reader,)


def list_devices(result: CallResult) -> tuple[model.Device, ...]:
    """Return the devices in the result of ``describe``."""
    items = result.value or ()
    return tuple(item for item in items if isinstance(item, model.Device))


def call(function: Callable[[], object]) -> CallResult:
    """Call a driver's code; an exception becomes part of the result."""
    with _record_effects() as effects:
        try:
            value = function()
        except Exception as error:  # a vendor's own code: it may raise any
            return CallResult(error=error, effects=tuple(effects))
    return CallResult(value=value, effects=tuple(dict.fromkeys(effects)))


_CALL = threading.local()


@contextlib.contextmanager
def _record_effects() -> Iterator[list[str]]:
    """Collect the forbidden audit events of this thread."""
    _AuditHook.install()
    effects: list[str] = []
    _CALL.effects = effects
    try:
        yield effects
    finally:
        _CALL.effects = None


class _AuditHook:
    """Audit hook, installed once because Python can't remove hooks."""

    is_installed = False

    @classmethod
    def install(cls) -> None:
        if not cls.is_installed:
            sys.addaudithook(_record_event)
            cls.is_installed = True


def _record_event(event: str, arguments: tuple[Any, ...]) -> None:
    effects = getattr(_CALL, "effects", None)
    if effects is None or event not in (*_FORBIDDEN, *_READS):
        return
    target = arguments[0] if arguments else ""
    place = target.decode() if isinstance(target, bytes) else str(target)
    if _BYTECODE in place:
        return
    if event in _FORBIDDEN or _is_write(event, arguments):
        effects.append(f"{event} {place}")
    elif place.startswith(_HOST_DIRECTORIES):
        effects.append(f"{event} {place}")


def _is_write(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a file is opened for writing."""
    if event != "open" or len(arguments) < 2:  # noqa: PLR2004 - path, mode
        return False
    mode = arguments[1]
    return isinstance(mode, str) and not {*mode}.isdisjoint("wax+")
