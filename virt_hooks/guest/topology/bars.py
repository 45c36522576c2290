# SPDX-License-Identifier: Apache-2.0
"""Memory of PCI functions (BARs), and the room that guests have for it.

Measured with SeaBIOS 1.16.2, OVMF 2022.11 and Linux 6.1, emulated devices:
a device that is attached to a running guest gets no BAR of 1 GiB, at any
root port, though libvirt and QEMU report success; with OVMF none of 256 MiB
on bus 0. Firmware sizes the windows for the devices that exist at its start,
and ``pcihole64`` does not help. ``pref64-reserve`` of a root port does.
"""

import dataclasses
from xml.etree import ElementTree

from nova_accel import errors
from nova_accel.host.sysfs import fs, host_reader

#: Size of a BAR for which no running guest has room.
NO_ROOM = 1 << 30
#: Size from which on it depends on the firmware.
UNSURE = 256 << 20
_GIB = 1 << 30
# As a power of two.
_EIGHTH = 3
# Documentation/ABI/testing/sysfs-bus-pci, include/linux/ioport.h: a line is
# "start end flags" of a BAR; the first six are those of the function.
_BARS, _MEMORY = 6, 0x200


def read_sizes(files: fs.Files, address: str) -> tuple[int, ...]:
    """Return the sizes of the memory BARs of a function, () if unknown."""
    try:
        text = files.text(f"{host_reader.FUNCTIONS}/{address}/resource")
    except errors.UnreadableError:
        return ()
    return parse_sizes(text)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes of the memory BARs in a resource file."""
    sizes = []
    for line in text.splitlines()[:_BARS]:
        numbers = line.split()
        try:
            start, end, flags = (int(number, 16) for number in numbers)
        except ValueError:
            continue
        if flags & _MEMORY and end > start:
            sizes.append(end - start + 1)
    return tuple(sizes)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AddressSpace:
    """Address space of a guest: address bits, and memory in bytes.

    ``bits`` are 0 if they are unknown: only a flavor with
    ``hw:maxphysaddr_bits`` names them.
    """

    bits: int
    memory: int
    has_uefi: bool

    def find_shortage(self, total: int) -> str:
        """Return why BARs of a total size can't be in it, empty if they can.

        It holds for each firmware.
        """
        if not self.bits or self.memory + total <= 1 << self.bits:
            return ""
        return (
            f"its memory of {format_size(self.memory)} and the BARs of its"
            f" devices, {format_size(total)}, need more than {self.bits}"
            f" address bits: set hw:maxphysaddr_bits of the flavor to"
            f" {(self.memory + total - 1).bit_length()} or more"
        )

    def is_doubtful(self, total: int) -> bool:
        """Return whether OVMF may have too little room for BARs.

        OVMF 2022.11 gives them the top eighth of the address space.
        """
        return (
            bool(self.bits)
            and self.has_uefi
            and total > 1 << (self.bits - _EIGHTH)
        )


def parse_space(text: str) -> AddressSpace:
    """Return the address space of a guest from its XML."""
    root = ElementTree.fromstring(text)  # noqa: S314 - written by Nova
    size = root.find("./cpu/maxphysaddr[@mode='emulate']")
    return AddressSpace(
        bits=0 if size is None else int(size.get("bits") or "0"),
        memory=int(root.findtext("./memory") or "0") << 10,
        has_uefi=root.find("./os/loader[@type='pflash']") is not None,
    )


def format_size(size: int) -> str:
    """Return a size in GiB as text: ``64 GiB``."""
    return f"{size / _GIB:g} GiB"
