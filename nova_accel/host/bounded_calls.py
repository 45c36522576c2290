# SPDX-License-Identifier: Apache-2.0
"""Calls into the kernel with a time limit; one late call per card at most.

A read of a kernel file may never return: a driver that waits for a GPU
which has left its bus holds the lock that the file's method needs. Nothing
interrupts such a call. So it runs in a worker thread, and its caller waits
no longer than a limit. The thread is abandoned: it ends when the call
returns, and does not keep the process from ending.

The card of an abandoned call is late. Until that call returns, each
further call for the card fails at once with ETIMEDOUT, and no thread is
started for it.

Workers are threads of the operating system, also where eventlet has
patched ``threading``: a call of the kernel in a green thread would stop
the whole process. There only single calls run in workers, because other
code must not leave its green thread.
"""

import _thread
import errno
import functools
import importlib.machinery
import importlib.util
import itertools
import os
import re
import time
import types
from collections.abc import Callable
from typing import Any, TypeVar

# Seconds that a read may take. A healthy driver answers within
# milliseconds; one that wakes its device, or restarts it, within a second
# or two.
READ_S = 3.0
# Each late card halves the limit of the others, down to this: whatever the
# number of late cards, a reading does not wait for much more than twice
# READ_S.
_LEAST_S = 0.1
# Seconds between two looks of a caller at its worker.
_TICK_S = 0.1
# Under eventlet: seconds to wait for a worker while no other green thread
# runs, and seconds to let the others run. Most calls take microseconds.
_GREEN_WAIT_S, _GREEN_PAUSE_S = 0.005, 0.01
# Idle workers that are retained for later calls.
_MAX_IDLE = 8
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Directories without a PCI address are distinguished by this number of
# components below /sys: devices/virtual/mtty.
_COMPONENTS = 3
# More directories than eight cards with 32 VFs of 24 mdev types have.
_MAX_DIRECTORIES = 16384

T = TypeVar("T")


def _load_native_threads() -> Any:
    """Return a module ``_thread`` that eventlet has not patched."""
    importer: Any = importlib.machinery.BuiltinImporter
    module = importlib.util.module_from_spec(importer.find_spec("_thread"))
    importer.exec_module(module)
    return module


_native = _load_native_threads()


def _is_green() -> bool:
    """Return whether eventlet has replaced the threads of this process."""
    start = _thread.start_new_thread
    return not isinstance(start, types.BuiltinFunctionType)


class _AbandonedError(BaseException):
    """Ends the work of an abandoned worker; no code may handle it."""


class _CallTarget:
    """A card that answers one call at a time."""

    def __init__(self) -> None:
        self.lock = _native.allocate_lock()
        #: Path of the call that has not returned in time; empty for none.
        self.late_path = ""


#: Cards that do not answer.
_late_cards: set[_CallTarget] = set()
#: Workers by the number of their thread, and those without work.
_workers: dict[int, "_Worker"] = {}
_idle: list["_Worker"] = []
_get_thread: Callable[[], int] = _native.get_ident


class _Worker:
    """A thread that makes calls for one caller at a time."""

    def __init__(self) -> None:
        self._work: Callable[[], Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_abandoned = False
        #: Card, path and latest end of the call in progress, by its number.
        #: Who removes the call decides whether it was late: dict.pop() is
        #: atomic.
        self._calls: dict[int, tuple[_CallTarget, str, float]] = {}
        self._count = 0
        self._has_work = _native.allocate_lock()
        self._has_ended = _native.allocate_lock()
        self._has_work.acquire()
        self._has_ended.acquire()
        try:
            _native.start_new_thread(self._serve, ())
        except RuntimeError as error:  # no memory, or a limit of threads
            raise OSError(errno.EAGAIN, str(error)) from error

    def start(self, work: Callable[[], Any] | None) -> None:
        """Begin some work; None ends the thread."""
        self._work = work
        self._has_work.release()

    def wait(self) -> None:
        """Wait for the end of the work.

        :raises TimeoutError: a call is late; the worker is abandoned.
        """
        try:
            while not _acquire(self._has_ended):
                self._check_in_time()
        except BaseException:  # also an interrupt from the keyboard
            self._is_abandoned = True
            raise

    def end(self) -> Any:
        """Return the result of the work, or raise its exception.

        The worker is idle then.
        """
        result, error = self._result, self._error
        self._result = self._error = self._work = None
        if len(_idle) < _MAX_IDLE:
            _idle.append(self)
        else:
            self.start(None)
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def call(
        self,
        card: _CallTarget,
        limit_s: float,
        operation: Callable[..., T],
        path: str,
        rest: tuple[Any, ...],
    ) -> T:
        """Call an operation in this worker's own thread; see ``_call``."""
        lock = card.lock
        if card.late_path or not (
            lock.acquire(False) or lock.acquire(True, limit_s)
        ):
            raise _late_error(card.late_path or path)
        self._count = number = self._count + 1
        self._calls[number] = card, path, time.monotonic() + limit_s
        try:
            return operation(path, *rest)
        finally:
            is_late = self._calls.pop(number, None) is None
            if is_late:
                card.late_path = ""
                _late_cards.discard(card)
                self._is_abandoned = True
            lock.release()
            if is_late:
                raise _AbandonedError

    def _serve(self) -> None:
        number = _get_thread()
        _workers[number] = self
        while not self._is_abandoned:
            self._has_work.acquire()
            if self._work is None:
                break
            try:
                self._result = self._work()
            except BaseException as error:
                self._error = error
            self._has_ended.release()
        _workers.pop(number, None)

    def _check_in_time(self) -> None:
        """Check that no call is late; otherwise mark its card.

        :raises TimeoutError: a call is late.
        """
        for number, (card, path, end) in list(self._calls.items()):
            if time.monotonic() < end:
                continue
            card.late_path = path
            _late_cards.add(card)
            if self._calls.pop(number, None) is not None:
                raise _late_error(path)
            card.late_path = ""  # it has returned just now
            _late_cards.discard(card)


def _late_error(path: str) -> OSError:
    return OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), path)


