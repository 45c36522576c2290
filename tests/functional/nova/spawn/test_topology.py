# SPDX-License-Identifier: Apache-2.0
"""Guests that see the PCIe topology of their host."""

import dataclasses
from typing import Any, ClassVar

import pytest
from lxml import etree

from nova_accel.model import names
from tests.functional.nova.support import harness
from tests.lab import fakehost
from virt_hooks.guest.topology import guest_buses, port_windows

TRAIT = "CUSTOM_GPU_PCI_10DE_2330"
# Two cards below one root port of node 0, and one of node 1.
SHARED, OWN = "0000:16:01.0", "0000:96:01.0"
KEY = "accelerator:guest_topology"


def card(address: str, port: str, node: int = 0) -> fakehost.PciCard:
    return fakehost.PciCard(
        address=address,
        vendor=0x10DE,
        device=0x2330,
        class_code=0x030200,
        driver="",
        group=int(address[5:7], 16),
        numa_node=node,
        port=port,
    )


CARDS = (
    card("0000:19:00.0", SHARED),
    card("0000:1a:00.0", SHARED),
    card("0000:97:00.0", OWN, node=1),
)


def group(count: int) -> dict[str, str]:
    """Return the extra specs of a number of whole cards."""
    specs = {"group_policy": "none"}
    for number in range(count):
        specs[f"resources_GPU{number}:PGPU"] = "1"
        specs[f"trait_GPU{number}:{TRAIT}"] = "required"
    return specs


def link(
    test: harness.AccelTestBase, cards: tuple[Any, ...], host: str = "host1"
) -> None:
    """Give providers the traits that they had with NVIDIA's driver."""
    for own in cards:
        links = {
            names.nvlink_trait(peer.address)
            for peer in cards
            if peer is not own
        }
        for trait in links:
            test._create_trait(trait)
        uuid = test.provider(own.address, host)
        traits = test._get_provider_traits(uuid)
        test._set_provider_traits(uuid, [*traits, *links])


class TopologyTestBase(harness.AccelTestBase):
    """Guests of machine type q35."""

    machine_type, libvirt_version = "q35", 9_000_000

    def setUp(self) -> None:
        super().setUp()
        self.flags(
            hw_machine_type=f"x86_64={self.machine_type}", group="libvirt"
        )

    def _get_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = super()._get_connection(*args, **kwargs)
        connection.fakeLibVersion = self.libvirt_version
        connection.fakeVersion = 7_002_000
        return connection

    def definition(self, server: Any) -> Any:
        return etree.fromstring(self.domain(server).definition_xml)

    def places(self, server: Any) -> dict[str, str]:
        """Return the guest's bus of each function, by its bus of the host."""
        places = {}
        for element in self.definition(server).findall("./devices/hostdev"):
            address = element.find("./address")
            source = element.find("./source/address")
            places[source.get("bus")] = (
                "" if address is None else address.get("bus")
            )
        return places

    def cells(self, server: Any) -> list[str | None]:
        """Return the NUMA node of each expander, None without one."""
        return [
            expander.findtext("./target/node")
            for expander in self.definition(server).findall(
                "./devices/controller[@model='pcie-expander-bus']"
            )
        ]

    def assert_flat(self, server: Any) -> None:
        self.assertEqual([], self.cells(server))
        self.assertEqual({""}, set(self.places(server).values()))


