# SPDX-License-Identifier: Apache-2.0
"""Windows of root ports: room for the memory of functions (BARs).

Firmware sizes the windows of a root port for the devices that exist at its
start, and Linux does not enlarge them, though libvirt and QEMU report
success. ``address_space.Firmware`` has the windows of an empty port.
``pcihole64`` does not help; ``mem-reserve`` and ``pref64-reserve`` do.

libvirt has no element for them, and ``qemu:override`` since 8.2. The alias of
a PCI controller is its index. libvirt writes the override wherever it writes
the domain, also for a live migration, whose destination must have the same:
QEMU compares the configuration space of each port.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

from lxml import etree

from nova_accel.geometry import address_space

# QEMU's hole for 32-bit BARs has 1 GiB; most of it is for devices at start.
_MAX_MEMORY = 256 << 20
# SeaBIOS 1.16.3 has windows in the upper half of the address space, and with
# 40 bits or more QEMU reserves the range of AMD's HyperTransport, just below
# 1 TiB (hw/i386/pc.c), where Linux has no device: it has to end behind that.
_BIOS_BITS = 41
# libvirt's formatdomain, "QEMU namespace".
_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
_Q = f"{{{_NAMESPACE}}}"
_OVERRIDE = f"{_Q}override"
# Properties of QEMU's root port by fields of Windows.
_PROPERTIES = {"memory": "mem-reserve", "prefetchable": "pref64-reserve"}
# In place of those that OVMF chooses, which take room from devices at start.
_SMALL = {"io-reserve": 0, "pref64-reserve": address_space.SMALL_WINDOW}
_ALIAS = "pci."


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

    def describe(self) -> str:
        memory, prefetchable = (
            address_space.format_size(size or address_space.SMALL_WINDOW)
            for size in (self.memory, self.prefetchable)
        )
        return f"{memory} below 4 GiB and {prefetchable} for prefetchable BARs"


def parse_resource(text: str, firmware: address_space.Firmware) -> Windows:
    """Return the windows that the BARs in a resource file need."""
    high = address_space.parse_high_bars(text)
    low = list(address_space.parse_bars(text))
    for size in high:
        low.remove(size)
    return Windows(
        memory=firmware.size_window(low),
        prefetchable=firmware.size_window(high),
    )


def count_bits(
    space: address_space.AddressSpace,
    demand: address_space.Demand,
    size: int,
    ports: int,
) -> int:
    """Return the address bits that windows of empty ports need."""
    if not size:
        return 0
    bits = space.choose_bits(demand.add_windows(size, ports))
    return bits if space.has_uefi else max(bits + 1, _BIOS_BITS)


def choose(
    space: address_space.AddressSpace,
    demand: address_space.Demand,
    windows: Iterable[Windows],
    ports: int,
) -> Windows:
    """Return the largest windows for which a number of ports has room.

    :param demand: BARs of the guest at its start.
    :param windows: those that devices of the host need.
    """
    fitting = [
        each
        for each in windows
        if each.memory * ports <= _MAX_MEMORY
        and count_bits(space, demand, each.prefetchable, ports) <= space.bits
    ]
    return Windows(
        memory=max((each.memory for each in fitting), default=0),
        prefetchable=max((each.prefetchable for each in fitting), default=0),
    )


def reserve(
    text: str,
    ports: Mapping[int, Windows],
    firmware: address_space.Firmware = address_space.SEABIOS,
) -> str:
    """Return a domain with windows reserved on some of its root ports.

    :param ports: windows by index of the controller.
    """
    rows = {i: _list_properties(w, firmware) for i, w in ports.items()}
    if not any(rows.values()):
        return text
    domain = etree.fromstring(text)
    # The namespace of a root element is fixed when it is made.
    root = etree.Element(domain.tag, domain.attrib, {"qemu": _NAMESPACE})
    root.extend(list(domain))
    override = root.find(_OVERRIDE)
    if override is None:
        override = etree.SubElement(root, _OVERRIDE)
    for index, sizes in sorted(rows.items()):
        device = etree.SubElement(
            override, f"{_Q}device", alias=f"{_ALIAS}{index}"
        )
        frontend = etree.SubElement(device, f"{_Q}frontend")
        for name, size in sizes.items():
            etree.SubElement(
                frontend,
                f"{_Q}property",
                name=name,
                type="unsigned",
                value=str(size),
            )
    return str(etree.tostring(root, encoding="unicode"))


def _list_properties(
    windows: Windows, firmware: address_space.Firmware
) -> dict[str, int]:
    sizes = {
        name: size
        for field, name in _PROPERTIES.items()
        if (size := getattr(windows, field))
    }
    return {**_SMALL, **sizes} if firmware.lacks_io else sizes


def parse(text: str) -> Mapping[int, Windows]:
    """Return the windows that a domain reserves, by index of the port."""
    root = ElementTree.fromstring(text)  # noqa: S314 - libvirtd's
    reserved: dict[int, Windows] = {}
    for device in root.iterfind(f"./{_OVERRIDE}/{_Q}device"):
        index = (device.get("alias") or "").removeprefix(_ALIAS)
        values = {
            element.get("name"): element.get("value") or "0"
            for element in device.iterfind(f"./{_Q}frontend/{_Q}property")
        }
        sizes = {
            field: int(values[name], 0)
            for field, name in _PROPERTIES.items()
            if name in values
        }
        if sizes and index.isdecimal():
            reserved[int(index)] = Windows(**sizes)
    return reserved
