# SPDX-License-Identifier: Apache-2.0
"""Archive of what discovery reads of a host.

An archive has the files that were read, the names that were listed and
NVML's answers, nothing else: no serial number and no udev database. Of
configuration space it has the first four bytes, the vendor and device
ids; they show whether a card answers.

It is a gzipped tar of the tree below ``sys/``, of the other files of
``host_paths`` that were read, and of ``meta.json``. The latter also has
the paths that could not be read, with their errno, and the names of the
functions in the host's pci.ids, by vendor and device id (``models``).
Archives are read in memory; they are
never unpacked on disk.
"""

import datetime
import errno
import gzip
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
from nova_accel.config import library_version
from nova_accel.host import host_paths, nvml_gpus
from nova_accel.host.nvml import gpu_state
from nova_accel.host.sysfs import allowed_paths, fs, host_reader, hwdata
from nova_accel.model import json_codec

FORMAT = 1
_META = "meta.json"
# A host with eight GPUs of 32 VFs and 24 types each has about 70 000 files
# and 10 MiB. The limit of bytes is that of the decompressed stream with
# its headers.
_MAX_FILES = 2_000_000
_MAX_BYTES = 512 * 1024 * 1024
# All headers of one member: pax records of a path and of a link's target,
# PATH_MAX bytes each.
_MAX_HEADERS = 32 * 1024
# Decoded JSON takes up to 25 times as much memory as its text.
_MAX_META = 16 * 1024 * 1024

# Bytes of a name and of a path with its zero (limits.h, NAME_MAX and
# PATH_MAX). Numbers in longer names would be more than int() takes.
_MAX_NAME, _MAX_PATH = 255, 4096

# Permission bits of files, and of a device node whose bits were not read.
_READABLE, _UNREAD = 0o644, 0

Meta = Mapping[str, Any]


class RecordedLink(str):
    """Target of a recorded link."""

    __slots__ = ()


class RecordedDirectory(tuple[str, ...]):
    """Names in a recorded directory."""

    __slots__ = ()


class RecordedMode(str):
    """Permission bits of a recorded path, in octal; nothing was read."""

    __slots__ = ()


# Result of reading a path: a file's text, the errno of the failure, a
# link, a directory, permission bits, or the first bytes of a binary file.
Record = str | int | RecordedLink | RecordedDirectory | bytes


def list_records(files: fs.Files) -> Mapping[str, Record]:
    """Return the read files of a host by path, for ``RecordedFiles``.

    A record is a text, a link, a directory, the first bytes of
    configuration space, or the errno of the failure.
    """
    records: dict[str, Record] = {}
    for cache in files.caches:
        for path, target in cache.links.items():
            if target is None:
                records[path] = RecordedDirectory()
            elif isinstance(target, str):
                records[path] = RecordedLink(target)
            elif target != errno.ENOENT:
                records[path] = target
        for path, names in cache.names.items():
            if names == errno.ENOTDIR:
                records[path] = ""  # a file where a directory was expected
            elif isinstance(names, int):
                records[path] = names
            else:
                records[path] = RecordedDirectory(names)
        records.update(cache.texts)
        records.update(cache.heads)
        for path, mode in cache.modes.items():
            records[path] = (
                mode if isinstance(mode, int) else RecordedMode(mode)
            )
    return records


class RecordedFiles:
    """Files that ``list_records`` returned on another host.

    :param records: results by path. Directories above a path need no
        record.
    """

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = dict(records)
        self._children: dict[str, set[str]] = {"/": set()}
        for path in records:
            self._add(path)

    def link(self, path: str) -> str | None:
        """Return a link's target, None if the path is no link."""
        record = self._find(path)
        if record in (errno.ENOENT, errno.ENOTDIR):
            raise OSError(record, os.strerror(record))
        return str(record) if isinstance(record, RecordedLink) else None

    def content(self, path: str) -> bytes:
        """Return a file's bytes; a link is not followed (ELOOP)."""
        record = self._find(path)
        if isinstance(record, RecordedLink):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if isinstance(record, int):
            raise OSError(record, os.strerror(record))
        if isinstance(record, RecordedMode):
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        if isinstance(record, str):
            return record.encode()
        if isinstance(record, bytes):
            return record
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, those not recorded left out."""
        record = self._find(path)
        if isinstance(record, int):
            raise OSError(record, os.strerror(record))
        if isinstance(record, str | bytes):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return sorted(self._children.get(path, set()) | set(record or ()))

    def mode(self, path: str) -> int:
        """Return a path's permission bits; ENODATA if not recorded."""
        record = self._find(path)
        if isinstance(record, RecordedMode):
            return int(record, 8)
        number = record if isinstance(record, int) else errno.ENODATA
        raise OSError(number, os.strerror(number))

    def _add(self, path: str) -> None:
        while path != "/":
            parent, _, name = path.rpartition("/")
            siblings = self._children.setdefault(parent or "/", set())
            if name in siblings:
                return
            siblings.add(name)
            path = parent or "/"

    def _find(self, path: str) -> Record | None:
        if path not in self._records and path not in self._children:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._records.get(path)


