# SPDX-License-Identifier: Apache-2.0
"""NVMe controllers whose namespaces the host uses.

Namespaces are below the controller (``nvme0n1``) or, with the kernel's
native multipathing, below a subsystem; the controller then has path
devices (``nvme0c0n1``; drivers/nvme/host/multipath.c,
nvme_mpath_set_disk_name).
"""

import errno
import re
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.host.sysfs import fs

_FUNCTIONS = "/sys/bus/pci/devices"
_DISKS = "/sys/class/block"
_NAMESPACE = re.compile(r"nvme(\d+)(?:c\d+)?n(\d+)")
# Directories by mounted device: ext4 (fs/ext4/sysfs.c), xfs
# (fs/xfs/xfs_sysfs.c), f2fs (fs/f2fs/sysfs.c). They show the mounts of all
# mount namespaces.
_MOUNTED = ("/sys/fs/ext4", "/sys/fs/f2fs", "/sys/fs/xfs")
# One directory per filesystem, with links to its devices
# (fs/btrfs/sysfs.c).
_BTRFS = "/sys/fs/btrfs"


def describe_use(files: fs.Files, function: str) -> str:
    """Return how the host uses a controller's disks, empty if unused.

    A namespace is in use if it has partitions, is a member of another
    device (LVM, RAID) or has a mounted filesystem. Swap on a whole disk is
    not detected.

    :param function: the controller's PCI address.
    """
    try:
        place = f"{_FUNCTIONS}/{function}/nvme"
        for disk, below in _namespaces(files, place):
            reason = _use_of(files, disk, below)
            if reason:
                return reason
    except errors.UnreadableError as error:
        return f"the use of its disks can't be read: {error}"
    return ""


def _namespaces(files: fs.Files, place: str) -> Iterator[tuple[str, str]]:
    for controller in _listed(files, place):
        for name in _listed(files, f"{place}/{controller}"):
            match = _NAMESPACE.fullmatch(name)
            if match:
                disk = f"nvme{match[1]}n{match[2]}"
                yield disk, f"{place}/{controller}/{name}"


def _use_of(files: fs.Files, disk: str, below: str) -> str:
    places = (f"{_DISKS}/{disk}", below)
    entries = [name for place in places for name in _listed(files, place)]
    parts = [name for name in entries if name.startswith(f"{disk}p")]
    if parts:
        return f"{disk} has partitions ({parts[0]})"
    holders = [
        name for place in places for name in _listed(files, f"{place}/holders")
    ]
    if holders:
        return f"{holders[0]} is made of {disk}"
    if disk in _mounted(files):
        return f"the filesystem on {disk} is mounted"
    return ""


def _mounted(files: fs.Files) -> Iterator[str]:
    for place in _MOUNTED:
        yield from _listed(files, place)
    for name in _listed(files, _BTRFS):
        yield from _listed(files, f"{_BTRFS}/{name}/devices")


def _listed(files: fs.Files, place: str) -> tuple[str, ...]:
    """Return a directory's names; none if it does not exist.

    :raises UnreadableError: it exists and can't be listed.
    """
    try:
        return files.names(place)
    except errors.UnreadableError as error:
        if error.number in (errno.ENOENT, errno.ENOTDIR):
            return ()
        raise
