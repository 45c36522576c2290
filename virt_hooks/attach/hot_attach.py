# SPDX-License-Identifier: Apache-2.0
"""Hot attach and detach of a profile.

Before the first change, an attach or detach is recorded in the server with
a task state of its own, so that a later pass can recover it (see
``attach_recovery``).
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception, utils
from nova.compute import vm_states

from nova_accel import errors, model
from nova_accel.catalog import mdev_names
from nova_accel.claims import attach_candidates
from nova_accel.model import attachment
from virt_hooks import error_guards
from virt_hooks.attach import (
    attach_actions,
    attach_allocations,
    attach_devices,
    attach_guest,
    attach_recovery,
    unified_limits,
)
from virt_hooks.guest import libvirt_guest
from virt_hooks.instance import instance_request
from virt_hooks.operations import cold_migration, server_partitions

LOG = logging.getLogger(__name__)

_USABLE = (vm_states.ACTIVE, vm_states.STOPPED)


class HotAttach:
    """Attaches and detaches profiles; the RPC endpoint calls it."""

    def __init__(
        self,
        partitions: server_partitions.ServerPartitions,
        allocations: attach_allocations.AttachAllocations,
        moves: cold_migration.ColdMigration,
        recovery: attach_recovery.AttachRecovery,
        devices: attach_devices.AttachDevices,
        build_metadata: Callable[[Any, Any], Any],
        layouts: libvirt_guest.GuestLayouts,
    ) -> None:
        """:param build_metadata: see ``virt_hooks.hooks.Hooks``."""
        self._build_metadata, self._layouts = build_metadata, layouts
        self._partitions = partitions
        self._devices = devices
        self._accel, self._host = partitions.accel, partitions.host
        self._allocations = allocations
        self._moves = moves
        self._recovery = recovery
        self._measure = partitions.measured.measure

    def attach(
        self, context: Any, uuid: str, profile: str, bitstream: str = ""
    ) -> dict[str, str]:
        """Attach a profile to a server; return its name and device.

        After an error nothing remains attached.

        :param profile: its name, or its trait.
        :param bitstream: id of the image to load into an FPGA region;
            Glance is read with the context.
        :raises AcceleratorError: the profile can't be attached.
        """

        @utils.synchronized(uuid)
        def attach_locked() -> dict[str, str]:
            instance = self._read_usable(context, uuid)
            payload = attach_actions.build_attachment(instance, profile)
            with (
                attach_actions.recorded(
                    context,
                    uuid,
                    attach_actions.ATTACH,
                    self._allocations.hostname,
                ),
                attach_actions.attachment_sent(context, "attach", payload),
            ):
                attached = self._allocate_device(
                    context, instance, profile, bitstream
                )
                with self._recovery.removed_on_error(context, uuid, attached):
                    attached = self._claim_slot(context, instance, attached)
                    claim = self._make_partition(context, instance, attached)
                    attach_guest.add(
                        self._host,
                        instance,
                        claim,
                        self._partitions,
                        self._layouts,
                    )
                    self._set_metadata(context, instance)
                    self._save_state(
                        instance,
                        attached,
                        attachment.AttachmentState.ATTACHED,
                        attach_recovery.ATTACHING,
                        None,
                    )
                payload |= attach_actions.describe(attached, (claim,))
            LOG.info(
                "attached %s to server %s: %s",
                attached.name,
                uuid,
                claim.handle,
            )
            return {"name": attached.name, "device": claim.device}

        with (
            self._measure("attach"),
            self._recovery.recovered_later(context, uuid),
        ):
            result: dict[str, str] = attach_locked()
        return result

    def detach(self, context: Any, uuid: str, name: str) -> dict[str, str]:
        """Detach a profile from a server; return its name and profile.

        :param name: its name, profile, device or handle; may be empty if
            only one profile is attached.
        :raises AcceleratorError: it can't be detached and is unchanged,
            unless the reason says that the rest is released later.
        """

        @utils.synchronized(uuid)
        def detach_locked() -> dict[str, str]:
            instance = self._read_usable(context, uuid)
            payload = attach_actions.build_attachment(instance, "", name)
            with (
                attach_actions.recorded(
                    context,
                    uuid,
                    attach_actions.DETACH,
                    self._allocations.hostname,
                ),
                attach_actions.attachment_sent(context, "detach", payload),
            ):
                claims = self._accel.claims_of(uuid)
                attached = self._detach(context, instance, name)
                payload |= attach_actions.describe(attached, claims)
            LOG.info("detached %s from server %s", attached.name, uuid)
            return {"name": attached.name, "profile": attached.profile}

        with (
            self._measure("detach"),
            self._recovery.recovered_later(context, uuid),
        ):
            result: dict[str, str] = detach_locked()
        return result

    # -- steps of attach and detach ----------------------------------------

    def _detach(
        self, context: Any, instance: Any, name: str
    ) -> attachment.Attachment:
        """Detach one attachment and release it; return it."""
        attached = self._find_attachment(instance, name)
        handles = self._recovery.attached_handles(instance.uuid, attached)
        allocations = self._allocations.read(instance.uuid, context)
        attached = attachment.with_other_resources(
            attached, allocations.get(attached.provider, {})
        )
        self._save_state(
            instance,
            attached,
            attachment.AttachmentState.DETACHING,
            None,
            attach_recovery.DETACHING,
        )
        with self._restored_on_error(instance, attached, handles):
            attach_guest.remove(self._host, instance, handles)
        self._set_metadata(context, instance)
        with error_guards.log_errors("can't save the guest's metadata"):
            instance.save(expected_task_state=[attach_recovery.DETACHING])
        self._recovery.finish_removal(context, instance.uuid, attached)
        return attached

    def _set_metadata(self, context: Any, instance: Any) -> None:
        """Set the metadata that the guest reads; the server is not saved."""
        with error_guards.log_errors("can't update the guest's metadata"):
            instance.device_metadata = self._build_metadata(context, instance)

    def _read_usable(self, context: Any, uuid: str) -> Any:
        """Return a server that can be changed now.

        :raises ClaimError: it can't be changed.
        """
        instance = self._recovery.read_instance(context, uuid)
        reason = ""
        if not (
            self._partitions.reporter.is_registered
            and self._allocations.is_ready
        ):
            reason = "nova-compute has just started; try again in a minute"
        elif instance.task_state is not None:
            reason = f"Nova is at work with it ({instance.task_state})"
        elif instance.vm_state not in _USABLE:
            reason = (
                f"it is {instance.vm_state}, and must be active or stopped"
            )
        elif self._moves.lacks_new_slots(instance):
            reason = "its last move or resize failed; hard reboot it first"
        if reason:
            raise errors.ClaimError(uuid, reason, public=reason)
        self._partitions.record_if_moved(instance)
        instance.save()
        return instance

    def _allocate_device(
        self, context: Any, instance: Any, profile: str, bitstream: str
    ) -> attachment.Attachment:
        """Record and allocate an attachment on the best device with room.

        A bitstream is fetched before the first record: if it can't be
        fetched, or may not be loaded, there is nothing to undo.

        :raises AcceleratorError: no device has room, or the project's limit
            is reached; nothing remains.
        """
        choice = self._devices.choose(
            context, instance.uuid, profile, bitstream
        )
        for candidate in choice.ranked[:1]:
            unified_limits.check_delta(
                context,
                instance.uuid,
                instance.project_id,
                candidate.resources,
            )
        allocations = self._allocations.read(instance.uuid, context)
        number = attachment.find_free_number(
            instance_request.attachments_of(instance)
        )
        recorded: attachment.Attachment | None = None
        for candidate in choice.ranked:
            attached = _new_attachment(
                number, candidate, allocations, bitstream
            )
            self._save_state(
                instance,
                attached,
                attached.state,
                attach_recovery.ATTACHING if recorded else None,
                attach_recovery.ATTACHING,
            )
            recorded = attached
            if self._allocate(context, instance, attached):
                return attached
        if recorded is not None:
            self._recovery.finish_removal(context, instance.uuid, recorded)
        raise choice.refusal

    def _allocate(
        self, context: Any, instance: Any, attached: attachment.Attachment
    ) -> bool:
        """Allocate an attachment; return False after a conflict.

        :raises ServiceError: Placement can't be reached; nothing remains.
        :raises ClaimError: the project exceeds its limit by it; nothing
            remains.
        """
        uuid = instance.uuid
        with self._recovery.removed_on_error(context, uuid, attached):
            is_allocated = self._allocations.try_allocate(
                context, uuid, attached.provider, attached.total_resources
            )
            if is_allocated:
                unified_limits.check_usage(
                    context, uuid, instance.project_id, attached.resources
                )
        return is_allocated

    def _claim_slot(
        self, context: Any, instance: Any, attached: attachment.Attachment
    ) -> attachment.Attachment:
        """Claim a slot in Nova's tracker; return the attachment with it."""
        records: list[attachment.Attachment] = []

        def write(slot: model.Slot) -> None:
            records.append(attachment.with_slot(attached, slot.identifier))
            attach_recovery.write_record(instance, records[0])

        self._allocations.claim_slot(
            instance, attached.provider, attached.resources, write
        )
        return records[0]

    def _make_partition(
        self, context: Any, instance: Any, attached: attachment.Attachment
    ) -> model.Claim:
        request = instance_request.parse(
            instance,
            self._accel.root,
            self._allocations.read(instance.uuid, context),
        )
        claims = self._partitions.ensure(request)
        return next(
            claim
            for claim in claims
            if attach_recovery.is_claim_of(claim, attached)
        )

    def _save_state(
        self,
        instance: Any,
        attached: attachment.Attachment,
        state: attachment.AttachmentState,
        task_state: str | None,
        new_task_state: str | None,
    ) -> None:
        """Save the state of an attachment, and the server's task state.

        :param task_state: the task state that the server must have.
        :raises ClaimError: Nova is processing the server, or was since it
            was read.
        """
        expected = {"expected_task_state": [task_state]}
        try:
            if task_state is None:  # the server may have moved, and back
                self._recovery.read_instance(
                    nova_context.get_admin_context(), instance.uuid
                )
                expected["expected_vm_state"] = [instance.vm_state]
            attach_recovery.write_record(
                instance, attachment.with_state(attached, state)
            )
            instance.task_state = new_task_state
            instance.save(**expected)
        except (
            exception.InstanceUpdateConflict,
            exception.InstanceNotFound,
        ) as error:
            reason = "Nova is at work with it"
            raise errors.ClaimError(
                instance.uuid, f"{reason}: {error}", public=reason
            ) from error

    def _find_attachment(
        self, instance: Any, name: str
    ) -> attachment.Attachment:
        """Return the attachment of a name, profile, device or handle.

        :raises ClaimError: there is no such attachment, more than one, or
            the device belongs to the flavor.
        """
        attachments = instance_request.attachments_of(instance)
        matches = [
            attached
            for attached in attachments
            if not name
            or name in self._names_of(instance.uuid, attached)
            or mdev_names.is_profile_name(name, attached.profile)
        ]
        if len(matches) == 1:
            return matches[0]
        listed = ", ".join(each.name for each in attachments) or "nothing"
        if matches:
            reason = f"several are meant; name one of {listed}"
        elif name and any(
            name in (c.device, c.handle)
            or mdev_names.is_profile_name(name, c.profile)
            for c in self._accel.claims_of(instance.uuid)
        ):
            reason = (
                f"{name} belongs to its flavor, and is removed by a resize"
                f" only; attached: {listed}"
            )
        elif attachments:
            reason = f"{name} is not attached to it, but {listed}"
        else:
            reason = "nothing is attached to it"
        raise errors.ClaimError(instance.uuid, reason, public=reason)

    def _names_of(
        self, uuid: str, attached: attachment.Attachment
    ) -> frozenset[str]:
        devices = {
            name
            for claim in self._accel.claims_of(uuid)
            if attach_recovery.is_claim_of(claim, attached)
            for name in (claim.device, claim.handle)
        }
        return frozenset({attached.name, *attached.required, *devices})

    @contextlib.contextmanager
    def _restored_on_error(
        self, instance: Any, attached: attachment.Attachment, handles: Any
    ) -> Iterator[None]:
        """Put a device back that its guest or libvirt does not detach."""
        with contextlib.ExitStack() as undo:
            undo.callback(
                self._save_state,
                instance,
                attached,
                attachment.AttachmentState.ATTACHED,
                attach_recovery.DETACHING,
                None,
            )
            undo.callback(self._restore, instance, attached, handles)
            yield
            undo.pop_all()

    def _restore(
        self, instance: Any, attached: attachment.Attachment, handles: Any
    ) -> None:
        with error_guards.log_errors("can't put %s back", attached.name):
            attach_guest.restore_guest(self._host, instance, handles)


def _new_attachment(
    number: int,
    candidate: attach_candidates.AttachCandidate,
    allocations: Mapping[str, Mapping[str, int]],
    bitstream: str,
) -> attachment.Attachment:
    """Return the attachment of a candidate.

    :param allocations: the server's allocations before it.
    """
    return attachment.Attachment(
        number=number,
        profile=candidate.profile.name,
        resources=candidate.resources,
        required=candidate.required,
        provider=candidate.provider,
        other_resources=allocations.get(candidate.provider, {}),
        bitstream=bitstream,
    )
