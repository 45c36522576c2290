# SPDX-License-Identifier: Apache-2.0
"""Reset of a PCI bus whose functions VFIO has.

The kernel resets a bus for a process that has opened the IOMMU groups of
all functions on it. A group has one user at a time, so neither a guest nor
a driver of the host has one of the functions meanwhile
(drivers/vfio/pci/vfio_pci_core.c, vfio_pci_ioctl_pci_hot_reset). This reset is
known to the driver of a hot-plug slot (pciehp_reset_slot), which may take a
write to the bridge for the removal of the card.

Where VFIO's container does not exist, ``reset_subordinate`` of the bridge is
written, if this kernel has it, while the groups are open.

Numbers and structures are those of include/uapi/linux/vfio.h. Only
``privileged`` calls this module; it validates the arguments.
"""

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Mapping, Sequence

from nova_accel.host.execute import root_io

# _IO(VFIO_TYPE, VFIO_BASE + n)
_BASE = ord(";") << 8 | 100
SET_IOMMU = _BASE + 2
SET_CONTAINER = _BASE + 4
GET_DEVICE_FD = _BASE + 6
HOT_RESET = _BASE + 13
TYPE1V2_IOMMU = 3
# struct vfio_pci_hot_reset: argsz, flags, count, and the groups.
_HEADER = struct.Struct("=III")
_DESCRIPTOR = struct.Struct("=i")
_FUNCTIONS = "sys/bus/pci/devices"
# Errors of a kernel or a container without VFIO's container.
_NO_CONTAINER = (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTTY)


def reset(root: str, functions: Sequence[str]) -> int:
    """Reset the bus of some functions, all of which are on it.

    :returns: 0, or the errno of the refusal: EINVAL if VFIO lacks a
        function on the bus, EBUSY if a process has one of the groups.
    """
    if not _has_whole_bus(root, functions):
        return errno.EINVAL
    with contextlib.ExitStack() as stack:
        try:
            groups = _open_groups(root, functions, stack)
        except OSError as error:
            return error.errno or errno.EIO
        number = _hot_reset(root, functions[0], groups, stack)
        if number not in _NO_CONTAINER:
            return number
        bridge = os.path.dirname(_resolve(root, functions[0]))
        refused = root_io.write(f"{bridge}/reset_subordinate", "1")
        # Without that file, VFIO's error says more.
        return number if refused == errno.ENOENT else refused


def _has_whole_bus(root: str, functions: Sequence[str]) -> bool:
    """Return whether VFIO has the functions, and no others are there."""
    bus = functions[0].rpartition(":")[0]
    try:
        present = {
            name
            for name in os.listdir(os.path.join(root, _FUNCTIONS))
            if name.rpartition(":")[0] == bus
        }
        drivers = [
            os.path.basename(os.readlink(f"{_resolve(root, name)}/driver"))
            for name in functions
        ]
    except OSError:
        return False
    return present == {*functions} and all("vfio" in d for d in drivers)


def _resolve(root: str, function: str) -> str:
    return os.path.realpath(os.path.join(root, _FUNCTIONS, function))


def _open_groups(
    root: str, functions: Sequence[str], stack: contextlib.ExitStack
) -> Mapping[str, int]:
    """Return the open IOMMU groups of some functions, by number.

    :raises OSError: EBUSY if another process has one of them.
    """
    groups: dict[str, int] = {}
    for function in functions:
        link = os.readlink(f"{_resolve(root, function)}/iommu_group")
        number = os.path.basename(link)
        if number not in groups:
            groups[number] = _open(f"{root}/dev/vfio/{number}", stack)
    return groups


def _open(path: str, stack: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    stack.callback(os.close, descriptor)
    return descriptor


def _hot_reset(
    root: str,
    function: str,
    groups: Mapping[str, int],
    stack: contextlib.ExitStack,
) -> int:
    """Reset a bus with VFIO; return 0 or the errno of the refusal."""
    first = next(iter(groups.values()))
    try:
        container = _open(f"{root}/dev/vfio/vfio", stack)
        for group in groups.values():
            argument = bytearray(_DESCRIPTOR.pack(container))
            fcntl.ioctl(group, SET_CONTAINER, argument, True)
        fcntl.ioctl(container, SET_IOMMU, TYPE1V2_IOMMU)
        name = bytearray(function.encode() + b"\0")
        device = fcntl.ioctl(first, GET_DEVICE_FD, name, True)
        stack.callback(os.close, device)
        descriptors = b"".join(map(_DESCRIPTOR.pack, groups.values()))
        size = _HEADER.size + len(descriptors)
        header = _HEADER.pack(size, 0, len(groups))
        fcntl.ioctl(device, HOT_RESET, bytearray(header + descriptors), True)
    except OSError as error:
        return error.errno or errno.EIO
    return 0
