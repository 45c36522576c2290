# SPDX-License-Identifier: Apache-2.0
"""Processes that have a mediated device open."""

import contextlib
import os
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.host.execute import argument_checks

_OWN = "/"
_MDEVS = "sys/bus/mdev/devices"
# VFIO's devices: one per IOMMU group, and since Linux 6.6 also one per
# device (Documentation/driver-api/vfio.rst).
_GROUPS, _DEVICES = "dev/vfio", "dev/vfio/devices"


def find_processes(root: str, uuid: str) -> frozenset[int]:
    """Return the ids of the processes that have an mdev open.

    The removal of an mdev waits for these processes
    (drivers/vfio/vfio_main.c, vfio_unregister_group_dev).

    :param root: directory that holds ``sys``, ``dev`` and ``proc``.
    :raises UnreadableError: the open files of a process can't be listed;
        this needs root.
    :raises MalformedError: the text is no uuid.
    """
    place = os.path.join(root, _MDEVS, argument_checks.uuid(uuid))
    files = frozenset(_files(root, place))
    return frozenset(
        int(name)
        for name in _processes(root)
        if name.isdecimal() and _has_open(root, name, files)
    )


def _processes(root: str) -> list[str]:
    place = os.path.join(root, "proc")
    try:
        return os.listdir(place)
    except FileNotFoundError as error:
        if root != _OWN:
            return []  # a captured or simulated host has no processes
        raise errors.UnreadableError(place, error.errno or 0) from error


def _files(root: str, place: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        group = os.path.basename(os.readlink(f"{place}/iommu_group"))
        yield os.path.join(root, _GROUPS, group)
    with contextlib.suppress(OSError):
        for name in os.listdir(f"{place}/vfio-dev"):
            yield os.path.join(root, _DEVICES, name)


def _has_open(root: str, process: str, files: frozenset[str]) -> bool:
    place = os.path.join(root, "proc", process, "fd")
    try:
        numbers = os.listdir(place)
    except (FileNotFoundError, ProcessLookupError):
        return False  # the process has ended
    except OSError as error:
        raise errors.UnreadableError(place, error.errno or 0) from error
    for number in numbers:
        with contextlib.suppress(OSError):
            if os.readlink(f"{place}/{number}") in files:
                return True
    return False
