# SPDX-License-Identifier: Apache-2.0
"""Random sequences of events on a host with FPGAs.

Run some from the command line to reproduce them::

    python -m tests.support.fpga.lives SEED SEQUENCES
"""

from __future__ import annotations

import collections
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from nova_accel.host.execute import privileged
from nova_accel.model import names
from tests.lab import fakehost
from tests.support.fpga import cloud as simulated_fpga_cloud
from tests.support.fpga import kernel, outside, simulated

#: Cards of a host; each boot uses the next entry.
SHAPES = tuple(
    fakehost.HostSpec(cards=cards)
    for cards in (
        (
            fakehost.DflCard(address=simulated.PAC),
            fakehost.DflCard(
                address=simulated.SPLIT,
                functions=(simulated.A, simulated.B),
                released=2,
            ),
        ),
        (fakehost.IntelFpgaCard(address=simulated.LEGACY),),
        (
            fakehost.AlveoCard(address=simulated.ALVEO, function=simulated.A),
            fakehost.DflCard(address=simulated.PAC),
        ),
        (
            fakehost.DflCard(
                address=simulated.SPLIT,
                functions=(simulated.A, simulated.A, simulated.C),
                released=3,
            ),
        ),
    )
)
#: Sequences between two boots, and steps of a sequence.
PER_BOOT, STEPS = 50, (3, 7)
#: Sequences between two lines of progress, and wrongs that are printed.
EVERY, SHOWN = 1000, 20
Cloud = simulated_fpga_cloud.Cloud


class Lives:
    """Sequences on one boot of one host."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._host = cloud.host
        self._chance = cloud.chance
        self._outside = outside.Outside(cloud)
        self._steps: dict[Callable[[], None], int] = {
            self.spawn: 40,
            self.delete: 12,
            self.reboot: 14,
            self.shut_down: 6,
            self.start: 8,
            self.ensure_again: 3,
            self.release_too_early: 2,
            self.restart: 5,
            self.pass_by: 8,
            self._outside.program_by_hand: 5,
            self._outside.guest_programs: 4,
            self._outside.open_port: 3,
            self._outside.make_flaky: 4,
            self._outside.unplug: 2,
            self._outside.plug: 3,
            self._outside.heal: 5,
            self._outside.take_away: 3,
            self._outside.meet_stranger: 4,
        }

    def go(self) -> None:
        """Run one sequence, which starts and ends without servers."""
        steps, weights = list(self._steps), list(self._steps.values())
        number = self._chance.randint(*STEPS)
        for step in self._chance.choices(steps, weights, k=number):
            self._cloud.judge.counts["steps"] += 1
            step()
            self._cloud.judge.check_log()
            self._check_claims()
        self._finish()

    # -- Nova's requests -------------------------------------------------

    def spawn(self) -> None:
        """Create a server on a current or on a stale candidate."""
        cloud = self._cloud
        if self._chance.random() < 0.5:
            cloud.pass_by()
        offers = cloud.offered()
        used = {server.key for server in cloud.servers.values()}
        free = [key for key in cloud.keys if key not in used]
        if not free:
            return
        is_stale = not offers or self._chance.random() < 0.15
        key = self._chance.choice(free if is_stale else list(offers))
        wrong = ""
        if self._chance.random() < 0.3:
            wrong = self._chance.choice(simulated_fpga_cloud.WRONGS)
        server = cloud.draw(key, wrong)
        is_offer = key in offers and cloud.fits(server, offers[key])
        is_sure = is_offer and cloud.is_fresh and self._is_sane(key)
        cloud.last_refusal = ""
        cloud.is_fresh = False
        if not cloud.spawn(server) and is_sure and not wrong:
            cloud.judge.note(f"offered, then refused: {cloud.last_refusal}")

    def delete(self) -> None:
        """Delete a server."""
        if server := self._any():
            self._cloud.clean_up(server)

    def reboot(self) -> None:
        """Reboot a server hard: undefine its domain and create it again."""
        if server := self._any():
            self._cloud.shut_down(server)
            self._count(self._cloud.start_again(server), "rebooted")

    def shut_down(self) -> None:
        """Shut a server down."""
        if server := self._any():
            self._cloud.shut_down(server)

    def start(self) -> None:
        """Start a server that is off."""
        domains = self._cloud.libvirt.domains
        for server in list(self._cloud.servers.values()):
            domain = domains.get(server.name)
            if domain is None or not domain.is_running:
                self._count(self._cloud.start_again(server), "started")
                return

    def ensure_again(self) -> None:
        """Ensure a running guest's claims again: nothing is programmed."""
        if server := self._any(is_running=True):
            before = len(self._cloud.judge.log)
            image = server.image
            self._cloud.life.ensure(
                server.name,
                (server.group,),
                server.slots,
                {},
                {image.name: image} if image else {},
            )
            if len(self._cloud.judge.log) != before:
                self._cloud.judge.note(f"touched under {server}")

    def release_too_early(self) -> None:
        """Release while the guest runs: the claims stay."""
        if server := self._any(is_running=True):
            claims_before = self._cloud.life.claims_of(server.name)
            self._cloud.life.release(
                server.name,
                server.slots,
                lambda _: True,
                self._cloud.libvirt.use(),
            )
            if self._cloud.life.claims_of(server.name) != claims_before:
                self._cloud.judge.note(f"released under {server}")

    def restart(self) -> None:
        """Restart the service."""
        self._cloud.restart()

    def pass_by(self) -> None:
        """Run the periodic task."""
        self._cloud.pass_by()

    # -- judging ---------------------------------------------------------

    def _check_claims(self) -> None:
        """Compare the claims with the servers and domains."""
        cloud = self._cloud
        claims = {claim.consumer: claim for claim in cloud.life.claims()}
        if strange := claims.keys() - cloud.servers.keys():
            cloud.judge.note(f"claims without a server: {sorted(strange)}")
        for name, server in cloud.servers.items():
            domain = cloud.libvirt.domains.get(name)
            address = names.region_address(*server.key)
            if domain is None or not domain.is_running:
                continue
            if cloud.life.host.state.device(address) is None:
                continue  # unplugged, its guest still runs
            if claims.get(name) is None:
                cloud.judge.note(f"{name} runs without a claim")
            elif domain.functions != (claims[name].handle,):
                cloud.judge.note(f"{name} has another region")

    def _finish(self) -> None:
        """Delete everything; records and hardware must be as at first."""
        cloud = self._cloud
        if outside.STRANGER in cloud.libvirt.domains:
            self._outside.meet_stranger()
        for server in list(cloud.servers.values()):
            cloud.clean_up(server)
        self._undo_outside_changes()
        cloud.pass_by()
        self._judge_end()
        if self._chance.random() < 0.2:
            state_before = cloud.life.host.state
            cloud.restart()
            if cloud.life.host.state != state_before:
                cloud.judge.note("a new service sees another host")
        for key in cloud.keys:
            if key in cloud.judge.faulted and self._chance.random() < 0.7:
                self._outside.repair(key)

    def _judge_end(self) -> None:
        """Compare the final state with the initial one."""
        cloud, judge = self._cloud, self._cloud.judge
        if cloud.life.claims() or cloud.libvirt.domains:
            judge.note(f"left behind: {cloud.life.claims()}")
        run = self._host.root / "run"
        if run.exists() and (remaining := os.listdir(run)):
            judge.note(f"left behind: {remaining}")
        noted = set(cloud.faulted.read())
        failed = {names.region_address(*key) for key in judge.faulted}
        if not failed <= noted <= judge.ever_failed:
            judge.note(f"faulted: {noted}, should be {failed}")
        offers = {names.region_address(*k) for k in cloud.offered()}
        expected = {names.region_address(*k) for k in cloud.keys} - noted
        if offers != expected:
            judge.note(f"offered at the end: {offers}, not {expected}")

    def _undo_outside_changes(self) -> None:
        """Undo outside changes, except loaded functions."""
        self._host.flaky.clear()
        self._host.plug()
        functions = self._host.kernel.pci.functions
        for card, hardware in self._host.kernel.fpga.cards.items():
            if card not in functions:
                self._cloud.judge.note(f"{card} did not come back")
                continue
            for part in hardware.parts:
                part.is_open = False
                driver = functions[part.slot].driver
                if driver is None or driver.name == "vfio-pci":
                    self._cloud.libvirt.give_back(part.slot)
        self._host.sync()

    def _is_sane(self, key: simulated_fpga_cloud.Key) -> bool:
        """Return whether no outside change prevents programming."""
        part = self._host.part(*key)
        return not (part.is_open or self._host.hung or self._host.flaky)

    def _any(
        self, is_running: bool = False
    ) -> simulated_fpga_cloud.Server | None:
        domains = self._cloud.libvirt.domains
        servers = [
            server
            for server in self._cloud.servers.values()
            if not is_running
            or (server.name in domains and domains[server.name].is_running)
        ]
        return self._chance.choice(servers) if servers else None

    def _count(self, is_done: bool, what: str) -> None:
        self._cloud.judge.counts[what if is_done else f"not {what}"] += 1


