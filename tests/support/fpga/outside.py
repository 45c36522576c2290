# SPDX-License-Identifier: Apache-2.0
"""Operators, guests and hardware faults around a host with FPGAs."""

from __future__ import annotations

from nova_accel.model import names
from tests.lab.fakehost import fpga
from tests.support.fpga import cloud as simulated_fpga_cloud

STRANGER = "stranger"


class Outside:
    """Changes of a host that Nova does not request."""

    def __init__(self, cloud: simulated_fpga_cloud.Cloud) -> None:
        self._cloud = cloud
        self._host = cloud.host
        self._chance = cloud.chance

    def program_by_hand(self) -> None:
        """Load a function into an unassigned region, as an operator."""
        key = self._chance.choice(self._cloud.keys)
        part = self._host.part(*key)
        if self._cloud.judge.read_function(key) is None or self.has_domain(
            part
        ):
            return
        part.function = self._chance.choice(simulated_fpga_cloud.FUNCTIONS)
        self._changed()
        self._cloud.judge.changed_by_hand(key)

    def guest_programs(self) -> None:
        """Load a function from a guest that has a whole card."""
        domains = self._cloud.libvirt.domains
        running = [
            server
            for server in self._cloud.servers.values()
            if server.name in domains and domains[server.name].is_running
        ]
        server = self._chance.choice(running) if running else None
        if server and server.slots[0].identifier == server.key[0]:
            part = self._host.part(*server.key)
            part.function = self._chance.choice(simulated_fpga_cloud.FUNCTIONS)
            self._changed()

    def open_port(self) -> None:
        """Open or close a port from a program of the host."""
        part = self._host.part(*self._chance.choice(self._cloud.keys))
        part.is_open = not part.is_open
        self._cloud.is_fresh = False

    def make_flaky(self) -> None:
        """Make the next programming fail."""
        key = self._chance.choice(self._cloud.keys)
        self._host.flaky[key] = self._chance.choice(
            [d for d in fpga.Directive if d.value]
        )

    def unplug(self) -> None:
        """Unplug a card without domains."""
        card = self._chance.choice(list(self._host.kernel.fpga.cards))
        parts = self._host.kernel.fpga.cards[card].parts
        if not any(map(self.has_domain, parts)):
            self._host.kernel.fpga.vanish(card)
            self._changed()

    def plug(self) -> None:
        """Plug missing cards in again."""
        self._host.plug()
        self._changed()

    def heal(self) -> None:
        """Repair a card and heal its fault."""
        key = self._chance.choice(self._cloud.keys)
        if not self.has_domain(self._host.part(*key)):
            self.repair(key)

    def take_away(self) -> None:
        """Bind an unassigned function to vfio-pci, or back."""
        part = self._host.part(*self._chance.choice(self._cloud.keys))
        function = self._host.kernel.pci.functions.get(part.slot)
        if function is None or self.has_domain(part):
            return
        if function.driver and function.driver.name == "vfio-pci":
            self._cloud.libvirt.give_back(part.slot)
        else:
            self._cloud.libvirt.detach(part.slot)
        self._changed()

    def meet_stranger(self) -> None:
        """Start or stop a domain that Nova does not know."""
        domains = self._cloud.libvirt.domains
        if STRANGER in domains:
            self._cloud.libvirt.stop(STRANGER)
            self._cloud.libvirt.undefine(STRANGER)
        else:
            used = {s.key for s in self._cloud.servers.values()}
            key = self._chance.choice(self._cloud.keys)
            slot = self._host.part(*key).slot
            if key in used or slot not in self._host.kernel.pci.functions:
                return
            self._cloud.libvirt.start(STRANGER, (slot,))
        self._changed()

    def repair(self, key: simulated_fpga_cloud.Key) -> None:
        """Power-cycle a card and heal its fault."""
        address = names.region_address(*key)
        self._host.part(*key).is_enabled = True
        self._host.hung.clear()
        self._changed()
        self._cloud.faulted.heal([address])
        self._cloud.judge.healed(key)

    def has_domain(self, part: fpga.Part) -> bool:
        """Return whether a domain has a region, or the whole card."""
        card = next(
            card
            for card, hardware in self._host.kernel.fpga.cards.items()
            if part in hardware.parts
        )
        return any(
            name in (part.slot, card)
            for domain in self._cloud.libvirt.domains.values()
            for name in domain.functions
        )

    def _changed(self) -> None:
        self._host.sync()
        self._cloud.is_fresh = False
