# SPDX-License-Identifier: Apache-2.0
"""Accelerators of a server, for the RPC endpoint."""

from typing import Any

from nova_accel import model
from nova_accel.discovery import vgpu_guests
from nova_accel.model import attachment, names
from virt_hooks.attach import attach_guest, attach_recovery
from virt_hooks.instance import instance_request
from virt_hooks.operations import server_partitions


class AttachShow:
    """Shows a server's accelerators."""

    def __init__(
        self,
        partitions: server_partitions.ServerPartitions,
        recovery: attach_recovery.AttachRecovery,
    ) -> None:
        self._partitions = partitions
        self._accel, self._host = partitions.accel, partitions.host
        self._recovery = recovery

    def show(self, context: Any, uuid: str) -> dict[str, Any]:
        """Return a server's state, and each of its accelerators.

        Each has a name (empty for the flavor's), profile, device, the uuid
        and name of its provider, handle, technology, and state: ``in the
        guest``, ``made`` if no running guest has it, or the state of an
        interrupted attachment. A vGPU of NVIDIA has the licence and the
        driver of its guest, as of NVML's last answers.

        :raises AcceleratorError: the server is not on this host, or
            libvirt can't be read.
        """
        instance = self._recovery.read_instance(context, uuid)
        self._partitions.record_if_moved(instance)
        attachments = {
            (each.provider, each.slot): each
            for each in instance_request.attachments_of(instance)
        }
        claims = self._accel.claims_of(uuid)
        gpus = self._accel.host.gpus
        guests = {
            guest.handle: guest
            for guest in vgpu_guests.list_guests(claims, gpus)
        }
        accelerators = [
            self._show_claim(
                instance,
                claim,
                attachments.pop((claim.provider, claim.slot), None),
            )
            | _show_guest(guests.get(claim.handle))
            for claim in claims
        ]
        accelerators += [
            _show_unclaimed(each) for each in attachments.values()
        ]
        return {
            "server": uuid,
            "host": instance.host,
            "state": instance.vm_state,
            "task": instance.task_state or "",
            "accelerators": sorted(
                accelerators, key=lambda each: (each["name"], each["device"])
            ),
        }

    def _show_claim(
        self,
        instance: Any,
        claim: model.Claim,
        attached: attachment.Attachment | None,
    ) -> dict[str, str]:
        handles = claim.handles
        state = claim.state.value
        if attach_guest.is_in_guest(self._host, instance, handles):
            state = "in the guest"
        if (
            attached is not None
            and attached.state is not attachment.AttachmentState.ATTACHED
        ):
            state = attached.state.value
        root = self._accel.root
        return {
            "name": attached.name if attached else "",
            "profile": claim.profile,
            "device": claim.device,
            "provider": claim.provider,
            "provider_name": (
                names.provider_name(root.name, claim.device) if root else ""
            ),
            "handle": claim.handle,
            "technology": claim.technology,
            "state": state,
        }


def _show_guest(guest: vgpu_guests.VgpuGuest | None) -> dict[str, str]:
    return {
        "license": guest.license if guest else "",
        "license_expires": guest.expires if guest else "",
        "guest_driver": guest.driver if guest else "",
    }


def _show_unclaimed(attached: attachment.Attachment) -> dict[str, str]:
    """Return an attachment that has no claim on this host."""
    state = attached.state
    return {
        "name": attached.name,
        "profile": attached.profile,
        "device": "",
        "provider": attached.provider,
        "provider_name": "",
        "handle": "",
        "technology": "",
        "state": "missing"
        if state is attachment.AttachmentState.ATTACHED
        else state.value,
    } | _show_guest(None)
