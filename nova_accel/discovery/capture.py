# SPDX-License-Identifier: Apache-2.0
"""Archive of what discovery reads of a host.

An archive holds the files that were read, the names that were listed and
what NVML said, nothing else: no serial number, no udev database, and of
configuration space only the first four bytes, the vendor and device ids,
which tell whether a card still answers. It is a gzipped tar with the tree
below ``sys/``, NVIDIA's table of vGPU types
(``usr/share/nvidia/vgpu/vgpuConfig.xml``) if that was asked for, and
``meta.json``, which also tells what could not be read and with which
errno, and has the names that the host's pci.ids gives its functions, by
vendor and device id (``models``). Archives are read in memory; nothing of
them is ever unpacked on disk.
"""

import datetime
import errno
import gzip
import importlib.metadata
import io
import json
import os
import platform
import posixpath
import tarfile
import zlib
from collections.abc import Mapping
from typing import IO, Any, cast

from nova_accel import errors
from nova_accel.host.nvml import codec, gpu_reader
from nova_accel.host.sysfs import fs, host_reader, hwdata
from nova_accel.model import strict_json

FORMAT = 1
_META = "meta.json"
# A host with eight GPUs of 32 VFs and 24 types each is some 70 000 files
# and 10 MiB; whatever is far above is no capture. The bytes are those of
# the decompressed stream: headers count, too.
_MAX_FILES = 2_000_000
_MAX_BYTES = 512 * 1024 * 1024
# All headers of one member: a path and a link's target of PATH_MAX bytes
# each, as pax records.
_MAX_HEADERS = 32 * 1024
# Decoded JSON takes up to 25 times as much memory as its text.
_MAX_META = 16 * 1024 * 1024

Meta = Mapping[str, Any]


def describe_host(root: str) -> dict[str, Any]:
    """Return the meta data of an archive of the host below a root.

    Kernel and host name are told for this machine only, not for a tree
    that came from elsewhere.
    """
    here = os.path.realpath(root) == "/"
    return {
        "format": FORMAT,
        "library": library_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        "kernel": platform.release() if here else None,
        "hostname": platform.node() if here else None,
    }


def library_version() -> str:
    """Return the version of the installed nova-accel, or ``unknown``."""
    try:
        return importlib.metadata.version("nova-accel")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def save(host: host_reader.HostReader, path: str, meta: Meta) -> int:
    """Write everything a reader has looked at; return how many paths.

    :param path: the archive to make; it must not exist.
    :raises ArchiveError: it exists, or can't be written.
    """
    records = host.files.records()
    failed = {
        place: errno.errorcode.get(found, "EIO")
        for place, found in records.items()
        if isinstance(found, int)
    }
    told = {"nvml": codec.to_plain(host.gpus)}
    text = json.dumps(
        {**meta, **told, "errors": failed}, indent=1, sort_keys=True
    )
    try:
        with (
            open(path, "xb") as out,
            tarfile.open(fileobj=out, mode="w:gz") as archive,
        ):
            _add_file(archive, _META, text.encode())
            for place, found in sorted(_members(records).items()):
                _add(archive, place, found)
    except FileExistsError as error:
        raise errors.ArchiveError(
            path, "exists; choose another name with -o"
        ) from error
    except OSError as error:
        raise errors.ArchiveError(
            path, f"can't be written: {error.strerror}"
        ) from error
    return len(records)


def load(path: str) -> tuple[fs.RecordedFiles, Meta]:
    """Return the host in an archive, and the archive's meta data.

    :raises ArchiveError: this is no archive that ``save`` wrote.
    """
    try:
        with gzip.open(path, "rb") as file:
            contents = _read_members(path, _BoundedReader(path, file))
    except (
        tarfile.TarError,
        EOFError,
        zlib.error,
        OSError,
        # Malformed records of pax and of sparse files.
        ValueError,
        OverflowError,
    ) as error:
        raise errors.ArchiveError(
            path, f"is no archive of `nova-accel capture`: {error}"
        ) from error
    meta = _parse_meta(path, contents.pop(f"/{_META}", ""))
    for place, name in meta["errors"].items():
        contents[place] = _NUMBERS[name]
    return fs.RecordedFiles(contents), meta


def gpus(path: str, meta: Meta) -> gpu_reader.NvmlGpus:
    """Return what NVML said on the host in an archive.

    :param meta: the archive's, or that of a directory, which has none.
    :raises ArchiveError: this is nothing that ``save`` wrote.
    """
    plain = meta.get("nvml")
    if plain is None:
        return gpu_reader.NvmlGpus({}, reason="not recorded")
    try:
        return codec.from_plain(plain)
    except errors.MalformedError as error:
        raise errors.ArchiveError(path, str(error)) from error


_NUMBERS = {name: number for number, name in errno.errorcode.items()}


