# SPDX-License-Identifier: Apache-2.0
"""Checks whether a guest can have the devices of its claims."""

from collections.abc import Sequence

from nova_accel import errors, model
from nova_accel.catalog import features
from nova_accel.model import flavors
from virt_hooks.guest import guest_pci, hypervisor

# Technologies whose partitions are PCI functions with a display.
_FUNCTIONS_WITH_DISPLAY = ("vendor-vfio",)

_Claims = Sequence[model.Claim]


def check(
    claims: _Claims,
    machine: guest_pci.Guest,
    options: flavors.Options,
    host: hypervisor.Hypervisor,
) -> None:
    """Check the claims of a guest, and the options of its flavor.

    :param machine: the guest without the devices.
    :raises ClaimError: the guest can't have them.
    """
    _check_ap(claims, machine)
    if options.has_rom is not None:
        _check_rom(claims)
    if options.has_display:
        _check_display(claims, machine, options, host)
    if options.memory_nodes:
        _check_memory_nodes(claims, host)
    _check_iommufd(claims, machine, host)


def has_display(claim: model.Claim) -> bool:
    """Return whether a device has a display."""
    if claim.technology == "mdev":
        return (claim.device_api or "vfio-pci") == "vfio-pci"
    return claim.technology in _FUNCTIONS_WITH_DISPLAY


def can_display(claim: model.Claim, host: hypervisor.Hypervisor) -> bool:
    """Return whether a device has a display that libvirt can use."""
    return has_display(claim) and (
        claim.technology == "mdev"
        or not host.explain_old("", features.DISPLAY)
    )


def uses_iommufd(
    machine: guest_pci.Guest, host: hypervisor.Hypervisor
) -> bool:
    """Return whether the PCI functions of a guest are assigned by IOMMUFD.

    They are if the memory of the guest is encrypted, or if the host is
    configured so.
    """
    return host.uses_iommufd or (
        machine.has_private_memory and host.has_iommufd
    )


def _check_ap(claims: _Claims, machine: guest_pci.Guest) -> None:
    """Check that a guest has at most one crypto matrix (vfio-ap)."""
    matrices = [claim for claim in claims if claim.device_api == "vfio-ap"]
    count = len(matrices) + machine.has_ap
    if count > 1:
        reason = (
            "a guest can have one vfio-ap device and the flavor gives it"
            f" {count}: ask for one, whose matrix has all adapters and"
            " domains"
        )
        raise errors.ClaimError(matrices[0].consumer, reason, public=reason)


def _check_rom(claims: _Claims) -> None:
    if all(claim.technology == "mdev" for claim in claims):
        reason = (
            "the flavor says accelerator:rom, and none of its devices is a"
            " PCI function; mdevs have no ROM: take it out of the flavor"
        )
        raise errors.ClaimError(claims[0].consumer, reason, public=reason)


def _check_display(
    claims: _Claims,
    machine: guest_pci.Guest,
    options: flavors.Options,
    host: hypervisor.Hypervisor,
) -> None:
    reason = ""
    if not any(map(has_display, claims)):
        reason = (
            "none of its devices has a display: only vGPUs do; take it out"
            " of the flavor"
        )
    elif old := [
        claim
        for claim in claims
        if has_display(claim) and not can_display(claim, host)
    ]:
        reason = host.explain_old(
            f"the display of {old[0].handle}", features.DISPLAY
        )
        reason += ", or take it out of the flavor"
    elif not machine.has_graphics:
        reason = (
            "the guest has no graphics device to show it on: enable [vnc]"
            " or [spice] in nova.conf of this host"
        )
    elif options.has_ramfb and machine.has_ramfb:
        reason = "the guest has a ramfb already, and can have one"
    if reason:
        raise errors.ClaimError(
            claims[0].consumer,
            f"the flavor asks for a display, but {reason}",
            public="its host can't give it the display of the flavor",
        )


def _check_memory_nodes(claims: _Claims, host: hypervisor.Hypervisor) -> None:
    if all(claim.technology != "passthrough" for claim in claims):
        reason = (
            "the flavor says accelerator:memory_nodes, and none of its"
            " devices is a whole PCI function: take it out of the flavor"
        )
        raise errors.ClaimError(claims[0].consumer, reason, public=reason)
    reason = host.explain_old(
        "accelerator:memory_nodes of the flavor", features.MEMORY_NODES
    )
    if reason:
        raise errors.ClaimError(
            claims[0].consumer,
            reason,
            public="its host can't give it accelerator:memory_nodes of the"
            " flavor",
        )


def _check_iommufd(
    claims: _Claims,
    machine: guest_pci.Guest,
    host: hypervisor.Hypervisor,
) -> None:
    """Check a guest whose devices can only be assigned by IOMMUFD."""
    functions = [claim for claim in claims if claim.technology != "mdev"]
    mdevs = [claim for claim in claims if claim.technology == "mdev"]
    reason = ""
    if mdevs and machine.needs_iommufd:
        reason = (
            f"mdev {mdevs[0].handle} can't be in a guest with encrypted"
            f" memory ({machine.encryption}): libvirt assigns only PCI"
            " functions by IOMMUFD; use a flavor without hw:mem_encryption"
        )
    elif functions and (machine.needs_iommufd or host.uses_iommufd):
        reason = _explain_iommufd(functions[0], machine, host)
    if reason:
        raise errors.ClaimError(
            claims[0].consumer,
            reason,
            public="its host can't give its accelerators to a guest with"
            " encrypted memory"
            if machine.needs_iommufd
            else "its host can't assign its accelerators by IOMMUFD",
        )


def _explain_iommufd(
    claim: model.Claim,
    machine: guest_pci.Guest,
    host: hypervisor.Hypervisor,
) -> str:
    subject = f"IOMMUFD for {claim.handle}"
    if machine.needs_iommufd:
        subject += f" in a guest with encrypted memory ({machine.encryption})"
    else:
        subject += " (use_iommufd in [nova_accel])"
    if host.has_iommufd:
        return ""
    if reason := host.explain_old(subject, features.IOMMUFD):
        return reason
    return (
        f"{subject}: libvirt says that this host has none; see whether the"
        " kernel has /dev/iommu (CONFIG_IOMMUFD, CONFIG_VFIO_DEVICE_CDEV),"
        " and whether QEMU was built with it"
    )
