# SPDX-License-Identifier: Apache-2.0
"""Many concurrent servers for half as many slots of one host.

The scheduler has sent more than there is: as it does when Placement has
been told too late. Each build runs in a thread of its own, from Nova's
compute manager down to the kernel. ``NOVA_ACCEL_RACES`` is the number of
rounds.
"""

import collections
import dataclasses
import functools
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from nova.compute import build_results

from tests.functional.nova.support import builds
from tests.lab import fakehost

ROUNDS = int(os.environ.get("NOVA_ACCEL_RACES", "1"))
SEED = int(os.environ.get("NOVA_ACCEL_RACE_SEED", "20261122"))
SERVERS, SLOTS = 64, 32
CARDS = tuple(f"0000:{bus}:00.0" for bus in ("3a", "3b", "3c", "3d"))
#: Seconds that all builds, or all deletes, may take.
PATIENCE_S = 600


@dataclasses.dataclass(frozen=True)
class Race:
    """What the servers of a race are for; it fits eight times on a card."""

    trait: str
    memory: int
    cards: tuple[fakehost.NvidiaGpu, ...]

    @property
    def resources(self) -> dict[str, int]:
        return {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": self.memory}

    @property
    def extra_specs(self) -> dict[str, str]:
        found = {f"resources_A:{k}": str(v) for k, v in self.resources.items()}
        return found | {f"trait_A:{self.trait}": "required"}


#: A T4 offers a slot for each of 16 small vGPUs: the kernel's limit is met
#: when a vGPU is to be made. An L40S has a slot for each VF: Nova has none
#: left to give.
MDEVS = Race(
    trait="CUSTOM_VGPU_NVIDIA_T4_2Q",
    memory=2 * 1024,
    cards=tuple(fakehost.NvidiaGpu(address=a, model="T4") for a in CARDS),
)
TYPED_VFS = Race(
    trait="CUSTOM_VGPU_NVIDIA_L40S_6Q",
    memory=6 * 1024,
    cards=tuple(
        fakehost.NvidiaGpu(
            address=address,
            model="L40S",
            interface="vfio",
            total_vfs=8,
            enabled_vfs=8,
        )
        for address in CARDS
    ),
)


def at_once(work: Iterable[Callable[[], None]]) -> None:
    """Do everything in threads that begin together."""
    todo = list(work)
    gate = threading.Barrier(len(todo))
    failed: list[BaseException] = []

    def run(one: Callable[[], None]) -> None:
        try:
            gate.wait(PATIENCE_S)
            one()
        except Exception as error:
            failed.append(error)
            raise

    threads = [
        threading.Thread(target=run, args=(one,), daemon=True) for one in todo
    ]
    until = time.monotonic() + PATIENCE_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads)
    assert not failed, failed[:3]


class Races(builds.Builds):
    def setUp(self) -> None:
        super().setUp()
        self.chance = random.Random(SEED)  # noqa: S311 - no secret

    def round(self, race: Race) -> collections.Counter[str]:
        cards = [CARDS[n % len(CARDS)] for n in range(SERVERS)]
        self.chance.shuffle(cards)
        instances = [self.record(race.resources, card) for card in cards]
        results: dict[str, str] = {}
        self.rescheduled.clear()
        at_once(
            functools.partial(self.build, one, results) for one in instances
        )
        running = [
            one
            for one in instances
            if results[one.uuid] == build_results.ACTIVE
        ]
        self.check(race, running)
        self.assertEqual(
            {one.uuid for one in instances} - {one.uuid for one in running},
            set(self.rescheduled),
        )
        at_once(functools.partial(self.delete, one) for one in running)
        self.assertEqual(frozenset(), self.made())
        self.assertEqual((), self.manager.driver._accel.claims())
        return collections.Counter(results.values())

    def check(self, race: Race, running: list[Any]) -> None:
        """Check that each has one, and nobody else's."""
        held = [
            device
            for one in running
            for device in (
                *self.mdevs_of({"id": one.uuid}),
                *self.functions_of({"id": one.uuid}),
            )
        ]
        self.assertEqual(len(running), len(held))
        self.assertEqual(self.made(), frozenset(held))
        self.assertEqual(len(held), len(set(held)))
        slots = [s for one in running for s in self.slots({"id": one.uuid})]
        self.assertEqual(len(running), len(set(slots)))
        self.assertEqual(
            {one.uuid for one in running},
            {c.consumer for c in self.manager.driver._accel.claims()},
        )

    def run_races(self, race: Race) -> None:
        self.be_ready(race.extra_specs, *race.cards)
        for number in range(1, ROUNDS + 1):
            found = self.round(race)
            print(f"{race.trait}: round {number}: {dict(found)}", flush=True)
            self.assertEqual(
                {
                    build_results.ACTIVE: SLOTS,
                    build_results.RESCHEDULED: SERVERS - SLOTS,
                },
                found,
            )
        self.run_periodics()
        self.assert_nothing_left()

    def test_mdevs(self) -> None:
        self.run_races(MDEVS)

    @pytest.mark.long
    def test_typed_vfs(self) -> None:
        self.run_races(TYPED_VFS)
