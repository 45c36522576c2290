# SPDX-License-Identifier: Apache-2.0
"""Parser of the header of Intel's green bitstream files.

A file has sixteen bytes of magic, the length of the metadata (32 bits,
little endian), the metadata (JSON), and the payload for the FPGA (OPAE,
"packager" and libopae's metadata parser).
"""

import dataclasses
import re
import struct
from collections.abc import Mapping
from typing import Any

from nova_accel import errors
from nova_accel.model import json_codec, names

# OPAE, METADATA_GUID: 58656F6E-4650-4741-B747-425376303031.
MAGIC = b"XeonFPGA\xb7GBSv001"
_LENGTH = struct.Struct("<I")
_START = len(MAGIC) + _LENGTH.size
# Real metadata has less than 1 KiB. Decoded JSON needs up to 25 times the
# memory of its text.
_MAX_METADATA = 1 << 14
_PLAIN_ID = re.compile(r"[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GbsHeader:
    """Facts of a file's header.

    ``functions`` are the ids of its functions and ``interface`` that of the
    required interface, as ``names.normalize_fpga_id`` spells them.
    ``offset`` is the offset of the payload in the file.
    """

    functions: tuple[str, ...]
    interface: str
    offset: int


def is_gbs(content: bytes) -> bool:
    """Return whether a file has the magic, by its first bytes."""
    return content[: len(MAGIC)] == MAGIC


def parse(content: bytes) -> GbsHeader:
    """Return the header of a whole file.

    :raises MalformedError: the file is of another kind, damaged, or
        truncated.
    """
    offset = payload_offset(content)
    metadata = _parse_metadata(content[_START:offset])
    image = _check_object(metadata.get("afu-image"), "an object afu-image")
    clusters = image.get("accelerator-clusters")
    if not isinstance(clusters, list) or not clusters:
        raise _malformed(
            "a list accelerator-clusters in its metadata", clusters
        )
    return GbsHeader(
        functions=tuple(
            _parse_id(
                _check_object(cluster, "objects"), "accelerator-type-uuid"
            )
            for cluster in clusters
        ),
        interface=_parse_id(image, "interface-uuid"),
        offset=offset,
    )


def payload_offset(content: bytes) -> int:
    """Return the offset of the payload in a file, in bytes.

    :raises MalformedError: the file is of another kind, or is truncated
        before the payload.
    """
    if not is_gbs(content):
        raise _malformed("the magic XeonFPGA GBSv001 first", content[:16])
    if len(content) < _START:
        raise _malformed("a whole header; it is cut off", len(content))
    (length,) = _LENGTH.unpack_from(content, len(MAGIC))
    if length > _MAX_METADATA:
        raise _malformed(f"at most {_MAX_METADATA} bytes of metadata", length)
    if len(content) <= _START + length:
        raise _malformed(
            f"more than {_START + length} bytes, as its header says; it is"
            " cut off",
            len(content),
        )
    return _START + int(length)


def _parse_metadata(text: bytes) -> Mapping[str, Any]:
    try:
        # Some packagers include the terminating zero.
        metadata = json_codec.loads(text.rstrip(b"\0").decode())
    except ValueError as error:
        raise _malformed("metadata in JSON", text[:40]) from error
    return _check_object(metadata, "an object as metadata")


def _check_object(value: object, expected: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(expected, value)
    return value


def _parse_id(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    fpga_id = names.normalize_fpga_id(value) if isinstance(value, str) else ""
    if not _PLAIN_ID.fullmatch(fpga_id):
        raise _malformed(f"a UUID as {key} in its metadata", value)
    return fpga_id


def _malformed(expected: str, value: object) -> errors.MalformedError:
    return errors.MalformedError("green bitstream", str(value)[:80], expected)
