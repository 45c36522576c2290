# SPDX-License-Identifier: Apache-2.0
"""Host devices are parsed from the XML of a real libvirt."""

from collections.abc import Iterator
from typing import Any

import libvirt
import pytest

from nova_accel import errors
from nova_accel.cli import registered_readers
from nova_accel.model import domains
from virt_hooks.guest import connection, host_domains

FIRST = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"
SECOND = "83c32df7-d52e-4ec1-9668-1f3c7e4df108"
MDEV = (
    '<hostdev mode="subsystem" type="mdev" model="vfio-pci"><source>'
    '<address uuid="{}"/></source></hostdev>'
)
PCI = (
    '<hostdev mode="subsystem" type="pci" managed="yes"><source>'
    '<address domain="{}" bus="{}" slot="{}" function="{}"/>'
    "</source></hostdev>"
)
# Host devices that are no accelerators, but have addresses, too.
USB = (
    '<hostdev mode="subsystem" type="usb"><source>'
    '<address bus="1" device="4"/></source></hostdev>'
)
SCSI = (
    '<hostdev mode="subsystem" type="scsi"><source>'
    '<adapter name="scsi_host0"/><address bus="0" target="0" unit="0"/>'
    "</source></hostdev>"
)
# A VF that Neutron gave to a guest is a hostdev too, under another name.
INTERFACE = (
    '<interface type="hostdev" managed="yes"><source>'
    '<address type="pci" domain="0" bus="0x18" slot="0x02" function="0x1"/>'
    '</source><mac address="52:54:00:6d:90:02"/></interface>'
)


@pytest.fixture
def host() -> Iterator[libvirt.virConnect]:
    connected = libvirt.open("test:///default")
    for domain in connected.listAllDomains(0):  # its own example
        if domain.isActive():
            domain.destroy()
        domain.undefine()
    yield connected
    connected.close()


def define(
    host: libvirt.virConnect, name: str, *devices: str
) -> libvirt.virDomain:
    return host.defineXML(
        f'<domain type="test"><name>{name}</name><memory>1024</memory>'
        f"<os><type>hvm</type></os>"
        f"<devices>{''.join(devices)}</devices></domain>"
    )


def test_a_host_without_domains_uses_nothing(
    host: libvirt.virConnect,
) -> None:
    assert connection.read_hostdevs(host) == connection.HostdevUse()


def test_running_and_shut_off_domains_count(
    host: libvirt.virConnect,
) -> None:
    define(host, "running", MDEV.format(FIRST)).create()
    define(host, "off", PCI.format("0x0", "0x3b", "0x00", "0x0"))
    define(host, "bare")
    use = connection.read_hostdevs(host)
    assert use.mdevs == {FIRST}
    assert use.functions == {"0000:3b:00.0"}
    assert use.holds(FIRST)
    assert use.holds("0000:3b:00.0")
    assert not use.holds(SECOND)
    assert not use.holds("0000:3b:00.1")


def test_only_running_domains_count_on_request(
    host: libvirt.virConnect,
) -> None:
    define(host, "running", MDEV.format(FIRST)).create()
    define(host, "off", PCI.format("0x0", "0x3b", "0x00", "0x0"))
    use = connection.read_hostdevs(host, is_running=True)
    assert use == connection.HostdevUse(mdevs=frozenset({FIRST}))


def test_a_domain_may_have_several(host: libvirt.virConnect) -> None:
    define(
        host,
        "many",
        MDEV.format(FIRST),
        MDEV.format(SECOND),
        PCI.format("0x0001", "0xaf", "0x1f", "0x7"),
    )
    use = connection.read_hostdevs(host)
    assert use.mdevs == {FIRST, SECOND}
    assert use.functions == {"0001:af:1f.7"}


def test_a_uuid_counts_however_it_was_written(
    host: libvirt.virConnect,
) -> None:
    define(host, "loud", MDEV.format(FIRST.upper()))
    assert connection.read_hostdevs(host).holds(FIRST)


def test_a_function_counts_however_it_was_written(
    host: libvirt.virConnect,
) -> None:
    define(host, "decimal", PCI.format("0", "59", "2", "1"))
    assert connection.read_hostdevs(host).functions == {"0000:3b:02.1"}


@pytest.mark.parametrize("other", [USB, SCSI])
def test_other_host_devices_are_passed_over(
    host: libvirt.virConnect, other: str
) -> None:
    define(host, "other", other)
    assert connection.read_hostdevs(host) == connection.HostdevUse()


def test_a_vf_that_is_a_guest_s_interface_counts(
    host: libvirt.virConnect,
) -> None:
    define(host, "port", INTERFACE)
    assert connection.read_hostdevs(host).functions == {"0000:18:02.1"}


def test_a_domain_that_is_gone_no_longer_counts(
    host: libvirt.virConnect,
) -> None:
    domain = define(host, "gone", MDEV.format(FIRST))
    domain.undefine()
    assert not connection.read_hostdevs(host).holds(FIRST)


def test_a_domain_that_ends_while_being_listed_is_passed_over(
    host: libvirt.virConnect,
) -> None:
    """A view of the host, taken before one of its domains was undefined."""
    define(host, "stays", MDEV.format(FIRST))
    gone = define(host, "goes", MDEV.format(SECOND))
    listed = host.listAllDomains(0)
    gone.undefine()

    class Earlier:
        def listAllDomains(self, flags: int) -> Any:
            return listed

    assert connection.read_hostdevs(Earlier()).mdevs == {FIRST}


def test_a_connection_that_fails_is_an_error(
    host: libvirt.virConnect,
) -> None:
    other = libvirt.open("test:///default")
    other.close()
    with pytest.raises(libvirt.libvirtError):
        connection.read_hostdevs(other)


def test_each_domain_is_returned_by_itself(host: libvirt.virConnect) -> None:
    running = define(host, "running", MDEV.format(FIRST))
    running.create()
    off = define(host, "off", PCI.format("0x0", "0x3b", "0x00", "0x0"))
    assert set(host_domains.read_domains("test:///default")) == {
        domains.Domain(
            uuid=running.UUIDString(),
            name="running",
            is_running=True,
            mdevs=frozenset({FIRST}),
        ),
        domains.Domain(
            uuid=off.UUIDString(),
            name="off",
            is_running=False,
            functions=frozenset({"0000:3b:00.0"}),
        ),
    }


def test_domains_are_found_by_the_entry_point(
    host: libvirt.virConnect,
) -> None:
    define(host, "off", MDEV.format(FIRST))
    (domain,) = registered_readers.read_domains("test:///default")
    assert domain.handles == {FIRST}


def test_a_libvirt_that_is_not_there_is_no_empty_host() -> None:
    with pytest.raises(errors.DomainsError, match="nowhere://"):
        registered_readers.read_domains("nowhere:///system")
