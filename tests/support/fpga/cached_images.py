# SPDX-License-Identifier: Apache-2.0
"""What is put into a cache of bitstreams, and what lies there then."""

from collections.abc import Iterator
from pathlib import Path

from nova_accel import model
from nova_accel.fpga import bitstreams
from nova_accel.host.bitstreams import bitstream_cache
from tests.support.fpga import bitstream_files as files

KIB = 1 << 10
LIMIT = 64 * KIB
A, B, C = (f"{n}{n}{n}b2f5e-5b0c-4c0f-9d8e-0d6f3a7b1c2d" for n in "abc")


def bits(letter: str, size: int = 20 * KIB) -> bytes:
    return letter.encode() * size


def facts(image: str, content: bytes) -> bitstreams.ImageFacts:
    return files.facts(content, image)


def wanted(one: bitstreams.ImageFacts) -> bitstreams.ImageRequirement:
    return bitstreams.parse_image(one, 1 << 40)


def put(
    cache: bitstream_cache.BitstreamCache,
    image: str,
    content: bytes,
    keep: tuple[str, ...] = (),
) -> model.Bitstream:
    one = facts(image, content)
    chunks = [content[:7], content[7:]]
    return cache.put(one, wanted(one), chunks, keep)


def never() -> Iterator[bytes]:
    """Return what must not be asked for."""
    yield from ()
    raise AssertionError("it was asked for again")


def bitstream_files(place: Path) -> set[str]:
    return {path.name for path in place.iterdir() if len(path.name) == 128}


def halves(place: Path) -> list[Path]:
    return list(place.glob("half-*"))


def size_of(path: Path) -> int:
    """Return the size of a bitstream, half or whole."""
    if not (path.name.startswith("half-") or len(path.name) == 128):
        return 0
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
