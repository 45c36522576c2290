# SPDX-License-Identifier: Apache-2.0
"""Who asks for an image, and for what."""

from collections.abc import Callable
from pathlib import Path

import pytest
from nova import context as nova_context

from tests.functional.images import glances
from tests.support.fpga import bitstream_files
from virt_hooks.instance import bitstream_images

CONTENT = bitstream_files.gbs(payload=bytes(range(256)) * 800)
MISSING = "00000000-0000-4000-8000-000000000000"
OURS = "virt_hooks.instance.bitstream_images"

# What sets options of Nova's, and what makes Images on one directory.
Set = Callable[..., None]
Make = Callable[..., bitstream_images.BitstreamImages]


def user(project: str = bitstream_files.OWNER) -> nova_context.RequestContext:
    return nova_context.RequestContext(
        user_id="someone",
        project_id=project,
        auth_token=f"{project}:member",
        service_catalog=[],
    )


def add(
    glance: glances.Glance, content: bytes = CONTENT, /, **changed: str
) -> str:
    return glance.add(
        content, bitstream_files.properties(**changed), bitstream_files.OWNER
    )


def kept(tmp_path: Path) -> list[Path]:
    """Return what lies in the cache and is no lock."""
    place = tmp_path / "accel" / "bitstreams"
    return [one for one in place.glob("*") if "lock" not in one.name]


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [
        one.getMessage()
        for one in caplog.records
        if one.name == OURS and one.levelno == level
    ]
