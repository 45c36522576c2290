# SPDX-License-Identifier: Apache-2.0
"""Checks whether the host uses a device.

For NVMe disks, Intel DSA and IAA, and devices that vfio-pci refuses; the
check of a GPU's console is ``iommu_group.check_console``.
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
# drivers/accel/habanalabs/common/device.c, hl_device_status; sysfs.c,
# status_show, capitalizes it.
_OPERATIONAL = "operational"


def check_use(function: pci.PciFunction, host: host_reader.HostReader) -> str:
    """Return why the host's use keeps a function from guests, or ""."""
    if not function.is_vfio_bound:
        use = nvme.describe_use(host.files, str(function.address))
        if use:
            return (
                f"the host uses it: {use}; unmount and empty it, or unbind"
                " it from nvme"
            )
    if not function.is_vfio_bound:
        busy = next(_find_enabled_queues(function, host), "")
        if busy:
            return (
                f"the host's work queue {busy} is enabled; disable it"
                " (accel-config disable-wq) first"
            )
    return check_denylist(function, host)


def check_denylist(
    function: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return that vfio-pci would refuse a function, or "".

    Unknown while vfio-pci is not loaded: its parameter may be set on load.
    """
    if function.is_vfio_bound:
        return ""
    return check_denied_ids(f"{function.vendor}:{function.product}", host)


def check_denied_ids(ids: str, host: host_reader.HostReader) -> str:
    """Return that vfio-pci would refuse functions with these ids, or ""."""
    if ids not in pci_ids.DENIED:
        return ""
    value = modules.read_parameter(host.files, "vfio_pci", "disable_denylist")
    if value != "N":
        return ""
    return (
        f"vfio-pci takes no {ids}, as a guest could harm the host with it;"
        " if you trust your guests, load vfio-pci with disable_denylist=1"
    )


def read_fault(function: pci.PciFunction, host: host_reader.HostReader) -> str:
    """Return the fault that a device's driver reports, or "".

    Only habanalabs (Intel Gaudi) has a status file.
    """
    if function.driver != "habanalabs":
        return ""
    for name in _list_status_files(function, host):
        try:
            status = host.attribute(str(function.address), name).strip()
        except errors.UnreadableError:
            continue  # other drivers have it elsewhere, or not at all
        if status.lower() != _OPERATIONAL:
            return (
                f"habanalabs says {status[:40]!r} of it; see the kernel's log,"
                " and reset it if that stays so"
            )
        return ""
    return ""


def _list_status_files(
    function: pci.PciFunction, host: host_reader.HostReader
) -> Iterator[str]:
    """Yield the status file of accelN/device, and of the older hlN."""
    yield "status"
    for name in iommu_group.list_entries(
        host, str(function.address), "habanalabs"
    ):
        yield f"habanalabs/{name}/status"


def _find_enabled_queues(
    function: pci.PciFunction, host: host_reader.HostReader
) -> Iterator[str]:
    """Yield the work queues that are enabled or can't be read."""
    address = str(function.address)
    for name in iommu_group.list_entries(host, address):
        if not _IDXD.fullmatch(name):
            continue
        for queue in iommu_group.list_entries(host, address, name):
            if not _QUEUE.fullmatch(queue):
                continue
            try:
                state = host.attribute(address, f"{name}/{queue}/state")
            except errors.UnreadableError:
                state = ""
            if state.strip() != "disabled":
                yield f"{name}/{queue}"
