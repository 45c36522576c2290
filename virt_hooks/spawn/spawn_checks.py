# SPDX-License-Identifier: Apache-2.0
"""Preconditions of a spawn."""

from collections.abc import Callable, Iterable, Sequence

from nova_accel import errors, model
from nova_accel.model import flavors, names, providers
from virt_hooks.guest import connection
from virt_hooks.spawn import ownership

# Resource classes of the compute node itself (nova/virt/libvirt/driver.py,
# update_provider_tree): a group with only these asks for no accelerator.
_HOST_CLASSES = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})


def check_allocated(
    consumer: str,
    groups: Sequence[flavors.RequestGroup],
    slots: Iterable[model.Slot],
    host: model.HostState,
) -> None:
    """Check that a server whose flavor names a profile has a slot.

    Only profiles that a device of this host offers count: operators mark
    hosts and Nova's own vGPUs with traits of any name.

    :raises ClaimError: it has none; the server would start without its
        device.
    """
    profile_traits = {
        p.trait for device in host.devices for p in device.profiles
    }
    profile_traits |= {
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
        for trait in group.required & profile_traits
    )
    named += sorted(group.bitstream for group in groups if group.bitstream)
    if named and not tuple(slots):
        raise errors.ClaimError(
            consumer,
            f"the flavor asks for {', '.join(named)}, but Nova claimed no"
            " slot on this host: its view of the provider tree is old; the"
            " next periodic update repairs it",
            public=f"its host can't give it {', '.join(named)} now",
        )


def check_available(consumer: str, device: model.Device) -> None:
    """Check that a device may be assigned to a new server.

    The scheduler may have selected it before Placement was updated. Faults
    of regions are checked when the regions are planned.

    :raises ClaimError: the device is drained or at fault, or this is
        unknown; nothing was changed.
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


def check_all_available(
    consumer: str,
    root: providers.ProviderRoot,
    slots: Iterable[model.Slot],
    host: model.HostState,
    has_claim_on: Callable[[str, str], bool],
) -> None:
    """Check that the devices of some slots may be assigned to a server.

    :param has_claim_on: returns whether a consumer has anything of a
        provider: such a server keeps what it has.
    :raises ClaimError: see ``check_available``.
    """
    for device in ownership.devices_of(root, host, slots):
        provider = ownership.provider_of(root, device.address)
        if not has_claim_on(consumer, provider):
            check_available(consumer, device)


def explain_leftover(claim: model.Claim, use: connection.HostdevUse) -> str:
    """Return why a partition that is left in a slot can't be removed."""
    text = f"slot {claim.slot} of {claim.device} still holds {claim.handle}"
    if any(use.holds(handle) for handle in (claim.handle, *claim.members)):
        return (
            f"{text}, and a guest has it; see `virsh list` and the XML of"
            " its domains"
        )
    return (
        f"{text} as {claim.profile}, which no server of this host is known"
        " to have made; clear it by hand if nothing needs it"
    )
