# SPDX-License-Identifier: Apache-2.0
"""Claims as libvirt's hostdev elements."""

from xml.etree import ElementTree

from nova_accel import model, pci


def to_xml(claim: model.Claim) -> tuple[str, ...]:
    """Return the ``<hostdev>`` elements that give a claim to a guest.

    One for an mdev, one for each function that travels with a whole PCI
    function. The form is libvirt's (formatdomain, "Host device
    assignment").

    :raises MalformedError: a claim on a function with no PCI address.
    """
    if claim.technology == "mdev":
        return (_mdev(claim),)
    return tuple(
        _pci(pci.parse_address(member))
        for member in (claim.handle, *claim.members)
    )


def _mdev(claim: model.Claim) -> str:
    root = ElementTree.Element(
        "hostdev",
        mode="subsystem",
        type="mdev",
        managed="no",
        model=claim.device_api or "vfio-pci",
    )
    source = ElementTree.SubElement(root, "source")
    ElementTree.SubElement(source, "address", uuid=claim.handle)
    return ElementTree.tostring(root, encoding="unicode")


def _pci(address: pci.PciAddress) -> str:
    """Return the element of one function.

    Managed: libvirt binds it to vfio-pci for the guest's life and gives it
    back to its driver afterwards.
    """
    root = ElementTree.Element(
        "hostdev", mode="subsystem", type="pci", managed="yes"
    )
    source = ElementTree.SubElement(root, "source")
    ElementTree.SubElement(
        source,
        "address",
        domain=f"0x{address.domain:04x}",
        bus=f"0x{address.bus:02x}",
        slot=f"0x{address.slot:02x}",
        function=f"0x{address.function:x}",
    )
    return ElementTree.tostring(root, encoding="unicode")
