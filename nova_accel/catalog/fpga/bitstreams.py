# SPDX-License-Identifier: Apache-2.0
"""Checks of bitstreams: Glance image properties and file contents.

An image must be allowed by the operator, have the properties below, and its
content must agree with them.
"""

import dataclasses
import hashlib
import re
from collections.abc import Collection, Mapping

from nova_accel import errors, model
from nova_accel.catalog.fpga import gbs, xclbin
from nova_accel.model import names

FUNCTION = names.FUNCTION_PROPERTY
INTERFACE = "accelerator_interface_id"
VENDOR = "accelerator_vendor"
SHA512 = "accelerator_sha512"
# Glance's own properties of an image signature (its documentation,
# "Image Signature Verification").
SIGNATURE = (
    "img_signature",
    "img_signature_hash_method",
    "img_signature_key_type",
    "img_signature_certificate_uuid",
)
# Bytes that are needed to recognize a file with a header.
HEAD_SIZE = len(gbs.MAGIC)

_GLANCE_HASH = "sha512"
_INTEL = "intel"
_XILINX = "xilinx"
_DIGEST = re.compile(r"[0-9a-f]{128}")
_VENDOR_ID = re.compile(r"(?:0x)?([0-9a-f]{4})")
_VENDOR_NAME = re.compile(r"[a-z][a-z0-9_-]{1,63}")
# Maximal number of ids in a message.
_MAX_LISTED = 4
_PLAIN_ID = re.compile(r"[0-9a-f]{32}")
# The name of a shell, as in a file rom/VBNV. It is short enough for a trait,
# and has a character that is not in a UUID: a UUID with a missing digit is
# not a name.
_SHELL = re.compile(r"(?=.*[g-z_])[a-z0-9][a-z0-9_.:-]{0,199}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """Facts of an image from Glance.

    ``owner`` is the id of a project, ``size`` in bytes (0 where unknown),
    ``hash_algo`` and ``hash_value`` are Glance's digest of the content.
    ``signature`` is the image signature that Nova verifies, empty where it
    verifies none.
    """

    id: str
    owner: str
    size: int
    status: str
    hash_algo: str
    hash_value: str
    properties: Mapping[str, str]
    signature: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequirement:
    """Required content of an image; the fields are those of Bitstream."""

    function: str
    interface: str
    vendor: str
    sha512: str
    size: int


def check_allowed(
    facts: ImageFacts, images: Collection[str], owners: Collection[str]
) -> None:
    """Check that the operator allows an image to be loaded.

    :param images: ids of allowed images.
    :param owners: ids of projects whose images are allowed.
    :raises BitstreamError: neither the image nor its owner is allowed.
    """
    if _normalize(facts.id) in map(_normalize, images):
        return
    if facts.owner and _normalize(facts.owner) in map(_normalize, owners):
        return
    raise errors.BitstreamError(
        facts.id,
        f"nova.conf does not allow it; add the image to [nova_accel]"
        f" bitstream_images, or its project {facts.owner or '(none)'} to"
        " bitstream_owners, and restart nova-compute",
    )


def parse_image(facts: ImageFacts, limit: int) -> ImageRequirement:
    """Return the required content of an image, from its properties.

    :param limit: maximal size in bytes.
    :raises BitstreamError: a property is missing or malformed, or the
        image is not usable.
    """
    _check_state(facts, limit)
    return ImageRequirement(
        function=_parse_id(facts, FUNCTION),
        interface=_parse_id(facts, INTERFACE),
        vendor=_parse_vendor(facts),
        sha512=_parse_digest(facts),
        size=facts.size,
    )


def has_header(head: bytes) -> bool:
    """Return whether a file has a header, by its first HEAD_SIZE bytes."""
    return gbs.is_gbs(head) or head.startswith(xclbin.MAGIC)


def check_content(
    image: str, required: ImageRequirement, content: bytes
) -> None:
    """Check that the header of a file agrees with the image's properties.

    A file without a header is only checked for its size.

    :param image: the image's id, for errors.
    :param content: the whole file.
    :raises BitstreamError: they differ, or the file is damaged.
    """
    if len(content) < required.size:
        raise errors.BitstreamError(
            image, describe_truncation(len(content), required.size)
        )
    header = _read_header(image, content)
    if header is None:
        return
    for name, value, allowed in (
        (VENDOR, required.vendor, (header.vendor,)),
        (FUNCTION, required.function, header.functions),
        (INTERFACE, required.interface, header.interfaces),
    ):
        if value not in allowed:
            listed = " or ".join(allowed[:_MAX_LISTED])
            raise errors.BitstreamError(
                image,
                f"its property {name} is {value}, but the file itself says"
                f" {listed}; {_set_command(image, name, allowed[0])}",
            )


def describe_file(path: str, content: bytes) -> model.Bitstream:
    """Return the bitstream of an operator's own file.

    :param path: the path of the file.
    :param content: the whole file.
    :raises BitstreamError: the file has no header, or is damaged.
    """
    header = _read_header(path, content)
    if header is None:
        raise errors.BitstreamError(
            path,
            "it does not say what it is; use a file of Intel (.gbs) or AMD"
            " (.xclbin) with its header",
        )
    return model.Bitstream(
        name=path,
        vendor=header.vendor,
        path=path,
        function=header.functions[0],
        interface=header.interfaces[0],
        sha512=hashlib.sha512(content).hexdigest(),
        size=len(content),
    )


def explain_mismatch(
    bitstream: model.Bitstream, region: model.Region, vendor_id: str
) -> str:
    """Return why a bitstream can't be loaded into a region, empty if it can.

    :param vendor_id: PCI vendor id of the card.
    """
    if not region.is_programmable:
        return f"region {region.number} of {region.card} can't be programmed"
    vendor = names.vendor_name(vendor_id)
    if bitstream.vendor != vendor:
        return (
            f"{region.card} is a card of {vendor}, and the bitstream is for"
            f" cards of {bitstream.vendor}"
        )
    interfaces = map(names.normalize_fpga_id, region.interfaces)
    if bitstream.interface not in interfaces:
        listed = " and ".join(region.interfaces) or "none that can be read"
        return (
            f"the bitstream is made for interface {bitstream.interface};"
            f" region {region.number} of {region.card} has {listed}"
        )
    return ""


def extract_payload(content: bytes) -> bytes | memoryview:
    """Return the part of a file for the kernel's own interface.

    It is the file without Intel's header, which fpgaconf removes too.

    :raises MalformedError: such a header is truncated.
    """
    if gbs.is_gbs(content):
        return memoryview(content)[gbs.payload_offset(content) :]
    return content


def describe_truncation(size: int, expected: int) -> str:
    """Return the reason for a truncated file, sizes in bytes."""
    return (
        f"it is cut off: {size} of {expected} bytes came; upload it again"
        " if this goes on"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _FileHeader:
    """Facts of a file's header; no tuple is empty."""

    vendor: str
    functions: tuple[str, ...]
    interfaces: tuple[str, ...]


def _read_header(name: str, content: bytes) -> _FileHeader | None:
    if not has_header(content[:HEAD_SIZE]):
        return None
    try:
        header = (
            _read_gbs(content)
            if gbs.is_gbs(content)
            else _read_xclbin(content)
        )
    except errors.MalformedError as error:
        raise errors.BitstreamError(
            name, f"the file is damaged: {error}; replace it"
        ) from error
    if not header.interfaces:
        raise errors.BitstreamError(
            name,
            "the file has no shell that it is made for; build it again for"
            " the card's shell",
        )
    return header


def _read_gbs(content: bytes) -> _FileHeader:
    header = gbs.parse(content)
    return _FileHeader(
        vendor=_INTEL,
        functions=header.functions,
        interfaces=(header.interface,),
    )


def _read_xclbin(content: bytes) -> _FileHeader:
    header = xclbin.parse(content)
    return _FileHeader(
        vendor=_XILINX,
        functions=(header.uuid,),
        interfaces=header.fits,
    )


def _check_state(facts: ImageFacts, limit: int) -> None:
    if facts.status != "active":
        raise errors.BitstreamError(
            facts.id,
            f"the image is {facts.status or 'in no known state'}; only an"
            " active one can be loaded: upload its content, or `openstack"
            f" image set --activate {facts.id}`",
        )
    if facts.size <= 0:
        raise errors.BitstreamError(
            facts.id,
            "Glance has no size of it, or it is empty; upload its content",
        )
    if facts.size > limit:
        raise errors.BitstreamError(
            facts.id,
            f"it has {facts.size} bytes, and the cache has {limit};"
            " raise nova.conf [nova_accel] bitstream_cache_mb",
        )


def _read_property(facts: ImageFacts, name: str, example: str) -> str:
    value = facts.properties.get(name)
    if not isinstance(value, str) or not value.strip():
        raise errors.BitstreamError(
            facts.id,
            f"it has no property {name};"
            f" {_set_command(facts.id, name, example)}",
        )
    return value.strip().lower()


def _parse_id(facts: ImageFacts, name: str) -> str:
    value = names.normalize_fpga_id(_read_property(facts, name, "UUID"))
    if _PLAIN_ID.fullmatch(value) and value.strip("0") and value.strip("f"):
        return value
    if name == INTERFACE and _SHELL.fullmatch(value):
        return xclbin.shell_name(value)
    problem = "not a UUID"
    if name == INTERFACE:
        problem = "neither a UUID nor the name of a shell"
    raise errors.BitstreamError(
        facts.id,
        f"its property {name} = {value[:80]!r} is {problem};"
        f" {_set_command(facts.id, name, 'UUID')}",
    )


def _parse_vendor(facts: ImageFacts) -> str:
    value = _read_property(facts, VENDOR, _INTEL)
    if match := _VENDOR_ID.fullmatch(value):
        return names.vendor_name(match[1])
    if _VENDOR_NAME.fullmatch(value):
        return value
    raise errors.BitstreamError(
        facts.id,
        f"its property {VENDOR} = {value[:80]!r} is neither a vendor's name"
        f" nor a PCI vendor id; {_set_command(facts.id, VENDOR, _INTEL)}",
    )


def _parse_digest(facts: ImageFacts) -> str:
    """Return the required digest of the content."""
    glance_digest = (
        facts.hash_value.strip().lower()
        if facts.hash_algo.strip().lower() == _GLANCE_HASH
        else ""
    )
    if glance_digest and SHA512 not in facts.properties:
        return _check_digest(facts, "os_hash_value", glance_digest)
    value = _read_property(facts, SHA512, "DIGEST")
    if glance_digest and glance_digest != value:
        raise errors.BitstreamError(
            facts.id,
            f"its property {SHA512} is not the digest of the content in"
            " Glance; one of them was changed: upload the right content as a"
            f" new image, or {_set_command(facts.id, SHA512, glance_digest)}",
        )
    return _check_digest(facts, SHA512, value)


def _check_digest(facts: ImageFacts, name: str, value: str) -> str:
    if _DIGEST.fullmatch(value):
        return value
    raise errors.BitstreamError(
        facts.id,
        f"its {name} = {value[:40]!r} is not a SHA-512 digest of 128"
        f" hexadecimal digits; {_set_command(facts.id, SHA512, 'DIGEST')}",
    )


def _set_command(image: str, name: str, value: str) -> str:
    return f"`openstack image set --property {name}={value} {image}`"


def _normalize(text: str) -> str:
    """Return an id without dashes: Keystone's ids have none."""
    return text.strip().lower().replace("-", "")
