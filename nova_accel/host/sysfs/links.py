# SPDX-License-Identifier: Apache-2.0
"""Reader of root ports and NVLinks.

Nothing is read that describing the devices has not read already: the port
is told by where a function's directory really is, the links by what NVML
said when it was asked for the rest.
"""

import dataclasses
from collections.abc import Collection

from nova_accel import errors, model
from nova_accel.geometry import topology
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci

# Documentation/ABI/testing: sysfs-bus-pci.
_FUNCTIONS = "/sys/bus/pci/devices"
_NVIDIA = "10de"


def read(
    reader: host_reader.HostReader, devices: Collection[model.Device]
) -> topology.HostTopology:
    """Return where devices stand; what can't be read is unknown there.

    :param reader: what has read the host.
    :param devices: all that were described of it.
    """
    cards = sorted(filter(pci.is_address, {_card(one) for one in devices}))
    ports = {card: _port(reader, card) for card in cards}
    return topology.HostTopology(
        ports={card: port for card, port in ports.items() if port},
        links=_links(reader, devices),
    )


def _card(device: model.Device) -> str:
    return device.parent or device.address


def _port(reader: host_reader.HostReader, card: str) -> str:
    """Return a card's root port, of a VF that of its PF; empty if unknown.

    A VF may have another device number than its PF, so that on the root
    bus only that tells the slot.
    """
    try:
        function = reader.function(card)
        physical = str(function.physfn or card) if function else card
        return topology.parse_port(
            reader.files.resolve(f"{_FUNCTIONS}/{physical}")
        )
    except errors.UnreadableError:
        return ""


def _links(
    reader: host_reader.HostReader, devices: Collection[model.Device]
) -> dict[str, topology.GpuLinks | None]:
    """Return the NVLinks of NVIDIA's cards; None where nobody tells them.

    Nobody does of a card that a guest has whole.
    """
    found: dict[str, topology.GpuLinks | None] = {
        device.address: None
        for device in devices
        if device.vendor_id == _NVIDIA and pci.is_address(device.address)
    }
    gpus = _gpus(reader) if reader.gpus else frozenset()
    for address, facts in reader.gpus.items():
        known = topology.GpuLinks() if facts.is_mig else facts.links
        found[address] = known and dataclasses.replace(
            known, peers=known.peers & gpus
        )
    return found


def _gpus(reader: host_reader.HostReader) -> frozenset[str]:
    """Return the addresses of the GPUs that can have a peer.

    They are this host's: in a virtual machine NVML tells addresses of the
    machine below it. Those in MIG mode reach no other GPU (NVIDIA
    Multi-Instance GPU User Guide, "No GPU to GPU P2P").
    """
    alone = {a for a, facts in reader.gpus.items() if facts.is_mig}
    try:
        functions = reader.functions()
    except errors.UnreadableError:
        return frozenset(reader.gpus.keys() - alone)
    return frozenset(
        str(function.address)
        for function in functions
        if function.vendor == _NVIDIA and function.is_display
    ).difference(alone)
