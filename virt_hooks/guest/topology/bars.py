# SPDX-License-Identifier: Apache-2.0
"""Memory of PCI functions (BARs) that running guests have room for.

Measured with SeaBIOS 1.16.2 and 1.16.3, OVMF 2022.11 and Linux 6.1, emulated
devices: firmware sizes the windows of a root port for the devices that exist
at its start, and Linux does not enlarge them, though libvirt and QEMU report
success. SeaBIOS gives an empty port two windows of 2 MiB. With OVMF no BAR of
1 GiB gets an address, on bus 0 none of 256 MiB. ``pcihole64`` does not help;
``mem-reserve`` and ``pref64-reserve`` of a root port do.
"""

import dataclasses
from collections.abc import Iterable

from nova_accel import errors
from nova_accel.geometry import address_space
from nova_accel.host.sysfs import fs, host_reader

#: Size of a BAR for which no running guest has room.
NO_ROOM = 1 << 30
#: Size from which on it depends on the port.
UNSURE = 256 << 20
# Of an empty root port, by SeaBIOS.
_DEFAULT_WINDOW = 2 << 20
# QEMU's hole for 32-bit BARs has 1 GiB; most of it is for devices at start.
_MAX_MEMORY = 256 << 20
# With 40 bits or more QEMU reserves the range of AMD's HyperTransport, just
# below 1 TiB (hw/i386/pc.c), and Linux has no device there. SeaBIOS 1.16.3
# has windows at the end of the address space: so it has to end behind that.
_LEAST_BITS = 41


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Sizes of the windows of a bridge, in bytes; 0 is that of the firmware.

    ``memory`` is below 4 GiB, ``prefetchable`` for BARs of 64 bits that are
    prefetchable.
    """

    memory: int = 0
    prefetchable: int = 0

    def holds(self, other: "Windows") -> bool:
        """Return whether both windows are as large as those of another."""
        return (
            other.memory <= self.memory
            and other.prefetchable <= self.prefetchable
        )


def parse_windows(text: str) -> Windows:
    """Return the windows that the BARs in a resource file need.

    SeaBIOS aligns windows to 1 MiB, and a BAR is aligned to its size: so
    there is room for the largest BAR twice.
    """
    high = address_space.parse_high_bars(text)
    low = list(address_space.parse_bars(text))
    for size in high:
        low.remove(size)
    memory, prefetchable = (
        sum(sizes) + max(sizes) if sum(sizes) > _DEFAULT_WINDOW else 0
        for sizes in (low, high)
    )
    return Windows(memory=memory, prefetchable=prefetchable)


def choose_windows(
    space: address_space.AddressSpace,
    demand: address_space.Demand,
    windows: Iterable[Windows],
    ports: int,
) -> Windows:
    """Return the largest windows for which empty ports have room.

    All windows are in the upper half of the address space.

    :param space: with address bits.
    :param demand: BARs of the guest at its start.
    :param windows: those that devices of the host need.
    :param ports: number of the ports.
    """
    fitting = [
        each
        for each in windows
        if each.memory * ports <= _MAX_MEMORY
        and (
            not each.prefetchable
            or _count_bits(space, demand, each.prefetchable, ports)
            <= space.bits
        )
    ]
    return Windows(
        memory=max((each.memory for each in fitting), default=0),
        prefetchable=max((each.prefetchable for each in fitting), default=0),
    )


def _count_bits(
    space: address_space.AddressSpace,
    demand: address_space.Demand,
    size: int,
    ports: int,
) -> int:
    bits = space.choose_bits(demand.add_windows(size, ports))
    return max(bits + 1, _LEAST_BITS)


def read_resource(files: fs.Files, address: str) -> str:
    """Return the resource file of a function, empty if unknown."""
    try:
        return files.text(f"{host_reader.FUNCTIONS}/{address}/resource")
    except errors.UnreadableError:
        return ""
