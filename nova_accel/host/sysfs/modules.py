# SPDX-License-Identifier: Apache-2.0
"""Loaded kernel modules, IOMMUFD, and the kernel's count of uevents."""

from collections.abc import Iterable

from nova_accel import errors
from nova_accel.host.sysfs import fs

_MODULES = "/sys/module"


def read_parameter(files: fs.Files, module: str, name: str) -> str:
    """Return a parameter of a loaded module, empty if it can't be read.

    A module that is not loaded has none, whatever modprobe.d sets.
    """
    try:
        return files.text(f"{_MODULES}/{module}/parameters/{name}").strip()
    except errors.UnreadableError:
        return ""


def read_versions(files: fs.Files, modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the loaded modules among these, by name.

    A module without a version, such as the kernel's own, has an empty
    one. Built-in modules without parameters seem not loaded.
    """
    versions = {}
    for module in modules:
        try:
            names = files.names(f"{_MODULES}/{module}")
        except errors.UnreadableError:
            continue
        versions[module] = ""
        if "version" in names:
            versions[module] = _text(files, f"{_MODULES}/{module}/version")
    return versions


def has_iommufd(files: fs.Files) -> bool:
    """Return whether a kernel on which VFIO is loaded has IOMMUFD.

    vfio.ko then needs iommufd.ko, which makes the device ``/dev/iommu``
    (drivers/vfio/Makefile, drivers/iommu/iommufd/main.c).
    """
    try:
        return "iommu" in files.names("/sys/class/misc")
    except errors.UnreadableError:
        return False


def _text(files: fs.Files, path: str) -> str:
    try:
        return files.text(path).strip()
    except errors.UnreadableError:
        return ""


# Grows with each uevent (Documentation/ABI/testing/sysfs-kernel-uevent_seqnum,
# lib/kobject_uevent.c): drivers bound, VFs and mdevs come and gone.
_COUNT = "/sys/kernel/uevent_seqnum"


def read_count(source: fs.FileSource) -> str | None:
    """Return the kernel's count of uevents, None if it can't be read."""
    try:
        return fs.Files(source).text(_COUNT)
    except errors.UnreadableError:
        return None
