# SPDX-License-Identifier: Apache-2.0
"""Checks whether an IOMMU group can be assigned to a guest.

The kernel lets a guest have an IOMMU group only if no driver of the host
holds a part of it (drivers/iommu/iommu.c, iommu_group_claim_dma_owner).
"""

import errno
import re
from collections.abc import Collection, Iterator

from nova_accel import errors
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci

# The kernel's own port driver does not claim the group
# (drivers/pci/pcie/portdrv.c, driver_managed_dma).
_PORT_DRIVER = "pcieport"
# What the reader calls a driver that is bound and can't be told.
UNKNOWN = "unknown"
_FRAMEBUFFER = re.compile(r"fb\d+")
# The device of a virtio function (drivers/virtio/virtio.c), which has the
# function's framebuffer and connectors below it.
_VIRTIO = re.compile(r"virtio\d+")
_DRM_CARD = re.compile(r"card\d+")

# How Intel's driver names its IOMMUs (drivers/iommu/intel/dmar.c).
_INTEL_IOMMU = "dmar"
# The first Linux that refuses groups with direct regions on every IOMMU.
_REQUIRES_DIRECT = (6, 6)

NO_GROUP = (
    "it is in no IOMMU group; switch the IOMMU on in the firmware and on"
    " the kernel's command line (intel_iommu=on, amd_iommu=on)"
)


def is_free(function: pci.PciFunction) -> bool:
    """Return whether a group may be given away although it holds this."""
    return function.driver in (None, _PORT_DRIVER) or function.is_vfio_bound


def keeps_driver(functions: Collection[pci.PciFunction]) -> bool:
    """Return whether libvirt is to leave functions to their drivers.

    VFIO has some by a driver of their vendor's (qat_vfio_pci,
    nvgrace_gpu_vfio_pci) that knows more than vfio-pci; libvirt before
    10.1 puts vfio-pci in its place where it manages the function. One
    that VFIO does not have yet must be managed.
    """
    plain = ("vfio-pci", "pci-stub")
    return all(f.is_vfio_bound for f in functions) and any(
        f.driver not in plain for f in functions
    )


def objection(
    function: pci.PciFunction,
    together: Collection[pci.PciAddress],
    host: host_reader.HostReader,
    mend: str,
) -> str:
    """Return what in its IOMMU group keeps a function from guests.

    A member that is gone from the bus holds nothing.

    :param together: the functions that would be given away with it.
    :param mend: what to do if a driver of the host holds another one.
    :returns: the reason, empty if nothing stands against it.
    """
    if function.iommu_group is None:
        return NO_GROUP
    group = f"IOMMU group {function.iommu_group}"
    if _is_mapped_by_firmware(function, host):
        return (
            f"the firmware has memory of its own mapped in its {group}"
            " (RMRR, IVMD or RMR), and the kernel refuses such groups to"
            " guests; look for a firmware setting that drops this mapping"
        )
    if not function.group_members:
        return f"the members of {group} are unknown"
    unknown = host.unknown()
    for address in sorted(set(function.group_members) - set(together)):
        if str(address) in unknown:
            return (
                f"{address} in its {group} can't be"
                " read, so nothing tells whether the host uses it"
            )
        other = host.function(str(address))
        if other is not None and not is_free(other):
            return (
                f"{address} in its {group} is in use"
                f" by the host's driver {other.driver}; {mend}"
            )
    return ""


def _is_mapped_by_firmware(
    function: pci.PciFunction, host: host_reader.HostReader
) -> bool:
    """Return whether the kernel keeps a group for the firmware's mappings.

    A direct region that may not go away bars its group on Linux 6.6
    (drivers/iommu/iommu.c, require_direct), and before that where Intel's
    driver has the IOMMU (device_rmrr_is_locked). Regions that may go away,
    as those of displays, are called direct-relaxable.
    """
    address = str(function.address)
    try:
        regions = host.attribute(address, "iommu_group/reserved_regions")
    except errors.UnreadableError:
        return False  # the attribute is not there before Linux 4.11
    if not any(line.split()[2:] == ["direct"] for line in regions.split("\n")):
        return False
    try:
        if host.target(address, "iommu").startswith(_INTEL_IOMMU):
            return True
    except errors.UnreadableError:
        pass  # an IOMMU that does not show itself is none of Intel's
    return host.kernel_version() >= _REQUIRES_DIRECT


