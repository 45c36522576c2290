# SPDX-License-Identifier: Apache-2.0
"""Memory of PCI functions (BARs) that running guests have room for.

Measured with SeaBIOS 1.16.2, OVMF 2022.11 and Linux 6.1, emulated devices:
a device that is attached to a running guest gets no BAR of 1 GiB, at any
root port, though libvirt and QEMU report success; with OVMF none of 256 MiB
on bus 0. Firmware sizes the windows for the devices that exist at its start,
and ``pcihole64`` does not help. ``pref64-reserve`` of a root port does.
"""

from nova_accel import errors
from nova_accel.host.sysfs import fs, host_reader

#: Size of a BAR for which no running guest has room.
NO_ROOM = 1 << 30
#: Size from which on it depends on the firmware.
UNSURE = 256 << 20


def read_resource(files: fs.Files, address: str) -> str:
    """Return the resource file of a function, empty if unknown."""
    try:
        return files.text(f"{host_reader.FUNCTIONS}/{address}/resource")
    except errors.UnreadableError:
        return ""
