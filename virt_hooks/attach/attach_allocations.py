# SPDX-License-Identifier: Apache-2.0
"""Allocations and slots of one server, attached and detached."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nova import exception, objects, utils
from nova.compute import resource_tracker

from nova_accel import errors, model
from nova_accel.model import flavors, names
from placement_sync.client import provider_records
from virt_hooks import nova_private
from virt_hooks.instance import instance_request, nova_records
from virt_hooks.report import server_allocations

LOG = logging.getLogger(__name__)
_CONFLICT = 409
_MAX_CANDIDATES = 1000


class AttachAllocations(server_allocations.ServerAllocations):
    """A server's allocations in Placement, and slots in Nova's tracker."""

    @property
    def hostname(self) -> str:
        """Return the name of this host in Nova."""
        return str(self.tracker.host)

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
        return provider_records.read(
            self.get(context),
            path,
            lambda body: frozenset(
                uuid
                for request in body["allocation_requests"]
                for uuid in request["allocations"]
            ),
        )

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

        def edit(allocations: dict[str, Mapping[str, int]]) -> None:
            allocations.pop(provider, None)
            if new:
                allocations[provider] = new

        self.change(context, server, edit)

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

    # -- Nova's tracker ----------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Return whether the tracker has read this host."""
        return self.tracker.provider_tree is not None

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

    def _claim_one(
        self, instance: Any, provider: str, resources: Mapping[str, int]
    ) -> Any:
        """Claim one slot in the tracker, whose lock is held.

        :returns: a list of one ``nova.objects.Resource``.
        :raises ClaimError: there is no free slot, or more than one.
        """
        try:
            claimed = nova_private.claim_resources(
                self.tracker, {provider: {"resources": dict(resources)}}
            )
        except exception.ComputeResourcesUnavailable as error:
            raise errors.ClaimError(instance.uuid, str(error)) from error
        if claimed is None or len(claimed) != 1:
            nova_private.release_resources(self.tracker, claimed)
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
                nova_private.release_resources, self.tracker, claimed
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
        nova_private.release_resources(self.tracker, released)


def _joined(resources: Any, claimed: Any) -> Any:
    """Return the ``nova.objects.ResourceList`` of both."""
    return objects.ResourceList(objects=[*(resources or ()), *claimed])
