# SPDX-License-Identifier: Apache-2.0
"""Allocations of one server, read, created and dropped."""

import logging
from collections.abc import Mapping
from typing import Any

from nova import context as nova_context
from nova import exception, utils
from nova.compute import resource_tracker

from placement_sync.client import nova_getter
from virt_hooks import nova_private
from virt_hooks.instance import ledger, nova_records

LOG = logging.getLogger(__name__)


class ServerAllocations:
    """A server's allocations in Placement; slots are in Nova's tracker."""

    def __init__(self, virtapi: Any) -> None:
        self._virtapi = virtapi

    @property
    def client(self) -> Any:
        """Return Nova's client of Placement."""
        return self._virtapi.reportclient

    @property
    def tracker(self) -> Any:
        """Return Nova's resource tracker."""
        return nova_private.tracker_of(self._virtapi)

    # -- Placement ---------------------------------------------------------

    def providers_of(self, consumer: str) -> frozenset[str]:
        """Return the uuids of the providers that a consumer allocates.

        :raises nova.exception.ConsumerAllocationRetrievalFailed: they
            can't be read.
        """
        return frozenset(uuid for uuid, _ in self.classes_of(consumer))

    def classes_of(self, consumer: str) -> frozenset[tuple[str, str]]:
        """Return the classes that a consumer allocates, with the provider.

        :returns: pairs of a provider's uuid and a resource class.
        :raises nova.exception.ConsumerAllocationRetrievalFailed: they
            can't be read.
        """
        allocations = self.client.get_allocs_for_consumer(
            nova_context.get_admin_context(), consumer
        )
        return frozenset(
            (provider, name)
            for provider, allocation in allocations["allocations"].items()
            for name in allocation["resources"]
        )

    def create(self, instance: Any, allocations: Mapping[str, Any]) -> None:
        """Create the allocations of a server that has none.

        :param allocations: resources by the uuid of their provider, as in
            Placement's allocation candidates.
        :raises nova.exception.AllocationUpdateFailed: Placement refused.
        """
        if not self.client.claim_resources(
            nova_context.get_admin_context(),
            instance.uuid,
            {"allocations": dict(allocations)},
            instance.project_id,
            instance.user_id,
            nova_getter.MICROVERSION,
        ):
            raise exception.AllocationUpdateFailed(
                consumer_uuid=instance.uuid, error="something of it is taken"
            )

    # -- Nova's tracker ----------------------------------------------------

    @utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)
    def drop_migration_context(self, migration: Any) -> bool:
        """Drop a server's migration context if nothing has changed it.

        Nova writes the context of a new move under its lock.

        :param migration: that the context is of.
        :returns: whether it was dropped.
        """
        instance = nova_records.read_instance(migration.instance_uuid)
        is_idle = instance.task_state is None
        if not is_idle or not ledger.is_current(instance, migration):
            return False
        LOG.info("Dropping the failed migration of server %s", instance.uuid)
        instance.drop_migration_context()
        return True
