# SPDX-License-Identifier: Apache-2.0
"""Claims as libvirt's hostdev elements."""

import itertools
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from nova_accel import errors, model
from nova_accel.model import flavors, pci
from virt_hooks.guest import guest_pci

# display and ramfb of a PCI function (formatdomain, "Host device
# assignment"), as libvirt counts its versions: 10.3.0.
FIRST_PCI_DISPLAY = 10_003_000

# Technologies whose partitions are PCI functions with a screen of theirs.
_FUNCTIONS_WITH_DISPLAY = ("vendor-vfio",)
_ON_OFF = {True: "on", False: "off"}


def plan_elements(
    claims: Sequence[model.Claim],
    machine: guest_pci.Guest,
    options: flavors.Options,
    libvirt_version: int,
) -> tuple[str, ...]:
    """Return the elements that give a server's claims to its guest.

    A ``<hostdev>`` for an mdev, one for each function that travels with a
    whole PCI function, and the root ports that those need for themselves.

    :param machine: the guest as it is without them.
    :param libvirt_version: of the connection, as libvirt counts.
    :raises ClaimError: the guest can't have them, or not as the flavor
        wants them shown.
    :raises MalformedError: a claim on a function with no PCI address.
    """
    if not claims:
        return ()
    _check_ap(claims, machine)
    _check_rom(claims, options)
    _check_display(claims, machine, options, libvirt_version)
    functions = {claim.handle: _functions(claim) for claim in claims}
    layout = guest_pci.plan_layout(machine, functions.values())
    found = [_port(index) for index in layout.ports]
    screens = itertools.count()
    for claim in claims:
        display: dict[str, str] = {}
        if _can_display(claim, libvirt_version):
            display = _display(options, next(screens) == 0)
        if claim.technology == "mdev":
            found.append(_mdev(claim, display))
        found += [
            _pci(claim, address, layout.places.get(address), display, options)
            for address in functions[claim.handle]
        ]
    return tuple(
        ElementTree.tostring(element, encoding="unicode") for element in found
    )


def _functions(claim: model.Claim) -> tuple[pci.PciAddress, ...]:
    if claim.technology == "mdev":
        return ()
    return tuple(map(pci.parse_address, (claim.handle, *claim.members)))


def _check_ap(claims: Sequence[model.Claim], machine: guest_pci.Guest) -> None:
    """A guest's crypto adapters are one matrix, which is one device."""
    found = [claim for claim in claims if claim.device_api == "vfio-ap"]
    if len(found) + machine.has_ap > 1:
        reason = (
            "a guest can have one vfio-ap device and the flavor gives it"
            f" {len(found) + machine.has_ap}: ask for one, whose matrix has"
            " all adapters and domains"
        )
        raise errors.ClaimError(found[0].consumer, reason, public=reason)


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
    wrong = ""
    if not any(map(_has_display, claims)):
        wrong = (
            "none of its devices has a display: only vGPUs do; take it out"
            " of the flavor"
        )
    elif old := [
        claim
        for claim in claims
        if _has_display(claim) and not _can_display(claim, libvirt_version)
    ]:
        wrong = (
            f"the display of {old[0].handle} needs libvirt 10.3.0, this"
            f" host has {_version(libvirt_version)}: update it, or take it"
            " out of the flavor"
        )
    elif not machine.has_graphics:
        wrong = (
            "the guest has no graphics device to show it on: enable [vnc]"
            " or [spice] in nova.conf of this host"
        )
    elif options.has_ramfb and machine.has_ramfb:
        wrong = "the guest has a ramfb already, and can have one"
    if wrong:
        raise errors.ClaimError(
            claims[0].consumer,
            f"the flavor asks for a display, but {wrong}",
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
    """Return the attributes of a device with a screen.

    A guest has one ramfb: the first such device gets it.
    """
    found = {}
    if options.has_display is not None:
        found["display"] = _ON_OFF[options.has_display]
    if options.has_ramfb is not None and is_first:
        found["ramfb"] = _ON_OFF[options.has_ramfb]
    return found


def _version(number: int) -> str:
    return ".".join(
        str(part)
        for part in (number // 1_000_000, number // 1000 % 1000, number % 1000)
    )


def _port(index: int) -> ElementTree.Element:
    """Return a root port; libvirt puts it on bus 0 where there is room."""
    return ElementTree.Element(
        "controller", type="pci", index=str(index), model="pcie-root-port"
    )


def _mdev(claim: model.Claim, display: dict[str, str]) -> ElementTree.Element:
    """Return the element of an mdev; it is bound already.

    libvirt chooses where the guest sees it: the kind of address goes with
    the model (pci, ccw, or none for vfio-ap).
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

    Managed: libvirt binds it to vfio-pci for the guest's life and gives it
    back to its driver afterwards. Not managed: the host's own driver is
    its VFIO driver, and must stay.
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
        seen = ElementTree.SubElement(
            root,
            "address",
            dict(_address(0, place.bus, place.slot, place.function)),
            type="pci",
        )
        if place.is_first:
            seen.set("multifunction", "on")
    return root


def _address(
    domain: int, bus: int, slot: int, function: int
) -> Iterator[tuple[str, str]]:
    yield "domain", f"0x{domain:04x}"
    yield "bus", f"0x{bus:02x}"
    yield "slot", f"0x{slot:02x}"
    yield "function", f"0x{function:x}"