def reset_objection(
    function: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return why a function can't be reset between guests, or nothing.

    An empty ``reset_method`` says that somebody has switched every method
    off; kernels before 5.15 have no such file.
    """
    try:
        methods = host.attribute(str(function.address), "reset_method")
    except errors.UnreadableError as error:
        if error.number == errno.ENOENT:
            return ""
        return f"nothing tells whether it can be reset: {error}"
    if methods.strip():
        return ""
    return (
        f"{function.address} can't be reset between guests: its"
        " reset_method is empty; write the word default to it"
    )


def console_objection(
    function: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return what the host itself shows on a GPU, or nothing."""
    if is_free(function):
        return ""
    address = str(function.address)
    virtio = [n for n in entries(host, address) if _VIRTIO.fullmatch(n)]
    shown = next(
        (
            name
            for place in ("", *(f"{name}/" for name in virtio))
            for name in _shown(host, address, place)
        ),
        "",
    )
    if not shown:
        return ""
    return (
        f"the host's console is on it ({shown}); move the console to"
        " another display, or unbind its driver"
    )


def _shown(
    host: host_reader.HostReader, address: str, place: str
) -> Iterator[str]:
    """Yield framebuffers, and connectors on which the host shows a picture.

    :param place: the directory that has them, below the function's.
    """
    for name in entries(host, address, f"{place}graphics"):
        if _FRAMEBUFFER.fullmatch(name):
            yield name
    for card in entries(host, address, f"{place}drm"):
        if not _DRM_CARD.fullmatch(card):
            continue
        connectors = f"{place}drm/{card}"
        for name in entries(host, address, connectors):
            if not name.startswith(f"{card}-"):
                continue
            try:
                word = host.attribute(address, f"{connectors}/{name}/enabled")
            except errors.UnreadableError:
                continue
            if word == "enabled":
                yield name


def is_stray_vf(
    function: pci.PciFunction, host: host_reader.HostReader
) -> bool:
    """Return whether a function is a VF although no link says so.

    VFs are made and removed one after the other, links last and first
    (drivers/pci/iov.c, pci_iov_add_virtfn and pci_iov_remove_virtfn); one
    that is left over must not pass for a card.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    if function.physfn is not None:
        return True
    if function.total_vfs:
        return False  # only a PF has VFs of its own
    # A physfn that is there and was not read counts as well.
    if not {"physfn", "sriov_vf_msix_count"}.isdisjoint(
        entries(host, str(function.address))
    ):
        return True
    return any(
        routing_id(function.address) in _vf_ids(parent, host)
        for parent in host.functions()
        if parent.num_vfs > len(parent.virtual_functions)
        and parent.address.domain == function.address.domain
        and _may_be_vf(function, parent, host)
    )


def _may_be_vf(
    function: pci.PciFunction,
    parent: pci.PciFunction,
    host: host_reader.HostReader,
) -> bool:
    """Return whether a function has the ids of a PF's VFs.

    They have the PF's vendor, and the product id that the PF names
    (drivers/pci/iov.c, pci_iov_add_virtfn; ``sriov_vf_device``).
    """
    if function.vendor != parent.vendor:
        return False
    try:
        word = host.attribute(str(parent.address), "sriov_vf_device").strip()
    except errors.UnreadableError:
        return True
    return function.product == word.zfill(4)


def routing_id(address: pci.PciAddress) -> int:
    """Return bus, slot and function as one number (PCI Express, 2.2.6)."""
    return address.bus << 8 | address.slot << 3 | address.function


def _vf_ids(parent: pci.PciFunction, host: host_reader.HostReader) -> range:
    """Return the routing ids of a PF's VFs (PCI Express, 9.2.1)."""
    try:
        first, step = (
            int(host.attribute(str(parent.address), name))
            for name in ("sriov_offset", "sriov_stride")
        )
    except (errors.UnreadableError, ValueError):
        return range(0)
    start = routing_id(parent.address) + first
    step = max(step, 1)  # a single VF needs no stride
    count = min(parent.num_vfs, parent.total_vfs or parent.num_vfs)
    return range(start, start + step * count, step)


def entries(
    host: host_reader.HostReader, address: str, place: str = ""
) -> tuple[str, ...]:
    """Return the names in a function's directory, none if there is none."""
    try:
        return host.names(address, place)
    except errors.UnreadableError:
        return ()
