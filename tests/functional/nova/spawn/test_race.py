# SPDX-License-Identifier: Apache-2.0
"""Many concurrent servers for half as many slots of one host.

The scheduler has sent more servers than fit, as it does while Placement is
out of date. Each build runs in a thread of its own, from Nova's
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
from tests.support.examples import IS_WHOLE

ROUNDS = int(os.environ.get("NOVA_ACCEL_RACES", "1"))
SEED = int(os.environ.get("NOVA_ACCEL_RACE_SEED", "20261122"))
#: One card on each push, four with ``--whole``.
BUSES = ("3a", "3b", "3c", "3d")[: 4 if IS_WHOLE else 1]
CARDS = tuple(f"0000:{bus}:00.0" for bus in BUSES)
SLOTS = 8 * len(CARDS)
SERVERS = 2 * SLOTS
#: Seconds that all builds, or all deletes, may take.
PATIENCE_S = 600


@dataclasses.dataclass(frozen=True)
class Race:
    """The profile of a race's servers; it fits eight times on a card."""

    trait: str
    memory: int
    cards: tuple[fakehost.NvidiaGpu, ...]

    @property
    def resources(self) -> dict[str, int]:
        return {"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": self.memory}

    @property
    def extra_specs(self) -> dict[str, str]:
        specs = {f"resources_A:{k}": str(v) for k, v in self.resources.items()}
        return specs | {f"trait_A:{self.trait}": "required"}


#: A T4 offers a slot for each of 16 small vGPUs: the kernel refuses the
#: excess vGPUs. An L40S has a slot for each VF: Nova has no slot for
#: the excess.
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


def run_at_once(work: Iterable[Callable[[], None]]) -> None:
    """Run all calls in threads that begin together."""
    calls = list(work)
    gate = threading.Barrier(len(calls))
    failed: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            gate.wait(PATIENCE_S)
            call()
        except Exception as error:
            failed.append(error)
            raise

    threads = [
        threading.Thread(target=run, args=(call,), daemon=True)
        for call in calls
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

    def run_round(self, race: Race) -> collections.Counter[str]:
        cards = [CARDS[n % len(CARDS)] for n in range(SERVERS)]
        self.chance.shuffle(cards)
        instances = [
            self.create_instance(race.resources, card) for card in cards
        ]
        results: dict[str, str] = {}
        self.rescheduled.clear()
        run_at_once(
            functools.partial(self.build, instance, results)
            for instance in instances
        )
        running = [
            instance
            for instance in instances
            if results[instance.uuid] == build_results.ACTIVE
        ]
        self.check(race, running)
        self.assertEqual(
            {instance.uuid for instance in instances}
            - {instance.uuid for instance in running},
            set(self.rescheduled),
        )
        run_at_once(
            functools.partial(self.delete, instance) for instance in running
        )
        self.assertEqual(frozenset(), self.list_partitions())
        self.assertEqual((), self.manager.driver._accel.claims())
        return collections.Counter(results.values())

    def check(self, race: Race, running: list[Any]) -> None:
        """Check that each server has a device and a slot of its own."""
        devices = [
            device
            for instance in running
            for device in (
                *self.mdevs_of({"id": instance.uuid}),
                *self.functions_of({"id": instance.uuid}),
            )
        ]
        self.assertEqual(len(running), len(devices))
        self.assertEqual(self.list_partitions(), frozenset(devices))
        self.assertEqual(len(devices), len(set(devices)))
        slots = [
            slot
            for instance in running
            for slot in self.slots({"id": instance.uuid})
        ]
        self.assertEqual(len(running), len(set(slots)))
        self.assertEqual(
            {instance.uuid for instance in running},
            {c.consumer for c in self.manager.driver._accel.claims()},
        )

    def run_races(self, race: Race) -> None:
        self.prepare(race.extra_specs, *race.cards)
        for number in range(1, ROUNDS + 1):
            outcomes = self.run_round(race)
            print(
                f"{race.trait}: round {number}: {dict(outcomes)}",
                flush=True,
            )
            self.assertEqual(
                {
                    build_results.ACTIVE: SLOTS,
                    build_results.RESCHEDULED: SERVERS - SLOTS,
                },
                outcomes,
            )
        self.run_periodics()
        self.assert_nothing_left()

    def test_mdevs(self) -> None:
        self.run_races(MDEVS)

    @pytest.mark.long
    def test_typed_vfs(self) -> None:
        self.run_races(TYPED_VFS)
