# SPDX-License-Identifier: Apache-2.0
"""Parser of the header of xclbin files, AMD's FPGA containers.

Use::

    from nova_accel.fpga import xclbin

    header = xclbin.parse(content)
    header.uuid, header.interfaces

Layout and numbers are those of XRT's ``xclbin.h`` (struct axlf); the tree
in its partition metadata is a flattened devicetree (Devicetree
Specification 0.4, chapter 5).
"""

import dataclasses
import itertools
import re
import struct
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.model import names

MAGIC = b"xclbin2\0"
# struct axlf up to and with struct axlf_header: m_length, m_mode,
# m_interface_uuid, m_platformVBNV, uuid and m_numSections.
_HEAD = struct.Struct("<304xQ20xH2x16s64s16s16xI4x")
# struct axlf_section_header: kind, offset and size; a name between.
_SECTION = struct.Struct("<I20xQQ")
# XRT itself allows 0x10000 (XCLBIN_MAX_NUM_SECTION); its tools write at
# most a few dozen.
_MAX_SECTIONS = 1024
# A device tree of some kilobytes; each of its nodes is looked at.
_MOST_METADATA = 1 << 20
# enum axlf_section_kind.
BITSTREAM, PARTIAL_PDI, PARTITION_METADATA = 0, 19, 20
# enum XCLBIN_MODE: of a flat platform, whose accelerator the driver takes
# for loaded without loading it, and of simulators.
_REFUSED = {
    0: "a flat platform",
    4: "hardware emulation",
    5: "software emulation",
    6: "hardware emulation",
}

_PLATFORM = re.compile(r"[A-Za-z0-9_.:-]*")

_FDT_MAGIC = 0xD00DFEED
# Magic, size, and where structure and strings begin.
_FDT_HEAD = struct.Struct(">4I24x")
_CELL = struct.Struct(">I")
_PROPERTY = struct.Struct(">II")
_BEGIN, _END_NODE, _PROP, _NOP, _END = 1, 2, 3, 4, 9
_INTERFACES = b"interfaces"
_INTERFACE = b"interface_uuid"
_DEEPEST = 64
# Names of nodes and properties; the specification allows 31 bytes.
_MAX_NAME = 255
_ID = re.compile(r"[0-9a-f]{32}")
_WHAT = "xclbin"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class XclbinHeader:
    """What an xclbin says of itself.

    ``uuid`` is what a card shows that it was loaded into, ``interfaces``
    are those of which a card must have every one; both as
    ``names.fpga_id`` spells them. ``platform`` is the name of the shell it
    was made for; shells without interfaces are told by it. ``length`` is
    its size in bytes.
    """

    uuid: str
    platform: str
    interfaces: tuple[str, ...]
    length: int

    @property
    def fits(self) -> tuple[str, ...]:
        """Return what a card must have: interfaces, or its shell's name."""
        name = (names.fpga_id(self.platform),) if self.platform else ()
        return self.interfaces or name


def shell_name(text: str) -> str:
    """Return a shell's name as the kernel spells it.

    Older tools wrote ``xilinx:u250:xdma:201830.1`` (XRT, feature_rom.c).
    """
    return text.strip().replace(":", "_").replace(".", "_")


def parse(content: bytes) -> XclbinHeader:
    """Return what an xclbin says of itself.

    What follows its own length (a signature) is not looked at. The
    content is not copied, whatever its header says.

    :raises MalformedError: this is no whole xclbin that can be loaded
        into a card.
    """
    if content[: len(MAGIC)] != MAGIC:
        raise _wrong("the magic xclbin2 at its beginning")
    if len(content) < _HEAD.size:
        raise _wrong(f"at least {_HEAD.size} bytes, got {len(content)}")
    length, mode, interface, platform, uuid, count = _HEAD.unpack_from(content)
    if not _HEAD.size <= length <= len(content):
        raise _wrong(f"{length} bytes as it says, got {len(content)}")
    sections = _read_sections(memoryview(content)[:length], count)
    if mode in _REFUSED:
        raise _wrong(f"one for cards, got one for {_REFUSED[mode]}")
    if not any(uuid):
        raise _wrong("a uuid that is not zero")
    if not sections.keys() & {BITSTREAM, PARTIAL_PDI}:
        # The driver would take it for loaded, and load nothing.
        raise _wrong("a section with a bitstream")
    metadata = sections.get(PARTITION_METADATA)
    if metadata is not None and len(metadata) > _MOST_METADATA:
        raise _wrong(f"partition metadata of at most {_MOST_METADATA} bytes")
    interfaces = () if metadata is None else _read_interfaces(bytes(metadata))
    if not interfaces and any(interface):
        interfaces = (interface.hex(),)
    return XclbinHeader(
        uuid=uuid.hex(),
        platform=_platform(platform),
        interfaces=interfaces,
        length=length,
    )


