# SPDX-License-Identifier: Apache-2.0
"""Attach and detach in guests that see the PCIe topology of their host."""

import dataclasses
from typing import Any, ClassVar

import pytest

from nova_accel.model import names
from tests.functional.nova.attach import attaching
from tests.functional.nova.spawn import test_topology
from tests.lab import fakehost
from virt_hooks.guest.topology import guest_buses, picture, port_windows

CARDS = test_topology.CARDS
PROFILE = "10de:2330"


class AttachTopologyBase(
    attaching.AttachingTestBase, test_topology.TopologyTestBase
):
    cards: ClassVar[tuple[fakehost.PciCard, ...]] = CARDS
    topology: ClassVar[str] = "pcie"

    def setUp(self) -> None:
        super().setUp()
        self.start_host(*self.cards)
        # Two of the three cards are of node 0, below one root complex.
        self.server = self.boot(
            test_topology.group(1)
            | {
                test_topology.KEY: self.topology,
                f"trait_GPU0:{names.NUMA_PREFIX}0": "required",
            }
        )

    def host_of(self, _server: Any) -> str:
        return "host1"

    def list_places(self) -> dict[str, str]:
        """Return the guest's bus of each function, "" for any."""
        return {
            hostdev.find("./source/address").get("bus"): ""
            if hostdev.find("./address") is None
            else hostdev.find("./address").get("bus")
            for hostdev in self.hostdevs(self.server)
        }


class AttachTopology(AttachTopologyBase):
    #: All below one root complex.
    cards = (*CARDS[:2], test_topology.card("0000:1b:00.0", "0000:16:02.0"))

    def test_a_device_is_attached_below_its_root_complex(self) -> None:
        before = self.list_places()
        self.attach(self.server, PROFILE)
        # One spare port, of the root complex of the first one.
        self.assertEqual(["0x0a", "0x0b"], sorted(self.list_places().values()))
        reason = self.refused(
            self.server, "attach", **self.attach_arguments(PROFILE)
        )
        self.assertIn("needs a root port with 32 MiB below 4 GiB", reason)
        self.assertIn("on any bus: no port is free", self.messages())
        guest_buses.check(self.domain(self.server).XMLDesc(0))
        for record in self.list_accelerators(self.server):
            if record[0].startswith("attached"):
                self.detach(self.server, record[0])
        self.assertEqual(before, self.list_places())
        guest_buses.check(self.domain(self.server).XMLDesc(0))


class LargeBar(AttachTopologyBase):
    """The 40 bits of a guest have no room for the card of an empty port."""

    cards: ClassVar[tuple[fakehost.PciCard, ...]] = tuple(
        dataclasses.replace(card, bar=128 << 30) for card in CARDS
    )

    @pytest.mark.long
    def test_a_large_bar_is_refused_while_the_guest_runs(self) -> None:
        before = self.collect_state(self.server)
        reason = self.refused(
            self.server, "attach", **self.attach_arguments(PROFILE)
        )
        self.assertIn(
            "needs a root port with 32 MiB below 4 GiB and 256 GiB for"
            " prefetchable BARs, and its guest has one with 2 MiB below 4 GiB"
            " and 2 MiB for prefetchable BARs while it runs; stop the server"
            " first",
            reason,
        )
        self.assertEqual(before, self.collect_state(self.server))


class SpawnedBefore(
    attaching.AttachingTestBase, test_topology.TopologyTestBase
):
    """A server whose guest was defined before its host had topologies."""

    @pytest.mark.long
    def test_it_keeps_its_form_until_a_hard_reboot(self) -> None:
        self.start_host(*CARDS, guest_topology="none")
        server = self.boot(test_topology.group(2))
        self.assert_flat(server)
        defined = self.domain(server).definition_xml
        self.flags(guest_topology="auto", group="nova_accel")
        self.restart()
        self._reboot_server(server, hard=False)
        reason = self.refused(
            server, "attach", **self.attach_arguments(PROFILE)
        )
        self.assertIn("needs a root port with 32 MiB below 4 GiB", reason)
        self.run_periodics()
        self.assertEqual(defined, self.domain(server).definition_xml)
        self.assert_flat(server)

        self._reboot_server(server, hard=True)
        self.assertNotEqual([], self.cells(server))
        self.assertNotIn("", self.places(server).values())


class OneBus(AttachTopologyBase):
    """A guest on one bus, with the ports of ``[libvirt] num_pcie_ports``."""

    cards = (
        *AttachTopology.cards,
        test_topology.card("0000:1c:00.0", "0000:16:04.0"),
    )
    topology = "none"

    def setUp(self) -> None:
        self.flags(num_pcie_ports=12, group="libvirt")
        super().setUp()

    @pytest.mark.long
    def test_devices_are_attached_to_ports_with_room(self) -> None:
        text = self.domain(self.server).XMLDesc(0)
        spare = port_windows.parse(text)
        self.assertEqual(picture.ONE_BUS_PORTS, len(spare))
        before = self.list_places()
        for _ in spare:
            self.attach(self.server, PROFILE)
        buses = {int(b, 16) for b in self.list_places().values() if b}
        self.assertEqual(spare.keys(), buses)
        reason = self.refused(
            self.server, "attach", **self.attach_arguments(PROFILE)
        )
        self.assertIn("needs a root port with 32 MiB below 4 GiB", reason)
        for record in self.list_accelerators(self.server):
            if record[0].startswith("attached"):
                self.detach(self.server, record[0])
        self.assertEqual(before, self.list_places())
