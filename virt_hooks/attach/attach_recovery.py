# SPDX-License-Identifier: Apache-2.0
"""Recovery of interrupted attachments.

An attach or detach that is interrupted leaves a record in the server's
system_metadata with the state of the attachment, and a task state that
blocks every call of Nova's API but a delete. A later pass reads both and
completes or undoes the attachment.
"""

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import oslo_messaging
from nova import context as nova_context
from nova import exception, objects, utils

from nova_accel import errors, model
from nova_accel.config import logs
from nova_accel.model import attachment, names
from virt_hooks import error_guards
from virt_hooks.attach import attach_allocations, attach_guest
from virt_hooks.guest import connection, libvirt_guest
from virt_hooks.instance import instance_request, nova_records
from virt_hooks.operations import server_partitions

LOG = logging.getLogger(__name__)

ATTACHING, DETACHING = "attaching_accelerator", "detaching_accelerator"
_TASK_STATES = (ATTACHING, DETACHING)
_ATTRIBUTES = ["flavor", "system_metadata", "resources", "migration_context"]


class AttachRecovery:
    """Undoes failed attachments, and recovers interrupted ones."""

    def __init__(
        self,
        partitions: server_partitions.ServerPartitions,
        allocations: attach_allocations.AttachAllocations,
    ) -> None:
        self._partitions = partitions
        self._accel, self._host = partitions.accel, partitions.host
        self._allocations = allocations
        #: Servers with an interrupted attach or detach.
        self._interrupted: set[str] = set()
        self._has_read_interrupted = False
        self._recovery_lock = threading.Lock()

    # -- the server and its handles ----------------------------------------

    def read_instance(self, context: Any, uuid: str) -> Any:
        try:
            instance = objects.Instance.get_by_uuid(
                context.elevated(), uuid, expected_attrs=_ATTRIBUTES
            )
        except exception.InstanceNotFound as error:
            reason = "there is no such server"
            raise errors.ClaimError(uuid, reason, public=reason) from error
        hostname = self._allocations.hostname
        if instance.host != hostname:
            raise errors.ClaimError(
                uuid, f"it is on host {instance.host}, not {hostname}"
            )
        return instance

    def attached_handles(
        self, uuid: str, attached: attachment.Attachment
    ) -> frozenset[str]:
        """Return the handles of an attachment in the server's domain."""
        handles = {
            handle
            for claim in self._accel.claims_of(uuid)
            if is_claim_of(claim, attached)
            for handle in claim.handles
        }
        if attached.slot and not handles:  # no claim after a restart
            handles = {
                names.mdev_uuid(attached.provider, attached.slot),
                attached.slot,
            }
        return frozenset(handles)

    # -- undo of an attachment ---------------------------------------------

    @contextlib.contextmanager
    def recovered_later(self, context: Any, uuid: str) -> Iterator[None]:
        """Let a later pass recover a server if the block fails."""
        try:
            with self._noted_if_failed(uuid):
                yield
        finally:
            self._partitions.publish(context)

    @contextlib.contextmanager
    def _noted_if_failed(self, uuid: str) -> Iterator[None]:
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._interrupted.add, uuid)
            yield
            on_error.pop_all()

    @contextlib.contextmanager
    def removed_on_error(
        self, context: Any, uuid: str, attached: attachment.Attachment
    ) -> Iterator[None]:
        """Remove an attachment if the block fails."""

        def undo(_: Any, error: BaseException | None, __: Any) -> bool:
            if error is not None:
                LOG.error(
                    "Attaching %s to server %s failed: %s",
                    attached.name,
                    uuid,
                    error,
                )
                self.finish_removal(context, uuid, attached, error)
            return False

        with contextlib.ExitStack() as stack:
            stack.push(undo)
            yield

    def finish_removal(
        self,
        context: Any,
        uuid: str,
        attached: attachment.Attachment,
        cause: BaseException | None = None,
    ) -> None:
        """Remove an attachment, or leave the rest to a later pass.

        :param cause: the error that it is removed for.
        :raises ClaimError: a later pass removes the rest.
        """
        try:
            self._remove_attachment(context, uuid, attached.number)
        except (
            errors.AcceleratorError,
            exception.NovaException,
            oslo_messaging.MessagingException,
        ) as error:
            logs.error(
                LOG,
                "%s of %s can't be undone yet: %s",
                attached.name,
                uuid,
                error,
            )
            raise errors.ClaimError(
                uuid,
                f"{cause or 'it is detached'}; the rest of {attached.name} is"
                f" released with Nova's next periodic task: {error}",
            ) from error

    def _remove_attachment(self, context: Any, uuid: str, number: int) -> None:
        """Remove a device, its slot, allocation and record. Idempotent."""
        instance = self.read_instance(context, uuid)
        for attached in instance_request.attachments_of(instance):
            if attached.number == number:
                _note_removal(instance, attached)
                self._remove_device(instance, attached)
                # The slot is released before the allocation: a server that
                # Placement then allocates to gets a slot. The record shows
                # which of these steps remain.
                self._allocations.release_slots(
                    instance,
                    _slots(attached),
                    functools.partial(
                        write_record,
                        instance,
                        attachment.with_slot(attached, ""),
                    ),
                )
                self._allocations.allocate(
                    context, uuid, attached.provider, attached.other_resources
                )
                write_record(instance, attached, is_removed=True)
                instance.save()
        self._reset_task_state(instance)

    def _remove_device(
        self, instance: Any, attached: attachment.Attachment
    ) -> None:
        """Remove a device from the domain, then release its partition.

        :raises AcceleratorError: the guest still has the device.
        """
        if not attached.slot:
            return
        handles = self.attached_handles(instance.uuid, attached)
        attach_guest.remove(self._host, instance, handles)
        released = _slots(attached)
        self._partitions.startup_servers.forget_slots(instance.uuid, released)
        self._accel.release(
            instance.uuid,
            released,
            lambda claim: libvirt_guest.is_holding(
                self._host, instance, claim
            ),
            connection.HostdevUse(mdevs=handles, functions=handles),
        )
        if any(
            is_claim_of(claim, attached)
            for claim in self._accel.claims_of(instance.uuid)
        ):
            reason = f"its guest still runs with {attached.name}"
            raise errors.ClaimError(instance.uuid, reason, public=reason)

    def _reset_task_state(self, instance: Any) -> None:
        """Clear our task state of a server unless Nova has changed it."""
        if instance.task_state not in _TASK_STATES:
            return
        instance.task_state = None
        with contextlib.suppress(
            exception.UnexpectedTaskStateError, exception.InstanceNotFound
        ):
            instance.save(expected_task_state=list(_TASK_STATES))

    # -- recovery ----------------------------------------------------------

    def recover(self) -> None:
        """Complete or undo interrupted attachments of any process."""
        if not self._recovery_lock.acquire(blocking=False):
            return  # another thread is recovering
        try:
            self._recover_all(nova_context.get_admin_context())
        finally:
            self._recovery_lock.release()

    def _recover_all(self, context: Any) -> None:
        if not (self._allocations.is_ready and self._accel.is_alone):
            return
        self._read_interrupted(context)
        due = sorted(self._interrupted)
        for uuid in due:
            with error_guards.log_errors(
                "can't recover attachments of %s", uuid
            ):
                self._recover_server(context, uuid)
        if due:
            self._partitions.publish(context)

    def recover_at_start(self) -> None:
        """Recover attachments of the last service as soon as possible.

        Nova's periodic task retries those that fail, since a guest may
        have to respond.
        """
        if not self._has_read_interrupted:
            with error_guards.log_errors(
                "can't recover interrupted attachments"
            ):
                self.recover()

    def _read_interrupted(self, context: Any) -> None:
        """Read once which attachments the last service has interrupted."""
        if self._has_read_interrupted:
            return
        self._interrupted |= {
            instance.uuid
            for instance in objects.InstanceList.get_by_host(
                context, self._allocations.hostname, expected_attrs=[]
            )
            if instance.task_state in _TASK_STATES
        }
        self._has_read_interrupted = True

    def _recover_server(self, context: Any, uuid: str) -> None:
        """Recover one server unless it is deleted, or on another host."""
        self._interrupted.discard(uuid)
        with (
            self._noted_if_failed(uuid),
            contextlib.suppress(exception.InstanceNotFound),
        ):
            instance = objects.Instance.get_by_uuid(context, uuid)
            if instance.host != self._allocations.hostname:
                return

            @utils.synchronized(uuid)
            def recover() -> None:
                instance = self.read_instance(context, uuid)
                for attached in instance_request.attachments_of(instance):
                    if (
                        attached.state
                        is not attachment.AttachmentState.ATTACHED
                    ):
                        self._recover_attachment(context, instance, attached)
                self._reset_task_state(self.read_instance(context, uuid))

            recover()

    def _recover_attachment(
        self, context: Any, instance: Any, attached: attachment.Attachment
    ) -> None:
        """Retain an attachment that the domain has; remove any other.

        An interrupted attach is complete if definition and guest have the
        device. An interrupted detach is undone if the running guest has it.
        """
        handles = self.attached_handles(instance.uuid, attached)
        slots = instance_request.slots_of(instance.resources)
        own_slot = attached.provider, attached.slot
        has_device = (
            attach_guest.is_in_domain
            if attached.state is attachment.AttachmentState.ATTACHING
            else attach_guest.is_in_guest
        )
        is_retained = own_slot in {slot.key for slot in slots} and has_device(
            self._host, instance, handles
        )
        LOG.warning(
            "%s of server %s was interrupted while %s: %s it",
            attached.name,
            instance.uuid,
            attached.state.name.lower(),
            "retaining" if is_retained else "removing",
        )
        if is_retained:
            write_record(
                instance,
                attachment.with_state(
                    attached, attachment.AttachmentState.ATTACHED
                ),
            )
            instance.save()
        else:
            self._remove_attachment(context, instance.uuid, attached.number)


