# SPDX-License-Identifier: Apache-2.0
"""Servers built by nova-compute without API and scheduler."""

from typing import Any

import fixtures
from nova import objects
from nova.compute import task_states, vm_states
from nova.network import model as network_model
from oslo_utils import uuidutils

from tests.functional.nova.support import harness

IMAGE = {
    "id": harness.IMAGE,
    "name": "any",
    "status": "active",
    "container_format": "raw",
    "disk_format": "raw",
    "properties": {},
}


class Builds(harness.AccelTestBase):
    """nova-compute on host1, and servers that are sent to its cards."""

    def setUp(self) -> None:
        super().setUp()
        self.rescheduled: list[str] = []
        self.allocations_by_server: dict[str, dict[str, Any]] = {}

    def prepare(self, extra_specs: dict[str, str], *cards: Any) -> None:
        """Start a host, and create the flavor of its servers."""
        self.start_host(*cards)
        self.stub_services()
        flavor = self._create_flavor(
            extra_spec=extra_specs,
            memory_mb=256,
            vcpu=1,
            disk=1,
            ephemeral=0,
        )
        self.flavor = objects.Flavor.get_by_flavor_id(self.context, flavor)

    def stub_services(self) -> None:
        """Stub Placement's and the conductor's answers to nova-compute."""
        self.manager = self.computes["host1"].manager
        self.useFixture(
            fixtures.MockPatchObject(
                self.manager.reportclient,
                "get_allocations_for_consumer",
                lambda _context, uuid: self.allocations_by_server[uuid],
            )
        )
        self.useFixture(
            fixtures.MockPatchObject(
                self.manager.compute_task_api,
                "build_instances",
                lambda _context, instances, *_, **__: self.rescheduled.extend(
                    i.uuid for i in instances
                ),
            )
        )

    def create_instance(self, resources: dict[str, int], card: str) -> Any:
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
            image_ref=harness.IMAGE,
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
        self.allocations_by_server[instance.uuid] = {
            self.provider(card): {"resources": resources}
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

    def list_partitions(self) -> frozenset[str]:
        """Return the partitions of all cards, as the kernel has them."""
        return frozenset(
            handle
            for card in self.hosts["host1"].gpus().values()
            for handle in card["vgpus"]
        )