def _members(records: Mapping[str, fs.Record]) -> dict[str, fs.Record]:
    """Return what goes into the archive, by path.

    Names that were listed but never opened become empty files: whoever
    lists the directory again must see them.
    """
    members: dict[str, fs.Record] = {}
    for place, found in records.items():
        if isinstance(found, fs.RecordedDirectory):
            for name in found:
                members.setdefault(f"{place.rstrip('/')}/{name}", "")
    members |= {p: r for p, r in records.items() if not isinstance(r, int)}
    inner = {posixpath.dirname(p) for p in members} | {
        p for p, r in records.items() if isinstance(r, int)
    }
    for place in inner & members.keys():
        if members[place] == "" and place not in records:
            del members[place]
        elif isinstance(records.get(place), int):
            members.pop(place)
    return members


def _add(archive: tarfile.TarFile, place: str, found: fs.Record) -> None:
    name = place.strip("/")
    if not name:
        return
    if isinstance(found, fs.RecordedLink):
        _add_link(archive, name, place, found)
    elif isinstance(found, str):
        _add_file(archive, name, found.encode())
    elif isinstance(found, bytes):
        _add_file(archive, name, found)
    else:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(info)


def _add_link(
    archive: tarfile.TarFile, name: str, place: str, target: str
) -> None:
    """Write a link as a relative one that stays below the root."""
    here = posixpath.dirname(place)
    inside = posixpath.normpath(posixpath.join(here, target))
    info = tarfile.TarInfo(name)
    info.type = tarfile.SYMTYPE
    info.linkname = posixpath.relpath(inside, here)
    archive.addfile(info)


def _add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.mode, info.size = 0o644, len(content)
    archive.addfile(info, io.BytesIO(content))


class _BoundedReader:
    """Forward-only view of a decompressed stream, with limits on reads.

    ``tarfile`` reads a header of any size at once, and keeps it. Here it
    can read only what the last call of ``allow`` permits.
    """

    def __init__(self, path: str, file: gzip.GzipFile) -> None:
        self._path = path
        self._file = file
        self._position = 0
        self._allowed = 0

    def allow(self, size: int) -> None:
        """Permit reads of this many bytes in all until the next call."""
        self._allowed = size

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end of the stream.

        :raises ArchiveError: they exceed a limit.
        """
        self._allowed -= size
        if self._allowed < 0 or self._position + size > _MAX_BYTES:
            raise _oversized(self._path)
        content = self._file.read(size)
        self._position += len(content)
        return content

    def tell(self) -> int:
        """Return the position in the decompressed stream."""
        return self._position

    def seek(self, position: int) -> None:
        """Skip the bytes before a position.

        :raises ArchiveError: they exceed a limit.
        :raises ReadError: the position was passed already.
        """
        if position < self._position:
            raise tarfile.ReadError("a member begins inside another one")
        self.read(position - self._position)


def _read_members(path: str, stream: _BoundedReader) -> dict[str, fs.Record]:
    contents: dict[str, fs.Record] = {}
    stream.allow(_MAX_HEADERS)
    # TarFile asks for a whole file object, and uses these three methods.
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as archive:
        while (member := archive.next()) is not None:
            # TarFile keeps them all, as typeshed does not say.
            archive.members.clear()  # type: ignore[attr-defined]
            # Captures have no headers for all members; many would add up.
            if len(contents) >= _MAX_FILES or archive.pax_headers:
                raise _oversized(path)
            place = _checked(path, member)
            most = _MAX_META if place == f"/{_META}" else fs.limit(place)
            if member.size > most:
                raise _oversized(path)
            stream.allow(member.size)
            contents[place] = _record(path, archive, member)
            stream.allow(_MAX_HEADERS)
    return contents


def _oversized(path: str) -> errors.ArchiveError:
    return errors.ArchiveError(path, "is too large to be a capture")


def _checked(path: str, member: tarfile.TarInfo) -> str:
    parts = frozenset(member.name.split("/"))
    is_ours = member.name == _META or fs.is_allowed(f"/{member.name}")
    if not is_ours or not parts.isdisjoint(("", ".", "..")):
        raise errors.ArchiveError(
            path, f"holds {member.name!r}, which no capture does"
        )
    return f"/{member.name}"


def _record(
    path: str, archive: tarfile.TarFile, member: tarfile.TarInfo
) -> fs.Record:
    if member.issym():
        return fs.RecordedLink(member.linkname)
    if member.isdir():
        return fs.RecordedDirectory()
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise errors.ArchiveError(
            path, f"holds {member.name!r}, which is no file, link or directory"
        )
    found = content.read()
    if fs.is_head(f"/{member.name}"):
        return found
    try:
        return found.decode()
    except UnicodeDecodeError:
        return errno.EILSEQ


def _parse_meta(path: str, text: fs.Record) -> dict[str, Any]:
    try:
        meta = strict_json.loads(text) if isinstance(text, str) else None
    except ValueError:
        meta = None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise errors.ArchiveError(
            path,
            f"has no {_META} of format {FORMAT}; was it written by another"
            " version of nova-accel?",
        )
    failed = meta.setdefault("errors", {})
    if not isinstance(failed, dict) or not all(
        fs.is_allowed(place) and str(name) in _NUMBERS
        for place, name in failed.items()
    ):
        raise errors.ArchiveError(path, f"has malformed errors in {_META}")
    models = meta.setdefault("models", {})
    if not isinstance(models, dict) or not all(
        map(hwdata.is_name, models.values())
    ):
        raise errors.ArchiveError(path, f"has malformed models in {_META}")
    return meta
