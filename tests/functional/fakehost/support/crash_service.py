# SPDX-License-Identifier: Apache-2.0
"""A small nova-compute with the production Lifecycle, to be killed.

What is built is what the driver builds (virt_hooks.spawn.setup). Before each
write into the kernel, each change of the book and each word to Nova or
libvirt the service tells that it is about to take this step, and dies
there if it is told to.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from oslo_config import cfg

from nova_accel import model
from nova_accel.config import conf
from nova_accel.inventory import tree_builder
from tests.functional.fakehost.support import crash_outside, crash_technologies
from tests.support.hosts import domains, mortal
from tests.support.hosts.simulated import ROOT
from virt_hooks.spawn import setup

Record = crash_outside.Record


class Service:
    """One nova-compute, from its start to its end."""

    def __init__(
        self,
        link: mortal.Link,
        place: Path,
        technology: crash_technologies.Technology,
    ) -> None:
        self.ask, self.step = link.ask, link.step
        self.technology = technology
        self._bitstreams = technology.bitstreams(place)
        options = cfg.ConfigOpts()
        conf.read_settings(options)
        for name, value in (
            ("root", str(place / "root")),
            ("state_dir", str(place / "state")),
            ("drivers", [technology.drivers]),
            ("device_spec", technology.device_spec(place)),
        ):
            options.set_override(name, value, "nova_accel")
        self.life = setup.read_node(
            options,
            lambda: None,
            domains.SimulatedDomains(
                lambda: self.ask("use", False), lambda: self.ask("use", True)
            ),
        )
        self.report_steps = functools.partial(link.report_steps, self.life)

    def start(self) -> None:
        """Do what init_host does."""
        self.life.adopt(ROOT)
        self.life.set_card_modes()
        self.life.host.refresh()
        for server, record in self.ask("records").items():
            if record.is_here:
                groups = (self.technology.group,)
                self.life.restore(server, record.slots, groups)

    def look(self) -> None:
        """Run a periodic pass."""
        self.life.host.refresh_changed()
        self.life.clean_up()
        self.life.set_card_modes()

    # -- the steps ---------------------------------------------------------

    def save(self, server: str, record: Record | None) -> None:
        state = "gone" if record is None else record.state
        self.step(f"Nova saves: {state}")
        self.ask("save", server, record)

    # -- what Nova does with servers ---------------------------------------

    def spawn(self, server: str, slot: model.Slot) -> None:
        self.save(server, Record((slot,), "building"))
        booked = {slot.provider: {slot.resource_class: 1}}
        self.ensure(server, (slot,), booked)
        self.run_guest(server, (slot,))
        self.save(server, Record((slot,), "active"))
        self.step("return")

    def ensure(
        self, server: str, slots: tuple[model.Slot, ...], booked: Any = None
    ) -> tuple[model.Claim, ...]:
        groups = (self.technology.group,)
        return self.life.ensure(
            server, groups, slots, booked or {}, self._bitstreams
        )

    def run_guest(self, server: str, slots: tuple[model.Slot, ...]) -> None:
        """Define and start a domain, as any operation that needs one."""
        made = self.ensure(server, slots)
        self.step("define the domain")
        self.ask(
            *("define", server, made[0].technology),
            tuple(claim.handle for claim in made),
        )
        self.step("start the guest")
        self.ask("start", server)

    def destroy(self, server: str, slots: tuple[model.Slot, ...]) -> None:
        self.save(server, Record(slots, "deleting"))
        self.end_guest(server, slots)
        self.save(server, None)
        self.step("return")

    def end_guest(self, server: str, slots: tuple[model.Slot, ...]) -> None:
        """End a domain and release what it had (the driver's _cleanup)."""
        had = self.ask("use", False, server)
        self.step("end the guest")
        self.ask("stop", server)
        self.step("undefine the domain")
        self.ask("undefine", server)

        def is_holding(claim: model.Claim) -> bool:
            return bool(self.ask("use", True, server).holds(claim.handle))

        self.life.release(server, slots, is_holding, had)

    def leave(self, server: str, slots: tuple[model.Slot, ...]) -> None:
        """Migrate away, and be confirmed."""
        self.save(server, Record(slots, "resize_migrating"))
        self.step("end the guest")
        self.ask("stop", server)
        self.save(server, Record(slots, "resized"))
        self.confirm(server, slots)
        self.step("return")

    def confirm(self, server: str, slots: tuple[model.Slot, ...]) -> None:
        self.save(server, Record(slots, "confirming"))
        self.end_guest(server, slots)
        self.save(server, None)

    def arrive(self, server: str, slot: model.Slot) -> None:
        """Be migrated to: claimed before, spawned once it is this host's."""
        self.save(server, Record((slot,), "resize_prep", is_here=False))
        self.save(server, Record((slot,), "resize_finish"))
        self.run_guest(server, (slot,))
        self.save(server, Record((slot,), "active"))
        self.step("return")

    # -- after the crash ---------------------------------------------------

    def mend(self, server: str, record: Record) -> None:
        """Do what Nova, or the operator, does with an interrupted one."""
        if record.state in ("resized", "confirming"):
            self.confirm(server, record.slots)
            return
        if record.state == "resize_prep":  # given up: it never came
            self.save(server, None)
            return
        if record.state in ("resize_migrating", "resize_finish"):
            # It goes on here: powered on, or rebooted hard.
            if not self.ask("is_running", server):
                self.run_guest(server, record.slots)
            self.save(server, Record(record.slots, "active"))
            self.show("rebooted")
        self.destroy(server, record.slots)

    def show(self, stage: str) -> None:
        """Have everybody's books compared."""
        tree = self.life.tree(tree_builder.OWNER_TRAITS)
        assert tree is not None
        self.ask(
            *("judge", stage, self.life.claims()),
            [tree.node(uuid) for uuid in self.technology.uuids],
        )
