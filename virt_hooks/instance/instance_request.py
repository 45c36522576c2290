# SPDX-License-Identifier: Apache-2.0
"""Request of a ``nova.objects.Instance``: groups, slots and bitstreams."""

import collections
import dataclasses
import types
from collections.abc import Iterable
from typing import Any

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.model import attachment, flavors, names, providers

# Prefix of the resource classes whose slots are of Nova's own libvirt driver
# (nova/virt/libvirt/driver.py, _update_provider_tree_for_vpmems).
PMEM_PREFIX = "CUSTOM_PMEM_NAMESPACE_"
_ATTACHED = attachment.AttachmentState.ATTACHED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRequest:
    """Accelerators of a server on this host, parsed once per operation."""

    uuid: str
    #: Of its flavor, and of its attachments that have their slot.
    groups: tuple[flavors.RequestGroup, ...]
    slots: tuple[model.Slot, ...] = ()
    #: Its allocations by provider, if it comes to this host.
    allocated: model.Allocations = dataclasses.field(
        default_factory=lambda: types.MappingProxyType({})
    )
    options: flavors.Options = dataclasses.field(
        default_factory=flavors.Options
    )
    #: Whether Nova rebuilds it on this host.
    is_rebuild: bool = False

    @property
    def images(self) -> frozenset[str]:
        """Return the ids of the images of its bitstreams."""
        return images_of(self.groups)

    @property
    def has_open_attachments(self) -> bool:
        """Return whether groups of attachments have no slot yet."""
        return any(
            group.slot is None
            and group.suffix.startswith(attachment.GROUP_PREFIX)
            for group in self.groups
        )

    def list_claims(
        self, claims: Iterable[model.Claim], is_attached: bool
    ) -> tuple[model.Claim, ...]:
        """Return the claims of attachments, or those of the flavor."""
        attached = {group.slot for group in self.groups}
        return tuple(
            claim
            for claim in claims
            if ((claim.provider, claim.slot) in attached) is is_attached
        )


def parse(
    instance: Any,
    root: providers.ProviderRoot | None,
    allocated: model.Allocations,
    is_rebuild: bool = False,
    slots: tuple[model.Slot, ...] | None = None,
) -> InstanceRequest:
    """Return the request of a server.

    :param instance: a ``nova.objects.Instance``.
    :param root: Nova's root provider, whose slots are left out.
    :param slots: those claimed here for a server on its way to this host;
        by default those of the instance.
    :raises MalformedError: its flavor or its record of attachments can't be
        read.
    """
    if slots is None:
        slots = slots_of(instance.resources, root)
    return InstanceRequest(
        uuid=instance.uuid,
        groups=groups_of(instance, instance.flavor, slots),
        slots=slots,
        allocated=allocated,
        options=flavors.parse_options(instance.flavor.extra_specs),
        is_rebuild=is_rebuild,
    )


def locate(
    request: InstanceRequest,
    attachments: Iterable[attachment.Attachment],
    root: providers.ProviderRoot,
    host: model.HostState,
) -> tuple[attachment.Attachment, ...]:
    """Return attachments with the slots that they have on this host.

    :param request: of their server, whose partitions are made: a match
        with existing partitions is preferred, so that it agrees with the
        claims.
    :raises ClaimError: the slots do not match the groups.
    """
    located = {
        group.suffix: claim
        for group, claim in claim_plan.plan_by_group(
            request.uuid,
            request.groups,
            request.slots,
            root,
            host,
            request.allocated,
        )
    }
    return tuple(
        attachment.with_location(each, claim.provider, claim.slot)
        if (claim := located.get(each.open_group().suffix))
        else each
        for each in attachments
    )


def attachments_of(instance: Any) -> tuple[attachment.Attachment, ...]:
    """Return all recorded attachments of a server, in any state.

    :param instance: a ``nova.objects.Instance``.
    :raises MalformedError: its record can't be read.
    """
    return attachment.parse_metadata(instance.system_metadata)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SortedAttachments:
    """Attachments of a server by what some slots of it are.

    ``served`` have their slot among them, ``moved`` get others of them, and
    ``lost`` have none.
    """

    served: tuple[attachment.Attachment, ...]
    moved: tuple[attachment.Attachment, ...]
    lost: tuple[attachment.Attachment, ...]


