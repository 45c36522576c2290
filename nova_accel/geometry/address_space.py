# SPDX-License-Identifier: Apache-2.0
"""Address space of a guest, and the room in it for BARs.

Devices that exist when a guest starts get their large BARs from the address
space above its memory, in windows of their ports. A window that the firmware
can't place is lost without an error: the guest sees the device without BARs.

SeaBIOS places windows anywhere above the memory. OVMF takes an eighth of the
address space at its end (edk2, OvmfPkg/Library/PlatformInitLib/MemDetect.c,
PlatformDynamicMmioWindow). It does not believe the 40 bits that QEMU gives a
processor of Intel by default, and has 32 GiB then; it believes 41 or more,
and uses 46 at most, 40 without pages of 1 GiB, which old models of processors
lack (PlatformAddressWidthFromCpuid). Measured with SeaBIOS 1.16.2 and 1.16.3,
OVMF 2022.11 and 2025.02.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

_GIB, _MIB = 1 << 30, 1 << 20
#: Address bits that QEMU gives a processor by default, or more
#: (target/i386/cpu.c, x86_cpu_realizefn).
DEFAULT_BITS = 40
# Bits from which on OVMF believes any processor.
_OVMF_BITS = 41
# Bits of which OVMF uses no more.
_OVMF_LIMIT = 46
# The window of OVMF is an eighth, as a power of two, or this size.
_EIGHTH, _CLASSIC_WINDOW = 3, 32 * _GIB
# QEMU's hw/i386/pc.c: memory that makes room for devices below 4 GiB; and
# memory from which on that above is moved over AMD's HyperTransport range.
_BELOW_4GIB, _MOVED_FROM, _MOVED_BY = 4 * _GIB, 1000 * _GIB, 1024 * _GIB
# Its 64-bit PCI hole of machine type q35 (hw/pci-host/q35.h).
_HOLE = 32 * _GIB
# Documentation/ABI/testing/sysfs-bus-pci, include/linux/ioport.h: a line is
# "start end flags" of a BAR; the first six are those of the function.
_BARS, _MEMORY = 6, 0x200
# Memory, prefetchable, 64 bits: what a bridge can have above 4 GiB.
_HIGH = 0x102200


def parse_bars(text: str, flags: int = _MEMORY) -> tuple[int, ...]:
    """Return the sizes of the BARs with some flags in a resource file."""
    sizes = []
    for line in text.splitlines()[:_BARS]:
        numbers = line.split()
        try:
            start, end, actual = (int(number, 16) for number in numbers)
        except ValueError:
            continue
        if actual & flags == flags and end > start:
            sizes.append(end - start + 1)
    return tuple(sizes)


def parse_high_bars(text: str) -> tuple[int, ...]:
    """Return the sizes of the BARs that a bridge can have above 4 GiB."""
    return parse_bars(text, _HIGH)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """BARs that devices need above the memory of a guest, in bytes.

    ``total`` is their sum, and ``largest`` the largest. ``windows`` is what
    the windows of their ports take in any order: each is a multiple of its
    largest BAR and aligned to it, so that gaps are no larger than windows.
    """

    total: int = 0
    windows: int = 0
    largest: int = 0

    def add_windows(self, size: int, count: int) -> "Demand":
        """Return the demand with windows of empty ports.

        OVMF rounds their size up to a power of two.
        """
        window = 1 << _count_bits(size)
        return Demand(
            total=self.total + size * count,
            windows=2 * (self.windows + window * count),
            largest=max(self.largest, window),
        )


def sum_functions(resources: Iterable[str]) -> Demand:
    """Return what functions need, each behind a port of its own.

    :param resources: the content of their resource files.
    """
    return sum_bars(parse_bars(text, _HIGH) for text in resources)


def sum_bars(sizes: Iterable[Sequence[int]]) -> Demand:
    """Return what functions with BARs of some sizes need."""
    functions = [bars for bars in sizes if bars]
    windows = [_align(sum(bars), max(bars)) for bars in functions]
    has_gaps = len({*windows}) > 1
    return Demand(
        total=sum(map(sum, functions)),
        windows=sum(windows) * (2 if has_gaps else 1),
        largest=max(map(max, functions), default=0),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Firmware:
    """Windows that a firmware gives the root ports of a guest.

    An empty port has two of ``SMALL_WINDOW``, below and above 4 GiB; the upper
    one is 2^-``share`` of the range for BARs if that is larger than 32 GiB. A
    reserved window is a power of two and aligned to it if ``is_rounded``.
    ``lacks_io`` is whether I/O ports run out.
    """

    share: int = 0
    is_rounded: bool = False
    lacks_io: bool = False

    def size_window(self, bars: Sequence[int]) -> int:
        """Return the window to reserve for BARs, 0 if any has room."""
        size = sum(bars)
        if size <= SMALL_WINDOW:
            return 0
        return 1 << _count_bits(size) if self.is_rounded else size + max(bars)


#: Measured with SeaBIOS 1.16.2 and 1.16.3, OVMF 2022.11 and 2025.02, with
#: windows below expanders and on bus 0. OVMF's source is
#: OvmfPkg/PciHotPlugInitDxe/PciHotPlugInit.c. OVMF 2022.11 gives devices
#: below expanders no BARs beside 18 ports, beside 11 it does; 2025.02 does.
SEABIOS = Firmware()
OVMF = Firmware(share=8, is_rounded=True, lacks_io=True)
#: Of an empty root port, where it is not larger.
SMALL_WINDOW = 2 * _MIB


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AddressSpace:
    """Address space of a guest: address bits, and memory in bytes.

    ``bits`` are 0 if nothing names them; ``is_host`` is whether they are
    those of the host. Only ``hw:maxphysaddr_mode`` of a flavor or image
    names them.
    """

    memory: int
    has_uefi: bool
    bits: int = 0
    is_host: bool = False

    @property
    def firmware(self) -> Firmware:
        return OVMF if self.has_uefi else SEABIOS

    def find_large_window(self) -> int:
        """Return the window of an empty port above 4 GiB, 0 if it is small."""
        if not self.has_uefi or self.bits < _OVMF_BITS:
            return 0
        return 1 << (min(self.bits, _OVMF_LIMIT) - _EIGHTH - OVMF.share)

    def find_least_bits(self, demand: Demand) -> int:
        """Return address bits below which BARs have no room for certain."""
        bits = _count_bits(self.memory + demand.total)
        if self.has_uefi and demand.total > _CLASSIC_WINDOW:
            bits = max(bits, _count_bits(demand.total) + _EIGHTH)
        return bits

    def choose_bits(self, demand: Demand) -> int:
        """Return address bits with which BARs have room in any order."""
        end = self.memory + _BELOW_4GIB
        if self.memory > _MOVED_FROM:
            end += _MOVED_BY
        windows = max(demand.windows, _HOLE)
        bits = _count_bits(_align(end, demand.largest) + windows)
        if not self.has_uefi or demand.windows <= _CLASSIC_WINDOW:
            return bits
        bits = max(bits, _OVMF_BITS, _count_bits(demand.windows) + _EIGHTH)
        # The memory has to end below the last eighth.
        return bits + (end > (1 << bits) - (1 << (bits - _EIGHTH)))


def parse_space(text: str) -> AddressSpace:
    """Return the address space of a guest from its XML."""
    root = ElementTree.fromstring(text)  # noqa: S314 - written by Nova
    size = root.find("./cpu/maxphysaddr")
    return AddressSpace(
        bits=0 if size is None else int(size.get("bits") or "0"),
        is_host=size is not None and size.get("mode") == "passthrough",
        memory=int(root.findtext("./memory") or "0") << 10,
        has_uefi=root.find("./os/loader[@type='pflash']") is not None,
    )


def format_size(size: int) -> str:
    """Return a size as text: ``64 GiB``, ``16 MiB``."""
    if size < _GIB:
        return f"{size / _MIB:g} MiB"
    return f"{size / _GIB:g} GiB"


def _count_bits(size: int) -> int:
    return (size - 1).bit_length()


def _align(size: int, alignment: int) -> int:
    """Round a size up to a multiple; 0 is none."""
    return size if not alignment else -(-size // alignment) * alignment
