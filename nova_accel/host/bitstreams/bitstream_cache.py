# SPDX-License-Identifier: Apache-2.0
"""Cache of bitstream images, with their metadata.

The directory has the contents and a JSON note for each image, with its
metadata in Glance.
"""

import contextlib
import dataclasses
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog.fpga import bitstreams
from nova_accel.config import logs
from nova_accel.host.bitstreams import blob_store
from nova_accel.model import json_codec

LOG = logging.getLogger(__name__)

_NOTE = ".json"
_MAX_NOTE_BYTES = 64 * 1024
_IMAGE = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")
# Releases before json_codec wrote version 1 without its number.
_FORMAT = json_codec.Format(kind=bitstreams.ImageFacts, unversioned=1)
# Properties of an image that its note stores.
_NOTED_PROPERTIES = (
    bitstreams.FUNCTION,
    bitstreams.INTERFACE,
    bitstreams.VENDOR,
    bitstreams.SHA512,
    *bitstreams.SIGNATURE,
)

# Fields of stat(2) that differ after a write.
_Version = tuple[int, int, int, int, int]


class BitstreamCache:
    """Bitstreams by image; safe between threads and processes.

    A later image may evict a returned file, unless the file is kept. The
    loader verifies the digest and finds the file missing then.

    :param directory: created if missing, accessible to its owner only.
    :param limit: maximum size of all bitstreams, in bytes.
    """

    def __init__(self, directory: str, limit: int) -> None:
        self._store = blob_store.BlobStore(directory, limit)
        self._limit = limit
        self._files: dict[str, tuple[_Version, model.Bitstream]] = {}

    def get(self, image: str) -> model.Bitstream | None:
        """Return an image's bitstream if its content is cached.

        Its time of last use is updated.
        """
        if (facts := self.facts(image)) is None:
            return None
        requirement = self._requirement(facts)
        if requirement is None:
            return None
        with contextlib.suppress(OSError):
            path = self._store.find(requirement.sha512, requirement.size)
            return _bitstream(image, requirement, path) if path else None
        return None

    def facts(self, image: str) -> bitstreams.ImageFacts | None:
        """Return an image's metadata at the time when it was cached."""
        try:
            return self._read_note(image)
        except json_codec.UnknownVersionError as error:
            logs.warning(
                LOG,
                "Ignoring the cached bitstream image %s: the note %s can't be"
                " read: %s",
                image,
                self._note(image),
                error,
            )
            return None

    def remove_partial_files(self) -> None:
        """Remove the partial files of killed writers.

        :raises OSError: the directory can't be locked or listed.
        """
        self._store.remove_partial_files()

    def digests(self, images: Iterable[str]) -> frozenset[str]:
        """Return the digests of these images' contents."""
        requirements = [
            self._requirement(facts)
            for image in images
            if (facts := self.facts(image)) is not None
        ]
        return frozenset(
            requirement.sha512
            for requirement in requirements
            if requirement is not None
        )

    def fetch(
        self,
        facts: bitstreams.ImageFacts,
        requirement: bitstreams.ImageRequirement,
        fill: Callable[[blob_store.PartialFile], object],
        keep: Collection[str] = (),
    ) -> model.Bitstream:
        """Return an image's bitstream; fetch it if it is not cached.

        Concurrent calls for an image wait for the first one.

        :param facts: the image's metadata in Glance, allowed and checked.
        :param requirement: result of ``bitstreams.parse_image``.
        :param fill: writes the content; may raise any exception.
        :param keep: digests of contents that must not be evicted.
        :raises BitstreamError: the content does not meet the requirement,
            or there is no room for it.
        """
        if not _IMAGE.fullmatch(facts.id):
            raise errors.BitstreamError(facts.id, "this is no image's id")
        if requirement.size > self._limit:
            raise errors.BitstreamError(
                facts.id,
                f"it has {requirement.size} bytes, and at most {self._limit}"
                " are kept; raise nova.conf [nova_accel] bitstream_cache_mb",
            )
        with self._store.lock_image(facts.id):
            path = self._find(facts, requirement)
            if path is None:
                path = self._add(facts.id, requirement, fill, keep)
            self._write_note(facts)
            return _bitstream(facts.id, requirement, path)

    def read_file(self, path: str) -> model.Bitstream:
        """Return the bitstream in a file of the operator's.

        The file must have a header with its function and interface. It is
        read again only after a change.

        :raises BitstreamError: it can't be read or used.
        """
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            # The loader refuses links, so resolve them here.
            target = os.path.realpath(path)
            with open(os.open(target, flags), "rb") as file:
                return dataclasses.replace(
                    self._describe(path, file), path=target
                )
        except OSError as error:
            raise errors.BitstreamError(
                path,
                f"it can't be read: {blob_store.describe_error(error)}; put"
                " the file there, or correct the key blank in nova.conf"
                " [nova_accel] device_spec",
                is_local=True,
            ) from error

    def _describe(self, path: str, file: Any) -> model.Bitstream:
        version = _version(file.fileno())
        cached = self._files.get(path)
        if cached is not None and cached[0] == version:
            return cached[1]
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > self._limit:
            raise errors.BitstreamError(
                path,
                f"it is no file of at most {self._limit} bytes; correct the"
                " key blank in nova.conf [nova_accel] device_spec, or raise"
                " bitstream_cache_mb",
            )
        # read() allocates a buffer of the requested size first.
        bitstream = bitstreams.describe_file(path, file.read(status.st_size))
        if _version(file.fileno()) == version:
            self._files[path] = (version, bitstream)
        return bitstream

    def _find(
        self,
        facts: bitstreams.ImageFacts,
        requirement: bitstreams.ImageRequirement,
    ) -> str | None:
        """Return the path of the cached content with a verified signature."""
        if facts.signature:
            cached = self.facts(facts.id)
            if cached is None or cached.signature != facts.signature:
                return None
        with blob_store.wrap_errors(facts.id, self._store.directory):
            path = self._store.find(requirement.sha512, requirement.size)
        if path is None:
            return None
        try:
            _check_content(facts.id, requirement, path)
        except errors.BitstreamError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None  # evicted meanwhile
            raise
        return path

    def _add(
        self,
        image: str,
        requirement: bitstreams.ImageRequirement,
        fill: Callable[[blob_store.PartialFile], object],
        keep: Collection[str],
    ) -> str:
        with self._store.add_file(
            image, requirement.sha512, requirement.size, keep
        ) as partial:
            fill(partial)
            partial.check()
            _check_content(image, requirement, partial.path)
        return os.path.join(self._store.directory, requirement.sha512)

    def _write_note(self, facts: bitstreams.ImageFacts) -> None:
        """Write an image's note; remove notes without content."""
        properties = {
            name: facts.properties[name]
            for name in _NOTED_PROPERTIES
            if name in facts.properties
        }
        note = dataclasses.replace(facts, properties=properties)
        if self.facts(facts.id) == note:
            return
        text = _FORMAT.encode(note)
        self._store.write_note(facts.id, facts.id + _NOTE, text)
        with contextlib.suppress(OSError):
            self._remove_stale_notes(facts.id)

    def _remove_stale_notes(self, image: str) -> None:
        # List the notes before the contents: a concurrent fetch adds the
        # content before its note.
        names = os.listdir(self._store.directory)
        stored = self._store.digests()
        for name in names:
            other = name.removesuffix(_NOTE)
            if other not in (name, image) and self._is_stale(other, stored):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._note(other))

    def _is_stale(self, image: str, stored: Collection[str]) -> bool:
        """Return whether a note has no content in the cache.

        The content of a newer release's note is unknown, so it is kept.

        :param stored: digests of the cached contents.
        """
        try:
            facts = self._read_note(image)
        except json_codec.UnknownVersionError:
            return False
        requirement = self._requirement(facts) if facts else None
        return requirement is None or requirement.sha512 not in stored

    def _read_note(self, image: str) -> bitstreams.ImageFacts | None:
        """Return the metadata in an image's note, None if it is damaged.

        :raises UnknownVersionError: another release wrote it.
        """
        if not _IMAGE.fullmatch(image):
            return None
        try:
            with open(self._note(image), "rb") as file:
                facts = _FORMAT.decode(file.read(_MAX_NOTE_BYTES))
        except json_codec.UnknownVersionError:
            raise
        except (OSError, ValueError):
            return None
        return facts if facts.id == image else None

    def _requirement(
        self, facts: bitstreams.ImageFacts
    ) -> bitstreams.ImageRequirement | None:
        try:
            return bitstreams.parse_image(facts, self._limit)
        except errors.BitstreamError:
            return None

    def _note(self, image: str) -> str:
        return os.path.join(self._store.directory, image + _NOTE)


def _bitstream(
    image: str, requirement: bitstreams.ImageRequirement, path: str
) -> model.Bitstream:
    return model.Bitstream(
        name=image,
        vendor=requirement.vendor,
        path=path,
        function=requirement.function,
        interface=requirement.interface,
        sha512=requirement.sha512,
        size=requirement.size,
    )


def _check_content(
    image: str, requirement: bitstreams.ImageRequirement, path: str
) -> None:
    """Check the header of a file, if it has one."""
    # A buffered file would copy the content once more.
    with (
        blob_store.wrap_errors(image, path),
        open(path, "rb", buffering=0) as file,
    ):
        head = file.read(bitstreams.HEAD_SIZE)
        if bitstreams.has_header(head):
            file.seek(0)
            bitstreams.check_content(image, requirement, file.read())


def _version(descriptor: int) -> _Version:
    status = os.fstat(descriptor)
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