def _wrong(expected: str) -> errors.MalformedError:
    return errors.MalformedError(_WHAT, "the file", expected)


def _platform(field: bytes) -> str:
    # It is printed, in a command that can be pasted, too.
    name = field.partition(b"\0")[0].decode("ascii", "replace")
    if not _PLATFORM.fullmatch(name):
        raise _wrong("a platform's name of letters, digits and _ . : -")
    return shell_name(name)


def _read_sections(content: memoryview, count: int) -> dict[int, memoryview]:
    """Return sections by their kind; of several the first one counts.

    :raises MalformedError: there are too many sections, one of them is
        not inside the file, or two of them overlap.
    """
    if count > _MAX_SECTIONS:
        raise _wrong(f"at most {_MAX_SECTIONS} sections, got {count}")
    end = _HEAD.size + count * _SECTION.size
    if end > len(content):
        raise _wrong(f"a table of {count} sections, which has no room")
    sections: dict[int, memoryview] = {}
    spans: list[tuple[int, int]] = []
    for number in range(count):
        kind, start, size = _SECTION.unpack_from(
            content, _HEAD.size + number * _SECTION.size
        )
        if not start and not size:
            continue  # is not present
        if start < end or start + size > len(content):
            raise _wrong(f"section {number} inside it, got {size} at {start}")
        sections.setdefault(kind, content[start : start + size])
        if size:
            spans.append((start, size))
    spans.sort()
    for (start, size), (following, _) in itertools.pairwise(spans):
        if start + size > following:
            raise _wrong(
                f"sections that do not overlap, got {size} bytes at {start}"
                f" and the next one at {following}"
            )
    return sections


# -- the flattened devicetree ---------------------------------------------


def _read_interfaces(blob: bytes) -> tuple[str, ...]:
    """Return the interface uuids of partition metadata, in its order.

    They are texts of 32 digits in ``/interfaces/*/interface_uuid`` (XRT,
    xocl_fdt_check_uuids).

    :raises MalformedError: it is no devicetree, or an id is none.
    """
    found: dict[str, None] = {}
    for path, name, value in _properties(blob):
        if path[1:-1] != [_INTERFACES] or name != _INTERFACE:
            continue
        text = value.partition(b"\0")[0].decode("ascii", "replace")
        spelled = names.fpga_id(text)
        if not _ID.fullmatch(spelled):
            raise _tree(f"an interface uuid, got {text[:40]!r}")
        found[spelled] = None
    return tuple(found)


def _properties(blob: bytes) -> Iterator[tuple[list[bytes], bytes, bytes]]:
    """Yield each property: the names of its nodes, its own, its value.

    The root's name is the first one, and empty.
    """
    place, strings = _opened(blob)
    path: list[bytes] = []
    while (token := _unpacked(_CELL, blob, place)[0]) != _END:
        place += _CELL.size
        if token == _BEGIN:
            name = _text(blob, place)
            path.append(name)
            place = _aligned(place + len(name) + 1)
        elif token == _END_NODE:
            del path[-1:]
        elif token == _PROP:
            size, offset = _unpacked(_PROPERTY, blob, place)
            place += _PROPERTY.size
            if place + size > len(blob):
                raise _tree("a property inside it")
            yield (
                path,
                _text(blob, strings + offset),
                blob[place : place + size],
            )
            place = _aligned(place + size)
        elif token != _NOP:
            raise _tree(f"a token at {place - _CELL.size}, got {token}")
        if len(path) > _DEEPEST:
            raise _tree(f"at most {_DEEPEST} nodes inside each other")


def _opened(blob: bytes) -> tuple[int, int]:
    """Return where a tree's structure and its strings begin."""
    if len(blob) < _FDT_HEAD.size:
        raise _tree("a header")
    magic, total, structure, strings = _FDT_HEAD.unpack_from(blob)
    if magic != _FDT_MAGIC or total > len(blob):
        raise _tree("the magic d00dfeed, and all of it")
    return structure, strings


def _unpacked(form: struct.Struct, blob: bytes, place: int) -> tuple[int, ...]:
    if place + form.size > len(blob):
        raise _tree("an end")
    return form.unpack_from(blob, place)


def _text(blob: bytes, place: int) -> bytes:
    end = blob.find(b"\0", place, place + _MAX_NAME + 1)
    if end < 0:
        raise _tree(f"names with an end, of at most {_MAX_NAME} bytes")
    return blob[place:end]


def _aligned(place: int) -> int:
    return (place + 3) & ~3


def _tree(expected: str) -> errors.MalformedError:
    return _wrong(f"partition metadata with {expected}")