def _note_removal(instance: Any, attached: attachment.Attachment) -> None:
    """Record that a complete attachment is removed.

    Nova may have lost only the answer to the last step of an attach. Without
    the record, a later service would not complete an interrupted removal.

    :raises nova.exception.InstanceUpdateConflict: Nova is processing the
        server.
    """
    if attached.state is not attachment.AttachmentState.ATTACHED:
        return
    write_record(
        instance,
        attachment.with_state(attached, attachment.AttachmentState.DETACHING),
    )
    instance.task_state = DETACHING
    instance.save(expected_task_state=[None, *_TASK_STATES])


def write_record(
    instance: Any, attached: attachment.Attachment, is_removed: bool = False
) -> None:
    """Write an attachment into a server's record; the server is not saved.

    Nova saves the whole system metadata, and its API may have changed them
    since the server was read: they are read again first.

    :param is_removed: remove the attachment from the record.
    :raises nova.exception.InstanceNotFound: the server is deleted.
    """
    stored = nova_records.read_instance(instance.uuid, ["system_metadata"])
    change = attachment.remove if is_removed else attachment.replace
    instance.system_metadata = attachment.update_metadata(
        stored.system_metadata,
        change(instance_request.attachments_of(stored), attached),
    )


def _slots(attached: attachment.Attachment) -> tuple[model.Slot, ...]:
    if not attached.slot:
        return ()
    return (
        model.Slot(
            provider=attached.provider,
            resource_class="",
            identifier=attached.slot,
        ),
    )


def is_claim_of(claim: model.Claim, attached: attachment.Attachment) -> bool:
    return (claim.provider, claim.slot) == (attached.provider, attached.slot)