def run(seed: int, sequences: int) -> list[str]:
    """Run sequences; return the violations."""
    privileged.run_here()
    begun = time.monotonic()
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
    done = 0
    while done < sequences:
        boot = done // PER_BOOT
        chance = random.Random(f"{seed} {boot}")  # noqa: S311 - no secret
        spec = SHAPES[boot % len(SHAPES)]
        with (
            tempfile.TemporaryDirectory(dir=shm) as place,
            kernel.direct(spec, Path(place) / "host") as host,
        ):
            cloud = Cloud(host, Path(place), chance, boot % 3 == 2)
            lives = Lives(cloud)
            for number in range(done, min(done + PER_BOOT, sequences)):
                reported = len(cloud.judge.wrong)
                lives.go()
                wrong += (
                    f"boot {boot}, sequence {number}: {text}"
                    for text in cloud.judge.wrong[reported:]
                )
        counts += cloud.judge.counts
        done += PER_BOOT
        if done % EVERY == 0 or done >= sequences:
            summary = ", ".join(f"{n} {k}" for k, n in sorted(counts.items()))
            print(
                f"seed {seed}: {min(done, sequences)} sequences,"
                f" {time.monotonic() - begun:.0f} s: {summary},"
                f" {len(wrong)} wrong",
                flush=True,
            )
    return wrong


def main(seed: int, sequences: int) -> int:
    """Run sequences, print the violations, and return their number."""
    logging.disable(logging.CRITICAL)
    wrong = run(seed, sequences)
    for text in wrong[:SHOWN]:
        print(f"seed {seed}: {text}", flush=True)
    return len(wrong)


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
