# SPDX-License-Identifier: Apache-2.0
"""Two writers of one host agree."""

import collections
import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
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
#: How often a user deletes a server at the most.
_DELETES = 5


class TwoWriters(syncing.SyncTestBase):
    @pytest.mark.long
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
            self.addOnException(
                lambda _: print(self.summarize(seed, ledger, 60))
            )
            outside.start(1.5)
            # Before the services end, even if the test fails.
            self.addCleanup(outside.stop)
            self.change_until_deadline(outside, ledger)
            outside.stop()
            # A conflict causes a new plan: each change has a bounded cost.
            changes = self.done.total()
            self.assertLess(ledger.counts["409"], 3 * changes + 10)
            self.assertLess(ledger.counts["writes"], 30 * changes + 50)
            self.end()
            print(self.summarize(seed, ledger))

    def change_until_deadline(
        self, outside: writers.Outside, ledger: writers.Ledger
    ) -> None:
        """Change things and check convergence, until the time is over."""
        seconds = float(os.environ.get(SECONDS, "") or 20)
        until = time.monotonic() + seconds
        while time.monotonic() < until or self.done.total() < ENOUGH:
            for _ in range(self.chance.randint(1, 8)):
                ledger.note(self.change())
            self.converge(outside)

    def summarize(
        self, seed: int, ledger: writers.Ledger, last: int = 0
    ) -> str:
        """Return the changes, and the last lines of the ledger."""
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

    # -- changes ----------------------------------------------------------

    def change(self) -> str:
        """Make one change; return its name, or nothing if it is impossible."""
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
            self.run_nova_pass,
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
        body = self._build_server(
            image_uuid=harness.IMAGE, flavor_id=flavor, networks="none"
        )
        server = self.api.post_server({"server": body})
        self.until(lambda: self.assertNotEqual("BUILD", self.state(server)))
        if self.state(server) == "ACTIVE":
            self.servers.append(server)
        else:
            self.refused += 1
            self._delete_server(server)
        return True

    def state(self, server: Any) -> str:
        status: str = self.api.get_server(server["id"])["status"]
        return status

    def delete(self) -> bool:
        if not self.servers:
            return False
        server = self.servers.pop(self.chance.randrange(len(self.servers)))
        for _ in range(_DELETES):
            try:
                self._delete_server(server)
            except client.OpenStackApiException as error:
                # Nova looks for a provider that an operator has deleted,
                # until its next periodic task. A cast is a call here: its
                # user would see the server in error, and delete it again.
                if "ResourceProviderAllocationRetrievalFailed" not in str(
                    error
                ):
                    raise
                self.run_periodics()
            else:
                return True
        raise AssertionError(f"server {server['id']} can't be deleted")

    def unplug(self) -> bool:
        """Unplug a card that no running guest uses."""
        used = {
            mdev["parent"]
            for mdev in self.hosts["host1"].mdevs().values()
            if mdev["in_use"]
        }
        free = [c for c in CARDS if c not in self.away | used]
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

    def run_nova_pass(self) -> bool:
        self.run_periodics()
        return True

    def edit(self) -> bool:
        """Reserve some units and set a trait, as an operator."""
        card = self.chance.choice(CARDS)
        amount = self.chance.randint(1, MOST)

        def change(record: dict[str, Any]) -> None:
            for name, inventory in record["inventories"].items():
                if inventory["max_unit"] == inventory["total"]:
                    inventory["reserved"] = min(amount, inventory["total"])
                    self.edits[card] = amount
                    self.assertIn(name, self.records(card))

        return self.rewrite(card, "inventories", change) and self.rewrite(
            card, "traits", lambda record: record["traits"].append(OTHER)
        )

    def wipe(self) -> bool:
        """Delete records, as an operator by mistake."""
        card = self.chance.choice(CARDS)
        path = f"/resource_providers/{self.provider(card)}"
        what = self.chance.choice(("inventories", "traits", "provider"))
        if what == "provider":
            answer = self.placement.delete(path)
            is_wiped = bool(answer.status == 204)
        else:
            is_wiped = self.rewrite(
                card, what, lambda record: record[what].clear()
            )
        if is_wiped:
            self.edits.pop(card, None)
        return is_wiped

    def rewrite(
        self, card: str, what: str, change: Callable[[Any], None]
    ) -> bool:
        """Change a provider's records; return whether Placement accepted."""
        path = f"/resource_providers/{self.provider(card)}/{what}"
        for _ in range(20):
            current = self.placement.get(path, version="1.39")
            if current.status != 200:
                return False
            record = current.body
            change(record)
            answer = self.placement.put(path, record, version="1.39")
            if answer.status == 200:
                return True
            if "in use" in str(answer.body):
                return False
        raise AssertionError(f"{path} changes all the time: {answer.body}")

    # -- checks -----------------------------------------------------------

    def converge(self, outside: writers.Outside) -> None:
        """Wait until neither writer nor Nova has anything to write; check.

        Only Nova itself deletes a provider whose card is gone. Its next pass
        asks whether that provider is unused. A later pass fails if another
        provider that it knew was deleted meanwhile.
        """
        quiet = 0
        for _ in range(PATIENCE):
            former = self.providers()
            self.run_periodics()
            results = [self.run_pass(), outside.run()]
            # A pass with too many conflicts reports it, and runs again.
            is_quiet = not any(r.writes or r.problems for r in results)
            is_quiet = is_quiet and former == self.providers()
            quiet = quiet + 1 if is_quiet else 0
            if quiet == 2:
                break
        self.assertEqual(2, quiet, f"they do not converge: {results}")
        before = self.providers()
        self.run_periodics()
        for result in (self.run_pass(), outside.run()):
            self.assertEqual((0, ()), (result.writes, result.problems))
        # The generations are equal, so nothing was written at all.
        self.assertEqual(before, self.providers())
        self.times += 1
        self.check(before)

    def check(self, providers: dict[str, dict[str, Any]]) -> None:
        """Check the inventories and traits, and that edits survive."""
        drained = self.drains().read()
        for card in CARDS:
            record = providers.get(self.provider(card))
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
        """Check that a card in order reserves what its operator has set."""
        memory = record["inventories"].get("CUSTOM_GPU_MEMORY_MB")
        if memory is None:
            return  # a wrong edit of a whole card may have reserved it
        self.assertLessEqual(memory["reserved"], MOST, record)
        if card in self.edits:
            self.assertEqual(self.edits[card], memory["reserved"], record)

    def end(self) -> None:
        """Restore everything, and check that all is as at first."""
        self.plug()
        self.drains().remove(CARDS)
        while self.delete():
            pass
        self.run_pass()
        self.run_periodics()
        self.computes["host1"].stop()
        self.assert_nothing_left()
        for card in CARDS:
            self.assertNotIn(names.DRAINED_TRAIT, self.traits(card))
