# SPDX-License-Identifier: Apache-2.0
"""Parser of the header of Intel's green bitstream files.

A file is sixteen bytes of magic, the length of the metadata (32 bits,
little endian), the metadata (JSON), and behind it what the FPGA takes
(OPAE, "packager" and libopae's metadata parser).
"""

import dataclasses
import re
import struct
from collections.abc import Mapping
from typing import Any

from nova_accel import errors
from nova_accel.model import names, strict_json

# OPAE, METADATA_GUID: 58656F6E-4650-4741-B747-425376303031.
MAGIC = b"XeonFPGA\xb7GBSv001"
_LENGTH = struct.Struct("<I")
_START = len(MAGIC) + _LENGTH.size
# Real metadata has less than 1 KiB. Decoded JSON takes up to 25 times as
# much memory as its text.
_MOST_METADATA = 1 << 14
_PLAIN_ID = re.compile(r"[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GbsHeader:
    """What a file says of itself.

    ``functions`` are the ids of the functions it holds and ``interface``
    what it is made for, as ``names.fpga_id`` spells them. ``offset`` is
    where in the file that begins which the FPGA takes.
    """

    functions: tuple[str, ...]
    interface: str
    offset: int


def is_gbs(content: bytes) -> bool:
    """Return whether a file, or its first bytes, is of this kind."""
    return content[: len(MAGIC)] == MAGIC


def parse(content: bytes) -> GbsHeader:
    """Return what the header of a whole file says.

    :raises MalformedError: it is no such file, or damaged, or cut off.
    """
    offset = payload_offset(content)
    metadata = _metadata(content[_START:offset])
    image = _mapping(metadata.get("afu-image"), "an object afu-image")
    clusters = image.get("accelerator-clusters")
    if not isinstance(clusters, list) or not clusters:
        raise _bad("a list accelerator-clusters in its metadata", clusters)
    return GbsHeader(
        functions=tuple(
            _id(_mapping(one, "objects"), "accelerator-type-uuid")
            for one in clusters
        ),
        interface=_id(image, "interface-uuid"),
        offset=offset,
    )


def payload_offset(content: bytes) -> int:
    """Return where in a file that begins which the FPGA takes.

    :raises MalformedError: it is no such file, or cut off before that.
    """
    if not is_gbs(content):
        raise _bad("the magic XeonFPGA GBSv001 first", content[:16])
    if len(content) < _START:
        raise _bad("a whole header; it is cut off", len(content))
    (length,) = _LENGTH.unpack_from(content, len(MAGIC))
    if length > _MOST_METADATA:
        raise _bad(f"at most {_MOST_METADATA} bytes of metadata", length)
    if len(content) <= _START + length:
        raise _bad(
            f"more than {_START + length} bytes, as its header says; it is"
            " cut off",
            len(content),
        )
    return _START + int(length)


def _metadata(text: bytes) -> Mapping[str, Any]:
    try:
        # Some packagers count the zero behind the text.
        found = strict_json.loads(text.rstrip(b"\0").decode())
    except ValueError as error:
        raise _bad("metadata in JSON", text[:40]) from error
    return _mapping(found, "an object as metadata")


def _mapping(value: object, expected: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _bad(expected, value)
    return value


def _id(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    found = names.fpga_id(value) if isinstance(value, str) else ""
    if not _PLAIN_ID.fullmatch(found):
        raise _bad(f"a UUID as {key} in its metadata", value)
    return found


def _bad(expected: str, found: object) -> errors.MalformedError:
    return errors.MalformedError("green bitstream", str(found)[:80], expected)