def describe_host(root: str) -> dict[str, Any]:
    """Return the metadata of an archive of the host below a root.

    Kernel and host name are None unless the root is this machine's.
    """
    is_this_host = os.path.realpath(root) == "/"
    return {
        "format": FORMAT,
        "library": library_version.read(),
        "date": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        "kernel": platform.release() if is_this_host else None,
        "hostname": platform.node() if is_this_host else None,
    }


def save(host: host_reader.HostReader, path: str, meta: Meta) -> int:
    """Write all that a reader has read; return the number of paths.

    :param path: the archive to create; it must not exist.
    :raises ArchiveError: it exists, or can't be written.
    """
    records = list_records(host.files)
    failed = {
        place: errno.errorcode.get(record, "EIO")
        for place, record in records.items()
        if isinstance(record, int)
    }
    text = json.dumps(
        {**meta, "nvml": gpu_state.to_plain(host.gpus), "errors": failed},
        indent=1,
        sort_keys=True,
    )
    try:
        with (
            open(path, "xb") as out,
            tarfile.open(fileobj=out, mode="w:gz") as archive,
        ):
            _add_file(archive, _META, text.encode())
            for place, record in sorted(_members(records).items()):
                _add(archive, place, record)
    except FileExistsError as error:
        raise errors.ArchiveError(
            path, "exists; choose another name with -o"
        ) from error
    except OSError as error:
        raise errors.ArchiveError(
            path, f"can't be written: {error.strerror}"
        ) from error
    return len(records)


def load(path: str) -> tuple[RecordedFiles, Meta]:
    """Return the files of a captured host, and the archive's metadata.

    :raises ArchiveError: the file was not written by ``save``.
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
    return RecordedFiles(contents), meta


def load_gpus(path: str, meta: Meta) -> nvml_gpus.NvmlGpus:
    """Return NVML's answers on a captured host.

    :param meta: metadata of the archive; that of a directory has none.
    :raises ArchiveError: they were not written by ``save``.
    """
    plain = meta.get("nvml")
    if plain is None:
        return nvml_gpus.NvmlGpus({}, reason="not recorded")
    try:
        return gpu_state.from_plain(plain)
    except errors.MalformedError as error:
        raise errors.ArchiveError(path, str(error)) from error


_NUMBERS = {name: number for number, name in errno.errorcode.items()}


def _members(
    records: Mapping[str, Record],
) -> dict[str, Record]:
    """Return the members of the archive by path.

    Names that were listed but never opened become empty files, so that a
    later listing of the directory has them.
    """
    members: dict[str, Record] = {}
    for place, record in records.items():
        if isinstance(record, RecordedDirectory):
            for name in record:
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


def _add(archive: tarfile.TarFile, place: str, record: Record) -> None:
    name = place.strip("/")
    if not name:
        return
    if isinstance(record, RecordedLink):
        _add_link(archive, name, place, record)
    elif isinstance(record, RecordedMode):
        _add_file(archive, name, b"", int(record, 8))
    elif isinstance(record, str):
        mode = _UNREAD if allowed_paths.is_node(place) else _READABLE
        _add_file(archive, name, record.encode(), mode)
    elif isinstance(record, bytes):
        _add_file(archive, name, record)
    else:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(info)


def _add_link(
    archive: tarfile.TarFile, name: str, place: str, target: str
) -> None:
    """Add a link with a relative target that stays below the root."""
    here = posixpath.dirname(place)
    inside = posixpath.normpath(posixpath.join(here, target))
    info = tarfile.TarInfo(name)
    info.type = tarfile.SYMTYPE
    info.linkname = posixpath.relpath(inside, here)
    archive.addfile(info)


def _add_file(
    archive: tarfile.TarFile, name: str, content: bytes, mode: int = _READABLE
) -> None:
    info = tarfile.TarInfo(name)
    info.mode, info.size = mode, len(content)
    archive.addfile(info, io.BytesIO(content))


class _BoundedReader:
    """Forward-only view of a decompressed stream, with limits on reads.

    ``tarfile`` reads a header of any size at once into memory. This view
    limits it to the number of bytes of the last call of ``allow``.
    """

    def __init__(self, path: str, file: gzip.GzipFile) -> None:
        self._path = path
        self._file = file
        self._position = 0
        self._allowed = 0

    def allow(self, size: int) -> None:
        """Permit this many bytes in total until the next call."""
        self._allowed = size

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end of the stream.

        :raises ArchiveError: a limit is exceeded.
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

        :raises ArchiveError: a limit is exceeded.
        :raises ReadError: the position was passed already.
        """
        if position < self._position:
            raise tarfile.ReadError("a member begins inside another one")
        self.read(position - self._position)


