# SPDX-License-Identifier: Apache-2.0
"""Two writers of one host agree."""

import collections
import os
import random
import time
from collections.abc import Callable
from typing import Any

from nova.tests.functional.api import client

from nova_accel.model import names
from tests.functional.nova.service import syncing, writers
from tests.functional.nova.support import harness

SMALL = harness.vgpu_group("_A", "4Q")
OTHER = "CUSTOM_RACK_7"
SECONDS = "NOVA_ACCEL_TWO_WRITERS_S"
SEED = "NOVA_ACCEL_TWO_WRITERS_SEED"
#: Passes, nova-compute's and the other's in turn, in which both agree.
PATIENCE = 12
CARDS = (harness.T4, harness.T4_B, harness.GPU)
#: As many changes as there are at the least, on however slow a machine.
ENOUGH = 30
#: The most that an operator reserves of one class.
MOST = 3


class TwoWriters(syncing.SyncTestBase):
    def test_they_converge_and_never_fight(self) -> None:
        seed = int(os.environ.get(SEED, "") or time.time())
        self.chance = random.Random(seed)  # noqa: S311
        self.done: collections.Counter[str] = collections.Counter()
        self.times = self.refused = 0
        self.servers: list[Any] = []
        self.away: set[str] = set()
        self.edits: dict[str, int] = {}
        self.start_host(*harness.TWO_T4, *harness.GPU_CARDS, sync_interval=2)
        self._create_trait(OTHER)
        outside = self.outside()
        with writers.Ledger() as ledger:
            self.addOnException(lambda _: print(self.told(seed, ledger, 60)))
            outside.start(1.5)
            # Before the services end, whatever becomes of the test.
            self.addCleanup(outside.stop)
            self.go_on(outside, ledger)
            outside.stop()
            # Who meets another one plans anew: no change costs more.
            changes = self.done.total()
            self.assertLess(ledger.counts["409"], 3 * changes + 10)
            self.assertLess(ledger.counts["writes"], 30 * changes + 50)
            self.end()
            print(self.told(seed, ledger))

    def go_on(self, outside: writers.Outside, ledger: writers.Ledger) -> None:
        """Change things and look, until the time is over."""
        seconds = float(os.environ.get(SECONDS, "") or 20)
        until = time.monotonic() + seconds
        while time.monotonic() < until or self.done.total() < ENOUGH:
            for _ in range(self.chance.randint(1, 8)):
                ledger.note(self.change())
            self.converge(outside)

    def told(self, seed: int, ledger: writers.Ledger, last: int = 0) -> str:
        """Return what was done, and the last lines of the ledger."""
        lines = list(ledger.lines)[-last:] if last else []
        return "\n".join(
            (
                f"\n{SEED}={seed}: {self.done.total()} changes"
                f" {dict(self.done)}, {self.refused} servers refused,"
                f" converged {self.times} times;"
                f" {dict(sorted(ledger.counts.items()))}",
                *lines,
            )
        )

    # -- what happens -----------------------------------------------------

    def change(self) -> str:
        """Change something, and return what; what can't be is left out."""
        kinds: tuple[Callable[[], bool], ...] = (
            self.create,
            self.create,
            self.delete,
            self.unplug,
            self.plug,
            self.drain,
            self.undrain,
            self.edit,
            self.wipe,
            self.pass_of_nova,
        )
        kind = self.chance.choice(kinds)
        text = kind.__name__ if kind() else ""
        if text:
            self.done[text] += 1
        time.sleep(self.chance.random() / 5)
        return text

    def create(self) -> bool:
        if len(self.servers) > 5:
            return False
        flavor = self._create_flavor(
            extra_spec=self.chance.choice(
                (SMALL, harness.vgpu_group("_A", "8Q"))
            ),
            memory_mb=256,
            vcpu=1,
            disk=1,
            ephemeral=0,
        )
        asked = self._build_server(
            image_uuid=harness.IMAGE, flavor_id=flavor, networks="none"
        )
        server = self.api.post_server({"server": asked})
        self.until(lambda: self.assertNotEqual("BUILD", self.state(server)))
        if self.state(server) == "ACTIVE":
            self.servers.append(server)
        else:
            self.refused += 1
            self._delete_server(server)
        return True

    def state(self, server: Any) -> str:
        found: str = self.api.get_server(server["id"])["status"]
        return found

    def delete(self) -> bool:
        if not self.servers:
            return False
        server = self.servers.pop(self.chance.randrange(len(self.servers)))
        try:
            self._delete_server(server)
        except client.OpenStackApiException as error:
            # Nova looks for a provider that an operator has deleted, until
            # its next periodic task. A cast is a call here: its user would
            # see the server in error, and delete it again.
            if "ResourceProviderAllocationRetrievalFailed" not in str(error):
                raise
            self.run_periodics()
            self._delete_server(server)
        return True

    def unplug(self) -> bool:
        """Take a card out that no guest runs with."""
        held = {
            mdev["parent"]
            for mdev in self.hosts["host1"].mdevs().values()
            if mdev["in_use"]
        }
        free = [c for c in CARDS if c not in self.away | held]
        if not free:
            return False
        card = self.chance.choice(free)
        self.hosts["host1"].unplug(card)
        self.away.add(card)
        self.edits.pop(card, None)
        return True

    def plug(self) -> bool:
        if not self.away:
            return False
        self.hosts["host1"].plug()
        self.away.clear()
        return True

    def drain(self) -> bool:
        self.drains().put(self.chance.choice(CARDS), "fan")
        return True

    def undrain(self) -> bool:
        return bool(self.drains().remove(self.chance.sample(CARDS, 2)))

    def pass_of_nova(self) -> bool:
        self.run_periodics()
        return True

    def edit(self) -> bool:
        """Let an operator reserve some, and set a trait."""
        card = self.chance.choice(CARDS)
        amount = self.chance.randint(1, MOST)

        def change(record: dict[str, Any]) -> None:
            for name, found in record["inventories"].items():
                if found["max_unit"] == found["total"]:
                    found["reserved"] = min(amount, found["total"])
                    self.edits[card] = amount
                    self.assertIn(name, self.records(card))

        return self.rewrite(card, "inventories", change) and self.rewrite(
            card, "traits", lambda record: record["traits"].append(OTHER)
        )

    def wipe(self) -> bool:
        """Let an operator take all of something by mistake."""
        card = self.chance.choice(CARDS)
        path = f"/resource_providers/{self.provider(card)}"
        what = self.chance.choice(("inventories", "traits", "provider"))
        if what == "provider":
            answer = self.placement.delete(path)
            found = bool(answer.status == 204)
        else:
            found = self.rewrite(
                card, what, lambda record: record[what].clear()
            )
        if found:
            self.edits.pop(card, None)
        return found

    def rewrite(
        self, card: str, what: str, change: Callable[[Any], None]
    ) -> bool:
        """Change what a provider has, if it is there and not in use so."""
        path = f"/resource_providers/{self.provider(card)}/{what}"
        for _ in range(20):
            found = self.placement.get(path, version="1.39")
            if found.status != 200:
                return False
            record = found.body
            change(record)
            answer = self.placement.put(path, record, version="1.39")
            if answer.status == 200:
                return True
            if "in use" in str(answer.body):
                return False
        raise AssertionError(f"{path} changes all the time: {answer.body}")

    # -- what must be -----------------------------------------------------

    def converge(self, outside: writers.Outside) -> None:
        """Wait until neither writer nor Nova has anything to write, and look.

        Only Nova itself deletes a provider whose card is gone. It asks with
        its next pass whether that is free, and later where another one that
        it knew was deleted meanwhile: that pass fails.
        """
        quiet = 0
        for _ in range(PATIENCE):
            former = self.providers()
            self.run_periodics()
            results = [self.pass_by(), outside.run()]
            # One that met others too often says so, and comes again.
            is_quiet = not any(r.writes or r.problems for r in results)
            is_quiet = is_quiet and former == self.providers()
            quiet = quiet + 1 if is_quiet else 0
            if quiet == 2:
                break
        self.assertEqual(2, quiet, f"they do not converge: {results}")
        before = self.providers()
        self.run_periodics()
        for result in (self.pass_by(), outside.run()):
            self.assertEqual((0, ()), (result.writes, result.problems))
        # To the generation: nobody has written anything at all.
        self.assertEqual(before, self.providers())
        self.times += 1
        self.check(before)

    def check(self, found: dict[str, dict[str, Any]]) -> None:
        """Check that what is offered is right, and whose edits survive."""
        drained = self.drains().read()
        for card in CARDS:
            record = found.get(self.provider(card))
            if record is None:
                self.assertIn(card, self.away)
                self.edits.pop(card, None)  # they went with the provider
                continue
            whole = all(
                i["reserved"] == i["total"]
                for i in record["inventories"].values()
            )
            self.assertEqual(
                card in self.away, names.MISSING_TRAIT in record["traits"]
            )
            if card not in self.away:
                self.assertEqual(
                    card in drained, names.DRAINED_TRAIT in record["traits"]
                )
            if card in drained or card in self.away:
                self.assertTrue(whole, record)
            else:
                self.check_offered(card, record)
            if card in self.edits:
                self.assertIn(OTHER, record["traits"])

    def check_offered(self, card: str, record: dict[str, Any]) -> None:
        """Check that a card in order has reserved what its operator says."""
        found = record["inventories"].get("CUSTOM_GPU_MEMORY_MB")
        if found is None:
            return  # a wrong edit of a whole card may have reserved it
        self.assertLessEqual(found["reserved"], MOST, record)
        if card in self.edits:
            self.assertEqual(self.edits[card], found["reserved"], record)

    def end(self) -> None:
        """Put everything in order, and see that all is as it began."""
        self.plug()
        self.drains().remove(CARDS)
        while self.delete():
            pass
        self.pass_by()
        self.run_periodics()
        self.computes["host1"].stop()
        self.assert_nothing_left()
        for card in CARDS:
            self.assertNotIn(names.DRAINED_TRAIT, self.traits(card))
