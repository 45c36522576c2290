# SPDX-License-Identifier: Apache-2.0
"""Accelerators of a server, for the RPC endpoint."""

from typing import Any

from nova_accel import model
from nova_accel.model import attachment, names
from virt_hooks.attach import attach_recovery
from virt_hooks.guest import plug
from virt_hooks.instance import instance_request


class AttachShowDriver(attach_recovery.AttachRecoveryDriver):
    """What AccelLibvirtDriver tells of its servers' accelerators.

    It is a part of it, not a driver by itself.
    """

    def show_accelerators(self, context: Any, uuid: str) -> dict[str, Any]:
        """Return a server's state, and each of its accelerators.

        Of each the name (empty for the flavor's), profile, device,
        provider's uuid and name, handle, technology, and state: ``in the
        guest``, ``made`` while no guest runs with it, or how far it is.

        :raises AcceleratorError: it is not on this host, or libvirt can't
            be asked.
        """
        instance = self._read_instance(context, uuid)
        known = {
            (one.provider, one.slot): one
            for one in instance_request.attachments_of(instance)
        }
        found = [
            self._told(instance, claim, known.pop(place, None))
            for claim in self._accel.claims_of(uuid)
            for place in [(claim.provider, claim.slot)]
        ]
        found += [_unmade(one) for one in known.values()]
        return {
            "server": uuid,
            "host": self._here,
            "state": instance.vm_state,
            "task": instance.task_state or "",
            "accelerators": sorted(
                found, key=lambda each: (each["name"], each["device"])
            ),
        }

    def _told(
        self,
        instance: Any,
        claim: model.Claim,
        one: attachment.Attachment | None,
    ) -> dict[str, str]:
        handles = plug.handles_of(claim)
        state = claim.state.value
        if plug.runs_with(self._host, instance, handles):
            state = "in the guest"
        if (
            one is not None
            and one.state is not attachment.AttachmentState.HERE
        ):
            state = one.state.value
        root = self._accel.root
        return {
            "name": one.name if one else "",
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


def _unmade(one: attachment.Attachment) -> dict[str, str]:
    """Return an attachment of which nothing stands on this host."""
    state = one.state
    return {
        "name": one.name,
        "profile": one.profile,
        "device": "",
        "provider": one.provider,
        "provider_name": "",
        "handle": "",
        "technology": "",
        "state": "missing"
        if state is attachment.AttachmentState.HERE
        else state.value,
    }
