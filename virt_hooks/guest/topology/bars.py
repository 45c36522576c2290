# SPDX-License-Identifier: Apache-2.0
"""Memory of PCI functions (BARs), and the room that guests have for it.

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
_GIB = 1 << 30
# Documentation/ABI/testing/sysfs-bus-pci, include/linux/ioport.h: a line is
# "start end flags" of a BAR; the first six are those of the function.
_BARS, _MEMORY = 6, 0x200


def read_largest(files: fs.Files, address: str) -> int:
    """Return the size of the largest BAR of a function, 0 if unknown."""
    try:
        text = files.text(f"{host_reader.FUNCTIONS}/{address}/resource")
    except errors.UnreadableError:
        return 0
    return parse_largest(text)


def parse_largest(text: str) -> int:
    """Return the size of the largest memory BAR in a resource file."""
    sizes = [0]
    for line in text.splitlines()[:_BARS]:
        numbers = line.split()
        try:
            start, end, flags = (int(number, 16) for number in numbers)
        except ValueError:
            continue
        if flags & _MEMORY and end > start:
            sizes.append(end - start + 1)
    return max(sizes)


def format_size(size: int) -> str:
    """Return a size in GiB as text: ``64 GiB``."""
    return f"{size / _GIB:g} GiB"
