# SPDX-License-Identifier: Apache-2.0
"""Checks whether the host uses a device.

NVMe disks, Intel's DSA and IAA, and devices that vfio-pci refuses; for GPUs
see ``iommu_group.console_objection``.
"""

import re
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.catalog import pci_ids
from nova_accel.host.sysfs import host_reader, modules, nvme
from nova_accel.model import pci
from nova_accel.vendors.common import iommu_group

_IDXD = re.compile(r"(?:dsa|iax)\d+")
_QUEUE = re.compile(r"wq\d+\.\d+")
# drivers/accel/habanalabs/common/device.c, hl_device_status, with the
# first letter made upper (sysfs.c, status_show).
_OPERATIONAL = "operational"


def objection(function: pci.PciFunction, host: host_reader.HostReader) -> str:
    """Return what the host does with a function, or nothing."""
    if not function.is_vfio_bound:
        use = nvme.use(host.files, str(function.address))
        if use:
            return (
                f"the host uses it: {use}; unmount and empty it, or unbind"
                " it from nvme"
            )
    if not function.is_vfio_bound:
        busy = next(_enabled(function, host), "")
        if busy:
            return (
                f"the host's work queue {busy} is enabled; disable it"
                " (accel-config disable-wq) first"
            )
    return denial(function, host)


def denial(function: pci.PciFunction, host: host_reader.HostReader) -> str:
    """Return that vfio-pci would refuse a function, or nothing.

    A module that is not loaded yet may be told to take it.
    """
    ids = f"{function.vendor}:{function.product}"
    if ids not in pci_ids.DENIED or function.is_vfio_bound:
        return ""
    word = modules.parameter(host.files, "vfio_pci", "disable_denylist")
    if word != "N":
        return ""
    return (
        f"vfio-pci takes no {ids}, as a guest could harm the host with it;"
        " if you trust your guests, load vfio-pci with disable_denylist=1"
    )


def fault(function: pci.PciFunction, host: host_reader.HostReader) -> str:
    """Return what a device's own driver says is wrong, or nothing."""
    if function.driver != "habanalabs":
        return ""
    for place in _status_places(function, host):
        try:
            word = host.attribute(str(function.address), place).strip()
        except errors.UnreadableError:
            continue  # older drivers have it elsewhere, or don't tell
        if word.lower() != _OPERATIONAL:
            return (
                f"habanalabs says {word[:40]!r} of it; see the kernel's log,"
                " and reset it if that stays so"
            )
        return ""
    return ""


def _status_places(
    function: pci.PciFunction, host: host_reader.HostReader
) -> Iterator[str]:
    """Yield where the status may be: accelN/device, or an older hlN."""
    yield "status"
    for name in iommu_group.entries(host, str(function.address), "habanalabs"):
        yield f"habanalabs/{name}/status"


def _enabled(
    function: pci.PciFunction, host: host_reader.HostReader
) -> Iterator[str]:
    """Yield the work queues that are enabled, or may be."""
    address = str(function.address)
    for name in iommu_group.entries(host, address):
        if not _IDXD.fullmatch(name):
            continue
        for queue in iommu_group.entries(host, address, name):
            if not _QUEUE.fullmatch(queue):
                continue
            try:
                word = host.attribute(address, f"{name}/{queue}/state")
            except errors.UnreadableError:
                word = ""
            if word.strip() != "disabled":
                yield f"{name}/{queue}"
