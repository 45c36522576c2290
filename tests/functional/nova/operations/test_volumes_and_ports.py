# SPDX-License-Identifier: Apache-2.0
"""Nova attaches volumes and ports to servers with accelerators.

Nova's fake libvirt gives no addresses: libvirt's own QEMU driver gets the
same XML afterwards.
"""

import pathlib
import shutil
from typing import Any
from xml.etree import ElementTree

import fixtures
from nova.tests import fixtures as nova_fixtures

from nova_accel.model import flavors
from tests.functional.nova.spawn import test_topology
from tests.functional.nova.support import libvirtd, operations, technologies
from tests.lab.guests import replay
from virt_hooks.guest.topology import clusters, guest_buses, picture

VOLUME = nova_fixtures.CinderFixture.IMAGE_BACKED_VOL
PORT = nova_fixtures.NeutronFixture.port_2


class VolumesAndPortsBase(
    operations.OperationsTestBase, test_topology.TopologyTestBase
):
    """A server that gets a volume and a port."""

    __test__ = False
    topology = flavors.GuestTopology.PCIE

    def setUp(self) -> None:
        if shutil.which("virsh") is None:
            self.skipTest("virsh is not installed")
        super().setUp()
        self.useFixture(nova_fixtures.CinderFixture(self))
        #: XML of the devices that Nova has attached.
        self.attached: list[str] = []
        stock = libvirtd.Domain.attachDeviceFlags

        def attach(domain: Any, text: str, flags: int) -> None:
            self.attached.append(text)
            stock(domain, text, flags)

        self.useFixture(
            fixtures.MonkeyPatch(
                "tests.functional.nova.support.libvirtd.Domain"
                ".attachDeviceFlags",
                attach,
            )
        )

    def define(self, server: Any, *attached: str) -> tuple[str, ...]:
        """Return a server's domain, and after each attachment."""
        root = self.useFixture(fixtures.TempDir()).path
        text = self.domain(server).nova_xml
        return replay.define(pathlib.Path(root), text, attached, correct)

    def test_volume_and_port(self) -> None:
        self.start_hosts("host1")
        server = self.boot(
            self.technology.small(self)
            | {test_topology.KEY: self.topology.value}
        )
        booted = list_pci(self.domain(server).definition_xml)
        self._attach_volume(server, VOLUME)
        self.neutron.create_port({"port": PORT})
        self._attach_interface(server, PORT["id"])
        self.assertEqual(
            ["disk", "interface"],
            [ElementTree.fromstring(text).tag for text in self.attached],
        )
        before, *after = self.define(server, *self.attached)
        self.assertEqual(2, len(after))
        for text in after:
            self.assert_room(before, text)

        self._reboot_server(server, hard=True)
        self.assert_agreement("hard reboot")
        (again,) = self.define(server)
        self.assert_same_tree(before, again)
        tags = [tag for tag, _, _ in list_devices(again)]
        self.assertEqual(2, tags.count("disk"))
        self.assertEqual(1, tags.count("interface"))

        self._detach_volume(server, VOLUME)
        self._detach_interface(server, PORT["id"])
        self._reboot_server(server, hard=True)
        self.assertEqual(booted, list_pci(self.domain(server).definition_xml))
        self._delete_server(server)
        self.assert_nothing_left()

    def _detach_volume(self, server: Any, volume: str) -> None:
        self.api.delete_server_volume(server["id"], volume)
        self.until(
            lambda: self.assertEqual(
                [], self.api.get_server_volumes(server["id"])
            )
        )

    def assert_room(self, before: str, after: str) -> None:
        """Check that each attached device is alone on a port of bus 0.

        The port existed: a guest that runs gets no further one.
        """
        old, new = list_devices(before), list_devices(after)
        self.assertEqual(list_ports(before), list_ports(after))
        added = [device for device in new if device not in old]
        self.assertEqual([], [device for device in old if device not in new])
        self.assertNotEqual([], added)
        buses = [bus for _, bus, _ in new]
        for _, bus, place in added:
            self.assertIn(bus, list_ports(before))
            self.assertEqual((0, 0), place)
            self.assertEqual(1, buses.count(bus))

    def assert_same_tree(self, before: str, after: str) -> None:
        """Check that the accelerators are where they were.

        Beside more devices bus 0 may have more ports, and so each bus behind
        them another number.
        """
        handles = list_handles(before)
        self.assertNotEqual([], handles)
        self.assertEqual(handles, list_handles(after))
        self.assertEqual(
            *(
                clusters.list_clusters(picture.parse(text), handles)
                for text in (before, after)
            )
        )
        self.assertEqual(
            len(list_expander_ports(before)), len(list_expander_ports(after))
        )


def correct(text: str) -> str:
    """Return a domain as nova-accel corrects it before its start."""
    if not picture.parse(text).list_expanders():
        return text
    return guest_buses.renumber(text)


def list_devices(text: str) -> list[tuple[str, int, tuple[int, int]]]:
    """Return tag, bus, and slot and function of devices on ports."""
    devices = []
    for device in ElementTree.fromstring(text).iterfind("./devices/*"):
        address = device.find("./address[@type='pci']")
        is_bridge = (device.tag, device.get("type")) == ("controller", "pci")
        if address is None or is_bridge:
            continue
        bus, slot, function = (
            int(address.get(name, ""), 16)
            for name in ("bus", "slot", "function")
        )
        if bus:
            devices.append((device.tag, bus, (slot, function)))
    return devices


def list_pci(text: str) -> list[bytes]:
    """Return the PCI controllers and accelerators of a definition."""
    root = ElementTree.fromstring(text)
    return [
        ElementTree.tostring(device)
        for path in ("controller[@type='pci']", "hostdev")
        for device in root.iterfind(f"./devices/{path}")
    ]


def list_ports(text: str) -> set[int]:
    """Return the buses of the root ports of bus 0."""
    return {
        int(port.get("index", ""))
        for port in ElementTree.fromstring(text).iterfind(
            "./devices/controller[@model='pcie-root-port']"
        )
        for address in port.iterfind("./address[@bus='0x00']")
    }


def list_expander_ports(text: str) -> list[int]:
    """Return the free ports of expanders."""
    return [*picture.parse(text).spare_ports]


def list_handles(text: str) -> list[str]:
    return sorted(
        map(
            picture.parse_handle,
            ElementTree.fromstring(text).iterfind("./devices/hostdev"),
        )
    )


class Mirrored(VolumesAndPortsBase):
    """A server that sees the PCIe of its host."""

    def assert_room(self, before: str, after: str) -> None:
        super().assert_room(before, after)
        guest_buses.check(after)
        self.assertTrue(picture.parse(after).list_expanders())
        self.assertEqual(
            list_expander_ports(before), list_expander_ports(after)
        )

    def assert_same_tree(self, before: str, after: str) -> None:
        super().assert_same_tree(before, after)
        guest_buses.check(after)


class Flat(VolumesAndPortsBase):
    """A server with all devices on one bus."""

    topology = flavors.GuestTopology.NONE

    def setUp(self) -> None:
        super().setUp()
        # The ports of this guest are Nova's alone.
        self.flags(num_pcie_ports=16, group="libvirt")


globals().update(
    technologies.matrix(Mirrored, technologies.MDEV, also=technologies.ALL[1:])
    | technologies.matrix(Flat, also=technologies.ALL)
)
