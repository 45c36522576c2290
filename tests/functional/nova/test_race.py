# SPDX-License-Identifier: Apache-2.0
"""Many servers at once for half as many slots, on one host.

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
from collections.abc import Callable, Iterable
from typing import Any

import fixtures
from nova import objects
from nova.compute import build_results, task_states, vm_states
from nova.network import model as network_model
from oslo_utils import uuidutils

from tests.functional.nova import base
from tests.lab import fakehost

ROUNDS = int(os.environ.get("NOVA_ACCEL_RACES", "1"))
SEED = int(os.environ.get("NOVA_ACCEL_RACE_SEED", "20261122"))
SERVERS, SLOTS = 64, 32
CARDS = tuple(f"0000:{bus}:00.0" for bus in ("3a", "3b", "3c", "3d"))
#: Seconds that a build or a delete may take beside all the others.
PATIENCE_S = 300
IMAGE = {
    "id": base.IMAGE,
    "name": "any",
    "status": "active",
    "container_format": "raw",
    "disk_format": "raw",
    "properties": {},
}


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
        gate.wait(PATIENCE_S)
        try:
            one()
        except Exception as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=run, args=(one,)) for one in todo]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert not failed, failed[:3]


class Races(base.AccelTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.chance = random.Random(SEED)  # noqa: S311 - no secret
        self.rescheduled: list[str] = []
        self.booked: dict[str, dict[str, Any]] = {}

    def be_ready(self, race: Race) -> None:
        """Start a host, and stand in for what is around it."""
        self.start_host(*race.cards)
        self.manager = self.computes["host1"].manager
        self.useFixture(
            fixtures.MockPatchObject(
                self.manager.reportclient,
                "get_allocations_for_consumer",
                lambda _context, uuid: self.booked[uuid],
            )
        )
        self.useFixture(
            fixtures.MockPatchObject(
                self.manager.compute_task_api,
                "build_instances",
                lambda _context, instances, *_, **__: (
                    self.rescheduled.extend(i.uuid for i in instances)
                ),
            )
        )
        flavor = self._create_flavor(
            extra_spec=race.extra_specs,
            memory_mb=256,
            vcpu=1,
            disk=1,
            ephemeral=0,
        )
        self.flavor = objects.Flavor.get_by_flavor_id(self.context, flavor)

    def record(self, race: Race, card: str) -> Any:
        """Return a new server that the scheduler has sent to a card."""
        instance = objects.Instance(
            self.context,
            uuid=uuidutils.generate_uuid(),
            user_id="user",
            project_id="project",
            flavor=self.flavor,
            instance_type_id=self.flavor.id,
            memory_mb=256,
            vcpus=1,
            root_gb=1,
            ephemeral_gb=0,
            image_ref=base.IMAGE,
            vm_state=vm_states.BUILDING,
            task_state=task_states.SCHEDULING,
            display_name="one",
            hostname="one",
            metadata={},
            system_metadata={},
            launched_on="",
            info_cache=objects.InstanceInfoCache(
                network_info=network_model.NetworkInfo()
            ),
            pci_requests=objects.InstancePCIRequests(requests=[]),
        )
        instance.create()
        objects.InstanceAction.action_start(
            self.context, instance.uuid, "create", want_result=False
        )
        self.booked[instance.uuid] = {
            self.provider(card): {"resources": race.resources}
        }
        return instance

    def build(self, instance: Any, results: dict[str, str]) -> None:
        results[instance.uuid] = self.manager._do_build_and_run_instance(
            self.context.elevated(),
            instance,
            IMAGE,
            None,
            {"retry": {"num_attempts": 1, "hosts": []}},
            None,
            [],
            objects.NetworkRequestList(
                objects=[objects.NetworkRequest(network_id="none")]
            ),
            [],
            objects.BlockDeviceMappingList(objects=[]),
            node="host1",
        )

    def delete(self, instance: Any) -> None:
        self.manager._delete_instance(
            self.context.elevated(),
            instance,
            objects.BlockDeviceMappingList(objects=[]),
        )

    def round(self, race: Race) -> collections.Counter[str]:
        cards = [CARDS[n % len(CARDS)] for n in range(SERVERS)]
        self.chance.shuffle(cards)
        instances = [self.record(race, card) for card in cards]
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

    def made(self) -> frozenset[str]:
        """Return the partitions of all cards, as the kernel has them."""
        return frozenset(
            handle
            for card in self.hosts["host1"].gpus().values()
            for handle in card["vgpus"]
        )

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
        self.be_ready(race)
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

    def test_typed_vfs(self) -> None:
        self.run_races(TYPED_VFS)
