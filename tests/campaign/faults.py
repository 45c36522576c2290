# SPDX-License-Identifier: Apache-2.0
"""Faults at nova-compute's calls: libvirt, Nova, Placement, kernel, notes.

A point is one call of a kind. Points of each kind are numbered from the
start of an operation; a fault names the first point that it hits.
"""

import builtins
import contextlib
import dataclasses
import errno
import functools
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fixtures
import oslo_messaging
import requests
from keystoneauth1 import exceptions as keystone_errors
from nova import objects
from nova.scheduler.client import report

from nova_accel.host.execute import root_io
from nova_accel.host.fpga import ioctls
from tests.functional.nova.support import libvirtd

#: Kinds of points, with their share of the faults.
KINDS: Mapping[str, int] = {
    "libvirt": 6,
    "save": 5,
    "query": 2,
    "placement": 4,
    "write": 4,
    "read": 3,
    "note": 3,
    "answer": 1,
    "kill": 3,
}
_MOVE = {
    "libvirt": 20,
    "save": 10,
    "query": 6,
    "placement": 16,
    "write": 2,
    "read": 250,
    "note": 16,
    "answer": 2,
    "kill": 130,
}
#: About how many points of each kind an operation has. A fault beyond the
#: last one does not strike, and does not count.
_POINTS: Mapping[str, Mapping[str, int]] = {
    "boot": {
        "libvirt": 9,
        "save": 9,
        "query": 4,
        "placement": 10,
        "write": 1,
        "read": 248,
        "note": 16,
        "kill": 90,
    },
    "delete": {
        "libvirt": 8,
        "save": 3,
        "query": 1,
        "placement": 20,
        "write": 1,
        "read": 188,
        "note": 10,
        "kill": 60,
    },
    "passes": {
        "libvirt": 4,
        "query": 4,
        "placement": 4,
        "read": 48,
        "note": 4,
        "kill": 20,
    },
    "restart": {
        "libvirt": 9,
        "query": 9,
        "placement": 16,
        "read": 264,
        "note": 12,
        "kill": 60,
    },
    "reboot": {
        "libvirt": 18,
        "save": 3,
        "query": 2,
        "read": 70,
        "note": 5,
        "kill": 40,
    },
    "start": {
        "libvirt": 14,
        "save": 3,
        "query": 2,
        "read": 70,
        "note": 5,
        "kill": 40,
    },
    "rescue": {
        "libvirt": 21,
        "save": 1,
        "query": 2,
        "read": 70,
        "note": 4,
        "kill": 40,
    },
    "stop": {"libvirt": 11, "save": 1, "query": 2, "kill": 14},
    "pause": {"libvirt": 4, "save": 2, "kill": 6},
    "unpause": {"libvirt": 4, "save": 2, "kill": 6},
    "drain": {"note": 6},
    "undrain": {"note": 6},
    "heal": {"read": 20, "note": 8},
    "unplug": {},
    "plug": {},
    "down": {},
    "blackout": {},
    "hang": {},
    "set_vfs": {},
    "set_mig": {},
    "rebind": {},
    "restore": {},
}
_SAVED: Mapping[Any, tuple[str, ...]] = {
    objects.Instance: ("save", "destroy"),
    objects.Migration: ("save", "create"),
    objects.InstanceFault: ("create",),
    objects.BlockDeviceMapping: ("save",),
}
_QUERIED: Mapping[Any, tuple[str, ...]] = {
    objects.Instance: ("get_by_uuid", "refresh"),
    objects.InstanceList: ("get_by_host", "get_by_filters"),
    objects.Migration: ("get_by_id",),
    objects.MigrationList: (
        "get_by_filters",
        "get_in_progress_and_error",
        "get_in_progress_by_host_and_node",
    ),
    objects.BlockDeviceMappingList: ("get_by_instance_uuid",),
    objects.ComputeNode: ("get_by_host_and_nodename", "save"),
}
_DOMAIN = tuple(
    (
        "XMLDesc isActive info createWithFlags destroy undefine"
        " undefineFlags shutdown suspend resume managedSave"
        " managedSaveRemove attachDeviceFlags detachDeviceFlags"
        " migrateToURI3 jobStats"
    ).split()
)
_CONNECTION = ("lookupByUUIDString", "listAllDomains", "defineXML")
_WRITE_ERRORS = (errno.EIO, errno.EBUSY, errno.ENOSPC, errno.EAGAIN)
#: The code of a write that does nothing, and says that it was done.
_LIE = len(_WRITE_ERRORS)
#: The code of a call that is done twice, as when a request is sent again.
TWICE = _LIE + 1
#: The code of a kill after which the service stays down.
DOWN = TWICE + 1
#: Nothing can be read back of these: a lie can't be noticed.
_UNSEEN = ("reset", "reset_subordinate", "drivers_probe")
_READ_ERRORS = (errno.EIO, errno.ENODEV, errno.EACCES)
_NOTE_ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
_OWN_FILES = "/proc/self/fd/"
#: How often one fault hits in a row: once, some times, or all the time.
_LENGTHS = (1, 1, 1, 1, 1, 1, 2, 4, 10_000)


