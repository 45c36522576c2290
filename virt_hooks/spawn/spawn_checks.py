# SPDX-License-Identifier: Apache-2.0
"""Preconditions of a spawn."""

from collections.abc import Callable, Iterable, Sequence

from nova_accel import errors, model
from nova_accel.model import flavors, names, providers
from virt_hooks.guest import connection
from virt_hooks.spawn import ownership

# What a compute node itself gives (nova/virt/libvirt/driver.py,
# update_provider_tree): a group of these only is no accelerator's.
_HOST_CLASSES = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})


def check_booked(
    consumer: str,
    groups: Sequence[flavors.RequestGroup],
    slots: Iterable[model.Slot],
    host: model.HostState,
) -> None:
    """Check that a flavor that names a profile was given a slot.

    Only what a device of this host makes counts as a profile: operators
    mark hosts and Nova's own vGPUs with traits as they like.

    :raises ClaimError: it was not; the server would start without its
        device.
    """
    ours = {p.trait for device in host.devices for p in device.profiles}
    ours |= {
        trait
        for device in host.devices
        if device.region
        for trait in device.traits
        if trait.startswith((names.FUNCTION_PREFIX, names.INTERFACE_PREFIX))
    }
    named = sorted(
        trait
        for group in groups
        if group.resources.keys() - _HOST_CLASSES
        for trait in group.required & ours
    )
    named += sorted(group.bitstream for group in groups if group.bitstream)
    if named and not tuple(slots):
        raise errors.ClaimError(
            consumer,
            f"the flavor asks for {', '.join(named)}, but Nova claimed no"
            " slot on this host: its view of the provider tree is old; the"
            " next periodic update mends it",
            public=f"its host can't give it {', '.join(named)} now",
        )


def check_open(consumer: str, device: model.Device) -> None:
    """Check that a device may take a server that it did not have before.

    The scheduler may have chosen it before Placement knew better. Regions
    that are at fault are checked when they are to be handed over.

    :raises ClaimError: it is drained or at fault, or this is not known;
        nothing was touched.
    """
    reason = f"is drained: {device.drain}" if device.drain else ""
    if device.marks_unknown:
        reason = f"may be drained or at fault: {device.marks_unknown}"
    if device.fault and device.region is None:
        reason = f"is set aside: {device.fault}"
    if reason:
        raise errors.ClaimError(
            consumer, f"{device.address} {reason}; it takes no new server"
        )


def check_all_open(
    consumer: str,
    root: providers.ProviderRoot,
    slots: Iterable[model.Slot],
    host: model.HostState,
    holds: Callable[[str, str], bool],
) -> None:
    """Check that the devices of some slots may take a server.

    :param holds: whether a consumer has anything of a provider: such a
        server keeps its own.
    :raises ClaimError: see ``check_open``.
    """
    for device in ownership.devices_of(root, host, slots):
        provider = ownership.provider_of(root, device.address)
        if not holds(consumer, provider):
            check_open(consumer, device)


def explain_left(claim: model.Claim, use: connection.HostdevUse) -> str:
    """Return why what is left in a slot can't be removed."""
    what = f"slot {claim.slot} of {claim.device} still holds {claim.handle}"
    if any(use.holds(handle) for handle in (claim.handle, *claim.members)):
        return (
            f"{what}, and a guest has it; see `virsh list` and the XML of"
            " its domains"
        )
    return (
        f"{what} as {claim.profile}, which no server of this host is known"
        " to have made; clear it by hand if nothing needs it"
    )
