# SPDX-License-Identifier: Apache-2.0
"""XML of domains is read after changes only, through a real libvirt.

libvirt's test driver can't plug a device into a running domain: a test calls
the callbacks of such an event itself, and gives the domain another definition
by a restart under the same number.
"""

import types
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import libvirt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virt_hooks.guest import connection

MDEV = (
    '<hostdev mode="subsystem" type="mdev" model="vfio-pci"><source>'
    '<address uuid="83c32df7-d52e-4ec1-9668-1f3c7e4df{:03d}"/></source>'
    "</hostdev>"
)
#: Passes read the domains twice: the running ones, and all.
GUESTS = 50


class CountedDomain:
    """A domain of libvirt; counts the requests for its XML."""

    def __init__(self, domain: libvirt.virDomain, host: "CountedHost") -> None:
        self._domain, self._host = domain, host

    def ID(self) -> int:
        return int(
            self._host.numbers.get(self.UUIDString(), self._domain.ID())
        )

    def UUIDString(self) -> str:
        return str(self._domain.UUIDString())

    def XMLDesc(self, flags: int) -> str:
        self._host.xml_requests += 1
        return str(self._domain.XMLDesc(flags))


class CountedHost:
    """Connection to a libvirt, and Nova's Host that has it."""

    def __init__(self, connected: libvirt.virConnect) -> None:
        self.connected = connected
        self.lists = self.xml_requests = 0
        self.has_events = True
        self.callbacks: list[Callable[..., None]] = []
        #: Numbers of domains that go on in the eyes of a test.
        self.numbers: dict[str, int] = {}

    def get_connection(self) -> "CountedHost":
        return self

    def domainEventRegisterAny(
        self, domain: None, event: int, callback: Any, opaque: None
    ) -> int:
        if not self.has_events:
            raise libvirt.libvirtError("no event loop")
        self.callbacks.append(callback)
        return len(self.callbacks)

    def listAllDomains(self, flags: int) -> list[CountedDomain]:
        self.lists += 1
        listed = self.connected.listAllDomains(flags)
        return [CountedDomain(domain, self) for domain in listed]

    def send_event(self, domain: libvirt.virDomain) -> None:
        self.callbacks[-1](self, domain, "hostdev0", None)


@pytest.fixture
def host() -> Iterator[CountedHost]:
    connected = libvirt.open("test:///default")
    remove_all(connected)
    yield CountedHost(connected)
    connected.close()


def remove_all(connected: libvirt.virConnect) -> None:
    for domain in connected.listAllDomains(0):
        if domain.isActive():
            domain.destroy()
        domain.undefine()


def define(host: CountedHost, name: str, *mdevs: int) -> libvirt.virDomain:
    devices = "".join(map(MDEV.format, mdevs))
    return host.connected.defineXML(
        f'<domain type="test"><name>{name}</name>'
        f"<uuid>5c2ad7ae-37d5-4a9b-b3b4-{zlib.crc32(name.encode()):012x}</uuid>"
        "<memory>1024</memory><os><type>hvm</type></os>"
        f"<devices>{devices}</devices></domain>"
    )


def start(host: CountedHost, name: str, *mdevs: int) -> libvirt.virDomain:
    domain = define(host, name, *mdevs)
    domain.create()
    return domain


def read_pass(domains: connection.HostdevReader) -> None:
    domains.read_running()
    domains.read_use()


def test_a_pass_asks_for_no_xml_while_nothing_changes(
    host: CountedHost,
) -> None:
    for number in range(GUESTS):
        start(host, f"guest-{number}", number)
    plain = connection.LibvirtDomains(host)
    read_pass(plain)
    assert (host.lists, host.xml_requests) == (2, 2 * GUESTS)
    watched = connection.WatchedDomains(host)
    read_pass(watched)
    host.lists = host.xml_requests = 0
    read_pass(watched)
    assert (host.lists, host.xml_requests) == (2, 0)
    assert watched.read_use() == plain.read_use()


def test_a_domain_that_started_again_is_read(host: CountedHost) -> None:
    domain = start(host, "guest", 1)
    start(host, "other", 2)
    watched = connection.WatchedDomains(host)
    watched.read_use()
    domain.destroy()
    start(host, "guest", 3)
    host.xml_requests = 0
    assert watched.read_use() == connection.LibvirtDomains(host).read_use()
    assert host.xml_requests == 1 + 2


