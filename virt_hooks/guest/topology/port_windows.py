# SPDX-License-Identifier: Apache-2.0
"""Windows of root ports: room for the memory of functions (BARs).

Measured with SeaBIOS 1.16.2 and 1.16.3, OVMF 2022.11 and Linux 6.1, emulated
devices: firmware sizes the windows of a root port for the devices that exist
at its start, and Linux does not enlarge them, though libvirt and QEMU report
success. SeaBIOS gives an empty port two windows of 2 MiB. With OVMF no BAR of
1 GiB gets an address, on bus 0 none of 256 MiB. ``pcihole64`` does not help;
``mem-reserve`` and ``pref64-reserve`` of a root port do.

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
# libvirt's formatdomain, "QEMU namespace".
_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
_Q = f"{{{_NAMESPACE}}}"
_OVERRIDE = f"{_Q}override"
# Properties of QEMU's root port by fields of Windows.
_PROPERTIES = {"memory": "mem-reserve", "prefetchable": "pref64-reserve"}
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


def parse_resource(text: str) -> Windows:
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


def choose(
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

    def count_bits(size: int) -> int:
        return max(
            space.choose_bits(demand.add_windows(size, ports)) + 1, _LEAST_BITS
        )

    fitting = [
        each
        for each in windows
        if each.memory * ports <= _MAX_MEMORY
        and (
            not each.prefetchable
            or count_bits(each.prefetchable) <= space.bits
        )
    ]
    return Windows(
        memory=max((each.memory for each in fitting), default=0),
        prefetchable=max((each.prefetchable for each in fitting), default=0),
    )


def reserve(text: str, ports: Iterable[int], windows: Windows) -> str:
    """Return a domain with windows reserved on some of its root ports.

    :param ports: indexes of their controllers.
    """
    sizes = {
        name: size
        for field, name in _PROPERTIES.items()
        if (size := getattr(windows, field))
    }
    if not sizes:
        return text
    domain = etree.fromstring(text)
    # The namespace of a root element is fixed when it is made.
    root = etree.Element(domain.tag, domain.attrib, {"qemu": _NAMESPACE})
    root.extend(list(domain))
    override = root.find(_OVERRIDE)
    if override is None:
        override = etree.SubElement(root, _OVERRIDE)
    for index in ports:
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
