# SPDX-License-Identifier: Apache-2.0
"""BitstreamCache of bitstream images, with their metadata.

Use::

    from nova_accel.host.bitstreams import bitstream_cache

    cache = bitstream_cache.BitstreamCache(directory, limit)
    one = cache.put(facts, wanted, chunks)
    same = cache.get(facts.id)

Beside the contents lies a note for each image, with what Glance said of it.
"""

import contextlib
import dataclasses
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.fpga import bitstreams
from nova_accel.host.bitstreams import blob_store, partial_file
from nova_accel.model import strict_json

_NOTE = ".json"
_MOST_NOTE = 64 * 1024
_NOTE_TYPES: Mapping[str, type] = {"size": int, "properties": dict}
_IMAGE = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")
# What of an image's properties is remembered.
_REMEMBERED = (
    bitstreams.FUNCTION,
    bitstreams.INTERFACE,
    bitstreams.VENDOR,
    bitstreams.SHA512,
    *bitstreams.SIGNATURE,
)

# What has changed where a file was written to (stat(2)).
_Version = tuple[int, int, int, int, int]


class BitstreamCache:
    """Bitstreams by their image; safe between threads and processes.

    A file that was returned may go for a later one, unless it is kept:
    who loads it checks its digest, and finds then that it isn't there.

    :param directory: made if it is missing, for its owner only.
    :param limit: the most bytes of bitstreams in it.
    """

    def __init__(self, directory: str, limit: int) -> None:
        self._store = blob_store.BlobStore(directory, limit)
        self._limit = limit
        self._files: dict[str, tuple[_Version, model.Bitstream]] = {}

    def get(self, image: str) -> model.Bitstream | None:
        """Return an image's bitstream if all of it is here, whole.

        It becomes the one used last.
        """
        if (facts := self.facts(image)) is None:
            return None
        wanted = self._wanted(facts)
        if wanted is None:
            return None
        with contextlib.suppress(OSError):
            path = self._store.find(wanted.sha512, wanted.size)
            return _bitstream(image, wanted, path) if path else None
        return None

    def facts(self, image: str) -> bitstreams.ImageFacts | None:
        """Return what Glance said of an image when it was put here."""
        if not _IMAGE.fullmatch(image):
            return None
        try:
            with open(self._note(image), "rb") as file:
                found = _parse_note(file.read(_MOST_NOTE))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.id == image else None

    def digests(self, images: Iterable[str]) -> frozenset[str]:
        """Return the digests of what these images have here."""
        wanted = [
            self._wanted(facts)
            for image in images
            if (facts := self.facts(image)) is not None
        ]
        return frozenset(one.sha512 for one in wanted if one is not None)

    def put(
        self,
        facts: bitstreams.ImageFacts,
        wanted: bitstreams.ImageRequirement,
        chunks: Iterable[bytes],
        keep: Collection[str] = (),
    ) -> model.Bitstream:
        """Return an image's bitstream, made of these bytes if need be.

        As ``fetch`` does.
        """

        def fill(half: partial_file.PartialFile) -> None:
            for chunk in chunks:
                half.write(chunk)

        return self.fetch(facts, wanted, fill, keep)

    def fetch(
        self,
        facts: bitstreams.ImageFacts,
        wanted: bitstreams.ImageRequirement,
        fill: Callable[[partial_file.PartialFile], object],
        keep: Collection[str] = (),
    ) -> model.Bitstream:
        """Return an image's bitstream; what is here is not asked for.

        One comes at a time for each image: who asks meanwhile waits, and
        has it then.

        :param facts: what Glance says of the image, allowed and checked.
        :param wanted: what it has to be, as ``bitstreams.parse_image``.
        :param fill: writes its content, or raises what it likes.
        :param keep: digests of contents that must not go for it.
        :raises BitstreamError: what came is not what it has to be, or
            there is no room for it.
        """
        if not _IMAGE.fullmatch(facts.id):
            raise errors.BitstreamError(facts.id, "this is no image's id")
        if wanted.size > self._limit:
            raise errors.BitstreamError(
                facts.id,
                f"it has {wanted.size} bytes, and at most {self._limit} are"
                " kept; raise nova.conf [nova_accel] bitstream_cache_mb",
            )
        with self._store.held(facts.id):
            path = self._find(facts, wanted)
            if path is None:
                path = self._add(facts.id, wanted, fill, keep)
            self._remember(facts)
            return _bitstream(facts.id, wanted, path)

    def read_file(self, path: str) -> model.Bitstream:
        """Return the operator's own file, which has to say what it is.

        It is read anew only if it changed since.

        :raises BitstreamError: it can't be read or used.
        """
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            # Who loads it follows no link.
            place = os.path.realpath(path)
            with open(os.open(place, flags), "rb") as file:
                return dataclasses.replace(
                    self._describe(path, file), path=place
                )
        except OSError as error:
            raise errors.BitstreamError(
                path,
                f"it can't be read: {partial_file.words(error)}; put the"
                " file there, or correct the key blank in nova.conf"
                " [nova_accel] device_spec",
            ) from error

    def _describe(self, path: str, file: Any) -> model.Bitstream:
        version = _version(file.fileno())
        known = self._files.get(path)
        if known is not None and known[0] == version:
            return known[1]
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > self._limit:
            raise errors.BitstreamError(
                path,
                f"it is no file of at most {self._limit} bytes; correct the"
                " key blank in nova.conf [nova_accel] device_spec, or raise"
                " bitstream_cache_mb",
            )
        # read() allocates what it is asked for before it reads.
        found = bitstreams.describe_file(path, file.read(status.st_size))
        if _version(file.fileno()) == version:
            self._files[path] = (version, found)
        return found

    def _find(
        self, facts: bitstreams.ImageFacts, wanted: bitstreams.ImageRequirement
    ) -> str | None:
        """Return the path of what is here and needs no verifying anew."""
        if facts.signature:
            known = self.facts(facts.id)
            if known is None or known.signature != facts.signature:
                return None
        with partial_file.disk(facts.id, self._store.directory):
            path = self._store.find(wanted.sha512, wanted.size)
        if path is None:
            return None
        try:
            _check_content(facts.id, wanted, path)
        except errors.BitstreamError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None  # another one needed the room just now
            raise
        return path

    def _add(
        self,
        image: str,
        wanted: bitstreams.ImageRequirement,
        fill: Callable[[partial_file.PartialFile], object],
        keep: Collection[str],
    ) -> str:
        with self._store.adding(
            image, wanted.sha512, wanted.size, keep
        ) as half:
            fill(half)
            half.check()
            _check_content(image, wanted, half.path)
        return os.path.join(self._store.directory, wanted.sha512)

    def _remember(self, facts: bitstreams.ImageFacts) -> None:
        """Write an image's note; those without content go."""
        kept = {
            name: facts.properties[name]
            for name in _REMEMBERED
            if name in facts.properties
        }
        short = dataclasses.replace(facts, properties=kept)
        if self.facts(facts.id) == short:
            return
        text = json.dumps(dataclasses.asdict(short))
        self._store.write_note(facts.id, facts.id + _NOTE, text)
        with contextlib.suppress(OSError):
            self._forget_others(facts.id)

    def _forget_others(self, image: str) -> None:
        # The notes first: what another image brings just now is there
        # before its note.
        names = os.listdir(self._store.directory)
        here = self._store.digests()
        for name in names:
            other = name.removesuffix(_NOTE)
            if other not in (name, image) and not (
                self.digests([other]) & here
            ):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._note(other))

    def _wanted(
        self, facts: bitstreams.ImageFacts
    ) -> bitstreams.ImageRequirement | None:
        try:
            return bitstreams.parse_image(facts, self._limit)
        except errors.BitstreamError:
            return None

    def _note(self, image: str) -> str:
        return os.path.join(self._store.directory, image + _NOTE)


