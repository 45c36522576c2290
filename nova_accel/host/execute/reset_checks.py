# SPDX-License-Identifier: Apache-2.0
"""State of PCI functions after a reset."""

import errno
import os
import struct

from nova_accel import errors
from nova_accel.claims import scrub
from nova_accel.host.execute import privileged
from nova_accel.host.sysfs import fs
from nova_accel.model import pci

_FUNCTIONS = "/sys/bus/pci/devices"


def read(root: str, address: str) -> scrub.ReleasedFunction | None:
    """Return a function's state, None if it does not exist.

    :raises UnreadableError: its existence or its driver can't be read.
    """
    files = fs.Files(fs.DiskSource(root))
    place = f"{_FUNCTIONS}/{address}"
    if files.is_gone(place):
        return None
    names = files.names(place)
    driver = ""
    if "driver" in names:
        try:
            driver = files.link(f"{place}/driver")
        except errors.UnreadableError as error:
            if error.number != errno.ENOENT:  # unbound meanwhile
                raise
    return scrub.ReleasedFunction(
        address=address,
        driver="" if privileged.is_for_guests(driver) else driver,
        is_resettable="reset" in names and _has_method(files, place),
    )


def _has_method(files: fs.Files, place: str) -> bool:
    """Return whether a function has an enabled reset method.

    An empty ``reset_method`` disables all of them, although ``reset``
    exists (Documentation/ABI/testing/sysfs-bus-pci). Kernels before 5.15
    lack the file.
    """
    try:
        return bool(files.text(f"{place}/reset_method").strip())
    except errors.UnreadableError:
        return True


def read_ids(root: str, address: str) -> tuple[str, str]:
    """Return vendor and product id as four hex digits, empty if unknown."""
    try:
        vendor, product = _ids(fs.Files(fs.DiskSource(root)), address)
    except (ValueError, errors.UnreadableError):
        return "", ""
    return f"{vendor:04x}", f"{product:04x}"


def is_answering(root: str, address: str) -> bool:
    """Return whether a function answers; False if it can't be read.

    Configuration space is read from the device, unlike ``vendor`` and
    ``device``, which the kernel caches.
    """
    if not pci.is_address(address):
        return False
    files = fs.Files(fs.DiskSource(root))
    place = f"{_FUNCTIONS}/{address}"
    path = os.path.join(root, place.lstrip("/"), "config")
    try:
        with open(path, "rb", buffering=0) as opened:
            header = opened.read(scrub.HEADER_SIZE)
        is_virtual = "physfn" in files.names(place)
        identity = None
        if not is_virtual:
            vendor, product = _ids(files, address)
            identity = struct.pack("<HH", vendor, product)
    except (OSError, ValueError, struct.error, errors.UnreadableError):
        return False
    return scrub.is_answer(header or b"", identity)


def _ids(files: fs.Files, address: str) -> tuple[int, int]:
    place = f"{_FUNCTIONS}/{address}"
    vendor, product = (
        int(files.text(f"{place}/{name}"), 16) for name in ("vendor", "device")
    )
    return vendor, product