def change_in_place(host: CountedHost, name: str, *mdevs: int) -> Any:
    """Give a running domain other devices; its number stays."""
    domain = host.connected.lookupByName(name)
    uuid = domain.UUIDString()
    host.numbers[uuid] = host.numbers.get(uuid, domain.ID())
    domain.destroy()
    return start(host, name, *mdevs)


def test_a_device_that_was_plugged_in_is_seen_by_its_event(
    host: CountedHost,
) -> None:
    start(host, "guest", 1)
    start(host, "other", 2)
    watched = connection.WatchedDomains(host)
    watched.read_use()
    domain = change_in_place(host, "guest", 1, 3)
    host.send_event(domain)
    host.xml_requests = 0
    assert len(watched.read_running().mdevs) == 3
    assert host.xml_requests == 1


def test_a_lost_event_is_made_up_for_in_ten_minutes(
    host: CountedHost,
) -> None:
    start(host, "guest", 1)
    clock = iter([0.0, 0.0, 599.0, 600.0, 600.0])
    watched = connection.WatchedDomains(host, clock.__next__)
    watched.read_use()
    change_in_place(host, "guest", 1, 2)
    assert len(watched.read_use().mdevs) == 1
    assert len(watched.read_use().mdevs) == 2


def test_an_event_during_an_error_is_not_lost(host: CountedHost) -> None:
    start(host, "guest", 1)
    watched = connection.WatchedDomains(host)
    watched.read_use()
    host.send_event(change_in_place(host, "guest", 1, 2))
    connected, host.connected = host.connected, libvirt.open("test:///default")
    host.connected.close()
    with pytest.raises(libvirt.libvirtError):
        watched.read_use()
    host.connected = connected
    assert len(watched.read_use().mdevs) == 2


def test_a_domain_that_is_off_is_read_each_time(host: CountedHost) -> None:
    """libvirt sends no event when its definition gets a device."""
    define(host, "off", 1)
    watched = connection.WatchedDomains(host)
    watched.read_use()
    define(host, "off", 2)
    assert watched.read_use() == connection.LibvirtDomains(host).read_use()
    assert watched.read_running() == connection.HostdevUse()


def test_all_domains_are_read_through_a_new_connection(
    host: CountedHost,
) -> None:
    start(host, "guest", 1)
    connections = [host]
    watched = connection.WatchedDomains(
        types.SimpleNamespace(get_connection=lambda: connections[-1])
    )
    watched.read_use()
    connections.append(CountedHost(host.connected))
    watched.read_use()
    assert connections[-1].xml_requests == 1
    assert len(connections[-1].callbacks) == len(host.callbacks)


def test_all_domains_are_read_where_libvirt_sends_no_events(
    host: CountedHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    host.has_events = False
    start(host, "guest", 1)
    watched = connection.WatchedDomains(host)
    for _ in range(2):
        watched.read_use()
    assert host.xml_requests == 2
    assert caplog.text.count("each pass reads the XML of all") == 1


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["start", "destroy", "define", "plug", "read"]),
        st.sampled_from(["a", "b", "c"]),
        st.sets(st.integers(0, 5)),
    ),
    max_size=12,
)


@given(CHANGES)
def test_watched_domains_have_what_all_xml_has(
    changes: list[tuple[str, str, set[int]]],
) -> None:
    """With the events that libvirt sends, whatever happens between reads."""
    connected = libvirt.open("test:///default")
    remove_all(connected)
    host = CountedHost(connected)
    watched = connection.WatchedDomains(host)
    plain = connection.LibvirtDomains(host)
    watched.read_use()
    for kind, name, mdevs in changes:
        apply(host, kind, name, *mdevs)
        if kind == "read":
            assert watched.read_use() == plain.read_use()
            assert watched.read_running() == plain.read_running()
    assert watched.read_use().by_domain == plain.read_use().by_domain
    assert watched.read_running().by_domain == plain.read_running().by_domain
    connected.close()


def apply(host: CountedHost, kind: str, name: str, *mdevs: int) -> None:
    existing = {d.name(): d for d in host.connected.listAllDomains(0)}
    domain = existing.get(name)
    if domain is None or not domain.isActive():
        if kind == "start":
            host.numbers.pop(start(host, name, *mdevs).UUIDString(), None)
        elif kind == "define":
            define(host, name, *mdevs)
    elif kind == "destroy":
        domain.destroy()
        host.numbers.pop(domain.UUIDString(), None)
    elif kind == "plug":
        host.send_event(change_in_place(host, name, *mdevs))
