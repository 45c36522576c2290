# SPDX-License-Identifier: Apache-2.0
"""Reader of root ports and NVLinks, and of whose buses they are.

No further file is read: the root port is a component of the resolved path
of a function's directory, and NVLinks are among NVML's answers of the
same pass.
"""

import dataclasses
from collections.abc import Collection, Iterable

from nova_accel import errors, model
from nova_accel.geometry import topology
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci

# Documentation/ABI/testing: sysfs-bus-pci.
_FUNCTIONS = "/sys/bus/pci/devices"
_NVIDIA = "10de"
# Vendors of functions that hypervisors emulate (pci.ids): Red Hat's virtio and
# QEMU, VMware, VirtualBox, Xen, Microsoft.
_EMULATED = frozenset({"1af4", "1b36", "15ad", "80ee", "5853", "1414"})


def read(
    reader: host_reader.HostReader,
    devices: Collection[model.Device],
    nvidia_cards: Collection[str],
) -> topology.HostTopology:
    """Return the root ports and NVLinks of devices.

    A port that can't be read is left out.

    :param reader: the reader that has described the devices.
    :param nvidia_cards: the NVIDIA cards among all devices of the host.
    """
    cards = sorted(
        filter(pci.is_address, {_card(device) for device in devices})
    )
    ports = {card: _port(reader, card) for card in cards}
    return topology.HostTopology(
        ports={card: port for card, port in ports.items() if port},
        links=_links(reader, nvidia_cards),
    )


def _card(device: model.Device) -> str:
    return device.parent or device.address


def _port(reader: host_reader.HostReader, card: str) -> str:
    """Return a card's root port, empty if unknown; for a VF, its PF's.

    A VF may have another device number than its PF; on the root bus the
    PF's number identifies the slot.
    """
    try:
        function = reader.function(card)
        physical = str(function.physfn or card) if function else card
        return topology.parse_port(
            reader.files.resolve(f"{_FUNCTIONS}/{physical}")
        )
    except errors.UnreadableError:
        return ""


def is_virtual_machine(reader: host_reader.HostReader) -> bool:
    """Return whether the functions show that this host is a virtual machine.

    One that a hypervisor emulates is on a root bus then. On a physical host
    some cards have virtio functions, too, but below a root port. False also
    where nothing is known.
    """
    return reader.once(_has_emulated)


def _has_emulated(reader: host_reader.HostReader) -> bool:
    try:
        return any(
            reader.files.resolve(f"{_FUNCTIONS}/{function.address}")
            .split("/")[-2]
            .startswith("pci")  # a host bridge, as pci0000:00
            for function in reader.all_functions()
            if not _EMULATED.isdisjoint(
                (function.vendor, function.subsystem_vendor)
            )
        )
    except errors.UnreadableError:
        return False


def list_cards(devices: Iterable[model.Device]) -> frozenset[str]:
    """Return the NVIDIA cards among devices, which may have NVLinks."""
    return frozenset(
        device.address
        for device in devices
        if device.vendor_id == _NVIDIA and pci.is_address(device.address)
    )


def _links(
    reader: host_reader.HostReader, cards: Collection[str]
) -> dict[str, topology.GpuLinks | None]:
    """Return the NVLinks of NVIDIA's cards, None where they are unknown.

    NVML does not see a card that is passed through to a guest.
    """
    links: dict[str, topology.GpuLinks | None] = dict.fromkeys(cards)
    gpus = _gpus(reader) if reader.gpus else frozenset()
    for address, gpu in reader.gpus.items():
        active = topology.GpuLinks() if gpu.is_mig else gpu.links
        links[address] = active and dataclasses.replace(
            active, peers=active.peers & gpus
        )
    return links


def _gpus(reader: host_reader.HostReader) -> frozenset[str]:
    """Return the addresses of the host's GPUs that can have a peer.

    In a virtual machine NVML returns addresses of the machine below it.
    GPUs in MIG mode have no peers (NVIDIA Multi-Instance GPU User Guide,
    "No GPU to GPU P2P").
    """
    mig_gpus = {address for address, gpu in reader.gpus.items() if gpu.is_mig}
    try:
        functions = reader.all_functions()
    except errors.UnreadableError:
        return frozenset(reader.gpus.keys() - mig_gpus)
    return frozenset(
        str(function.address)
        for function in functions
        if function.vendor == _NVIDIA and function.is_display
    ).difference(mig_gpus)