class Topology(TopologyTestBase):
    #: Of a guest with eight ports on bus 0.
    mirrored: ClassVar = {"0x19": "0x0c", "0x1a": "0x0d", "0x97": "0x10"}

    def test_three_cards_are_mirrored(self) -> None:
        self.start_host(*CARDS)
        server = self.boot(group(3))
        self.assertEqual(self.mirrored, self.places(server))
        self.assertEqual([None, None], self.cells(server))
        guest_buses.check(self.domain(server).XMLDesc(0))
        self._reboot_server(server, hard=True)
        self.assertEqual(self.mirrored, self.places(server))
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_buses_that_libvirt_adds_are_corrected(self) -> None:
        """A port more than the guest was given, before its start."""
        self.start_host(*CARDS)
        connection = self.computes["host1"].driver._host.get_connection()
        define = connection.defineXML

        def add_port(text: str) -> Any:
            root = etree.fromstring(text)
            if root.find("./devices/*[@model='pcie-expander-bus']") is not (
                None
            ) and not root.findall("./devices/*[@index='18']"):
                etree.SubElement(
                    root.find("./devices"),
                    "controller",
                    type="pci",
                    index="18",
                    model="pcie-root-port",
                )
            return define(etree.tostring(root, encoding="unicode"))

        connection.defineXML = add_port
        server = self.boot(group(3))
        self.assertIn("renumbering the buses of", self.messages())
        self.assertEqual(
            {"0x19": "0x0d", "0x1a": "0x0e", "0x97": "0x11"},
            self.places(server),
        )
        guest_buses.check(self.domain(server).XMLDesc(0))

    @pytest.mark.long
    def test_one_card_of_a_guest_without_numa_is_on_one_bus(self) -> None:
        self.start_host(*CARDS)
        self.assert_flat(self.boot(group(1)))

    @pytest.mark.long
    def test_an_expander_is_on_the_numa_node_of_the_guest(self) -> None:
        self.start_host(*CARDS[:2])
        specs = {"hw:numa_nodes": "1", "accelerator:numa_policy": "required"}
        server = self.boot(group(1) | specs)
        self.assertEqual(["0"], self.cells(server))

    @pytest.mark.long
    def test_cells_have_the_distances_of_the_host(self) -> None:
        self.start_host(*CARDS)
        flavor = self._create_flavor(
            extra_spec=group(3) | {"hw:numa_nodes": "2"},
            memory_mb=512,
            vcpu=2,
            disk=1,
            ephemeral=0,
        )
        server = self._create_server(
            image_uuid=harness.IMAGE, flavor_id=flavor, networks="none"
        )
        siblings = self.definition(server).findall(
            "./cpu/numa/cell/distances/sibling"
        )
        self.assertEqual(
            [("0", "10"), ("1", "32"), ("0", "32"), ("1", "10")],
            [(each.get("id"), each.get("value")) for each in siblings],
        )
        self.assertEqual({"0", "1"}, set(self.cells(server)))

    def test_a_flavor_can_ask_for_none(self) -> None:
        self.start_host(*CARDS)
        self.assert_flat(self.boot(group(3) | {KEY: "none"}))

    @pytest.mark.long
    def test_a_flavor_can_ask_for_one_card(self) -> None:
        self.start_host(*CARDS, guest_topology="none")
        server = self.boot(group(1) | {KEY: "pcie"})
        self.assertEqual([None], self.cells(server))

    @pytest.mark.long
    def test_a_host_can_show_numa_nodes_only(self) -> None:
        self.start_host(*CARDS, guest_topology="numa")
        server = self.boot(group(3))
        self.assertEqual(
            {"0x19": "0x0a", "0x1a": "0x0b", "0x97": "0x0e"},
            self.places(server),
        )


class NvlinkPeers(TopologyTestBase):
    """Cards that are bound to no driver: NVML does not see their links."""

    cards = (CARDS[0], card("0000:1b:00.0", "0000:16:02.0"), CARDS[2])

    @pytest.mark.long
    def test_peers_of_one_root_complex_are_below_one_switch(self) -> None:
        self.start_host(*self.cards)
        link(self, self.cards)
        server = self.boot(group(3))
        peers = {"0x19": "0x0c", "0x1b": "0x0d", "0x97": "0x10"}
        self.assertEqual(peers, self.places(server))
        self.assertEqual([None, None], self.cells(server))
        self.restart()
        self.run_periodics()
        self._reboot_server(server, hard=True)
        self.assertEqual(peers, self.places(server))

    @pytest.mark.long
    def test_without_nvlink_each_is_below_its_root_port(self) -> None:
        self.start_host(*self.cards)
        self.assertEqual(
            {"0x19": "0x0a", "0x1b": "0x0b", "0x97": "0x0e"},
            self.places(self.boot(group(3))),
        )


