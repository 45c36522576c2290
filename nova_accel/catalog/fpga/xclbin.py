# SPDX-License-Identifier: Apache-2.0
"""Parser of the header of xclbin files, AMD's FPGA containers.

Layout and numbers are those of XRT's ``xclbin.h`` (struct axlf); the
partition metadata is a flattened devicetree (Devicetree Specification 0.4,
chapter 5).
"""

import dataclasses
import itertools
import re
import struct
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.model import names

MAGIC = b"xclbin2\0"
# struct axlf including struct axlf_header: m_length, m_mode,
# m_interface_uuid, m_platformVBNV, uuid and m_numSections.
_HEAD = struct.Struct("<304xQ20xH2x16s64s16s16xI4x")
# struct axlf_section_header: kind, offset and size, without the name.
_SECTION = struct.Struct("<I20xQQ")
# XRT allows 0x10000 (XCLBIN_MAX_NUM_SECTION); its tools write at most a few
# dozen.
_MAX_SECTIONS = 1024
# Real metadata has some kilobytes; the parser visits each node.
_MAX_METADATA = 1 << 20
# enum axlf_section_kind.
BITSTREAM, PARTIAL_PDI, PARTITION_METADATA = 0, 19, 20
# enum XCLBIN_MODE: flat platforms, whose accelerator the driver treats as
# loaded without loading it, and simulators.
_REFUSED = {
    0: "a flat platform",
    4: "hardware emulation",
    5: "software emulation",
    6: "hardware emulation",
}

_PLATFORM = re.compile(r"[A-Za-z0-9_.:-]*")

_FDT_MAGIC = 0xD00DFEED
# Magic, size, and offsets of structure and strings.
_FDT_HEAD = struct.Struct(">4I24x")
_CELL = struct.Struct(">I")
_PROPERTY = struct.Struct(">II")
_BEGIN, _END_NODE, _PROP, _NOP, _END = 1, 2, 3, 4, 9
_INTERFACES = b"interfaces"
_INTERFACE = b"interface_uuid"
_MAX_DEPTH = 64
# Names of nodes and properties; the specification allows 31 bytes.
_MAX_NAME = 255
_ID = re.compile(r"[0-9a-f]{32}")
_KIND = "xclbin"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class XclbinHeader:
    """Facts of an xclbin's header.

    ``uuid`` is the id that a card shows after loading it, ``interfaces``
    are the ids that a card must have, all of them; both as
    ``names.normalize_fpga_id`` spells them. ``platform`` is the name of its
    shell, which identifies shells without interfaces. ``length`` is its
    size in bytes.
    """

    uuid: str
    platform: str
    interfaces: tuple[str, ...]
    length: int

    @property
    def fits(self) -> tuple[str, ...]:
        """Return the required interfaces, or the shell's name without any."""
        if self.interfaces or not self.platform:
            return self.interfaces
        return (names.normalize_fpga_id(self.platform),)


def shell_name(text: str) -> str:
    """Return a shell's name in the kernel's spelling.

    Older tools wrote ``xilinx:u250:xdma:201830.1`` (XRT, feature_rom.c).
    """
    return text.strip().replace(":", "_").replace(".", "_")


def parse(content: bytes) -> XclbinHeader:
    """Return the header of an xclbin.

    Data after its own length (a signature) is ignored. The content is not
    copied, whatever its header contains.

    :raises MalformedError: the content is not a whole xclbin that a card
        can load.
    """
    if content[: len(MAGIC)] != MAGIC:
        raise _malformed("the magic xclbin2 at its beginning")
    if len(content) < _HEAD.size:
        raise _malformed(f"at least {_HEAD.size} bytes, got {len(content)}")
    length, mode, interface, platform, uuid, count = _HEAD.unpack_from(content)
    if not _HEAD.size <= length <= len(content):
        raise _malformed(f"{length} bytes as it says, got {len(content)}")
    sections = _read_sections(memoryview(content)[:length], count)
    if mode in _REFUSED:
        raise _malformed(f"one for cards, got one for {_REFUSED[mode]}")
    if not any(uuid):
        raise _malformed("a uuid that is not zero")
    if not sections.keys() & {BITSTREAM, PARTIAL_PDI}:
        # The driver would treat it as loaded, and load nothing.
        raise _malformed("a section with a bitstream")
    metadata = sections.get(PARTITION_METADATA)
    if metadata is not None and len(metadata) > _MAX_METADATA:
        raise _malformed(
            f"partition metadata of at most {_MAX_METADATA} bytes"
        )
    interfaces = () if metadata is None else _read_interfaces(bytes(metadata))
    if not interfaces and any(interface):
        interfaces = (interface.hex(),)
    return XclbinHeader(
        uuid=uuid.hex(),
        platform=_parse_platform(platform),
        interfaces=interfaces,
        length=length,
    )


