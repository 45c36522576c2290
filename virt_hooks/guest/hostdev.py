# SPDX-License-Identifier: Apache-2.0
"""Hostdev elements of libvirt for claims."""

import itertools
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from nova_accel import errors, model
from nova_accel.model import flavors, pci
from virt_hooks.guest import guest_pci

# First libvirt with display and ramfb of a PCI function (formatdomain, "Host
# device assignment"), in its own encoding: 10.3.0.
FIRST_PCI_DISPLAY = 10_003_000

# Technologies whose partitions are PCI functions with a display.
_FUNCTIONS_WITH_DISPLAY = ("vendor-vfio",)
_ON_OFF = {True: "on", False: "off"}


def plan_elements(
    claims: Sequence[model.Claim],
    machine: guest_pci.Guest,
    options: flavors.Options,
    libvirt_version: int,
) -> tuple[str, ...]:
    """Return the XML elements of a server's claims for its guest.

    A ``<hostdev>`` for each mdev and each function, and the root ports
    that the functions need.

    :param machine: the guest without these elements.
    :param libvirt_version: of the connection, in libvirt's encoding.
    :raises ClaimError: the guest can't have the devices, or not with the
        options of the flavor.
    :raises MalformedError: the handle of a function is no PCI address.
    """
    if not claims:
        return ()
    _check_ap(claims, machine)
    _check_rom(claims, options)
    _check_display(claims, machine, options, libvirt_version)
    functions = {claim.handle: _functions(claim) for claim in claims}
    layout = guest_pci.plan_layout(machine, functions.values())
    elements = [_port(index) for index in layout.ports]
    displays = itertools.count()
    for claim in claims:
        display: dict[str, str] = {}
        if _can_display(claim, libvirt_version):
            display = _display(options, next(displays) == 0)
        if claim.technology == "mdev":
            elements.append(_mdev(claim, display))
        elements += [
            _pci(claim, address, layout.places.get(address), display, options)
            for address in functions[claim.handle]
        ]
    return tuple(
        ElementTree.tostring(element, encoding="unicode")
        for element in elements
    )


def _functions(claim: model.Claim) -> tuple[pci.PciAddress, ...]:
    if claim.technology == "mdev":
        return ()
    return tuple(map(pci.parse_address, (claim.handle, *claim.members)))


def _check_ap(claims: Sequence[model.Claim], machine: guest_pci.Guest) -> None:
    """Check that a guest has at most one crypto matrix (vfio-ap)."""
    matrices = [claim for claim in claims if claim.device_api == "vfio-ap"]
    count = len(matrices) + machine.has_ap
    if count > 1:
        reason = (
            "a guest can have one vfio-ap device and the flavor gives it"
            f" {count}: ask for one, whose matrix has all adapters and"
            " domains"
        )
        raise errors.ClaimError(matrices[0].consumer, reason, public=reason)


def _check_rom(
    claims: Sequence[model.Claim], options: flavors.Options
) -> None:
    if options.has_rom is None:
        return
    if all(claim.technology == "mdev" for claim in claims):
        reason = (
            "the flavor says accelerator:rom, and none of its devices is a"
            " PCI function; mdevs have no ROM: take it out of the flavor"
        )
        raise errors.ClaimError(claims[0].consumer, reason, public=reason)


def _check_display(
    claims: Sequence[model.Claim],
    machine: guest_pci.Guest,
    options: flavors.Options,
    libvirt_version: int,
) -> None:
    if not options.has_display:
        return
    reason = ""
    if not any(map(_has_display, claims)):
        reason = (
            "none of its devices has a display: only vGPUs do; take it out"
            " of the flavor"
        )
    elif old := [
        claim
        for claim in claims
        if _has_display(claim) and not _can_display(claim, libvirt_version)
    ]:
        reason = (
            f"the display of {old[0].handle} needs libvirt 10.3.0, this"
            f" host has {_version(libvirt_version)}: update it, or take it"
            " out of the flavor"
        )
    elif not machine.has_graphics:
        reason = (
            "the guest has no graphics device to show it on: enable [vnc]"
            " or [spice] in nova.conf of this host"
        )
    elif options.has_ramfb and machine.has_ramfb:
        reason = "the guest has a ramfb already, and can have one"
    if reason:
        raise errors.ClaimError(
            claims[0].consumer,
            f"the flavor asks for a display, but {reason}",
            public="its host can't give it the display of the flavor",
        )


def _has_display(claim: model.Claim) -> bool:
    if claim.technology == "mdev":
        return (claim.device_api or "vfio-pci") == "vfio-pci"
    return claim.technology in _FUNCTIONS_WITH_DISPLAY


def _can_display(claim: model.Claim, libvirt_version: int) -> bool:
    return _has_display(claim) and (
        claim.technology == "mdev" or libvirt_version >= FIRST_PCI_DISPLAY
    )


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


def _version(number: int) -> str:
    return ".".join(
        str(part)
        for part in (number // 1_000_000, number // 1000 % 1000, number % 1000)
    )


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
    claim: model.Claim,
    address: pci.PciAddress,
    place: guest_pci.GuestPciAddress | None,
    display: dict[str, str],
    options: flavors.Options,
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
    numbers = (address.domain, address.bus, address.slot, address.function)
    ElementTree.SubElement(source, "address", dict(_address(*numbers)))
    if options.has_rom is not None:
        ElementTree.SubElement(root, "rom", bar=_ON_OFF[options.has_rom])
    if place is not None:
        guest_address = ElementTree.SubElement(
            root,
            "address",
            dict(_address(0, place.bus, place.slot, place.function)),
            type="pci",
        )
        if place.is_first:
            guest_address.set("multifunction", "on")
    return root


def _address(
    domain: int, bus: int, slot: int, function: int
) -> Iterator[tuple[str, str]]:
    yield "domain", f"0x{domain:04x}"
    yield "bus", f"0x{bus:02x}"
    yield "slot", f"0x{slot:02x}"
    yield "function", f"0x{function:x}"
