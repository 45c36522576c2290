# SPDX-License-Identifier: Apache-2.0
"""NVMe controllers whose namespaces the host uses.

Namespaces are below the controller (``nvme0n1``) or, with the kernel's
own multipathing, below a subsystem that its path devices (``nvme0c0n1``)
name (drivers/nvme/host/multipath.c, nvme_mpath_set_disk_name).
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
# (fs/xfs/xfs_sysfs.c), f2fs (fs/f2fs/sysfs.c). They are there in whatever
# mount namespace the device is mounted.
_MOUNTED = ("/sys/fs/ext4", "/sys/fs/f2fs", "/sys/fs/xfs")
# A directory a filesystem, with links to its devices (fs/btrfs/sysfs.c).
_BTRFS = "/sys/fs/btrfs"


def use(files: fs.Files, function: str) -> str:
    """Return what the host does with a controller's disks, or nothing.

    A namespace is in use that has partitions, that another device is made
    of (LVM, RAID), or that holds a filesystem which is mounted. Swap on a
    whole disk can't be told.

    :param function: the controller's PCI address.
    """
    try:
        place = f"{_FUNCTIONS}/{function}/nvme"
        for disk, below in _namespaces(files, place):
            reason = _use_of(files, disk, below)
            if reason:
                return reason
    except errors.UnreadableError as error:
        return f"what it does with its disks can't be told: {error}"
    return ""


def _namespaces(files: fs.Files, place: str) -> Iterator[tuple[str, str]]:
    for controller in _listed(files, place):
        for name in _listed(files, f"{place}/{controller}"):
            found = _NAMESPACE.fullmatch(name)
            if found:
                disk = f"nvme{found[1]}n{found[2]}"
                yield disk, f"{place}/{controller}/{name}"


def _use_of(files: fs.Files, disk: str, below: str) -> str:
    places = (f"{_DISKS}/{disk}", below)
    entries = [name for one in places for name in _listed(files, one)]
    parts = [name for name in entries if name.startswith(f"{disk}p")]
    if parts:
        return f"{disk} has partitions ({parts[0]})"
    holders = [n for one in places for n in _listed(files, f"{one}/holders")]
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
    """Return a directory's names; nothing if there is none.

    :raises UnreadableError: it is there, and can't be listed.
    """
    try:
        return files.names(place)
    except errors.UnreadableError as error:
        if error.number in (errno.ENOENT, errno.ENOTDIR):
            return ()
        raise