def _read_members(path: str, stream: _BoundedReader) -> dict[str, Record]:
    contents: dict[str, Record] = {}
    stream.allow(_MAX_HEADERS)
    # TarFile's annotation is a full file object; it calls only read, tell
    # and seek.
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as archive:
        while (member := archive.next()) is not None:
            # TarFile retains all members; typeshed lacks the attribute.
            archive.members.clear()  # type: ignore[attr-defined]
            # Captures have no global pax headers; TarFile would merge them.
            if len(contents) >= _MAX_FILES or archive.pax_headers:
                raise _oversized(path)
            place = _checked_path(path, member)
            limit = (
                _MAX_META
                if place == f"/{_META}"
                else host_paths.ALL.limit(place)
            )
            if member.size > limit:
                raise _oversized(path)
            stream.allow(member.size)
            contents[place] = _read_record(path, archive, member)
            stream.allow(_MAX_HEADERS)
    return contents


def _oversized(path: str) -> errors.ArchiveError:
    return errors.ArchiveError(path, "is too large to be a capture")


def _checked_path(path: str, member: tarfile.TarInfo) -> str:
    """Return the path of a member, if a capture may contain it."""
    parts = frozenset(member.name.split("/"))
    if max(map(len, parts)) > _MAX_NAME or len(member.linkname) >= _MAX_PATH:
        raise _oversized(path)
    is_expected = member.name == _META or host_paths.ALL.is_allowed(
        f"/{member.name}"
    )
    if not is_expected or not parts.isdisjoint(("", ".", "..")):
        raise errors.ArchiveError(
            path, f"holds {member.name!r}, which no capture does"
        )
    return f"/{member.name}"


def _read_record(
    path: str, archive: tarfile.TarFile, member: tarfile.TarInfo
) -> Record:
    if member.issym():
        return RecordedLink(member.linkname)
    if member.isdir():
        return RecordedDirectory()
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise errors.ArchiveError(
            path, f"holds {member.name!r}, which is no file, link or directory"
        )
    if allowed_paths.is_node(f"/{member.name}"):
        return RecordedMode(oct(member.mode)) if member.mode else ""
    data = content.read()
    if fs.is_config_space(f"/{member.name}"):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return errno.EILSEQ


def _parse_meta(path: str, text: Record) -> dict[str, Any]:
    try:
        meta = json_codec.loads(text) if isinstance(text, str) else None
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
        host_paths.ALL.is_allowed(place) and str(name) in _NUMBERS
        for place, name in failed.items()
    ):
        raise errors.ArchiveError(path, f"has malformed errors in {_META}")
    models = meta.setdefault("models", {})
    if not isinstance(models, dict) or not all(
        map(hwdata.is_name, models.values())
    ):
        raise errors.ArchiveError(path, f"has malformed models in {_META}")
    return meta
