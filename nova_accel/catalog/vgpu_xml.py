# SPDX-License-Identifier: Apache-2.0
"""Parser of vgpuConfig.xml, NVIDIA's table of vGPU types.

The file lists all types of a driver release by the number that the kernel
shows, and for each card the maximal number of vGPUs of a type. Numbers are
decimal in it, sizes are hexadecimal bytes; the parser reads both spellings.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

from nova_accel import errors
from nova_accel.catalog import mdev_names
from nova_accel.model import pci

_MEBIBYTE = 1024 * 1024
# Of 64 bits; int() and str() raise ValueError beyond 4300 digits.
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|\d{1,20}", re.ASCII)
_KIND = "table of vGPU types"
# Board id of a card's entry for all boards with its chip.
_ANY_BOARD = 0

# Maximal number of vGPUs by type number, by device and board id.
_Limits = Mapping[tuple[int, int], Mapping[str, int]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VgpuConfig:
    """Types by their decimal number; by default none.

    ``names`` are without brand, ``sizes`` the whole framebuffer in MiB.
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    limits: _Limits = dataclasses.field(default_factory=dict)

    def facts(
        self, number: str | None, function: pci.PciFunction
    ) -> mdev_names.TypeDescription:
        """Return the description of a type on a card."""
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

    def find_mismatch(self, driver_names: Mapping[str, str]) -> str:
        """Return how the table and the loaded driver differ, or "".

        :param driver_names: names without brand, by number.
        """
        return next(
            (
                f"calls type {number} {self.names[number]!r}, which the"
                f" loaded driver calls {name!r}"
                for number, name in driver_names.items()
                if self.names.get(number, name) != name
            ),
            "",
        )


def parse(text: str) -> VgpuConfig:
    """Return the table in the text of a file.

    :raises MalformedError: the text is not such a table, or declares
        entities, which a table never has and which can expand without end.
    """
    if "<!ENTITY" in text:
        raise errors.MalformedError(_KIND, "<!ENTITY", "no entities")
    try:
        # The text declares no entities, and the parser fetches no others.
        root = ElementTree.fromstring(text)  # noqa: S314
    except ElementTree.ParseError as error:
        raise errors.MalformedError(_KIND, text[:40], f"XML: {error}") from (
            error
        )
    kinds = dict(_parse_types(root))
    if not kinds:
        raise errors.MalformedError(_KIND, text[:40], "elements vgpuType")
    sizes = {
        number: size // _MEBIBYTE
        for number, kind in kinds.items()
        if (size := _parse_number(kind.findtext("profileSize")))
    }
    return VgpuConfig(
        names={
            number: mdev_names.strip_brand(kind.get("name", ""))
            for number, kind in kinds.items()
        },
        sizes=sizes,
        limits=_parse_limits(root),
    )


def _parse_types(
    root: ElementTree.Element,
) -> Iterator[tuple[str, ElementTree.Element]]:
    numbers = set()
    for kind in root.iter("vgpuType"):
        number = _parse_number(kind.get("id"))
        if number is None or not kind.get("name", "").strip():
            raise errors.MalformedError(
                f"vGPU type in a {_KIND}",
                " ".join(kind.attrib.values())[:40],
                "a number and a name",
            )
        if number in numbers:
            raise errors.MalformedError(
                _KIND, f"type {number} twice", "each number once"
            )
        numbers.add(number)
        yield str(number), kind


def _parse_limits(root: ElementTree.Element) -> _Limits:
    """Return the limits of all cards; malformed entries are ignored."""
    by_card: dict[tuple[int, int], dict[str, int]] = {}
    for card in root.iter("pgpu"):
        ids = card.find("devId")
        device = None if ids is None else _parse_number(ids.get("deviceId"))
        if ids is None or device is None:
            continue
        board = _parse_number(ids.get("subsystemId")) or _ANY_BOARD
        limits = by_card.setdefault((device, board), {})
        for kind in card.iter("supportedVgpu"):
            number = _parse_number(kind.get("vgpuId"))
            limit = _parse_number(kind.findtext("maxVgpus"))
            if number is not None and limit:
                limits[str(number)] = limit
    return by_card


def _parse_number(text: str | None) -> int | None:
    """Return a number in either spelling, None for other texts."""
    text = (text or "").strip()
    if not _NUMBER.fullmatch(text):
        return None
    return int(text, 16 if text[:2].lower() == "0x" else 10)
