# SPDX-License-Identifier: Apache-2.0
"""Host devices of a host's domains, through libvirt."""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any, Protocol
from xml.etree import ElementTree

import libvirt

from nova_accel import errors, model
from virt_hooks.guest import guest_pci

LOG = logging.getLogger(__name__)

# Events after which a running domain has other devices. libvirt sends none
# when the definition of a domain gets a device.
_EVENTS = (
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED,
)
# Seconds after which XML is read again without an event: one may be lost.
_REREAD_S = 600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostdevUse:
    """Host devices in the XML of some domains, running or not.

    ``mdevs`` are uuids, ``functions`` PCI addresses; ``by_domain`` has both
    by the uuid of their domain.
    """

    mdevs: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    by_domain: Mapping[str, frozenset[str]] = dataclasses.field(
        default_factory=dict, compare=False
    )

    def holds(self, handle: str) -> bool:
        """Return whether a domain has the partition of that handle."""
        return handle in self.mdevs or handle in self.functions

    def is_of(self, domain: str, handle: str) -> bool:
        """Return whether a domain, by its uuid, has a partition."""
        return handle in self.by_domain.get(domain, ())

    def without(self, handles: Iterable[str]) -> "HostdevUse":
        removed = frozenset(handles)
        return HostdevUse(
            mdevs=self.mdevs - removed,
            functions=self.functions - removed,
            by_domain={u: h - removed for u, h in self.by_domain.items()},
        )


class HostdevReader(Protocol):
    """Reads which host devices the domains of a host have."""

    def read_use(self) -> HostdevUse:
        """Return the host devices of all domains.

        :raises libvirt.libvirtError: libvirt can't list its domains.
        """
        ...

    def read_running(self) -> HostdevUse:
        """Return the host devices of the domains that run.

        :raises libvirt.libvirtError: libvirt can't list its domains.
        """
        ...


