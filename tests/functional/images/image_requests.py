# SPDX-License-Identifier: Apache-2.0
"""Users, images and cache contents of the tests of bitstream images."""

from collections.abc import Callable
from pathlib import Path

import pytest
from nova import context as nova_context

from tests.functional.images import glances
from tests.support.fpga import bitstream_files
from virt_hooks.operations.fpga import bitstream_images

CONTENT = bitstream_files.gbs(payload=bytes(range(256)) * 800)
MISSING = "00000000-0000-4000-8000-000000000000"
LOGGER = "virt_hooks.operations.fpga.bitstream_images"

# Types of the fixtures ``option`` and ``make``.
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


def list_cached(tmp_path: Path) -> list[Path]:
    """Return the files of the cache without the locks."""
    cache = tmp_path / "accel" / "bitstreams"
    return [path for path in cache.glob("*") if "lock" not in path.name]


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == LOGGER and record.levelno == level
    ]