class Windows(TopologyTestBase):
    """BAR 0 of the cards has 16 MiB, and is not prefetchable."""

    def windows(self, bar: int = 0) -> Any:
        """Return the windows of the empty ports of a guest with 40 bits."""
        cards = [dataclasses.replace(card, bar=bar) for card in CARDS]
        self.start_host(*cards)
        server = self.boot(group(3))
        self.assertEqual(Topology.mirrored, self.places(server))
        return port_windows.parse(self.domain(server).definition_xml)

    @pytest.mark.long
    def test_empty_ports_have_room_for_a_card_of_the_host(self) -> None:
        room = port_windows.Windows(memory=32 << 20)
        self.assertEqual({14: room, 17: room}, self.windows())

    @pytest.mark.long
    def test_a_small_address_space_has_no_room_for_it(self) -> None:
        windows = self.windows(128 << 30).values()
        self.assertTrue(all(not each.prefetchable for each in windows))


class Conventional(TopologyTestBase):
    machine_type = "pc"

    def test_the_default_is_one_bus(self) -> None:
        self.start_host(*CARDS)
        self.assert_flat(self.boot(group(3)))
        self.assertNotIn("on one bus", self.messages())

    @pytest.mark.long
    def test_the_default_of_a_host_is_one_bus_with_a_warning(self) -> None:
        self.start_host(*CARDS, guest_topology="pcie")
        self.assert_flat(self.boot(group(3)))
        self.assertIn(
            "has all accelerators on one bus: its machine type is pc, and"
            " must be q35",
            self.messages(),
        )

    @pytest.mark.long
    def test_the_topology_of_a_flavor_is_refused(self) -> None:
        self.start_host(*CARDS)
        server = self.boot(group(1) | {KEY: "numa"}, expected_state="ERROR")
        self.assertIn(
            "the flavor asks for accelerator:guest_topology=numa, but its"
            " machine type is pc, and must be q35",
            self.messages(),
        )
        self._delete_server(server)
        self.assert_nothing_left()


class OldLibvirt(TopologyTestBase):
    libvirt_version = 8_000_000

    @pytest.mark.long
    def test_the_topology_of_a_flavor_is_refused(self) -> None:
        self.start_host(*CARDS)
        self.assert_flat(self.boot(group(2)))
        self.boot(group(1) | {KEY: "pcie"}, expected_state="ERROR")
        self.assertIn(
            "it needs libvirt 9.0.0, this host has 8.0.0: update it",
            self.messages(),
        )


class LargeBars(TopologyTestBase):
    """Cards with 3 TiB of BARs, for which no guest has room by default."""

    host_bits = 46

    def setUp(self) -> None:
        super().setUp()
        self.flags(virt_type="kvm", cpu_mode="host-model", group="libvirt")
        self.start_host(
            *(dataclasses.replace(card, bar=1 << 40) for card in CARDS)
        )

    def _get_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = super()._get_connection(*args, **kwargs)
        text = connection.getCapabilities()
        size = f'<maxphysaddr mode="emulate" bits="{self.host_bits}"/>'
        connection.getCapabilities = lambda: text.replace(
            "<cpu>", f"<cpu>{size}", 1
        )
        return connection

    def test_the_guest_gets_the_address_bits_of_its_bars(self) -> None:
        """And of a window of 2 TiB on each of its two empty ports."""
        server = self.boot(group(3))
        size = self.definition(server).find("./cpu/maxphysaddr")
        self.assertEqual({"mode": "emulate", "bits": "45"}, dict(size.attrib))
        windows = port_windows.parse(self.domain(server).definition_xml)
        self.assertEqual(
            [2 << 40] * 2, [each.prefetchable for each in windows.values()]
        )
        self._reboot_server(server, hard=True)
        size = self.definition(server).find("./cpu/maxphysaddr")
        self.assertEqual("45", size.get("bits"))

    @pytest.mark.long
    def test_too_few_bits_of_a_flavor_are_refused(self) -> None:
        specs = {"hw:maxphysaddr_mode": "emulate", "hw:maxphysaddr_bits": "41"}
        # Nova has no validator for them.
        server = self.boot(
            group(3) | specs, is_checked=False, expected_state="ERROR"
        )
        self.assertIn(
            "need 42 address bits or more with BIOS, and hw:maxphysaddr_bits"
            " is 41: set it to 42",
            self.messages(),
        )
        self._delete_server(server)
        self.assert_nothing_left()


@pytest.mark.long
class SmallProcessor(LargeBars):
    host_bits = 41

    def test_the_guest_gets_the_address_bits_of_its_bars(self) -> None:
        """Not on this host."""
        self.boot(group(3), expected_state="ERROR")
        self.assertIn("and the processor of this host has 41", self.messages())
