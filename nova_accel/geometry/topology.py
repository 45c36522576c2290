# SPDX-License-Identifier: Apache-2.0
"""PCIe root ports and NVLinks of devices, and their distances.

What stands below one PCIe root port reaches each other without crossing
the root complex. What has an NVLink in common needs no PCIe at all.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from nova_accel import model
from nova_accel.model import flavors, names, pci

# A host bridge's directory (drivers/pci/probe.c,
# pci_register_host_bridge(): "pci%04x:%02x").
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuLinks:
    """What the active NVLinks of a GPU lead to.

    ``peers`` are the addresses of GPUs; ``is_switched`` tells whether any
    leads to an NVSwitch.
    """

    peers: frozenset[str] = frozenset()
    is_switched: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostTopology:
    """Where the cards of a host stand, by their addresses.

    ``ports`` are as ``parse_port`` returns them; of a card that is missing
    there nothing can be told. ``links`` are those of each card that may
    have NVLinks, None where that can't be told.
    """

    ports: Mapping[str, str] = dataclasses.field(default_factory=dict)
    links: Mapping[str, GpuLinks | None] = dataclasses.field(
        default_factory=dict
    )


def parse_port(place: str) -> str:
    """Return the root port that a function is below.

    Of a function on the root bus itself it is its slot: the address
    without the function's number, which no port has. Empty if the path
    does not tell.

    :param place: the function's directory in the kernel's tree of devices,
        free of links. Behind Intel's VMD there are two host bridges in it;
        the last one counts.
    """
    parts = place.split("/")
    bridges = [
        number
        for number, part in enumerate(parts)
        if _HOST_BRIDGE.fullmatch(part)
    ]
    below = parts[bridges[-1] + 1 :] if bridges else []
    if not below or not all(pci.is_address(part) for part in below):
        return ""
    return below[0] if len(below) > 1 else below[0].rpartition(".")[0]


def peers(links: Mapping[str, GpuLinks | None]) -> dict[str, frozenset[str]]:
    """Return to which others each card has an NVLink, by address.

    All cards on switches reach each other. Where one has a link to
    another, that one has it too, even if it can't tell.
    """
    found: dict[str, set[str]] = {address: set() for address in links}
    switched = {a for a, one in links.items() if one and one.is_switched}
    for address, one in links.items():
        if one is None:
            continue
        others = one.peers | (switched if one.is_switched else set())
        for other in others - {address}:
            found[address].add(other)
            found.setdefault(other, set()).add(address)
    return {address: frozenset(them) for address, them in found.items()}


def place(
    devices: Iterable[model.Device], places: HostTopology
) -> tuple[model.Device, ...]:
    """Return the devices with the traits that tell where they stand.

    A part has those of its whole. What can't be told is among what is
    unread of the device.
    """
    linked = peers(places.links)
    return tuple(_place(device, places, linked) for device in devices)


def _place(
    device: model.Device,
    places: HostTopology,
    linked: Mapping[str, frozenset[str]],
) -> model.Device:
    card = device.parent or device.address
    if not pci.is_address(card):
        return device
    traits = {names.nvlink_trait(peer) for peer in linked.get(card, ())}
    unread = _unread_links(card, places.links)
    port = places.ports.get(card)
    if port:
        traits.add(names.pcie_trait(port))
    else:
        unread = (names.PCIE_PREFIX, *unread)
    return dataclasses.replace(
        device,
        traits=device.traits | traits,
        unread=(*device.unread, *unread),
    )


def _unread_links(
    card: str, links: Mapping[str, GpuLinks | None]
) -> tuple[str, ...]:
    """Return the prefixes of traits of NVLinks that can't be told.

    Of a card on a switch these are the traits of the cards that don't
    tell whether they are on it too.
    """
    if card not in links:
        return ()
    mine = links[card]
    if mine is None:
        return (names.NVLINK_PREFIX,)
    return _untold(links) if mine.is_switched else ()


def _untold(links: Mapping[str, GpuLinks | None]) -> tuple[str, ...]:
    silent = sorted(a for a, one in links.items() if one is None)
    return tuple(names.nvlink_trait(address) for address in silent)


# -- what their providers tell ----------------------------------------------

_ALIKE = {
    flavors.Locality.PCIE: (names.PCIE_PREFIX, "PCIe root port"),
    flavors.Locality.NUMA: (names.NUMA_PREFIX, "NUMA node"),
}


class LocatedDevice(Protocol):
    """A device as its provider tells of it.

    ``card`` is the same for all parts of one card; ``address`` is the
    card's own, as provider_name spells it, empty where it is not known.
    """

    @property
    def card(self) -> str:
        """Return what tells the physical card."""

    @property
    def address(self) -> str:
        """Return the card's address, of which links tell."""

    @property
    def traits(self) -> frozenset[str]:
        """Return the provider's traits, none if they were not read."""


def between(
    wanted: flavors.Locality, one: LocatedDevice, two: LocatedDevice
) -> str:
    """Return what speaks against taking two devices together, or nothing.

    A device of which nothing was read is no objection.
    """
    is_one_card = one.card == two.card
    if wanted is flavors.Locality.DIFFERENT_CARD:
        return "one card" if is_one_card else ""
    if is_one_card or not (one.traits and two.traits):
        return ""
    if wanted is flavors.Locality.NVLINK:
        is_told = one.address and two.address
        is_linked = _has_link(one, two) or _has_link(two, one)
        return "no NVLink between them" if is_told and not is_linked else ""
    return _unlike(wanted, one, two)


def _has_link(one: LocatedDevice, two: LocatedDevice) -> bool:
    return names.nvlink_trait(two.address) in one.traits


def _unlike(
    wanted: flavors.Locality, one: LocatedDevice, two: LocatedDevice
) -> str:
    if wanted not in _ALIKE:
        return ""
    prefix, what = _ALIKE[wanted]
    here, there = told(one.traits, prefix), told(two.traits, prefix)
    if here == there:
        return ""
    return f"{what} {_listed(here)} and {_listed(there)}"


def told(traits: Iterable[str], prefix: str) -> frozenset[str]:
    """Return what traits say below a prefix, as the number of a node."""
    return frozenset(
        trait.removeprefix(prefix)
        for trait in traits
        if trait.startswith(prefix)
    )


def _listed(said: Iterable[str]) -> str:
    return ", ".join(sorted(said)) or "not known"
