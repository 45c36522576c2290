# SPDX-License-Identifier: Apache-2.0
"""Checks whether an IOMMU group can be assigned to a guest.

The kernel lets a guest have an IOMMU group only if no driver of the host
holds a part of it (drivers/iommu/iommu.c, iommu_group_claim_dma_owner).
"""

import re
from collections.abc import Collection, Iterator

from nova_accel import errors
from nova_accel.config import remedy
from nova_accel.host.sysfs import host_reader, modules
from nova_accel.model import names, pci

# The kernel's port driver does not claim the group
# (drivers/pci/pcie/portdrv.c, driver_managed_dma).
_PORT_DRIVER = "pcieport"
# The reader's name for a driver whose link can't be read.
UNKNOWN = "unknown"
_FRAMEBUFFER = re.compile(r"fb\d+")
# The virtio device of a function (drivers/virtio/virtio.c); the function's
# framebuffer and connectors are below it.
_VIRTIO = re.compile(r"virtio\d+")
_DRM_CARD = re.compile(r"card\d+")

# Prefix of the IOMMUs of Intel's driver (drivers/iommu/intel/dmar.c).
_INTEL_IOMMU = "dmar"
# First Linux release that refuses groups with direct regions on any IOMMU.
# Distributions that add its VFIO to an older kernel add this, too.
_REQUIRES_DIRECT = (6, 6)


def is_free(function: pci.PciFunction) -> bool:
    """Return whether a function leaves its group assignable to a guest.

    Functions without a driver, bound to VFIO, or bound to the port driver
    do.
    """
    return function.driver in (None, _PORT_DRIVER) or function.is_vfio_bound


def has_variant_driver(functions: Collection[pci.PciFunction]) -> bool:
    """Return whether a VFIO variant driver is bound to the functions.

    Variant drivers (qat_vfio_pci, nvgrace_gpu_vfio_pci) do more than
    vfio-pci. libvirt before 10.1 replaces them by vfio-pci if it manages
    the function, so such functions must be unmanaged. A function that is
    not bound to VFIO yet must be managed.
    """
    plain = ("vfio-pci", "pci-stub")
    return all(f.is_vfio_bound for f in functions) and any(
        f.driver not in plain for f in functions
    )


def check_group(
    function: pci.PciFunction,
    together: Collection[pci.PciAddress],
    host: host_reader.HostReader,
    hint: str = "",
) -> str:
    """Return why the IOMMU group keeps a function from guests, or "".

    A member that is not on the bus any more does not count.

    :param together: the functions that go to the same guest.
    :param hint: the remedy if a host driver is bound to another member;
        empty for that of ``separate``.
    """
    if function.iommu_group is None:
        return f"it is in no IOMMU group; {modules.explain_iommu(host.files)}"
    group = f"IOMMU group {function.iommu_group}"
    if is_mapped_by_firmware(function, host):
        return (
            f"the firmware has memory of its own mapped in its {group}"
            " (RMRR, IVMD or RMR), and the kernel refuses such groups to"
            " guests; look for a firmware setting that drops this mapping"
        )
    if not function.group_members:
        return f"the members of {group} are unknown"
    unknown = host.unknown()
    for address in sorted(set(function.group_members) - set(together)):
        if str(address) in unknown and not _is_port(address, host):
            return (
                f"{address} in its {group} can't be"
                " read, so the host may be using it"
            )
        other = host.function(str(address))
        if other is not None and not is_free(other):
            return (
                f"{address} in its {group} is in use"
                f" by the host's driver {other.driver};"
                f" {hint or separate(_pf(function), _pf(other))}"
            )
    return ""


def explain_shared(card: str, first: str) -> str:
    """Return that two devices in one group can't go to two guests.

    :param card: the address of the card that the second device is of.
    :param first: the first device: an address, or a region of a card.
    """
    return (
        f"shares its IOMMU group with {first}, and a group goes to one"
        f" guest; {separate(card, names.card_address(first))}"
    )