@dataclasses.dataclass(frozen=True)
class Fault:
    """Calls of one kind that fail, from the ``first`` on, ``length`` times.

    :ivar is_after: the call is done, and only its answer is lost.
    :ivar code: which of the errors that such a call can fail with. The
        service is killed before the ``first`` call of any kind, and started
        again unless the code is ``DOWN``.
    """

    kind: str
    first: int
    length: int = 1
    is_after: bool = False
    code: int = 0

    def __str__(self) -> str:
        return (
            f"{self.kind}:{self.first}:{self.length}"
            f":{'after' if self.is_after else 'before'}:{self.code}"
        )

    @property
    def is_refusal(self) -> bool:
        """Return whether one call fails, and has no effect."""
        return (
            self.kind != "kill"
            and self.length == 1
            and not self.is_after
            and self.code < _LIE
        )

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Return what ``str()`` made a text of."""
        kind, first, length, when, code = text.split(":")
        return cls(kind, int(first), int(length), when == "after", int(code))

    @classmethod
    def draw(cls, rng: random.Random, operation: str) -> "Fault":
        """Return a random fault of an operation."""
        points = _POINTS.get(operation, _MOVE)
        kinds = list(points)
        (kind,) = rng.choices(kinds, [KINDS[k] for k in kinds])
        return cls(
            kind,
            rng.randrange(points[kind]),
            rng.choice(_LENGTHS),
            rng.random() < 0.4,
            rng.randrange(_LIE + 1),
        )


class KilledError(BaseException):
    """A nova-compute was killed: none of its calls is done any more.

    No ``except Exception`` handles it, and what runs on the way out has no
    effect, as if the process had ended at once.
    """


def has_points(operation: str) -> bool:
    """Return whether anything can fail in an operation."""
    return bool(_POINTS.get(operation, _MOVE))


class Injector(fixtures.Fixture):
    """Lets calls fail while it is armed, and counts what struck."""

    def __init__(
        self,
        served: Callable[[], str],
        is_kernel: Callable[[str], bool],
        is_note: Callable[[str], bool],
    ) -> None:
        """Hit the calls of nova-compute only.

        :param served: returns the host whose nova-compute this thread is.
        :param is_kernel: whether a path is of a simulated kernel.
        :param is_note: whether a path is below a ``state_dir``.
        """
        super().__init__()
        self._served = served
        #: Hosts whose nova-compute was killed and not started since.
        self.killed: set[str] = set()
        self._is_kernel, self._is_note = is_kernel, is_note
        self._local = threading.local()
        self._faults: tuple[Fault, ...] = ()
        self._counts: dict[str, int] = {}
        self._meanwhile: tuple[str, int, Callable[[], None]] | None = None
        #: Faults that struck since they were armed, with the call hit.
        self.struck: dict[Fault, str] = {}
        #: Kind and name of each point of nova-compute since they were armed.
        self.trace: list[tuple[str, str]] = []
        #: Each write that the kernel has carried out, as (path, text).
        self.wrote: Callable[[str, str], None] = lambda *_: None

    @contextlib.contextmanager
    def armed(
        self,
        faults: tuple[Fault, ...],
        meanwhile: tuple[str, int, Callable[[], None]] | None = None,
    ) -> Iterator[None]:
        """Let calls fail for a while.

        :param meanwhile: kind and number of a point, and what happens
            before it.
        """
        self._counts, self.struck, self.trace = {}, {}, []
        self._faults, self._meanwhile = faults, meanwhile
        self.is_armed = True
        try:
            yield
        finally:
            self.is_armed = False
            self._faults, self._meanwhile = (), None

    is_armed = False

    def setUp(self) -> None:
        super().setUp()
        for owner, names in (
            (libvirtd.Domain, _DOMAIN),
            (libvirtd.Connection, _CONNECTION),
        ):
            for name in names:
                self._wrap(owner, name, "libvirt", _libvirt_error)
        for kind, classes in (("save", _SAVED), ("query", _QUERIED)):
            for owner, names in classes.items():
                for name in names:
                    self._wrap(owner, name, kind, _timeout)
        for name in ("get", "put", "post", "delete"):
            self._wrap(
                report.SchedulerReportClient, name, "placement", _no_placement
            )
        self._wrap_kernel()
        self._wrap_files()

    # -- points ------------------------------------------------------------

    def point(
        self,
        kind: str,
        name: str,
        work: Callable[[], Any],
        fail: Callable[[Fault], Any],
    ) -> Any:
        """Do what a call does, or fail; ``fail`` may also return."""
        if getattr(self._local, "inside", False):
            return work()
        self._die(name)
        if not self.is_armed:
            return work()
        if self._is_compute():
            self.trace.append((kind, name))
        fault = self._take(kind, name)
        if fault is None:
            return self._inside(work)
        if fault.code == TWICE:
            self._inside(work)
            return self._inside(work)
        if fault.is_after:
            self._inside(work)
        return fail(fault)

    def _die(self, name: str) -> None:
        """Raise if the service of this thread is killed, now or before."""
        host = self._served()
        if host and self.is_armed and host not in self.killed:
            if self._take("kill", name) is not None:
                self.killed.add(host)
        if host and host in self.killed:
            raise KilledError

    def _is_compute(self) -> bool:
        return bool(self._served())

    def _inside(self, work: Callable[[], Any]) -> Any:
        """Do what libvirt or Placement does: that has no points."""
        self._local.inside = True
        try:
            return work()
        finally:
            self._local.inside = False

    def _take(self, kind: str, name: str) -> Fault | None:
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        if self._meanwhile and self._meanwhile[:2] == (kind, number):
            todo, self._meanwhile = self._meanwhile[2], None
            todo()
        for fault in self._faults:
            if (
                fault.kind == kind
                and fault.first <= number < fault.first + fault.length
            ):
                self.struck.setdefault(fault, name)
                return fault
        return None

    def answered(self, method: str, work: Callable[[], Any]) -> Any:
        """Return the answer of a call from nova-compute, or lose it."""
        if not self._is_compute():
            return work()
        return self._answer(method, work)

    def _answer(self, method: str, work: Callable[[], Any]) -> Any:
        fault = self._take("answer", method) if self.is_armed else None
        if fault is None:
            return work()
        if fault.is_after:
            work()
        return _timeout(fault)

    # -- what is wrapped ---------------------------------------------------

    def _wrap(
        self,
        owner: Any,
        name: str,
        kind: str,
        fail: Callable[[Fault], Any],
    ) -> None:
        stock = getattr(owner, name)
        is_class = hasattr(stock, "__self__")
        real = stock.__func__ if is_class else stock

        @functools.wraps(real)
        def call(*arguments: Any, **words: Any) -> Any:
            def work() -> Any:
                return real(*arguments, **words)

            if not self._is_compute():
                return work()
            return self.point(kind, f"{owner.__name__}.{name}", work, fail)

        wrapper: Any = classmethod(call) if is_class else call
        own = owner.__dict__.get(name)
        setattr(owner, name, wrapper)
        if own is None:
            self.addCleanup(delattr, owner, name)
        else:
            self.addCleanup(setattr, owner, name, own)

    def _wrap_kernel(self) -> None:
        for module, name in (
            (root_io, "write"),
            (ioctls, "program"),
            (ioctls, "set_port"),
        ):
            real = getattr(module, name)
            self.useFixture(
                fixtures.MonkeyPatch(
                    f"{module.__name__}.{name}",
                    functools.partial(self._write, real, name),
                )
            )
        # Within its worker, as its caller may not wait for it.
        carry_out = root_io._write

        def note(path: str, text: str) -> None:
            carry_out(path, text)
            self.wrote(path, text)

        self.useFixture(
            fixtures.MonkeyPatch(f"{root_io.__name__}._write", note)
        )

    def _write(
        self, real: Callable[..., int], name: str, path: str, *rest: Any
    ) -> int:
        def work() -> int:
            return real(path, *rest)

        def fail(fault: Fault) -> int:
            if fault.is_after:
                return errno.ETIMEDOUT
            if fault.code == _LIE and not path.endswith(_UNSEEN):
                return 0
            return _WRITE_ERRORS[fault.code % len(_WRITE_ERRORS)]

        result: int = self.point("write", f"{name} {path}", work, fail)
        return result

    def _wrap_files(self) -> None:
        self._readlink = os.readlink
        for module, name in (
            (os, "open"),
            (os, "listdir"),
            (os, "readlink"),
            (os, "replace"),
            (os, "unlink"),
            (builtins, "open"),
        ):
            real = getattr(module, name)
            call = functools.partial(self._use_file, real, name)
            setattr(module, name, functools.wraps(real)(call))
            self.addCleanup(setattr, module, name, real)

    def _use_file(
        self, real: Callable[..., Any], name: str, *rest: Any, **words: Any
    ) -> Any:
        path = rest[1] if name == "replace" else rest[0] if rest else ""
        is_quiet = not self.is_armed and not self.killed
        if is_quiet or not isinstance(path, str):
            return real(*rest, **words)
        parent = words.get("dst_dir_fd", words.get("dir_fd"))
        if parent is not None:
            path = os.path.join(self._readlink(f"{_OWN_FILES}{parent}"), path)

        def work() -> Any:
            return real(*rest, **words)

        if self._is_note(path):
            return self.point(
                "note", f"{name} {path}", work, _failing(_NOTE_ERRORS, path)
            )
        if self._is_kernel(path) and _is_of_product(sys._getframe(1)):
            return self.point(
                "read", f"{name} {path}", work, _failing(_READ_ERRORS, path)
            )
        return work()


def _is_of_product(frame: Any) -> bool:
    return "/nova_accel/" in frame.f_code.co_filename


def _failing(numbers: tuple[int, ...], path: str) -> Callable[[Fault], Any]:
    def fail(fault: Fault) -> Any:
        number = numbers[fault.code % len(numbers)]
        raise OSError(number, os.strerror(number), path)

    return fail


def _libvirt_error(fault: Fault) -> Any:
    codes = ("SYSTEM_ERROR", "INTERNAL_ERROR", "SYSTEM_ERROR", "SYSTEM_ERROR")
    code = codes[fault.code % len(codes)]
    raise libvirtd.failed("client socket is closed", code)


def _timeout(_: Fault) -> Any:
    raise oslo_messaging.MessagingTimeout("no reply from the conductor")


def _no_placement(fault: Fault) -> Any:
    if fault.code % 2:
        raise keystone_errors.ConnectFailure("no route to Placement")
    answer = requests.Response()
    answer.status_code = 503
    answer._content = b'{"errors": [{"status": 503, "title": "later"}]}'
    answer.headers["content-type"] = "application/json"
    return answer