def read(path: str, operation: Callable[..., T], *rest: Any) -> T:
    """Return the result of an operation that reads a kernel file.

    A worker calls it with the path and ``rest``. The card is that of the
    last PCI address in the path. The limit is READ_S, or less while other
    cards are late.

    :raises OSError: ETIMEDOUT if the card gives no answer in time, or gave
        none to an earlier call that has not returned yet, with the path of
        that call; EAGAIN if no thread can be started.
    """
    limit_s = READ_S
    if _late_cards:
        limit_s = max(READ_S / 2 ** len(_late_cards), _LEAST_S)
    return _call(_find_card(path, "read"), limit_s, operation, path, rest)


def write(
    path: str, limit_s: float, operation: Callable[..., T], *rest: Any
) -> T:
    """Return the result of an operation that writes a kernel file.

    See ``read``. A card may answer reads meanwhile.
    """
    return _call(_find_card(path, "write"), limit_s, operation, path, rest)


def _call(
    card: _CallTarget,
    limit_s: float,
    operation: Callable[..., T],
    path: str,
    rest: tuple[Any, ...],
) -> T:
    worker = _workers.get(_get_thread())
    if worker is not None:
        return worker.call(card, limit_s, operation, path, rest)
    worker = _begin(
        functools.partial(_call, card, limit_s, operation, path, rest)
    )
    worker.wait()
    result: T = worker.end()
    return result


def run(work: Callable[[], T]) -> T:
    """Return the result of some work that makes many calls.

    It saves the calls a change of threads each. If a call is late, the work
    is abandoned, and begins again: it must only read, and has to remember
    what it has read.
    """
    if _is_green() or _get_thread() in _workers:
        return work()
    while True:
        worker = _begin(work)
        try:
            worker.wait()
        except TimeoutError:
            continue  # the late card fails at once now
        result: T = worker.end()
        return result


def _begin(work: Callable[[], Any]) -> _Worker:
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.start(work)
    return worker


def _acquire(lock: Any) -> bool:
    """Acquire a lock that another thread releases; return False so far."""
    if not _is_green():
        return bool(lock.acquire(True, _TICK_S))
    if lock.acquire(True, _GREEN_WAIT_S):
        return True
    time.sleep(_GREEN_PAUSE_S)  # other green threads run meanwhile
    return False


def count_late() -> int:
    """Return how many cards do not answer now."""
    return len(_late_cards)


def _find_card(path: str, kind: str) -> _CallTarget:
    """Return the card that a file belongs to."""
    directory, _, name = path.rpartition("/")
    key = _find_key(path if ":" in name else directory, kind)
    return _cards.get(key) or _cards.setdefault(key, _CallTarget())


#: Cards by key; a host has few of them.
_cards: dict[str, _CallTarget] = {}


@functools.lru_cache(_MAX_DIRECTORIES)
def _find_key(directory: str, kind: str) -> str:
    """Return the key of the card that a directory belongs to.

    The functions of a slot are one card. So are all on the bus below a
    bridge, where a card has its VFs. The key has the root of the path: two
    simulated hosts have their own cards.

    :param kind: of the calls; those of one kind do not wait for others.
    """
    root, _, place = directory.partition("/sys/")
    parts = place.split("/")
    for above, part in reversed(list(itertools.pairwise(["", *parts]))):
        if _ADDRESS.fullmatch(part):
            end = ":" if _ADDRESS.fullmatch(above) else "."
            return f"{kind} {root} {part.rpartition(end)[0]}"
    return f"{kind} {root} {'/'.join(parts[:_COMPONENTS])}"


def _forget_threads() -> None:
    """Forget the threads of the parent process after a fork."""
    for container in (_workers, _idle, _cards, _late_cards):
        container.clear()


os.register_at_fork(after_in_child=_forget_threads)
