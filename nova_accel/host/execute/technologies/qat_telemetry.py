# SPDX-License-Identifier: Apache-2.0
"""Telemetry of QAT devices, read by root."""

import errno
import os
import re

from nova_accel.host.execute import argument_checks, privileged, root_io

# A counter takes up to 120 bytes, and a device has less than 100.
_TELEMETRY_BYTES = 16 * 1024


@privileged.entrypoint(late=(errno.ETIMEDOUT, "", ""))
def read_telemetry(root: str, function: str) -> tuple[int, str, str]:
    """Return errno, state and counters of a QAT device's telemetry.

    debugfs is for root only. The counters are not read while the state is
    ``0``, disabled: the kernel would log each attempt. The telemetry is
    never enabled here.

    :returns: ENOENT for a device or kernel without telemetry.
    """
    address = argument_checks.address(function)
    top = os.path.join(root, "sys/kernel/debug")
    name = re.compile(rf"qat_[0-9a-z]+_{re.escape(address)}")
    try:
        directory = next(filter(name.fullmatch, os.listdir(top)), "")
    except OSError as error:
        return error.errno or errno.EIO, "", ""
    if not directory:
        return errno.ENOENT, "", ""
    place = os.path.join(top, directory, "telemetry")
    number, state = root_io.read(os.path.join(place, "control"))
    if number or state == "0":
        return number, state, ""
    number, text = root_io.read(
        os.path.join(place, "device_data"), _TELEMETRY_BYTES
    )
    return number, state, text
