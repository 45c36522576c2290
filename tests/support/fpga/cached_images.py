# SPDX-License-Identifier: Apache-2.0
"""Content of a bitstream cache."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from nova_accel import model
from nova_accel.catalog.fpga import bitstreams
from nova_accel.host.bitstreams import bitstream_cache, blob_store
from tests.support.fpga import bitstream_files as files

KIB = 1 << 10
LIMIT = 64 * KIB
A, B, C = (f"{n}{n}{n}b2f5e-5b0c-4c0f-9d8e-0d6f3a7b1c2d" for n in "abc")


def bits(letter: str, size: int = 20 * KIB) -> bytes:
    return letter.encode() * size


def facts(image: str, content: bytes) -> bitstreams.ImageFacts:
    return files.facts(content, image)


def requirement(
    image_facts: bitstreams.ImageFacts,
) -> bitstreams.ImageRequirement:
    return bitstreams.parse_image(image_facts, 1 << 40)


def store(
    cache: bitstream_cache.BitstreamCache,
    image_facts: bitstreams.ImageFacts,
    chunks: Iterable[bytes],
    keep: tuple[str, ...] = (),
) -> model.Bitstream:
    """Return an image's bitstream; store these bytes if it is missing."""

    def fill(partial: blob_store.PartialFile) -> None:
        for chunk in chunks:
            partial.write(chunk)

    return cache.fetch(image_facts, requirement(image_facts), fill, keep)


def put(
    cache: bitstream_cache.BitstreamCache,
    image: str,
    content: bytes,
    keep: tuple[str, ...] = (),
) -> model.Bitstream:
    image_facts = facts(image, content)
    chunks = [content[:7], content[7:]]
    return store(cache, image_facts, chunks, keep)


def never() -> Iterator[bytes]:
    """Return content whose download fails the test."""
    yield from ()
    raise AssertionError("the image was downloaded again")


def bitstream_files(place: Path) -> set[str]:
    return {path.name for path in place.iterdir() if len(path.name) == 128}


def halves(place: Path) -> list[Path]:
    return list(place.glob("half-*"))


def size_of(path: Path) -> int:
    """Return the size of a bitstream file, also of a partial one."""
    if not (path.name.startswith("half-") or len(path.name) == 128):
        return 0
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
