# SPDX-License-Identifier: Apache-2.0
"""PCIe links of the cards of this host."""

import dataclasses
import itertools
import posixpath

from nova_accel import errors
from nova_accel.geometry import topology
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci

# Documentation/ABI/testing: sysfs-bus-pci. The kernel prints "Unknown" or 0
# for a function without a link, or with one that it does not know.
_SPEED, _WIDTH = "max_link_speed", "max_link_width"
# Lanes of a link (PCIe 6.0, 7.5.3.6): 1 to 16, and 32 of older versions.
_MAX_WIDTH = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Link between a function and the port above it.

    ``speed`` is that of the slower end, as the kernel prints it
    (``16.0 GT/s PCIe``), empty if unknown; ``width`` is the number of lanes
    that both ends have, 0 if unknown. Both are the best that the ends can
    have: an idle card may use less.
    """

    speed: str = ""
    width: int = 0


UNKNOWN = Link()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """Root complex or bridge above a card, and its link to the one above."""

    name: str
    link: Link = UNKNOWN


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostPlace:
    """Place of a card on the PCIe of its host, and its link.

    ``bridges`` are named as ``topology.parse_bridges`` does, empty if
    unknown.
    """

    bridges: tuple[Bridge, ...] = ()
    link: Link = UNKNOWN


NOWHERE = HostPlace()


def read(reader: host_reader.HostReader, card: str) -> HostPlace:
    """Return the place of a card; of a VF, that of its PF."""
    if not pci.is_address(card):
        return NOWHERE
    path = _resolve(reader, f"{host_reader.FUNCTIONS}/{card}")
    # Only VFs have this link to another function, and no link of PCIe.
    path = _resolve(reader, f"{path}/physfn") or path
    names = topology.parse_bridges(path)
    paths = [path]
    for _ in names[1:]:
        paths.append(posixpath.dirname(paths[-1]))
    links = [_read_link(reader, *ends) for ends in itertools.pairwise(paths)]
    # A root complex has no link, and that of a root port is below it.
    above = (UNKNOWN, UNKNOWN, *reversed(links[1:]))
    return HostPlace(
        bridges=tuple(
            Bridge(name=name, link=link)
            for name, link in zip(names, above, strict=False)
        ),
        link=links[0] if links else _read_link(reader, path),
    )


def _read_link(reader: host_reader.HostReader, *ends: str) -> Link:
    """Return the link between functions."""
    speeds = [_read(reader, f"{end}/{_SPEED}") for end in ends]
    widths = [_read(reader, f"{end}/{_WIDTH}") for end in ends]
    return Link(speed=_slowest(speeds), width=_narrowest(widths))


def _resolve(reader: host_reader.HostReader, path: str) -> str:
    try:
        return reader.files.resolve(path)
    except errors.UnreadableError:
        return ""


def _read(reader: host_reader.HostReader, path: str) -> str:
    try:
        return reader.files.text(path).strip()
    except errors.UnreadableError:
        return ""


def _slowest(speeds: list[str]) -> str:
    """Return the lowest speed, empty if one is unknown."""
    rates = [_parse_rate(speed) for speed in speeds]
    return speeds[rates.index(min(rates))] if all(rates) else ""


def _parse_rate(speed: str) -> float:
    """Return the GT/s of a speed, 0 if it is unknown."""
    number, _, unit = speed.partition(" ")
    is_rate = unit.startswith("GT/s") and len(speed) <= len("128.0 GT/s PCIe")
    is_number = number.replace(".", "", 1).isdecimal()
    return float(number) if is_rate and is_number else 0.0


def _narrowest(widths: list[str]) -> int:
    """Return the lowest width, 0 if one is unknown."""
    numbers = [int(width) if width.isdecimal() else 0 for width in widths]
    return min(numbers) if max(numbers) <= _MAX_WIDTH else 0
