# SPDX-License-Identifier: Apache-2.0
"""Hostdev elements of libvirt for claims."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree

from nova_accel import model
from nova_accel.catalog import pci_ids
from nova_accel.model import flavors, pci
from virt_hooks.guest import guest_checks, guest_pci, hypervisor

_ON_OFF = {True: "on", False: "off"}


def plan_elements(
    claims: Sequence[model.Claim],
    machine: guest_pci.Guest,
    options: flavors.Options,
    host: hypervisor.Hypervisor,
    places: guest_pci.Places | None = None,
) -> tuple[str, ...]:
    """Return the XML elements of a server's claims for its guest.

    A ``<hostdev>`` for each mdev and each function, and the root ports
    that the functions need.

    :param machine: the guest without these elements.
    :param places: guest addresses whose ports the guest has, None for those
        of ``guest_pci.plan_layout``.
    :raises ClaimError: the guest can't have the devices, or not with the
        options of the flavor.
    :raises MalformedError: the handle of a function is no PCI address.
    """
    if not claims:
        return ()
    guest_checks.check(claims, machine, options, host)
    functions = {claim.handle: _functions(claim) for claim in claims}
    layout = (
        guest_pci.plan_layout(machine, functions.values())
        if places is None
        else guest_pci.GuestPciPlan(places=places)
    )
    nodes = plan_memory_nodes(claims, machine, options)
    uses_iommufd = guest_checks.uses_iommufd(machine, host)
    elements = [_port(index) for index in layout.ports]
    displays = itertools.count()
    for claim in claims:
        display: dict[str, str] = {}
        if guest_checks.can_display(claim, host):
            display = _display(options, next(displays) == 0)
        if claim.technology == "mdev":
            element = _mdev(claim, display)
            _add_place(element, layout.places.get(claim.handle))
            elements.append(element)
        claim_nodes = nodes.get(claim.handle, range(0))
        for address in functions[claim.handle]:
            element = _pci(claim, address, display)
            _add_options(element, options, uses_iommufd, claim_nodes)
            claim_nodes = range(0)  # the others have no memory
            _add_place(element, layout.places.get(str(address)))
            elements.append(element)
    return tuple(
        ElementTree.tostring(element, encoding="unicode")
        for element in elements
    )


def plan_memory_nodes(
    claims: Sequence[model.Claim],
    machine: guest_pci.Guest,
    options: flavors.Options,
) -> Mapping[str, range]:
    """Return the guest's NUMA nodes for the memory of each whole GPU.

    They are for GPUs that are known to need them, or for all whole functions
    if none is.

    A guest without NUMA gets node 0 for its own memory. The nodes have no
    memory when the guest starts: its driver adds that of the GPU to them
    (libvirt's formatdomain, "ACPI Generic Initiators").

    :param machine: the guest without these nodes.
    """
    count, first = options.memory_nodes, machine.cells or 1
    whole = [c for c in claims if c.technology == "passthrough"]
    coherent = [c for c in whole if pci_ids.is_coherent_profile(c.profile)]
    handles = [claim.handle for claim in coherent or whole]
    return {
        handle: range(first + count * number, first + count * (number + 1))
        for number, handle in enumerate(handles)
        if count
    }


def _functions(claim: model.Claim) -> tuple[pci.PciAddress, ...]:
    if claim.technology == "mdev":
        return ()
    return tuple(map(pci.parse_address, claim.handles))


def _display(options: flavors.Options, is_first: bool) -> dict[str, str]:
    """Return the attributes of a device with a display.

    A guest can have one ramfb: the first such device gets it.
    """
    attributes = {}
    if options.has_display is not None:
        attributes["display"] = _ON_OFF[options.has_display]
    if options.has_ramfb is not None and is_first:
        attributes["ramfb"] = _ON_OFF[options.has_ramfb]
    return attributes


def _port(index: int) -> ElementTree.Element:
    """Return a root port; libvirt chooses its slot on bus 0."""
    return ElementTree.Element(
        "controller", type="pci", index=str(index), model="pcie-root-port"
    )


def _mdev(claim: model.Claim, display: dict[str, str]) -> ElementTree.Element:
    """Return the element of an mdev, which needs no binding.

    libvirt chooses its guest address: the kind of address depends on the
    model (pci, ccw, or none for vfio-ap).
    """
    root = ElementTree.Element(
        "hostdev",
        display,
        mode="subsystem",
        type="mdev",
        managed="no",
        model=claim.device_api or "vfio-pci",
    )
    source = ElementTree.SubElement(root, "source")
    ElementTree.SubElement(source, "address", uuid=claim.handle)
    return root


def _pci(
    claim: model.Claim, address: pci.PciAddress, display: dict[str, str]
) -> ElementTree.Element:
    """Return the element of one function.

    libvirt binds a managed function to vfio-pci while the guest runs and
    to its host driver afterwards. The host driver of an unmanaged function
    is its VFIO driver, and must stay bound.
    """
    root = ElementTree.Element(
        "hostdev",
        display,
        mode="subsystem",
        type="pci",
        managed="yes" if claim.is_managed else "no",
    )
    source = ElementTree.SubElement(root, "source")
    ElementTree.SubElement(source, "address", source_address(address))
    return root


def source_address(address: pci.PciAddress) -> dict[str, str]:
    """Return the attributes of a function's address on its host."""
    numbers = (address.domain, address.bus, address.slot, address.function)
    return dict(_address(*numbers))


def _add_options(
    element: ElementTree.Element,
    options: flavors.Options,
    uses_iommufd: bool,
    nodes: range,
) -> None:
    if uses_iommufd:
        ElementTree.SubElement(element, "driver", iommufd="yes")
    if options.has_rom is not None:
        ElementTree.SubElement(element, "rom", bar=_ON_OFF[options.has_rom])
    if nodes:
        nodeset = ",".join(map(str, nodes))
        ElementTree.SubElement(element, "acpi", nodeset=nodeset)


def _add_place(
    element: ElementTree.Element, place: guest_pci.GuestPciAddress | None
) -> None:
    if place is None:
        return
    numbers = (0, place.bus, place.slot, place.function)
    address = ElementTree.SubElement(
        element, "address", dict(_address(*numbers)), type="pci"
    )
    if place.is_first:
        address.set("multifunction", "on")


def _address(
    domain: int, bus: int, slot: int, function: int
) -> Iterator[tuple[str, str]]:
    yield "domain", f"0x{domain:04x}"
    yield "bus", f"0x{bus:02x}"
    yield "slot", f"0x{slot:02x}"
    yield "function", f"0x{function:x}"
