# SPDX-License-Identifier: Apache-2.0
"""Live migrations of guests that see the PCIe topology of their host."""

import dataclasses
from typing import Any, ClassVar

from nova.tests.functional.api import client

from tests.functional.nova.operations import moving
from tests.functional.nova.support import harness
from virt_hooks.guest.topology import guest_buses

PORT, OTHER_PORT = "0000:3a:00.0", "0000:3a:01.0"
BELOW_ONE = tuple(
    dataclasses.replace(card, port=PORT, numa_node=0)
    for card in harness.TWO_T4
)
BELOW_TWO = (
    BELOW_ONE[0],
    dataclasses.replace(BELOW_ONE[1], port=OTHER_PORT),
)
SPECS = {
    **harness.vgpu_group("_A", "4Q"),
    **harness.vgpu_group("_B", "4Q"),
    "group_policy": "isolate",
}


class LiveTopology(moving.LiveBase):
    #: By host.
    cards: ClassVar = {"host1": BELOW_ONE, "host2": BELOW_ONE}

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(SPECS, host="host1")

    def start_host(self, *_: Any, name: str = "host1", **words: Any) -> Any:
        self.flags(hw_machine_type="x86_64=q35", group="libvirt")
        return super().start_host(*self.cards[name], name=name, **words)

    def test_a_host_with_the_same_tree_gets_the_guest(self) -> None:
        before = self.domain(self.server).XMLDesc(0)
        self.assertTrue(guest_buses.has_expander(before))
        self._live_migrate(self.server)
        self.assertEqual(2, len(self.mdevs_of(self.server, "host2")))
        (sent,) = self.destination_xmls
        self.assertTrue(guest_buses.has_expander(sent))


class OtherTree(LiveTopology):
    cards: ClassVar = {"host1": BELOW_ONE, "host2": BELOW_TWO}

    def test_a_host_with_the_same_tree_gets_the_guest(self) -> None:
        """It has another one, so nothing happens."""
        before = self.mdevs_of(self.server)
        self.assertRaises(
            client.OpenStackApiException, self._live_migrate, self.server
        )
        self.assertIn("its devices here are not where", self.messages())
        self.assertIn("below one switch", self.messages())
        self.assertEqual([], self.destination_xmls)
        self.assertEqual(before, self.mdevs_of(self.server))
        self.assert_nothing_left("host2")