def separate(card: str, other: str) -> remedy.Remedy:
    """Return how functions of a card leave the group of another function.

    :param card: the address of a PF.
    :param other: the address of a PF, which may be of the same card.
    """
    if card.partition(".")[0] == other.partition(".")[0]:
        return remedy.IsolateFunctions(function=card)
    return remedy.MoveCard(function=card)


def _pf(function: pci.PciFunction) -> str:
    """Return the address of a function, or of the PF of a VF."""
    return str(function.physfn or function.address)


def _is_port(address: pci.PciAddress, host: host_reader.HostReader) -> bool:
    """Return whether the port driver is bound to an unknown function."""
    try:
        return host.target(str(address), "driver") == _PORT_DRIVER
    except errors.UnreadableError:
        return False


def is_mapped_by_firmware(
    function: pci.PciFunction, host: host_reader.HostReader
) -> bool:
    """Return whether the kernel refuses a group for firmware mappings.

    The kernel refuses groups with a ``direct`` region since Linux 6.6
    (drivers/iommu/iommu.c, require_direct), and Intel's IOMMU driver did so
    before (device_rmrr_is_locked). Optional regions, such as those of
    displays, are named ``direct-relaxable`` and do not count.
    """
    address = str(function.address)
    try:
        regions = host.attribute(address, "iommu_group/reserved_regions")
    except errors.UnreadableError:
        return False  # Linux before 4.11 has no such attribute
    if not any(line.split()[2:] == ["direct"] for line in regions.split("\n")):
        return False
    try:
        if host.target(address, "iommu").startswith(_INTEL_IOMMU):
            return True
    except errors.UnreadableError:
        pass  # Intel's driver always has this link
    vfio = modules.read_vfio_version(host.files)
    return max(host.kernel_version(), vfio) >= _REQUIRES_DIRECT


def check_console(
    function: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return that the host's console is on a GPU, or ""."""
    if is_free(function):
        return ""
    address = str(function.address)
    virtio = [n for n in list_entries(host, address) if _VIRTIO.fullmatch(n)]
    display = next(
        (
            name
            for directory in ("", *(f"{name}/" for name in virtio))
            for name in _read_displays(host, address, directory)
        ),
        "",
    )
    if not display:
        return ""
    return (
        f"the host's console is on it ({display}); move the console to"
        " another display, or unbind its driver"
    )


def _read_displays(
    host: host_reader.HostReader, address: str, directory: str
) -> Iterator[str]:
    """Yield the names of framebuffers and of enabled connectors.

    :param directory: their directory, relative to the function's.
    """
    for name in list_entries(host, address, f"{directory}graphics"):
        if _FRAMEBUFFER.fullmatch(name):
            yield name
    for card in list_entries(host, address, f"{directory}drm"):
        if not _DRM_CARD.fullmatch(card):
            continue
        connectors = f"{directory}drm/{card}"
        for name in list_entries(host, address, connectors):
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
    """Return whether a function is a VF that is not linked to its PF.

    The kernel creates the links of a VF last and removes them first
    (drivers/pci/iov.c, pci_iov_add_virtfn and pci_iov_remove_virtfn). A VF
    in that state must not be taken for a card.

    :raises UnreadableError: the PCI bus can't be listed.
    """
    if function.physfn is not None:
        return True
    if function.total_vfs:
        return False  # only a PF has VFs of its own
    # A physfn link that could not be resolved counts too.
    if not {"physfn", "sriov_vf_msix_count"}.isdisjoint(
        list_entries(host, str(function.address))
    ):
        return True
    return any(
        routing_id(function.address) in _vf_routing_ids(parent, host)
        for parent in host.all_functions()
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

    VFs have the PF's vendor id, and the product id in the PF's
    ``sriov_vf_device`` (drivers/pci/iov.c, pci_iov_add_virtfn).
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


def _vf_routing_ids(
    parent: pci.PciFunction, host: host_reader.HostReader
) -> range:
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


def list_entries(
    host: host_reader.HostReader, address: str, directory: str = ""
) -> tuple[str, ...]:
    """Return the names in a function's directory; () if unreadable."""
    try:
        return host.names(address, directory)
    except errors.UnreadableError:
        return ()