def sort_attachments(
    instance: Any, flavor: Any, slots: Iterable[model.Slot]
) -> SortedAttachments:
    """Return the attachments of a server by what some slots of it are.

    An attachment whose own slot is among them is served. The others have
    moved if there are slots for the flavor and all attachments, as the
    scheduler requests these all or none (``filters.attached_profiles``).
    Otherwise, and if an attach or detach was interrupted, they are lost.

    :param flavor: a ``nova.objects.Flavor``.
    :raises MalformedError: the record of attachments can't be read.
    """
    slots = tuple(slots)
    own = {slot.key for slot in slots}
    served: list[attachment.Attachment] = []
    others: list[attachment.Attachment] = []
    for each in attachments_of(instance):
        is_served = (each.provider, each.slot) in own
        (served if is_served else others).append(each)
    moved = [e for e in others if e.state is _ATTACHED]
    if moved:
        requested: collections.Counter[str] = collections.Counter()
        for group in (
            *flavors.parse_groups(flavor.extra_specs),
            *(each.request_group() for each in (*served, *moved)),
        ):
            requested.update(group.resources)
        claimed = collections.Counter(slot.resource_class for slot in slots)
        classes = {name for each in moved for name in each.resources}
        if any(claimed[n] < requested[n] for n in classes - names.MEASURES):
            moved = []
    return SortedAttachments(
        served=tuple(served),
        moved=tuple(moved),
        lost=tuple(e for e in others if e not in moved),
    )


def check_carried(
    instance: Any, flavor: Any, slots: Iterable[model.Slot]
) -> None:
    """Check that a move has slots for the attachments of a server.

    :param flavor: its ``nova.objects.Flavor`` after the move.
    :param slots: those claimed on the destination.
    :raises ClaimError: an attachment has none.
    :raises MalformedError: the record of attachments can't be read.
    """
    lost = sort_attachments(instance, flavor, slots).lost
    if not lost:
        return
    listed = ", ".join(f"{each.name} ({each.profile})" for each in lost)
    # Nova stores 255 characters of the reason.
    reason = (
        f"{listed} got no device on the other host: enable AcceleratorFilter"
        " in each nova-scheduler, or run `openstack accel server detach`"
    )
    raise errors.ClaimError(instance.uuid, reason, public=reason)


def groups_of(
    instance: Any, flavor: Any, slots: Iterable[model.Slot]
) -> tuple[flavors.RequestGroup, ...]:
    """Return the request groups that some slots of a server satisfy.

    They are those of a flavor, and of the attachments that have a slot, or
    got another one by a move: the groups of these are open.

    :raises MalformedError: the record of attachments can't be read.
    """
    attachments = sort_attachments(instance, flavor, slots)
    return (
        *flavors.parse_groups(flavor.extra_specs),
        *(each.request_group() for each in attachments.served),
        *(each.open_group() for each in attachments.moved),
    )


def all_groups_of(instance: Any) -> tuple[flavors.RequestGroup, ...]:
    """Return the same, with the attachments that lost their slots."""
    return (
        *flavors.parse_groups(instance.flavor.extra_specs),
        *(each.request_group() for each in attachments_of(instance)),
    )


def images_of(groups: Iterable[flavors.RequestGroup]) -> frozenset[str]:
    """Return the ids of the images of the bitstreams of some groups."""
    return frozenset(group.bitstream for group in groups if group.bitstream)


def slots_of(
    resources: Any, root: providers.ProviderRoot | None = None
) -> tuple[model.Slot, ...]:
    """Return the slots of a server's resources.

    :param resources: a ``nova.objects.ResourceList``, or None.
    :param root: Nova's root provider, whose slots are left out.
    """
    slots = (
        model.Slot(
            provider=resource.provider_uuid,
            resource_class=resource.resource_class,
            identifier=resource.identifier,
        )
        for resource in resources or ()
    )
    return slots_below_root(root, slots)


def has_accelerator_slots(resources: Any) -> bool:
    """Return whether a server's resources have slots of accelerators.

    :param resources: as of ``slots_of``, of any host.
    """
    return any(
        not resource.resource_class.startswith(PMEM_PREFIX)
        for resource in resources or ()
    )


def slots_below_root(
    root: providers.ProviderRoot | None, slots: Iterable[model.Slot]
) -> tuple[model.Slot, ...]:
    """Return the slots without those of Nova's root provider."""
    return tuple(
        slot for slot in slots if root is None or slot.provider != root.uuid
    )
