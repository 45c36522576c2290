# SPDX-License-Identifier: Apache-2.0
"""Attached profiles of evacuated servers.

For an evacuation nova-scheduler requests the flavor only, and prefers hosts
with room for the rest: a server must not stay on a dead host because of an
attached profile. The new host allocates and claims it before the spawn, inside
Nova's own claim: if the spawn fails, Nova releases all allocations and slots
of the server on this host.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from nova import context as nova_context

from nova_accel import errors
from nova_accel.model import attachment
from virt_hooks import error_guards
from virt_hooks.attach import (
    attach_actions,
    attach_allocations,
    attach_devices,
)
from virt_hooks.instance import instance_request

LOG = logging.getLogger(__name__)


class EvacuatedAttachments:
    """Finds devices of this host for the attachments of another host."""

    def __init__(
        self,
        allocations: attach_allocations.AttachAllocations,
        devices: attach_devices.AttachDevices,
    ) -> None:
        self._allocations = allocations
        self._devices = devices

    @contextlib.contextmanager
    def carried(self, context: Any, instance: Any) -> Iterator[None]:
        """Spawn an evacuated server with its attachments in the block.

        An attachment without room here is left behind: an instance action
        says so. If the block fails, the server keeps its record of all: it
        may be evacuated again, or its host return.

        :param context: Nova's; Glance is read with it.
        """
        metadata = dict(instance.system_metadata)
        with contextlib.ExitStack() as on_error:
            on_error.callback(setattr, instance, "system_metadata", metadata)
            self._attach_lost(context, instance)
            yield
            on_error.pop_all()

    def _attach_lost(self, context: Any, instance: Any) -> None:
        """Attach profiles of the other host, or remove their records."""
        left_behind = []
        for attached in self._list_lost(instance):
            here = None
            with error_guards.log_errors(
                "can't attach %s to evacuated server %s",
                attached.profile,
                instance.uuid,
            ):
                here = self._try_attach(context, instance, attached)
            attachments = attachment.remove(
                instance_request.attachments_of(instance), attached
            )
            if here is None:
                left_behind.append(attached.profile)
            else:
                attachments = attachment.replace(attachments, here)
            instance.system_metadata = attachment.update_metadata(
                instance.system_metadata, attachments
            )
        if left_behind:
            LOG.warning(
                "server %s was evacuated without its attached profiles: %s;"
                " attach them again",
                instance.uuid,
                ", ".join(left_behind),
            )

    def _list_lost(self, instance: Any) -> tuple[attachment.Attachment, ...]:
        lost: tuple[attachment.Attachment, ...] = ()
        with error_guards.log_errors(
            "can't read the attached profiles of server %s", instance.uuid
        ):
            lost = instance_request.sort_attachments(
                instance,
                instance.flavor,
                instance_request.slots_of(instance.resources),
            ).lost
        return lost

    def _try_attach(
        self, context: Any, instance: Any, attached: attachment.Attachment
    ) -> attachment.Attachment | None:
        """Attach a profile and record the action; return None without room.

        The action has a request of its own: that of the evacuation did not
        fail. An attach or detach that was interrupted is not completed.
        """
        if attached.state is not attachment.AttachmentState.ATTACHED:
            return None
        try:
            with attach_actions.recorded(
                nova_context.get_admin_context(),
                instance.uuid,
                attach_actions.ATTACH,
                self._allocations.hostname,
            ):
                return self._attach(context, instance, attached)
        except errors.AcceleratorError as error:
            LOG.info("%s", error)
            return None

    def _attach(
        self, context: Any, instance: Any, attached: attachment.Attachment
    ) -> attachment.Attachment:
        """Allocate and claim a device; return the attachment with its slot.

        :raises AcceleratorError: this host has no room; nothing remains.
        """
        choice = self._devices.choose(
            context, instance.uuid, attached.profile, attached.bitstream
        )
        for candidate in choice.ranked:
            former = self._allocations.read(instance.uuid, context).get(
                candidate.provider, {}
            )
            here = attachment.with_location(
                attached, candidate.provider, "", former
            )
            if not self._allocations.try_allocate(
                context, instance.uuid, here.provider, here.total_resources
            ):
                continue
            with contextlib.ExitStack() as on_error:
                on_error.callback(
                    self._allocations.allocate,
                    context,
                    instance.uuid,
                    here.provider,
                    former,
                )
                slot = self._allocations.claim_moving_slot(
                    instance, here.provider, here.resources
                )
                on_error.pop_all()
            return attachment.with_slot(here, slot.identifier)
        raise choice.refusal
