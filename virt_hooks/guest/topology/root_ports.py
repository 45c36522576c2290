# SPDX-License-Identifier: Apache-2.0
"""Root ports of bus 0, for the devices of Nova.

libvirt gives a device without an address the first free port in the order of
indexes. Without enough ports of bus 0 it takes the spare ports of expanders,
and then adds ports to bus 0. So there are always free ones, for volumes and
network interfaces that are attached later.
"""

from xml.etree import ElementTree

# Beyond the ports that a guest needs, and the step of their number: a volume
# more or less seldom changes the buses of the accelerators behind them.
_MIN_FREE = 2
_STEP = 8
# Of serial ports, which libvirt adds by itself.
_IMPLIED = 1
# Elements of devices that are no PCI devices, or on bus 0 itself. A device
# that is missed here costs a port too few, which guest_buses.renumber() bears.
_OTHER = frozenset(
    {
        "audio", "channel", "console", "emulator", "graphics", "hub",
        "iommu", "lease", "memory", "nvram", "panic", "parallel", "pstore",
        "redirdev", "redirfilter", "serial", "smartcard", "tpm", "video",
    }
)  # fmt: skip
_OTHER_BUSES = frozenset({"usb", "sata", "ide", "scsi", "fdc", "sd", "ps2"})


def count(text: str) -> int:
    """Return the number of root ports that bus 0 of a guest needs.

    If Nova has given it enough (``[libvirt] num_pcie_ports``), it is theirs.

    :param text: XML of a guest that is not defined yet, without mirrored
        devices.
    """
    root = ElementTree.fromstring(text)  # noqa: S314 - written by Nova
    devices = root.find("devices")
    elements = [] if devices is None else list(devices)
    existing = sum(map(_is_root_port, elements))
    needed = sum(map(_needs_port, elements)) + _IMPLIED + _MIN_FREE
    if existing >= needed:
        return existing
    return -(-needed // _STEP) * _STEP


def _is_root_port(element: ElementTree.Element) -> bool:
    return (
        element.tag == "controller"
        and element.get("model") == "pcie-root-port"
    )


def _needs_port(element: ElementTree.Element) -> bool:
    """Return whether a device may need a port."""
    if element.tag == "controller":
        return element.get("type") != "pci" and element.get("model") != "none"
    if element.tag == "memballoon":
        return element.get("model") != "none"
    if element.find("address") is not None:
        return False
    target = element.find("target")
    bus = element.get("bus") or (
        target.get("bus") if target is not None else None
    )
    return element.tag not in _OTHER and bus not in _OTHER_BUSES
