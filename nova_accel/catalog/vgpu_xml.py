# SPDX-License-Identifier: Apache-2.0
"""Parser of vgpuConfig.xml, NVIDIA's table of vGPU types.

``vgpuConfig.xml`` lists every type the release knows, by the number that
the kernel shows, and for each card how many of a type it takes. Numbers
are decimal there, sizes hexadecimal bytes; both spellings are read.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

from nova_accel import errors
from nova_accel.catalog import mdev_names
from nova_accel.model import pci

_MEBIBYTE = 1024 * 1024
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|\d+", re.ASCII)
_WHAT = "table of vGPU types"
# A card's entry that speaks for every board with its chip.
_ANY_BOARD = 0

# How many of each type, by number, a card takes: by device and board.
_Limits = Mapping[tuple[int, int], Mapping[str, int]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VgpuConfig:
    """Types by their decimal number; the default knows none.

    ``names`` are without brand, ``sizes`` the whole framebuffer in MiB.
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    limits: _Limits = dataclasses.field(default_factory=dict)

    def facts(
        self, number: str | None, function: pci.PciFunction
    ) -> mdev_names.TypeDescription:
        """Return what the table says of a type on a card."""
        if number is None:
            return mdev_names.TypeDescription()
        device = int(function.product, 16)
        board = int(function.subsystem_product or "0", 16)
        limits = self.limits.get((device, board)) or self.limits.get(
            (device, _ANY_BOARD), {}
        )
        return mdev_names.TypeDescription(
            memory_mb=self.sizes.get(number),
            max_instances=limits.get(number),
        )

    def objection(self, told: Mapping[str, str]) -> str:
        """Return where the table and a driver's own words differ, or "".

        :param told: names without brand, by number.
        """
        return next(
            (
                f"calls type {number} {self.names[number]!r}, which the"
                f" loaded driver calls {name!r}"
                for number, name in told.items()
                if self.names.get(number, name) != name
            ),
            "",
        )


def parse(text: str) -> VgpuConfig:
    """Return the table in a file's text.

    :raises MalformedError: it is no such table, or declares entities,
        which it never needs and which could make it grow without end.
    """
    if "<!ENTITY" in text:
        raise errors.MalformedError(_WHAT, "<!ENTITY", "no entities")
    try:
        # No entity can be declared, and what lies outside is not fetched.
        root = ElementTree.fromstring(text)  # noqa: S314
    except ElementTree.ParseError as error:
        raise errors.MalformedError(_WHAT, text[:40], f"XML: {error}") from (
            error
        )
    kinds = dict(_types(root))
    if not kinds:
        raise errors.MalformedError(_WHAT, text[:40], "elements vgpuType")
    sizes = {
        number: size // _MEBIBYTE
        for number, kind in kinds.items()
        if (size := _number(kind.findtext("profileSize")))
    }
    return VgpuConfig(
        names={
            number: mdev_names.strip_brand(kind.get("name", ""))
            for number, kind in kinds.items()
        },
        sizes=sizes,
        limits=_limits(root),
    )


def _types(
    root: ElementTree.Element,
) -> Iterator[tuple[str, ElementTree.Element]]:
    seen = set()
    for kind in root.iter("vgpuType"):
        number = _number(kind.get("id"))
        if number is None or not kind.get("name", "").strip():
            raise errors.MalformedError(
                f"vGPU type in a {_WHAT}",
                " ".join(kind.attrib.values())[:40],
                "a number and a name",
            )
        if number in seen:
            raise errors.MalformedError(
                _WHAT, f"type {number} twice", "each number once"
            )
        seen.add(number)
        yield str(number), kind


def _limits(root: ElementTree.Element) -> _Limits:
    """Return how many of each type each card takes, as far as legible."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    for card in root.iter("pgpu"):
        ids = card.find("devId")
        device = None if ids is None else _number(ids.get("deviceId"))
        if ids is None or device is None:
            continue
        board = _number(ids.get("subsystemId")) or _ANY_BOARD
        limits = found.setdefault((device, board), {})
        for kind in card.iter("supportedVgpu"):
            number = _number(kind.get("vgpuId"))
            most = _number(kind.findtext("maxVgpus"))
            if number is not None and most:
                limits[str(number)] = most
    return found


def _number(text: str | None) -> int | None:
    """Return a number in either spelling, None for anything else."""
    word = (text or "").strip()
    if not _NUMBER.fullmatch(word):
        return None
    return int(word, 16 if word[:2].lower() == "0x" else 10)
