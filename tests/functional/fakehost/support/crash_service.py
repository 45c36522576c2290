# SPDX-License-Identifier: Apache-2.0
"""A small nova-compute with the production Lifecycle, to be killed.

It is built as the driver builds it (virt_hooks.spawn.setup). It reports each
step beforehand: a write to the kernel, a change of the claim store, a request
to Nova or libvirt. It is killed there if the test has chosen this step.
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
        """Start as init_host does."""
        self.life.adopt(ROOT)
        self.life.set_card_modes()
        self.life.host.refresh()
        for server, record in self.ask("records").items():
            if record.is_here:
                groups = (self.technology.group,)
                self.life.restore(server, record.slots, groups)

    def run_pass(self) -> None:
        """Run a periodic pass."""
        self.life.host.refresh_changed()
        self.life.clean_up()
        self.life.set_card_modes()

    # -- the steps ---------------------------------------------------------

    def save(self, server: str, record: Record | None) -> None:
        state = "gone" if record is None else record.state
        self.step(f"Nova saves: {state}")
        self.ask("save", server, record)

    # -- operations of Nova ------------------------------------------------

    def spawn(self, server: str, slot: model.Slot) -> None:
        self.save(server, Record((slot,), "building"))
        allocated = {slot.provider: {slot.resource_class: 1}}
        self.ensure(server, (slot,), allocated)
        self.run_guest(server, (slot,))
        self.save(server, Record((slot,), "active"))
        self.step("return")

    def ensure(
        self, server: str, slots: tuple[model.Slot, ...], allocated: Any = None
    ) -> tuple[model.Claim, ...]:
        groups = (self.technology.group,)
        return self.life.ensure(
            server, groups, slots, allocated or {}, self._bitstreams
        )

    def run_guest(self, server: str, slots: tuple[model.Slot, ...]) -> None:
        """Define and start a domain, as any operation that needs one."""
        claims = self.ensure(server, slots)
        self.step("define the domain")
        self.ask(
            *("define", server, claims[0].technology),
            tuple(claim.handle for claim in claims),
        )
        self.step("start the guest")
        self.ask("start", server)

    def destroy(self, server: str, slots: tuple[model.Slot, ...]) -> None:
        self.save(server, Record(slots, "deleting"))
        self.end_guest(server, slots)
        self.save(server, None)
        self.step("return")

    def end_guest(self, server: str, slots: tuple[model.Slot, ...]) -> None:
        """End a domain and release its slots (the driver's _cleanup)."""
        devices = self.ask("use", False, server)
        self.step("end the guest")
        self.ask("stop", server)
        self.step("undefine the domain")
        self.ask("undefine", server)

        def is_holding(claim: model.Claim) -> bool:
            return bool(self.ask("use", True, server).holds(claim.handle))

        self.life.release(server, slots, is_holding, devices)

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
        """Arrive by a migration: claim first, and spawn later."""
        self.save(server, Record((slot,), "resize_prep", is_here=False))
        self.save(server, Record((slot,), "resize_finish"))
        self.run_guest(server, (slot,))
        self.save(server, Record((slot,), "active"))
        self.step("return")

    # -- after the crash ---------------------------------------------------

    def finish(self, server: str, record: Record) -> None:
        """Finish an interrupted operation, as Nova or the operator does."""
        if record.state in ("resized", "confirming"):
            self.confirm(server, record.slots)
            return
        if record.state == "resize_prep":  # given up: it did not come
            self.save(server, None)
            return
        if record.state in ("resize_migrating", "resize_finish"):
            # It goes on here: powered on, or rebooted hard.
            if not self.ask("is_running", server):
                self.run_guest(server, record.slots)
            self.save(server, Record(record.slots, "active"))
            self.compare("rebooted")
        self.destroy(server, record.slots)

    def compare(self, stage: str) -> None:
        """Let the test compare all records."""
        tree = self.life.tree(tree_builder.OWNER_TRAITS)
        assert tree is not None
        self.ask(
            *("judge", stage, self.life.claims()),
            [tree.node(uuid) for uuid in self.technology.uuids],
        )
