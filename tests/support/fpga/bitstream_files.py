# SPDX-License-Identifier: Apache-2.0
"""Bitstream files, and the Glance properties of their images."""

import dataclasses
import hashlib
import json
import struct
import uuid
from collections.abc import Mapping
from typing import Any

from nova_accel.catalog.fpga import bitstreams

IMAGE = "8b6f2f5e-5b0c-4c0f-9d8e-0d6f3a7b1c2d"
OWNER = "5f705af5e3f14b6c9dd8c1a0f7c0ffee"
FUNCTION = "d8424dc4a4a3c413f89e433683f9040b"
OTHER = "c0ffee00123456789abcdef012345678"
INTERFACE = "69528db6eb31577a8c3668f9faa081f6"
MIB = 1 << 20


def metadata(
    *functions: str, changed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a green bitstream's metadata as Intel's packager writes it."""
    image: dict[str, Any] = {
        "magic-no": 488605312,
        "interface-uuid": str(uuid.UUID(INTERFACE)),
        "accelerator-clusters": [
            {
                "total-contexts": 1,
                "name": "nlb_400",
                "accelerator-type-uuid": str(uuid.UUID(function)).upper(),
            }
            for function in functions
        ],
    }
    return {
        "version": 1,
        "platform-name": "DCP",
        "afu-image": image | dict(changed or {}),
    }


def gbs(text: object = None, payload: bytes = b"bits" * 1000) -> bytes:
    """Return a green bitstream: header, metadata, payload."""
    content = metadata(FUNCTION) if text is None else text
    body = (
        content if isinstance(content, bytes) else json.dumps(content).encode()
    )
    length = struct.pack("<I", len(body))
    return b"XeonFPGA\xb7GBSv001" + length + body + payload


def digest(content: bytes) -> str:
    """Return the SHA-512 of a content in hexadecimal."""
    return hashlib.sha512(content).hexdigest()


def properties(**changed: str) -> dict[str, str]:
    """Return the properties of a valid image of FUNCTION."""
    return {
        "accelerator_function_id": FUNCTION,
        "accelerator_interface_id": INTERFACE,
        "accelerator_vendor": "intel",
    } | changed


def facts(
    content: bytes = b"bits",
    image: str = IMAGE,
    named: Mapping[str, str] | None = None,
    **changed: Any,
) -> bitstreams.ImageFacts:
    """Return the Glance metadata of a valid image of a content."""
    image_facts = bitstreams.ImageFacts(
        id=image,
        owner=OWNER,
        size=len(content),
        status="active",
        hash_algo="sha512",
        hash_value=digest(content),
        properties=properties() if named is None else named,
    )
    return dataclasses.replace(image_facts, **changed)
