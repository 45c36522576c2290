# SPDX-License-Identifier: Apache-2.0
"""Description of an accelerator for its guest, as JSON.

The format is on the page "Topology of guests" of the manual. A reader ignores
keys that it does not know; a change that is no new key needs a new VERSION.
Values that are unknown are left out.

Ids name nothing of the host: they are numbers in the order of the guest's
addresses, hashed with the server's uuid. Two devices of a server have the same
id where they share a bridge or a NUMA node of the host; ids of two servers
can't be compared.
"""

import dataclasses
import itertools
import json
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_accel.catalog import mdev_names
from virt_hooks.operations.metadata import host_links

VERSION = 1
# Nova stores the metadata in a column of 65,535 bytes (TEXT in MySQL), with
# some 200 bytes of its own for each device. JSON in JSON doubles quotes.
MAX_CHARACTERS = 24_000
_MAX_TEXT = 64
# Bridges of one device; switches behind switches have two more each.
_MAX_BRIDGES = 8
_ID_LENGTH = 12
#: Editions of NVIDIA's licences (NVIDIA vGPU Software Licensing User Guide,
#: "vGPU Software Licensed Products"), by series.
LICENSES = {"Q": "vWS", "C": "vCS", "B": "vPC", "A": "vApps"}
_NVIDIA = "10de"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GuestDevice:
    """One function or mdev of a guest.

    ``address`` is its PCI address in the guest, empty off the PCI bus;
    ``card`` that of its card on the host. ``model`` and ``vendor_id`` are
    the card's. ``peers`` are the cards of the same server to which the card
    has an NVLink, None if they are unknown. ``cell`` is the guest's NUMA
    node. ``driver_version`` is that of the card's driver on the host, empty
    if unknown.
    """

    profile: str
    address: str
    card: str
    model: str = ""
    vendor_id: str = ""
    numa_node: int | None = None
    cell: int | None = None
    place: host_links.HostPlace = host_links.NOWHERE
    peers: frozenset[str] | None = None
    driver_version: str = ""


def describe(server: str, devices: Sequence[GuestDevice]) -> tuple[str, ...]:
    """Return the description of each device of a server.

    Empty texts if all together would be too long.
    """
    ids = _Ids(server, sorted(devices, key=lambda d: (d.address, d.card)))
    texts = tuple(
        json.dumps(_build(device, devices, ids), separators=(",", ":"))
        for device in devices
    )
    is_short = sum(map(len, texts)) <= MAX_CHARACTERS
    return texts if is_short else ("",) * len(texts)


class _Ids:
    """Ids of the host's objects for one server."""

    def __init__(self, server: str, devices: Iterable[GuestDevice]) -> None:
        self._server = uuid.UUID(server)
        devices = tuple(devices)
        self._numbers = _number(devices)
        self._domains = _find_domains(devices)
        self._shared = _find_shared(devices)

    def node(self, device: GuestDevice) -> str:
        return self._id("node", device.numa_node)

    def root(self, device: GuestDevice) -> str:
        return self._id("bridge", device.place.bridges[0].name)

    def bridges(self, device: GuestDevice) -> list[dict[str, Any]]:
        """Return the bridges that it shares with others, from the root."""
        shared = [
            bridge
            for bridge in device.place.bridges[1:]
            if bridge.name in self._shared
        ]
        return [
            {
                "id": self._id("bridge", bridge.name),
                **dict(_list_link(bridge.link)),
            }
            for bridge in shared[:_MAX_BRIDGES]
        ]

    def domain(self, device: GuestDevice) -> str:
        return self._id("link", self._domains[device.card])

    def _id(self, kind: str, key: Hashable) -> str:
        number = self._numbers.setdefault((kind, key), len(self._numbers))
        return uuid.uuid5(self._server, f"{kind} {number}").hex[:_ID_LENGTH]


def _number(devices: Iterable[GuestDevice]) -> dict[tuple[str, Hashable], int]:
    numbers: dict[tuple[str, Hashable], int] = {}
    for device in devices:
        numbers.setdefault(("node", device.numa_node), len(numbers))
        for bridge in device.place.bridges:
            numbers.setdefault(("bridge", bridge.name), len(numbers))
    return numbers


def _find_shared(devices: Iterable[GuestDevice]) -> frozenset[str]:
    """Return the bridges above two or more cards.

    Of bridges above the same cards only the lowest one is a place that they
    share: the upstream port of a switch, and not the root port above it.
    """
    cards: dict[str, set[str]] = {}
    lower: dict[str, set[str]] = {}
    for device in devices:
        names = [bridge.name for bridge in device.place.bridges[1:]]
        for name, below in itertools.zip_longest(names, names[1:]):
            cards.setdefault(name, set()).add(device.card)
            lower.setdefault(name, set()).add(below or device.card)
    return frozenset(
        name
        for name, below in cards.items()
        if len(below) > 1 and len(lower[name]) > 1
    )


def _find_domains(devices: Sequence[GuestDevice]) -> Mapping[str, str]:
    """Return the first card of those linked directly or by others."""
    domains = {device.card: device.card for device in devices}
    for device in devices:
        for peer in device.peers or ():
            new, old = domains[device.card], domains[peer]
            for card, domain in domains.items():
                if domain == old:
                    domains[card] = new
    return domains


def _build(
    device: GuestDevice, devices: Sequence[GuestDevice], ids: _Ids
) -> Mapping[str, Any]:
    return dict(
        (
            ("version", VERSION),
            ("profile", device.profile[:_MAX_TEXT]),
            *_list_values(device, ids),
            *_list_links(device, devices, ids),
            *_list_versions(device),
        )
    )


def _list_values(device: GuestDevice, ids: _Ids) -> Iterator[tuple[str, Any]]:
    if device.model:
        yield "model", device.model[:_MAX_TEXT]
    if device.place.bridges:
        yield "root", ids.root(device)
        yield "bridges", ids.bridges(device)
    if device.numa_node is not None:
        yield "node", ids.node(device)
    if device.cell is not None:
        yield "cell", device.cell
    yield from _list_link(device.place.link)


def _list_link(link: host_links.Link) -> Iterator[tuple[str, Any]]:
    if link.speed and link.width:
        yield "link_speed", link.speed
        yield "link_width", link.width


def _list_links(
    device: GuestDevice, devices: Sequence[GuestDevice], ids: _Ids
) -> Iterator[tuple[str, Any]]:
    if device.peers is None:
        return
    yield (
        "nvlinks",
        sorted(d.address for d in devices if d.card in device.peers),
    )
    if device.peers:
        yield "link_domain", ids.domain(device)


def _list_versions(device: GuestDevice) -> Iterator[tuple[str, Any]]:
    """Yield what a vGPU of NVIDIA needs in the guest.

    A whole card has the guest's driver alone.
    """
    series = mdev_names.parse_series(device.profile)
    if device.vendor_id != _NVIDIA or not series:
        return
    branch = device.driver_version.partition(".")[0]
    if branch.isdecimal():
        yield "driver_branch", branch
    if series in LICENSES:
        yield "license", LICENSES[series]
