# SPDX-License-Identifier: Apache-2.0
"""Slots of a server's attachments, also after a move."""

import dataclasses
import types
from typing import Any

import pytest

from nova_accel import errors, model
from nova_accel.model import attachment, flavors
from virt_hooks.instance import instance_request

OLD, NEW = "old-provider", "new-provider"
SPECS = {"resources_A:VGPU": "1", "trait_A:CUSTOM_VGPU_X": "required"}
ATTACHED = attachment.Attachment(
    number=1,
    profile="X",
    resources={"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 4096},
    required=frozenset({"CUSTOM_VGPU_X"}),
    provider=OLD,
    slot="slot-1",
    state=attachment.AttachmentState.ATTACHED,
)


def instance_with(*attachments: attachment.Attachment) -> Any:
    """Return the fields of a ``nova.objects.Instance`` that are read."""
    return types.SimpleNamespace(
        uuid="server",
        flavor=types.SimpleNamespace(extra_specs=SPECS),
        system_metadata=attachment.update_metadata({}, attachments),
    )


def slots(provider: str, *numbers: int) -> tuple[model.Slot, ...]:
    return tuple(
        model.Slot(
            provider=provider,
            resource_class="VGPU",
            identifier=f"slot-{number}",
        )
        for number in numbers
    )


def groups_in(
    instance: Any, server_slots: tuple[model.Slot, ...]
) -> tuple[flavors.RequestGroup, ...]:
    return instance_request.groups_of(instance, instance.flavor, server_slots)


def test_an_attachment_has_its_slot() -> None:
    _, attached = groups_in(instance_with(ATTACHED), slots(OLD, 0, 1))
    assert attached.slot == (OLD, "slot-1")


def test_an_attachment_that_moved_gets_any_slot() -> None:
    _, attached = groups_in(instance_with(ATTACHED), slots(NEW, 0, 1))
    assert attached == ATTACHED.open_group()


def test_an_attachment_without_a_slot_is_left_behind() -> None:
    instance = instance_with(ATTACHED)
    (own,) = groups_in(instance, slots(NEW, 0))
    assert own.suffix == "_A"
    with pytest.raises(errors.ClaimError, match="enable AcceleratorFilter"):
        instance_request.check_carried(
            instance, instance.flavor, slots(NEW, 0)
        )


def test_attachments_move_all_or_none() -> None:
    other = dataclasses.replace(ATTACHED, number=2, slot="slot-2")
    instance = instance_with(ATTACHED, other)
    assert len(groups_in(instance, slots(NEW, 0, 1))) == 1
    assert len(groups_in(instance, slots(NEW, 0, 1, 2))) == 3


@pytest.mark.parametrize(
    "state",
    [
        attachment.AttachmentState.ATTACHING,
        attachment.AttachmentState.DETACHING,
    ],
)
def test_an_interrupted_attachment_does_not_move(
    state: attachment.AttachmentState,
) -> None:
    instance = instance_with(attachment.with_state(ATTACHED, state))
    assert len(groups_in(instance, slots(NEW, 0, 1))) == 1