class LibvirtDomains:
    """The domains of one libvirt, read through Nova's connection."""

    def __init__(self, host: Any) -> None:
        """Read through the connection of Nova's ``libvirt.host.Host``."""
        self._host = host

    def read_use(self) -> HostdevUse:
        """Return the host devices of all domains."""
        return read_hostdevs(self._host.get_connection())

    def read_running(self) -> HostdevUse:
        """Return the host devices of the domains that run."""
        return read_hostdevs(self._host.get_connection(), is_running=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Host devices of a running domain, read at ``time``.

    ``number`` is that of its present run.
    """

    number: int
    time: float
    use: HostdevUse


class WatchedDomains:
    """The domains of one libvirt, whose XML is read after changes only.

    Each reading asks libvirt for the list of its domains. The XML of a
    running domain is read after it has started, after an event of its
    devices, and again after ten minutes; that of another domain each time.
    It may be older than an event that has not arrived: what removes or
    cleans a device reads ``LibvirtDomains``. Where libvirt sends no events,
    and after a new connection, all XML is read. Thread-safe.
    """

    def __init__(
        self, host: Any, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read through the connection of Nova's ``libvirt.host.Host``.

        :param clock: returns seconds.
        """
        self._host = host
        self._clock = clock
        self._connection: Any = None
        self._has_events = False
        self._readings: dict[str, _Reading] = {}
        #: UUIDs of domains with an event. libvirt's thread adds to it
        #: without the lock: it must not wait for a reading.
        self._changed: set[str] = set()
        self._lock = threading.Lock()

    def read_use(self) -> HostdevUse:
        """Return the host devices of all domains."""
        return self._read(0)

    def read_running(self) -> HostdevUse:
        """Return the host devices of the domains that run."""
        return self._read(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)

    def _read(self, flags: int) -> HostdevUse:
        with self._lock:
            connection = self._host.get_connection()
            if connection is not self._connection:
                self._readings = {}
                self._has_events = self._register(connection)
                self._connection = connection
            while self._changed:
                self._readings.pop(self._changed.pop(), None)
            oldest = self._clock() - _REREAD_S
            readings: dict[str, _Reading] = {}
            uses = []
            for domain in connection.listAllDomains(flags):
                uuid, number = domain.UUIDString(), domain.ID()
                reading = self._readings.get(uuid)
                if (
                    reading is None
                    or reading.number != number
                    or reading.time <= oldest
                ):
                    reading = self._read_domain(domain, number)
                if reading is not None:
                    uses.append(reading.use)
                    if number >= 0:
                        readings[uuid] = reading
            self._readings = readings if self._has_events else {}
            return _join(uses)

    def _read_domain(self, domain: Any, number: int) -> _Reading | None:
        text = _read_xml(domain)
        if text is None:
            return None
        return _Reading(
            number=number, time=self._clock(), use=parse_hostdevs(text)
        )

    def _register(self, connection: Any) -> bool:
        """Ask for events; return whether libvirt sends all of them."""
        try:
            for event in _EVENTS:
                connection.domainEventRegisterAny(
                    None, event, self._note_change, None
                )
        except libvirt.libvirtError as error:
            LOG.info(
                "libvirt sends no events of its domains, each pass reads the"
                " XML of all: %s",
                error,
            )
            return False
        return True

    def _note_change(
        self, _connection: Any, domain: Any, *_details: Any
    ) -> None:
        self._changed.add(domain.UUIDString())


class _NoDomains:
    def read_use(self) -> HostdevUse:
        return HostdevUse()

    def read_running(self) -> HostdevUse:
        return HostdevUse()


#: A host without domains.
NO_DOMAINS: HostdevReader = _NoDomains()


class TrackedUse:
    """Host devices of all domains at the last reading, less released ones.

    Thread-safe, but for one reading at a time.
    """

    def __init__(self, domains: HostdevReader) -> None:
        self._domains = domains
        self._use = HostdevUse()
        #: Handles that were released since the last reading began.
        self._released: set[str] = set()
        self._lock = threading.Lock()

    @property
    def functions(self) -> frozenset[str]:
        return self._use.functions

    def read(self) -> HostdevUse:
        """Read the host devices; those released meanwhile are excluded."""
        with self._lock:
            self._released = set()
        use = self._domains.read_use()
        with self._lock:
            self._use = use = use.without(self._released)
        return use

    def release(self, claims: Iterable[model.Claim]) -> None:
        """Exclude the partitions of released claims."""
        handles = {handle for claim in claims for handle in claim.handles}
        with self._lock:
            self._released |= handles
            self._use = self._use.without(self._released)


def read_hostdevs(connection: Any, is_running: bool = False) -> HostdevUse:
    """Return the host devices in all domains of a libvirt connection.

    :param connection: an open ``libvirt.virConnect``, or Nova's proxy
        of one.
    :param is_running: skip domains that are defined but do not run.
    :raises libvirt.libvirtError: libvirt can't list its domains.
    """
    flags = libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE if is_running else 0
    texts = map(_read_xml, connection.listAllDomains(flags))
    return _join(parse_hostdevs(text) for text in texts if text is not None)


def _read_xml(domain: Any) -> str | None:
    """Return a domain's XML, None if it ended since it was listed."""
    try:
        text: str = domain.XMLDesc(0)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise
    return text


def _join(uses: Iterable[HostdevUse]) -> HostdevUse:
    """Return the host devices of several domains together."""
    mdevs: set[str] = set()
    functions: set[str] = set()
    by_domain: dict[str, frozenset[str]] = {}
    for use in uses:
        mdevs |= use.mdevs
        functions |= use.functions
        by_domain |= use.by_domain
    return HostdevUse(
        mdevs=frozenset(mdevs),
        functions=frozenset(functions),
        by_domain=by_domain,
    )


def parse_hostdevs(text: str) -> HostdevUse:
    """Return the host devices in one domain's XML, as libvirt wrote it."""
    root = ElementTree.fromstring(text)  # noqa: S314 - written by libvirtd
    addresses = [
        (hostdev.get("type"), address)
        for hostdev in root.iterfind("./devices/hostdev")
        for address in hostdev.iterfind("./source/address")
    ]
    # Functions for network interfaces have another element.
    addresses += [
        (address.get("type"), address)
        for address in root.iterfind(
            "./devices/interface[@type='hostdev']/source/address"
        )
    ]
    mdevs = frozenset(
        a.attrib["uuid"].lower() for kind, a in addresses if kind == "mdev"
    )
    functions = frozenset(
        str(guest_pci.parse_address(a))
        for kind, a in addresses
        if kind == "pci"
    )
    uuid = root.findtext("./uuid", "").strip().lower()
    return HostdevUse(
        mdevs=mdevs,
        functions=functions,
        by_domain={uuid: mdevs | functions},
    )


def find_hostdevs(text: str, handles: Collection[str]) -> tuple[str, ...]:
    """Return the hostdev elements of some devices in one domain's XML."""
    root = ElementTree.fromstring(text)  # noqa: S314 - written by libvirtd
    uses = (
        (element, parse_hostdevs(_wrap_in_domain(element)))
        for element in root.iterfind("./devices/hostdev")
    )
    return tuple(
        ElementTree.tostring(element, encoding="unicode").strip()
        for element, use in uses
        if any(use.holds(handle) for handle in handles)
    )


def share_one_slot(elements: Iterable[str]) -> bool:
    """Return whether two of some devices are in one PCI slot of a guest.

    libvirt can't unplug those (qemu_hotplug.c, "cannot hot unplug
    multifunction PCI device").
    """
    slots = [
        dataclasses.replace(guest_pci.parse_address(address), function=0)
        for text in elements
        for address in ElementTree.fromstring(text).iterfind(  # noqa: S314
            "./address[@type='pci']"
        )
    ]
    return len(set(slots)) < len(slots)


@contextlib.contextmanager
def translated_errors(domain: str) -> Iterator[None]:
    """Raise libvirt's errors on a domain as DomainsError."""
    try:
        yield
    except libvirt.libvirtError as error:
        raise errors.DomainsError(domain, f"libvirt says: {error}") from error


def _wrap_in_domain(element: ElementTree.Element) -> str:
    """Return the XML of a domain with only this device."""
    root = ElementTree.Element("domain")
    ElementTree.SubElement(root, "devices").append(element)
    return ElementTree.tostring(root, encoding="unicode")
