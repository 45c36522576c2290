# SPDX-License-Identifier: Apache-2.0
"""The attributes of a PCI function, in the kernel's exact formats.

Source: drivers/pci/pci-sysfs.c and Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.lab.fakehost.sysfs.errnos import fail, parse_unsigned
from tests.lab.fakehost.sysfs.tree import Attr, constant

if TYPE_CHECKING:
    from tests.lab.fakehost.buses.pci import PciFunction

#: Actions that a write to ``uevent`` may name (lib/kobject_uevent.c).
ACTIONS = (
    "add",
    "remove",
    "change",
    "move",
    "online",
    "offline",
    "bind",
    "unbind",
)
CONFIG_SIZE = 256
EXTENDED_SIZE = 4096
#: Where the PCI Express capability lies in our configuration space.
PCIE_CAP = 0x60
#: PCI_EXP_DEVCAP_FLR (uapi/linux/pci_regs.h).
DEVCAP_FLR = 1 << 28
#: Link of 16 GT/s (code 4) and 16 lanes.
LINK = 16 << 4 | 4
PAGE_SIZE = 4096
#: Class of a PCI-to-PCI bridge, without its interface.
BRIDGE = 0x0604


@dataclass(frozen=True, slots=True, kw_only=True)
class PciIdentity:
    """The ids of a function; ``class_code`` has 24 bits.

    ``serial`` is its Device Serial Number, 0 for none.
    """

    vendor: int
    device: int
    class_code: int
    subsystem_vendor: int = 0
    subsystem_device: int = 0
    revision: int = 0
    serial: int = 0
    bar: int = 0

    @property
    def modalias(self) -> str:
        """Return the modalias without newline."""
        base, sub, interface = self.class_code.to_bytes(3, "big")
        return (
            f"pci:v{self.vendor:08X}d{self.device:08X}"
            f"sv{self.subsystem_vendor:08X}sd{self.subsystem_device:08X}"
            f"bc{base:02X}sc{sub:02X}i{interface:02X}"
        )


def config_space(
    identity: PciIdentity, *, virtual: bool, multifunction: bool
) -> bytes:
    """Return type 0 configuration space: 256 bytes, 4 KiB with a serial.

    A VF's own ids read 0xffff (PCIe 6.0, 9.3.4.1.1); it can be reset by
    FLR, as can the physical functions here.
    """
    data = bytearray(CONFIG_SIZE)
    ids = (0xFFFF, 0xFFFF) if virtual else (identity.vendor, identity.device)
    struct.pack_into("<HHHHB", data, 0, *ids, 0x0006, 0x0010, 0)
    data[8] = identity.revision
    data[9:12] = identity.class_code.to_bytes(3, "little")
    data[14] = 0x80 if multifunction else 0
    struct.pack_into(
        "<HH",
        data,
        0x2C,
        identity.subsystem_vendor,
        identity.subsystem_device,
    )
    data[0x34] = PCIE_CAP
    struct.pack_into("<BBH", data, PCIE_CAP, 0x10, 0, 0x02)
    struct.pack_into("<I", data, PCIE_CAP + 4, DEVCAP_FLR)
    struct.pack_into("<I", data, PCIE_CAP + 0x0C, LINK)
    struct.pack_into("<H", data, PCIE_CAP + 0x12, LINK)
    if identity.serial:
        data += bytes(EXTENDED_SIZE - CONFIG_SIZE)
        # Device Serial Number (PCIe 6.0, 7.9.3), the only one there.
        struct.pack_into("<IQ", data, CONFIG_SIZE, 0x10003, identity.serial)
    return bytes(data)


def uevent_properties(function: PciFunction) -> dict[str, str]:
    """Return what ``uevent`` shows (pci_uevent, pci-driver.c)."""
    ids = function.identity
    pairs = {"DRIVER": function.driver.name} if function.driver else {}
    return pairs | {
        "PCI_CLASS": f"{ids.class_code:04X}",
        "PCI_ID": f"{ids.vendor:04X}:{ids.device:04X}",
        "PCI_SUBSYS_ID": (
            f"{ids.subsystem_vendor:04X}:{ids.subsystem_device:04X}"
        ),
        "PCI_SLOT_NAME": function.address,
        "MODALIAS": ids.modalias,
    }


def attributes(function: PciFunction) -> dict[str, Attr]:
    """Return the attribute files every function has."""
    return {
        **_identity(function),
        **_location(function),
        **_state(function),
        **_switches(function),
        **_resets(function),
    }


def _identity(function: PciFunction) -> dict[str, Attr]:
    ids = function.identity
    config = config_space(
        ids,
        virtual=function.physfn is not None,
        multifunction=function.multifunction,
    )

    def show_config() -> bytes:
        # A read without a completion returns ones (PCIe 6.0, 2.3.2).
        return b"\xff" * len(config) if function.is_silent else config

    return {
        "vendor": constant(f"0x{ids.vendor:04x}"),
        "device": constant(f"0x{ids.device:04x}"),
        "subsystem_vendor": constant(f"0x{ids.subsystem_vendor:04x}"),
        "subsystem_device": constant(f"0x{ids.subsystem_device:04x}"),
        "class": constant(f"0x{ids.class_code:06x}"),
        "revision": constant(f"0x{ids.revision:02x}"),
        "modalias": constant(ids.modalias),
        # libvirt opens it for writing too; what it writes has no effect
        "config": Attr(show_config, lambda _: None),
    }


def _location(function: PciFunction) -> dict[str, Attr]:
    zero = "0x0000000000000000 " * 3
    rows = [zero.strip()] * 13
    if function.physfn is None:
        rows[0] = "0x00000000c0000000 0x00000000c0ffffff 0x0000000000040200"
    if size := function.identity.bar:
        rows[2] = f"0x{size:016x} 0x{2 * size - 1:016x} 0x000000000014220c"
    files = {
        "resource": constant("\n".join(rows)),
        "local_cpulist": constant(function.cpulist),
        "irq": constant(0),
        "ari_enabled": constant(int(function.physfn is not None)),
        "msi_bus": constant(1),
        "dma_mask_bits": constant(64),
        "max_link_speed": constant("16.0 GT/s PCIe"),
        "max_link_width": constant(16),
        "current_link_speed": constant("16.0 GT/s PCIe"),
        "current_link_width": constant(16),
        "numa_node": constant(function.numa_node, 0o644),
    }
    base = function.identity.class_code >> 8
    if base == 0x0300:
        files["boot_vga"] = constant(int(function.boot_vga))
    return files


def _state(function: PciFunction) -> dict[str, Attr]:
    def show_uevent() -> str:
        pairs = uevent_properties(function).items()
        return "".join(f"{key}={value}\n" for key, value in pairs)

    def store_uevent(data: bytes) -> None:
        action = data.decode("ascii", "replace").split() or [""]
        if action[0] not in ACTIONS:
            fail(errno.EINVAL)
        function.announce(action[0])

    def show_enable() -> str:
        return f"{int(function.driver is not None)}\n"

    def show_power_state() -> str:
        return "D0\n" if function.driver else "unknown\n"

    return {
        "enable": Attr(show_enable, lambda _: None),
        "power_state": Attr(show_power_state),
        "uevent": Attr(show_uevent, store_uevent),
    }


def _switches(function: PciFunction) -> dict[str, Attr]:
    def show_override() -> str:
        return f"{function.override or '(null)'}\n"

    def store_override(data: bytes) -> None:
        if len(data) >= PAGE_SIZE - 1:
            fail(errno.EINVAL)
        function.override = data.decode().split("\n")[0]

    def store_remove(data: bytes) -> None:
        if parse_unsigned(data):
            function.remove()

    return {
        "driver_override": Attr(show_override, store_override),
        "remove": Attr(None, store_remove, 0o220),
    }


def _resets(function: PciFunction) -> dict[str, Attr]:
    """Return the files of resets; a function without method has none.

    The two of a function are made together (Linux 5.15). The bridge's
    resets what is in use, too, which VFIO's reset refuses.
    """

    def store_reset(data: bytes) -> None:
        if parse_unsigned(data) != 1:
            fail(errno.EINVAL)
        function.reset()

    def store_reset_subordinate(data: bytes) -> None:
        if parse_unsigned(data):
            for child in function.bus.below(function.address):
                child.end_reset()

    files = {}
    if function.reset_methods:
        methods = " ".join(function.reset_methods)
        files["reset_method"] = constant(methods, 0o644)
        files["reset"] = Attr(None, store_reset)
    if function.identity.class_code >> 8 == BRIDGE:
        files["reset_subordinate"] = Attr(None, store_reset_subordinate)
    return files
