# SPDX-License-Identifier: Apache-2.0
"""Moves of guests that see the PCIe topology of their host."""

import dataclasses
from typing import Any, ClassVar

import pytest
from nova.tests.functional.api import client

from tests.functional.nova.operations import moving
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.spawn import test_topology
from tests.functional.nova.support import harness, operations
from tests.lab import fakehost
from virt_hooks.guest.topology import clusters, guest_buses, picture

PORT, OTHER_PORT = "0000:3a:00.0", "0000:3a:01.0"
BELOW_ONE = tuple(
    dataclasses.replace(card, port=PORT, numa_node=0)
    for card in harness.TWO_T4
)
BELOW_TWO = (
    BELOW_ONE[0],
    dataclasses.replace(BELOW_ONE[1], port=OTHER_PORT),
)
# By address: the first one is alone on one host, the last one on the other.
_ADDRESSES = ("0000:3b:00.0", "0000:3c:00.0", "0000:3d:00.0")
FIRST_ALONE, LAST_ALONE = (
    tuple(
        fakehost.NvidiaGpu(address=address, model="T4", port=port)
        for address, port in zip(_ADDRESSES, ports, strict=True)
    )
    for ports in ((OTHER_PORT, PORT, PORT), (PORT, PORT, OTHER_PORT))
)
SPECS = {
    **harness.vgpu_group("_A", "4Q"),
    **harness.vgpu_group("_B", "4Q"),
    "group_policy": "isolate",
}


class LiveTopologyBase(moving.LiveBase):
    """A server of host1 that sees the PCIe of its host."""

    #: By host.
    cards: ClassVar = {"host1": BELOW_ONE, "host2": BELOW_ONE}
    specs: ClassVar = SPECS

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.specs, host="host1")

    def start_host(self, *_: Any, name: str = "host1", **words: Any) -> Any:
        self.flags(hw_machine_type="x86_64=q35", group="libvirt")
        return super().start_host(*self.cards[name], name=name, **words)


class LiveTopology(LiveTopologyBase):
    def test_a_host_with_the_same_tree_gets_the_guest(self) -> None:
        before = self.domain(self.server).XMLDesc(0)
        self.assertTrue(picture.parse(before).list_expanders())
        self._live_migrate(self.server)
        self.assertEqual(2, len(self.mdevs_of(self.server, "host2")))
        (sent,) = self.destination_xmls
        self.assertTrue(picture.parse(sent).list_expanders())


class OtherOrder(LiveTopologyBase):
    cards: ClassVar = {"host1": FIRST_ALONE, "host2": LAST_ALONE}
    specs: ClassVar = SPECS | harness.vgpu_group("_C", "4Q")

    @pytest.mark.long
    def test_each_vgpu_gets_a_card_at_its_place(self) -> None:
        """Equal vGPUs are paired so that the guest's switch has both of its.

        The order of providers, which are random, has no effect.
        """
        self._live_migrate(self.server)
        (sent,) = self.destination_xmls
        kernel = self.hosts["host2"].mdevs()
        shared = [
            {kernel[handle]["parent"] for handle in cluster.handles}
            for cluster in clusters.list_clusters(picture.parse(sent), kernel)
            if cluster.kind is clusters.ClusterKind.SWITCH
        ]
        self.assertEqual([{*_ADDRESSES[:2]}], shared)
        self.assertEqual(3, len(self.mdevs_of(self.server, "host2")))
        self.be_on("host2")
        self._reboot_server(self.server, hard=True)
        self.run_periodics()
        self._delete_server(self.server)
        self.assert_nothing_left("host2")


class ChosenCards(scheduled.ScheduledTestBase, LiveTopologyBase):
    cards: ClassVar = {"host1": BELOW_ONE, "host2": LAST_ALONE}

    @pytest.mark.long
    def test_the_cards_are_chosen_by_the_tree_of_the_guest(self) -> None:
        """Two of the three cards have a common root port, as on host1."""
        self._live_migrate(self.server)
        kernel = self.hosts["host2"].mdevs()
        parents = {record["parent"] for record in kernel.values()}
        self.assertEqual({*_ADDRESSES[:2]}, parents)


class OtherTree(LiveTopologyBase):
    cards: ClassVar = {"host1": BELOW_ONE, "host2": BELOW_TWO}

    def test_a_host_with_another_tree_is_refused(self) -> None:
        before = self.mdevs_of(self.server)
        self.assertRaises(
            client.OpenStackApiException, self._live_migrate, self.server
        )
        self.assertIn("its devices here are not where", self.messages())
        self.assertIn("below one switch", self.messages())
        self.assertIn(
            "the cards here that make T4-4Q: 0000:3b:00.0 and 0000:3c:00.0"
            " below one root complex",
            self.messages(),
        )
        self.assertEqual([], self.destination_xmls)
        self.assertEqual(before, self.mdevs_of(self.server))
        self.assert_nothing_left("host2")