def _malformed(expected: str) -> errors.MalformedError:
    return errors.MalformedError(_KIND, "the file", expected)


def _parse_platform(field: bytes) -> str:
    # It is printed as part of a shell command.
    name = field.partition(b"\0")[0].decode("ascii", "replace")
    if not _PLATFORM.fullmatch(name):
        raise _malformed("a platform's name of letters, digits and _ . : -")
    return shell_name(name)


def _read_sections(content: memoryview, count: int) -> dict[int, memoryview]:
    """Return the first section of each kind.

    :raises MalformedError: there are too many sections, a section is not
        inside the file, or two sections overlap.
    """
    if count > _MAX_SECTIONS:
        raise _malformed(f"at most {_MAX_SECTIONS} sections, got {count}")
    end = _HEAD.size + count * _SECTION.size
    if end > len(content):
        raise _malformed(f"a table of {count} sections, which has no room")
    sections: dict[int, memoryview] = {}
    spans: list[tuple[int, int]] = []
    for number in range(count):
        kind, start, size = _SECTION.unpack_from(
            content, _HEAD.size + number * _SECTION.size
        )
        if not start and not size:
            continue  # an absent section
        if start < end or start + size > len(content):
            raise _malformed(
                f"section {number} inside it, got {size} at {start}"
            )
        sections.setdefault(kind, content[start : start + size])
        if size:
            spans.append((start, size))
    spans.sort()
    for (start, size), (following, _) in itertools.pairwise(spans):
        if start + size > following:
            raise _malformed(
                f"sections that do not overlap, got {size} bytes at {start}"
                f" and the next one at {following}"
            )
    return sections


# -- the flattened devicetree ---------------------------------------------


def _read_interfaces(blob: bytes) -> tuple[str, ...]:
    """Return the interface UUIDs of partition metadata, in its order.

    They are texts of 32 digits in ``/interfaces/*/interface_uuid`` (XRT,
    xocl_fdt_check_uuids).

    :raises MalformedError: the blob is not a devicetree, or an id is not a
        UUID.
    """
    interfaces: dict[str, None] = {}
    for path, name, value in _properties(blob):
        if path[1:-1] != [_INTERFACES] or name != _INTERFACE:
            continue
        text = value.partition(b"\0")[0].decode("ascii", "replace")
        interface = names.normalize_fpga_id(text)
        if not _ID.fullmatch(interface):
            raise _malformed_tree(f"an interface uuid, got {text[:40]!r}")
        interfaces[interface] = None
    return tuple(interfaces)


def _properties(blob: bytes) -> Iterator[tuple[list[bytes], bytes, bytes]]:
    """Yield each property: names of its nodes, its name, its value.

    The first node is the root, with an empty name.
    """
    position, strings = _parse_header(blob)
    path: list[bytes] = []
    while (token := _unpack(_CELL, blob, position)[0]) != _END:
        position += _CELL.size
        if token == _BEGIN:
            name = _read_name(blob, position)
            path.append(name)
            position = _align(position + len(name) + 1)
        elif token == _END_NODE:
            del path[-1:]
        elif token == _PROP:
            size, name_offset = _unpack(_PROPERTY, blob, position)
            position += _PROPERTY.size
            if position + size > len(blob):
                raise _malformed_tree("a property inside it")
            yield (
                path,
                _read_name(blob, strings + name_offset),
                blob[position : position + size],
            )
            position = _align(position + size)
        elif token != _NOP:
            raise _malformed_tree(
                f"a token at {position - _CELL.size}, got {token}"
            )
        if len(path) > _MAX_DEPTH:
            raise _malformed_tree(
                f"at most {_MAX_DEPTH} nodes inside each other"
            )


def _parse_header(blob: bytes) -> tuple[int, int]:
    """Return the offsets of a tree's structure and of its strings."""
    if len(blob) < _FDT_HEAD.size:
        raise _malformed_tree("a header")
    magic, total, structure, strings = _FDT_HEAD.unpack_from(blob)
    if magic != _FDT_MAGIC or total > len(blob):
        raise _malformed_tree("the magic d00dfeed, and all of it")
    return structure, strings


def _unpack(
    layout: struct.Struct, blob: bytes, position: int
) -> tuple[int, ...]:
    if position + layout.size > len(blob):
        raise _malformed_tree("an end")
    return layout.unpack_from(blob, position)


def _read_name(blob: bytes, position: int) -> bytes:
    end = blob.find(b"\0", position, position + _MAX_NAME + 1)
    if end < 0:
        raise _malformed_tree(
            f"names with an end, of at most {_MAX_NAME} bytes"
        )
    return blob[position:end]


def _align(position: int) -> int:
    return (position + 3) & ~3


def _malformed_tree(expected: str) -> errors.MalformedError:
    return _malformed(f"partition metadata with {expected}")