def _bitstream(
    image: str, wanted: bitstreams.ImageRequirement, path: str
) -> model.Bitstream:
    return model.Bitstream(
        name=image,
        vendor=wanted.vendor,
        path=path,
        function=wanted.function,
        interface=wanted.interface,
        sha512=wanted.sha512,
        size=wanted.size,
    )


def _check_content(
    image: str, wanted: bitstreams.ImageRequirement, path: str
) -> None:
    """Check what a file says of itself, if it says anything."""
    # A buffer would make one more copy of the content.
    with partial_file.disk(image, path), open(path, "rb", buffering=0) as file:
        head = file.read(bitstreams.HEAD)
        if bitstreams.describes_itself(head):
            file.seek(0)
            bitstreams.check_content(image, wanted, file.read())


def _parse_note(text: bytes) -> bitstreams.ImageFacts:
    """Return what a note says.

    :raises ValueError: it is damaged; or TypeError.
    """
    facts = bitstreams.ImageFacts(**strict_json.loads(text))
    for field in dataclasses.fields(facts):
        value = getattr(facts, field.name)
        if not isinstance(value, _NOTE_TYPES.get(field.name, str)):
            raise ValueError(field.name)
    if not all(isinstance(one, str) for one in facts.properties.values()):
        raise ValueError("properties")
    return facts


def _version(descriptor: int) -> _Version:
    status = os.fstat(descriptor)
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
