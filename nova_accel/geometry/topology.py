# SPDX-License-Identifier: Apache-2.0
"""Topology of devices: PCIe root ports, NVLinks, required locality.

Devices below one PCIe root port communicate without crossing the root
complex; devices with an NVLink to each other don't use PCIe at all.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from nova_accel import model
from nova_accel.model import flavors, names, pci

# Directory of a host bridge (drivers/pci/probe.c,
# pci_register_host_bridge(): "pci%04x:%02x").
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuLinks:
    """Remote ends of the active NVLinks of a GPU.

    ``peers`` are the addresses of GPUs; ``is_switched`` is True where a link
    ends at an NVSwitch.
    """

    peers: frozenset[str] = frozenset()
    is_switched: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostTopology:
    """Root ports and NVLinks of the cards of a host, by address.

    ``ports`` are as ``parse_port`` returns them, without the cards whose
    port could not be read. ``links`` has each card that may have NVLinks,
    None where they could not be read.
    """

    ports: Mapping[str, str] = dataclasses.field(default_factory=dict)
    links: Mapping[str, GpuLinks | None] = dataclasses.field(
        default_factory=dict
    )


def parse_bridges(path: str) -> tuple[str, ...]:
    """Return the root complex and the bridges above a function.

    Empty where the path has none. A root complex is named as its directory
    (``pci0000:16``), a bridge by its address; the root port comes second.

    :param path: the resolved directory of the function in the kernel's
        device tree. Behind Intel's VMD it contains two root complexes; the
        last one counts.
    """
    parts = path.split("/")
    roots = [
        number
        for number, part in enumerate(parts)
        if _HOST_BRIDGE.fullmatch(part)
    ]
    chain = parts[roots[-1] :] if roots else []
    if not chain[1:] or not all(map(pci.is_address, chain[1:])):
        return ()
    return tuple(chain[:-1])


def parse_port(path: str) -> str:
    """Return the root port of a function.

    For a function on the root bus it is its slot: the address without the
    function's number, which no port has. Empty where the path has none.

    :param path: as for ``parse_bridges``.
    """
    bridges = parse_bridges(path)
    if len(bridges) > 1:
        return bridges[1]
    function = path.rpartition("/")[2]
    return function.rpartition(".")[0] if bridges else ""


def resolve_peers(
    links: Mapping[str, GpuLinks | None],
) -> dict[str, frozenset[str]]:
    """Return the cards to which each card has an NVLink, by address.

    All cards on switches reach each other. A link is reported at both
    ends, even if one end could not be read.
    """
    peers: dict[str, set[str]] = {address: set() for address in links}
    switched = {
        address for address, gpu in links.items() if gpu and gpu.is_switched
    }
    for address, gpu in links.items():
        if gpu is None:
            continue
        reachable = gpu.peers | (switched if gpu.is_switched else set())
        for peer in reachable - {address}:
            peers[address].add(peer)
            peers.setdefault(peer, set()).add(address)
    return {address: frozenset(cards) for address, cards in peers.items()}


def add_topology_traits(
    devices: Iterable[model.Device], topology: HostTopology
) -> tuple[model.Device, ...]:
    """Return the devices with the traits of their ports and NVLinks.

    A part of a card has the traits of the card. Prefixes of traits that
    could not be read are added to ``unread_traits``.
    """
    peers = resolve_peers(topology.links)
    return tuple(_add_traits(device, topology, peers) for device in devices)


def _add_traits(
    device: model.Device,
    topology: HostTopology,
    peers: Mapping[str, frozenset[str]],
) -> model.Device:
    card = device.parent or device.address
    if not pci.is_address(card):
        return device
    traits = {names.nvlink_trait(peer) for peer in peers.get(card, ())}
    gpu = topology.links.get(card)
    if gpu and gpu.is_switched:
        traits.add(names.NVLINK_SWITCH)
    unread = _unread_link_traits(card, topology.links)
    port = topology.ports.get(card)
    if port:
        traits.add(names.pcie_trait(port))
    else:
        unread = (names.PCIE_PREFIX, *unread)
    return dataclasses.replace(
        device,
        traits=device.traits | traits,
        unread_traits=(*device.unread_traits, *unread),
    )


def _unread_link_traits(
    card: str, links: Mapping[str, GpuLinks | None]
) -> tuple[str, ...]:
    """Return the prefixes of a card's NVLink traits that are unread.

    For a card on a switch these are the traits of all cards whose links
    could not be read: they may be on the switch too.
    """
    if card not in links:
        return ()
    gpu = links[card]
    if gpu is None:
        return (names.NVLINK_PREFIX,)
    if not gpu.is_switched:
        return ()
    unread = sorted(address for address, gpu in links.items() if gpu is None)
    return tuple(names.nvlink_trait(address) for address in unread)


# -- locality by the traits of providers -------------------------------------

_TRAITS_OF_LOCALITY = {
    flavors.Locality.PCIE: (names.PCIE_PREFIX, "PCIe root port"),
    flavors.Locality.NUMA: (names.NUMA_PREFIX, "NUMA node"),
}


class LocatedDevice(Protocol):
    """A device as its provider shows it.

    ``card`` is the same for all parts of one card; ``address`` is the
    card's, as provider_name spells it, empty where it is unknown. ``traits``
    are the provider's, empty if they were not read.
    """

    @property
    def card(self) -> str:
        """Return the identity of the physical card."""

    @property
    def address(self) -> str:
        """Return the card's address, as NVLink traits have it."""

    @property
    def traits(self) -> frozenset[str]:
        """Return the traits of the provider."""


def explain_mismatch(
    locality: flavors.Locality, first: LocatedDevice, second: LocatedDevice
) -> str:
    """Return why two devices violate a locality, empty if they don't.

    Devices without traits don't violate any.
    """
    is_same_card = first.card == second.card
    if locality is flavors.Locality.DIFFERENT_CARD:
        return "one card" if is_same_card else ""
    if is_same_card or not (first.traits and second.traits):
        return ""
    if locality is flavors.Locality.NVLINK:
        has_addresses = first.address and second.address
        is_linked = has_link(first, second)
        return (
            "no NVLink between them" if has_addresses and not is_linked else ""
        )
    return _compare_traits(locality, first, second)


def has_link(first: LocatedDevice, second: LocatedDevice) -> bool:
    """Return whether the cards of two devices have an NVLink by their traits.

    A card has none to itself.
    """
    return first.card != second.card and (
        names.nvlink_trait(second.address) in first.traits
        or names.nvlink_trait(first.address) in second.traits
        or names.NVLINK_SWITCH in first.traits & second.traits
    )


def _compare_traits(
    locality: flavors.Locality, first: LocatedDevice, second: LocatedDevice
) -> str:
    if locality not in _TRAITS_OF_LOCALITY:
        return ""
    prefix, noun = _TRAITS_OF_LOCALITY[locality]
    values = trait_values(first.traits, prefix)
    others = trait_values(second.traits, prefix)
    if values == others:
        return ""
    return f"{noun} {_join(values)} and {_join(others)}"


def trait_values(traits: Iterable[str], prefix: str) -> frozenset[str]:
    """Return the traits with a prefix, without it: ``0`` for NUMA node 0."""
    return frozenset(
        trait.removeprefix(prefix)
        for trait in traits
        if trait.startswith(prefix)
    )


def _join(values: Iterable[str]) -> str:
    return ", ".join(sorted(values)) or "not known"
