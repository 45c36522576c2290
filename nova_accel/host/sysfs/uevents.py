# SPDX-License-Identifier: Apache-2.0
"""Sequence number of the kernel's uevents."""

from nova_accel import errors
from nova_accel.host.sysfs import fs

# Grows with each uevent (Documentation/ABI/testing/sysfs-kernel-uevent_seqnum,
# lib/kobject_uevent.c): drivers bound, VFs and mdevs come and gone.
_COUNT = "/sys/kernel/uevent_seqnum"


def read_count(source: fs.FileSource) -> str | None:
    """Return the kernel's count of uevents, None if it can't be read."""
    try:
        return fs.Files(source).text(_COUNT)
    except errors.UnreadableError:
        return None
