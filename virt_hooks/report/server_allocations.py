# SPDX-License-Identifier: Apache-2.0
"""Allocations and slots of one server, added and removed."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception, objects, utils
from nova.compute import resource_tracker

from nova_accel import errors, model
from nova_accel.model import flavors, names
from placement_sync.client import http_errors, provider_records
from virt_hooks import nova_private
from virt_hooks.instance import instance_request, ledger, nova_records

LOG = logging.getLogger(__name__)
# The latest microversion that Nova 31 to 34 request candidates with
# (scheduler/client/report.py, SAME_SUBTREE_VERSION). Allocations have their
# consumer's generation since 1.28.
_MICROVERSION = "1.36"
_OK, _CHANGED, _CONFLICT = 200, 204, 409
_CONCURRENT = "placement.concurrent_update"
# How often allocations are written again after a generation conflict: as
# often as Nova's own client does (report.py, retries).
_ATTEMPTS = 4
_MAX_CANDIDATES = 1000


class ServerAllocations:
    """A server's allocations in Placement, and slots in Nova's tracker."""

    def __init__(self, virtapi: Any) -> None:
        self._virtapi = virtapi

    @property
    def _client(self) -> Any:
        return self._virtapi.reportclient

    @property
    def _tracker(self) -> Any:
        return nova_private.tracker_of(self._virtapi)

    @property
    def hostname(self) -> str:
        """Return the name of this host in Nova."""
        return str(self._tracker.host)

    # -- Placement ---------------------------------------------------------

    def find_candidates(
        self, context: Any, root: str, group: flavors.RequestGroup
    ) -> frozenset[str]:
        """Return the providers of one host that are candidates of a group.

        :param root: uuid of the compute node.
        :raises ServiceError: Placement did not answer.
        """
        owned = dataclasses.replace(
            group, required=group.required | {names.OWNER_TRAIT}
        )
        path = provider_records.build_path(
            "/allocation_candidates",
            provider_records.group_query(owned)
            | {f"in_tree{group.suffix}": root, "limit": str(_MAX_CANDIDATES)},
        )
        with _service_errors("candidates"):
            answer = self._client.get(
                path,
                version=_MICROVERSION,
                global_request_id=context.global_id,
            )
        if answer.status_code != _OK:
            raise _service_error("candidates", answer)
        return frozenset(
            uuid
            for request in answer.json()["allocation_requests"]
            for uuid in request["allocations"]
        )

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
        allocations = self._client.get_allocs_for_consumer(
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
        if not self._client.claim_resources(
            nova_context.get_admin_context(),
            instance.uuid,
            {"allocations": dict(allocations)},
            instance.project_id,
            instance.user_id,
            _MICROVERSION,
        ):
            raise exception.AllocationUpdateFailed(
                consumer_uuid=instance.uuid, error="something of it is taken"
            )

    def read(self, context: Any, server: str) -> dict[str, dict[str, int]]:
        """Return a server's allocations: amounts by provider and class.

        :raises ServiceError: Placement can't be read.
        """
        return provider_records.parse_amounts(self._read(context, server))

    def allocate(
        self,
        context: Any,
        server: str,
        provider: str,
        amounts: Mapping[str, int],
    ) -> None:
        """Set a server's allocation of one provider. Idempotent.

        Its other allocations are unchanged. No request is sent if the
        server has these amounts.

        :param amounts: by resource class; empty to remove the allocation.
        :raises ServiceError: Placement refuses it, or can't be reached.
        """
        new = {name: amount for name, amount in amounts.items() if amount}
        for _ in range(_ATTEMPTS):
            record = self._read(context, server)
            by_provider = record["allocations"]
            current = by_provider.get(provider, {}).get("resources", {})
            if current == new:
                return
            if new:
                by_provider[provider] = {"resources": new}
            else:
                del by_provider[provider]
            with _service_errors(f"allocation of {server}"):
                answer = self._client.put(
                    f"/allocations/{server}",
                    record,
                    version=_MICROVERSION,
                    global_request_id=context.global_id,
                )
            if answer.status_code == _CHANGED:
                return
            code, _ = http_errors.parse_error(http_errors.decode(answer.text))
            if code != _CONCURRENT:
                break
        raise _service_error(f"allocation of {server}", answer)

    def try_allocate(
        self,
        context: Any,
        server: str,
        provider: str,
        amounts: Mapping[str, int],
    ) -> bool:
        """Set an allocation as ``allocate`` does; return False without room.

        :raises ServiceError: Placement can't be reached, or refuses it for
            another reason.
        """
        try:
            self.allocate(context, server, provider, amounts)
        except errors.ServiceError as error:
            if error.status != _CONFLICT:
                raise
            LOG.info("%s; the next device is tried", error)
            return False
        return True

    def _read(self, context: Any, server: str) -> Any:
        with _service_errors(f"allocation of {server}"):
            return self._client.get_allocs_for_consumer(context, server)

    # -- Nova's tracker ----------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Return whether the tracker has read this host."""
        return self._tracker.provider_tree is not None

    @utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)
    def claim_slot(
        self,
        instance: Any,
        provider: str,
        resources: Mapping[str, int],
        write: Callable[[model.Slot], None],
    ) -> model.Slot:
        """Claim a slot for a server as Nova's own claims do, and save it.

        Nova's lock is held until the server is saved, as Nova holds it:
        a periodic task in between would reassign the slot.

        If the slot can't be saved, or the answer is lost, it may be in
        Nova's database, so it stays assigned in the tracker. If it was
        saved, ``release_slots`` releases it, once. If it was not, Nova's
        next periodic task releases it, which reads all slots from the
        database (resource_tracker.py, _populate_assigned_resources).

        :param write: writes the slot into the server's record of
            attachments. The record is saved first: a slot without a record
            would never be released.
        :raises ClaimError: there is no free slot, or more than one.
        """
        claimed = self._claim_one(instance, provider, resources)
        with self._released_on_error(claimed):
            (slot,) = instance_request.slots_of(claimed)
            write(slot)
            instance.save()
        instance.resources = _joined(instance.resources, claimed)
        instance.save()
        return slot

    @utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)
    def claim_moving_slot(
        self, instance: Any, provider: str, resources: Mapping[str, int]
    ) -> model.Slot:
        """Claim one more slot for a server that moves to this host.

        The slot becomes part of Nova's claim for the move: if the move
        fails, Nova releases it with the others (claims.py, MoveClaim.abort);
        else it becomes the server's (resource_tracker.py,
        finish_evacuation). Only the migration context is saved: the other
        fields of the instance are those of the context for the time being
        (objects/instance.py, mutated_migration_context).

        :raises ClaimError: there is no free slot, or more than one.
        """
        claimed = self._claim_one(instance, provider, resources)
        with self._released_on_error(claimed):
            stored = nova_records.read_instance(instance.uuid)
            move = stored.migration_context
            move.new_resources = _joined(move.new_resources, claimed)
            stored.save()
        instance.migration_context.new_resources = move.new_resources
        instance.resources = move.new_resources
        (slot,) = instance_request.slots_of(claimed)
        return slot

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

    def _claim_one(
        self, instance: Any, provider: str, resources: Mapping[str, int]
    ) -> Any:
        """Claim one slot in the tracker, whose lock is held.

        :returns: a list of one ``nova.objects.Resource``.
        :raises ClaimError: there is no free slot, or more than one.
        """
        try:
            claimed = nova_private.claim_resources(
                self._tracker, {provider: {"resources": dict(resources)}}
            )
        except exception.ComputeResourcesUnavailable as error:
            raise errors.ClaimError(instance.uuid, str(error)) from error
        if claimed is None or len(claimed) != 1:
            nova_private.release_resources(self._tracker, claimed)
            raise errors.ClaimError(
                instance.uuid,
                "Nova claimed no slot on this host: its view of the"
                " provider tree is old; the next periodic update repairs"
                " it",
            )
        return claimed

    @contextlib.contextmanager
    def _released_on_error(self, claimed: Any) -> Iterator[None]:
        with contextlib.ExitStack() as on_error:
            on_error.callback(
                nova_private.release_resources, self._tracker, claimed
            )
            yield
            on_error.pop_all()

    @utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)
    def release_slots(
        self,
        instance: Any,
        slots: Iterable[model.Slot],
        write: Callable[[], None],
    ) -> None:
        """Release slots of a server in Nova's tracker, and save the server.

        Only slots that the server has in Nova's database are released, as
        no other server can have claimed these. It is read under Nova's lock.

        :param write: writes the server's record before the server is saved.
        """
        keys = {slot.key for slot in slots}
        stored = nova_records.read_instance(instance.uuid)
        resources = list(stored.resources or ())
        released = [
            resource
            for resource in resources
            if (resource.provider_uuid, resource.identifier) in keys
        ]
        if released:
            remaining = [r for r in resources if r not in released]
            instance.resources = (
                objects.ResourceList(objects=remaining) if remaining else None
            )
        write()
        instance.save()
        nova_private.release_resources(self._tracker, released)


def _joined(resources: Any, claimed: Any) -> Any:
    """Return the ``nova.objects.ResourceList`` of both."""
    return objects.ResourceList(objects=[*(resources or ()), *claimed])


def _service_error(request: str, answer: Any) -> errors.ServiceError:
    return errors.ServiceError(
        "Placement", request, answer.status_code, answer.text
    )


@contextlib.contextmanager
def _service_errors(request: str) -> Iterator[None]:
    """Raise any error of Nova's client as ServiceError."""
    try:
        yield
    except Exception as error:
        raise errors.ServiceError(
            "Placement", request, None, str(error)
        ) from error
