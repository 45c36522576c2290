# SPDX-License-Identifier: Apache-2.0
"""Host access of a Lifecycle: libvirt, notes, claims file, and locks."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator

from nova_accel.host.state.claims_file import ClaimsFile
from nova_accel.host.state.device_notes import FaultNotes
from nova_accel.host.state.service_lock import ServiceLock
from nova_accel.host.sysfs import host_reader
from nova_accel.host.sysfs.udev import UeventLog
from virt_hooks.guest import connection
from virt_hooks.spawn.programs import Programs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostAccess:
    """Readers and stores of one compute node; each may be missing.

    :ivar domains: reads which host devices the host's domains have.
    :ivar watched: the same for passes, whose answer may be older; by default
        ``domains``.
    :ivar read_host: returns a fresh reader of the host; without it cards
        stay in the mode they are in.
    :ivar faults: notes on devices at fault and on unclean functions, in
        memory by default.
    :ivar programs: bitstreams that are loaded for servers.
    :ivar claims_file: publishes the claims to other processes.
    :ivar service_lock: held by the only nova-compute of the host.
    :ivar uevents: the functions that uevents name since the last reading.
    """

    domains: connection.HostdevReader = connection.NO_DOMAINS
    watched: connection.HostdevReader | None = None
    read_host: Callable[[], host_reader.HostReader] | None = None
    faults: FaultNotes = dataclasses.field(default_factory=FaultNotes)
    programs: Programs = dataclasses.field(default_factory=Programs)
    claims_file: ClaimsFile | None = None
    service_lock: ServiceLock | None = None
    uevents: UeventLog = dataclasses.field(default_factory=UeventLog)


class DeviceLocks:
    """A lock for each card, by the uuid of its provider.

    A card needs no description: slots name its provider before the host
    has been read.
    """

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def hold(self, providers: Iterable[str]) -> Iterator[None]:
        """Hold the locks of some cards, acquired in sorted order."""
        with contextlib.ExitStack() as stack:
            for provider in sorted(set(providers)):
                stack.enter_context(self._lock(provider))
            yield

    @contextlib.contextmanager
    def try_hold(self, *providers: str) -> Iterator[bool]:
        """Hold the locks of a card if all are free; yield whether they are.

        For periodic passes: they must not wait for a card whose kernel
        driver does not answer.

        :param providers: of the card, and of the part of it to change.
        """
        with contextlib.ExitStack() as stack:
            for provider in sorted(set(providers)):
                lock = self._lock(provider)
                if not lock.acquire(blocking=False):
                    stack.close()
                    yield False
                    return
                stack.callback(lock.release)
            yield True

    def is_any_held(self, providers: Iterable[str]) -> bool:
        """Return whether the lock of any of some cards is held now."""
        return any(self._lock(provider).locked() for provider in providers)

    def _lock(self, provider: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(provider, threading.Lock())
