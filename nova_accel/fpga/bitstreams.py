# SPDX-License-Identifier: Apache-2.0
"""Checks of bitstreams: Glance image properties and file contents."""

import dataclasses
import hashlib
import re
from collections.abc import Collection, Mapping

from nova_accel import errors, model
from nova_accel.fpga import gbs, xclbin
from nova_accel.model import names

FUNCTION = "accelerator_function_id"
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
# How many bytes tell a file that describes itself from any other.
HEAD = len(gbs.MAGIC)

_GLANCE_HASH = "sha512"
_INTEL = "intel"
_XILINX = "xilinx"
_DIGEST = re.compile(r"[0-9a-f]{128}")
_VENDOR_ID = re.compile(r"(?:0x)?([0-9a-f]{4})")
_VENDOR_NAME = re.compile(r"[a-z][a-z0-9_-]{1,63}")
# As many ids as a message spells out.
_SPELLED = 4
_PLAIN_ID = re.compile(r"[0-9a-f]{32}")
# The name of a shell, as in a file rom/VBNV. It is short enough for a
# trait, and has a character that no UUID has: a UUID that lacks a digit
# is no name.
_SHELL = re.compile(r"(?=.*[g-z_])[a-z0-9][a-z0-9_.:-]{0,199}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """What Glance says of an image.

    ``owner`` is the id of a project, ``size`` in bytes (0 if Glance does
    not know it), ``hash_algo`` and ``hash_value`` are Glance's own digest
    of the content. ``signature`` is what Nova verifies the content with,
    empty where it verifies nothing.
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
    """What an image has to be; the fields are those of a Bitstream."""

    function: str
    interface: str
    vendor: str
    sha512: str
    size: int


def check_allowed(
    facts: ImageFacts, images: Collection[str], owners: Collection[str]
) -> None:
    """Check that the operator allows an image to be loaded.

    :param images: ids of images.
    :param owners: ids of projects all of whose images may be loaded.
    :raises BitstreamError: it is neither of the one nor of the other.
    """
    if _plain(facts.id) in map(_plain, images):
        return
    if facts.owner and _plain(facts.owner) in map(_plain, owners):
        return
    raise errors.BitstreamError(
        facts.id,
        f"nova.conf does not allow it; add the image to [nova_accel]"
        f" bitstream_images, or its project {facts.owner or '(none)'} to"
        " bitstream_owners, and restart nova-compute",
    )


def parse_image(facts: ImageFacts, limit: int) -> ImageRequirement:
    """Return what an image has to be, as its properties say.

    :param limit: the most bytes it may have.
    :raises BitstreamError: a property is missing or malformed, or the
        image can't be used as it is.
    """
    _check_state(facts, limit)
    return ImageRequirement(
        function=_id(facts, FUNCTION),
        interface=_id(facts, INTERFACE),
        vendor=_vendor(facts),
        sha512=_sha512(facts),
        size=facts.size,
    )


def describes_itself(head: bytes) -> bool:
    """Return whether a file of these first HEAD bytes has a header."""
    return gbs.is_gbs(head) or head.startswith(xclbin.MAGIC)


def check_content(
    image: str, wanted: ImageRequirement, content: bytes
) -> None:
    """Check that a file's own header says what the image's properties say.

    Of a file without a header only the properties speak.

    :param image: the image's id, for errors.
    :param content: the whole file.
    :raises BitstreamError: they differ, or the file is damaged.
    """
    if len(content) < wanted.size:
        raise errors.BitstreamError(image, cut_off(len(content), wanted.size))
    says = _read_header(image, content)
    if says is None:
        return
    for name, value, allowed in (
        (VENDOR, wanted.vendor, (says.vendor,)),
        (FUNCTION, wanted.function, says.functions),
        (INTERFACE, wanted.interface, says.interfaces),
    ):
        if value not in allowed:
            spelled = " or ".join(allowed[:_SPELLED])
            raise errors.BitstreamError(
                image,
                f"its property {name} is {value}, but the file itself says"
                f" {spelled}; {_set(image, name, allowed[0])}",
            )


def describe_file(path: str, content: bytes) -> model.Bitstream:
    """Return the operator's own file as what can be loaded.

    :param path: where it lies.
    :param content: all of it.
    :raises BitstreamError: it does not say what it is, or is damaged.
    """
    says = _read_header(path, content)
    if says is None:
        raise errors.BitstreamError(
            path,
            "it does not say what it is; take a file of Intel (.gbs) or AMD"
            " (.xclbin) with its header",
        )
    return model.Bitstream(
        name=path,
        vendor=says.vendor,
        path=path,
        function=says.functions[0],
        interface=says.interfaces[0],
        sha512=hashlib.sha512(content).hexdigest(),
        size=len(content),
    )


def objection(
    bitstream: model.Bitstream, region: model.Region, vendor_id: str
) -> str:
    """Return why a bitstream can't be loaded into a region.

    :param vendor_id: PCI vendor id of the card.
    :return: empty when it fits.
    """
    if not region.is_programmable:
        return f"region {region.number} of {region.card} can't be programmed"
    vendor = names.vendor_name(vendor_id)
    if bitstream.vendor != vendor:
        return (
            f"{region.card} is a card of {vendor}, and the bitstream for"
            f" cards of {bitstream.vendor}"
        )
    if bitstream.interface not in map(names.fpga_id, region.interfaces):
        has = " and ".join(region.interfaces) or "none that can be read"
        return (
            f"the bitstream is made for interface {bitstream.interface};"
            f" region {region.number} of {region.card} has {has}"
        )
    return ""


def payload(content: bytes) -> bytes | memoryview:
    """Return what the kernel's own interface takes of a file.

    The header of Intel's files is not for it (fpgaconf drops it, too).

    :raises MalformedError: such a header is cut off.
    """
    if gbs.is_gbs(content):
        return memoryview(content)[gbs.payload_offset(content) :]
    return content


def cut_off(came: int, expected: int) -> str:
    """Return in words that a file ends too early, sizes in bytes."""
    return (
        f"it is cut off: {came} of {expected} bytes came; upload it again"
        " if this goes on"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _FileHeader:
    """What a file says of itself; no tuple is empty."""

    vendor: str
    functions: tuple[str, ...]
    interfaces: tuple[str, ...]


def _read_header(name: str, content: bytes) -> _FileHeader | None:
    if not describes_itself(content[:HEAD]):
        return None
    try:
        says = (
            _read_gbs(content)
            if gbs.is_gbs(content)
            else _read_xclbin(content)
        )
    except errors.MalformedError as error:
        raise errors.BitstreamError(
            name, f"the file is damaged: {error}; put a whole one there"
        ) from error
    if not says.interfaces:
        raise errors.BitstreamError(
            name,
            "the file does not say what shell it is made for; build it"
            " anew for the card's shell",
        )
    return says


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
            "Glance does not know its size, or it is empty; upload its"
            " content",
        )
    if facts.size > limit:
        raise errors.BitstreamError(
            facts.id,
            f"it has {facts.size} bytes, and at most {limit} are kept;"
            " raise nova.conf [nova_accel] bitstream_cache_mb",
        )


def _property(facts: ImageFacts, name: str, example: str) -> str:
    value = facts.properties.get(name)
    if not isinstance(value, str) or not value.strip():
        raise errors.BitstreamError(
            facts.id,
            f"it has no property {name}; {_set(facts.id, name, example)}",
        )
    return value.strip().lower()


def _id(facts: ImageFacts, name: str) -> str:
    value = names.fpga_id(_property(facts, name, "UUID"))
    if _PLAIN_ID.fullmatch(value) and value.strip("0") and value.strip("f"):
        return value
    if name == INTERFACE and _SHELL.fullmatch(value):
        return xclbin.shell_name(value)
    wrong = "no UUID"
    if name == INTERFACE:
        wrong = "neither a UUID nor the name of a shell"
    raise errors.BitstreamError(
        facts.id,
        f"its property {name} = {value[:80]!r} is {wrong};"
        f" {_set(facts.id, name, 'UUID')}",
    )


def _vendor(facts: ImageFacts) -> str:
    value = _property(facts, VENDOR, _INTEL)
    if found := _VENDOR_ID.fullmatch(value):
        return names.vendor_name(found[1])
    if _VENDOR_NAME.fullmatch(value):
        return value
    raise errors.BitstreamError(
        facts.id,
        f"its property {VENDOR} = {value[:80]!r} is neither a vendor's name"
        f" nor a PCI vendor id; {_set(facts.id, VENDOR, _INTEL)}",
    )


def _sha512(facts: ImageFacts) -> str:
    """Return the digest that the content must have."""
    of_glance = (
        facts.hash_value.strip().lower()
        if facts.hash_algo.strip().lower() == _GLANCE_HASH
        else ""
    )
    if of_glance and SHA512 not in facts.properties:
        return _checked_digest(facts, "os_hash_value", of_glance)
    value = _property(facts, SHA512, "DIGEST")
    if of_glance and of_glance != value:
        raise errors.BitstreamError(
            facts.id,
            f"its property {SHA512} is not the digest of the content that"
            " Glance has; somebody exchanged one of them: upload the right"
            f" content as a new image, or"
            f" {_set(facts.id, SHA512, of_glance)}",
        )
    return _checked_digest(facts, SHA512, value)


def _checked_digest(facts: ImageFacts, name: str, value: str) -> str:
    if _DIGEST.fullmatch(value):
        return value
    raise errors.BitstreamError(
        facts.id,
        f"its {name} = {value[:40]!r} is no SHA-512 digest of 128"
        f" hexadecimal digits; {_set(facts.id, SHA512, 'DIGEST')}",
    )


def _set(image: str, name: str, value: str) -> str:
    return f"`openstack image set --property {name}={value} {image}`"


def _plain(text: str) -> str:
    """Return an id without dashes: Keystone's have none, Glance's do."""
    return text.strip().lower().replace("-", "")
