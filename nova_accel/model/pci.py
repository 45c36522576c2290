# SPDX-License-Identifier: Apache-2.0
"""PCI addresses and functions, as the kernel's sysfs has them."""

import dataclasses
import re

from nova_accel import errors

# Linux prints the domain with at least four hex digits (five and more
# behind Intel VMD) and the function as one digit 0-7, also with ARI:
# drivers/pci/probe.c pci_setup_device(), "%04x:%02x:%02x.%d". The slot has
# five bits of the routing id (PCI Local Bus Specification).
_ADDRESS = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2})"
    r":(?P<slot>[01][0-9a-f])\.(?P<function>[0-7])"
)
# Base classes (PCI Code and ID Assignment Specification).
_DISPLAY = 0x03
_BRIDGE = 0x06
# Base class and subclass.
OTHER_BRIDGE = 0x0680
# Offset of extended capabilities; id and length of the serial number.
_EXTENDED, _SERIAL_NUMBER, _SERIAL_SIZE = 0x100, 0x0003, 8


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class PciAddress:
    """Address of a function: domain, bus, slot and function numbers."""

    domain: int
    bus: int
    slot: int
    function: int

    def __str__(self) -> str:
        """Return the kernel's spelling, such as ``0000:41:00.0``."""
        return (
            f"{self.domain:04x}:{self.bus:02x}"
            f":{self.slot:02x}.{self.function:x}"
        )


def is_address(text: str) -> bool:
    """Return whether the text is a PCI address in the kernel's spelling."""
    return _ADDRESS.fullmatch(text) is not None


def find_address(text: str) -> str:
    """Return the first PCI address in a text, empty without one."""
    match = _ADDRESS.search(text)
    return match[0] if match else ""


def nodedev_name(address: str) -> str:
    """Return libvirt's name of the node device of an mdev parent.

    Off the PCI bus it is that of the one parent that Nova supports there:
    ``mtty_mtty``, the subsystem and the name.

    :param address: the name of its directory in sysfs.
    """
    plain = address.replace(":", "_").replace(".", "_")
    return f"pci_{plain}" if is_address(address) else f"{plain}_{plain}"


def parse_address(text: str) -> PciAddress:
    """Return the address of a text like ``0000:41:00.0``.

    :raises MalformedError: the text has another form.
    """
    match = _ADDRESS.fullmatch(text.strip().lower())
    if match is None:
        raise errors.MalformedError(
            "PCI address", text, "DDDD:BB:SS.F in hexadecimal"
        )
    return PciAddress(**{k: int(v, 16) for k, v in match.groupdict().items()})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """One function as sysfs describes it.

    ``vendor``, ``product``, ``subsystem_vendor`` and ``subsystem_product``
    are four hex digits without ``0x``; ``class_code`` is the 24-bit class;
    ``numa_node`` is None when the firmware names no node (-1);
    ``iommu_group`` is None on a host without IOMMU; ``group_members`` are
    the addresses in that group, this one included; ``is_accel`` is True
    where the kernel's subsystem ``accel`` lists the function.
    """

    address: PciAddress
    vendor: str
    product: str
    class_code: int
    subsystem_vendor: str = ""
    subsystem_product: str = ""
    driver: str | None = None
    numa_node: int | None = None
    iommu_group: int | None = None
    group_members: tuple[PciAddress, ...] = ()
    physfn: PciAddress | None = None
    total_vfs: int = 0
    num_vfs: int = 0
    virtual_functions: tuple[PciAddress, ...] = ()
    boot_vga: bool = False
    is_accel: bool = False

    @property
    def base_class(self) -> int:
        """Return the top byte of the class, 0x03 for a display."""
        return self.class_code >> 16

    @property
    def is_bridge(self) -> bool:
        """Return whether this is a bridge of the PCI bus (class 06).

        An *other* bridge (0680), such as an NVSwitch, is an endpoint.
        """
        subclass = self.class_code >> 8
        return self.base_class == _BRIDGE and subclass != OTHER_BRIDGE

    @property
    def is_display(self) -> bool:
        """Return whether this is a display controller (PCI class 03)."""
        return self.base_class == _DISPLAY

    @property
    def is_vfio_bound(self) -> bool:
        """Return whether a driver for guests has it: VFIO or pci-stub."""
        return is_for_guests(self.driver or "")


def is_for_guests(driver: str) -> bool:
    """Return whether functions of a driver are for guests.

    The names of all variant drivers of VFIO contain ``vfio``
    (``qat_vfio_pci``, ``nvgrace_gpu_vfio_pci``).
    """
    return driver == "pci-stub" or "vfio" in driver


def parse_serial(config: bytes) -> str:
    """Return the Device Serial Number of a function, spelled as in lspci.

    Empty without the capability (PCIe 6.0, 7.9.3), where all its bytes are
    equal (zeros, or the ones of a device that does not answer), or where
    the extended space was not read.

    :param config: configuration space from its beginning.
    """
    offset, visited = _EXTENDED, set[int]()
    while _EXTENDED <= offset <= len(config) - 4 and offset not in visited:
        visited.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _SERIAL_NUMBER:
            number = config[offset + 4 : offset + 12]
            is_valid = len(number) == _SERIAL_SIZE and len(set(number)) > 1
            return number[::-1].hex("-") if is_valid else ""
        offset = header >> 20
    return ""