class NextHost(LiveTopologyBase):
    cards: ClassVar = {
        "host1": BELOW_ONE,
        "host2": BELOW_TWO,
        "host3": BELOW_ONE,
    }
    goes_to = "host3"

    @pytest.mark.long
    def test_nova_tries_the_next_host_after_a_refusal(self) -> None:
        """Nova prefers host2, which has more free memory."""
        self.start_host(name="host3")
        self.boot(self.specs, host="host3")
        self.be_on("host1")
        self._live_migrate(self.server)
        self.assertIn("its devices here are not where", self.messages())
        self.assertEqual(2, len(self.mdevs_of(self.server, "host3")))
        self.assert_nothing_left("host1")
        self.assert_nothing_left("host2")


class NvlinkPeers(moving.LiveBase):
    """Two cards of each host, below two root ports of one root complex."""

    CARDS = BELOW_TWO

    def setUp(self) -> None:
        super().setUp()
        self.flags(hw_machine_type="x86_64=q35", group="libvirt")

    @pytest.mark.long
    def test_a_guest_that_sees_a_switch_needs_peers(self) -> None:
        test_topology.link(self, BELOW_TWO)
        server = self.boot(SPECS, host="host1")
        self.assertRaises(
            client.OpenStackApiException, self._live_migrate, server
        )
        self.assertIn("below one switch", self.messages())
        self.assert_nothing_left("host2")
        test_topology.link(self, BELOW_TWO, "host2")
        self._live_migrate(server)
        self.assertEqual(2, len(self.mdevs_of(server, "host2")))

    @pytest.mark.long
    def test_a_guest_that_was_defined_before_needs_none(self) -> None:
        server = self.boot(SPECS, host="host1")
        test_topology.link(self, BELOW_TWO, "host2")
        self._live_migrate(server)
        self.assertEqual(2, len(self.mdevs_of(server, "host2")))


class ColdTopology(operations.OperationsTestBase):
    """A server that moves between hosts with two trees while it is off."""

    switches: ClassVar = {"host1": 1, "host2": 0}

    def setUp(self) -> None:
        super().setUp()
        self.flags(hw_machine_type="x86_64=q35", group="libvirt")
        self.power_off_to_move()
        self.start_host(*BELOW_ONE, name="host1")
        self.start_host(*BELOW_TWO, name="host2")
        self.server = self.boot(SPECS, host="host1")
        self.assert_sees("host1")

    def _get_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = super()._get_connection(*args, **kwargs)
        connection.fakeLibVersion = moving.LIBVIRT
        connection.fakeVersion = moving.QEMU
        return connection

    def assert_sees(self, host: str) -> None:
        """Check that the server's guest sees the tree of a host."""
        self.assertEqual(host, self.host_of(self.server))
        mdevs = self.hosts[host].mdevs()
        text = self.domain(self.server, host).definition_xml
        guest = clusters.list_clusters(picture.parse(text), mdevs)
        kinds = [cluster.kind for cluster in guest]
        self.assertEqual(1, kinds.count(clusters.ClusterKind.ROOT_COMPLEX))
        self.assertEqual(
            self.switches[host], kinds.count(clusters.ClusterKind.SWITCH)
        )
        self.assertEqual(
            mdevs.keys(), set().union(*(c.handles for c in guest))
        )
        guest_buses.check(self.domain(self.server, host).XMLDesc(0))

    @pytest.mark.long
    def test_a_migrated_guest_sees_the_other_host(self) -> None:
        self.migrate(self.server)
        self.assert_sees("host2")
        self.revert(self.server)
        self.assert_sees("host1")
        self.migrate(self.server)
        self.confirm(self.server)
        self.assert_sees("host2")

    @pytest.mark.long
    def test_a_resized_guest_sees_the_other_host(self) -> None:
        self.resize(self.server, SPECS | {"hw:cpu_policy": "shared"})
        self.confirm(self.server)
        self.assert_sees("host2")

    @pytest.mark.long
    def test_an_evacuated_guest_sees_the_other_host(self) -> None:
        self.computes["host1"].stop()
        self.force_down(True, "host1")
        self.be_on("host2")
        self._evacuate_server(self.server, expected_host="host2")
        self._start_server(self.server)
        self.assert_sees("host2")
