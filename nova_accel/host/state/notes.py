# SPDX-License-Identifier: Apache-2.0
"""Directory of JSON notes, one file per device."""

import contextlib
import dataclasses
import datetime
import os
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from nova_accel import errors, model
from nova_accel.host.state import directories
from nova_accel.model import json_codec

_SUFFIX = ".json"
# Nova-compute's user reads the notes that root writes.
_FILE_MODE = 0o644
# Bytes of a note at most, far above any reason.
_MAX_BYTES = 64 * 1024


N = TypeVar("N", bound=model.Note)


class NoteDirectory(Generic[N]):
    """Notes of one directory. Writes are atomic and synced to the disk.

    An unreadable note still counts: the name of its file has the device's
    address.
    """

    def __init__(self, place: str, kind: type[N]) -> None:
        """Use a directory; the first write creates it.

        :param kind: class of the notes; its own fields have defaults.
        """
        self.path = place
        self._kind = kind
        # Releases before json_codec wrote version 1 without its number.
        self._format = json_codec.Format(kind=kind, unversioned=1)

    def read(self) -> dict[str, N]:
        """Return the notes by address.

        :raises UnreadableError: the directory can't be listed.
        """
        by_address = {}
        with self._listed() as (directory, names):
            for name in names:
                note = self._read(directory, name)
                if note is not None:
                    by_address[note.address] = note
        return by_address

    def write(self, note: N) -> None:
        """Write a note; it replaces the device's older one.

        :raises OSError: it can't be written.
        """
        directories.replace_file(
            os.path.join(self.path, file_name(note.address)),
            self._format.encode(note, indent=2).encode(),
            _FILE_MODE,
            is_durable=True,
            make_parents=True,
        )

    def remove(self, address: str) -> bool:
        """Remove the notes on a device; return whether there was one.

        The device may have several files: an operator may have created one
        with another spelling of the address.

        :raises OSError: a note can't be removed.
        :raises UnreadableError: the directory can't be listed.
        """
        is_removed = False
        with self._listed() as (directory, names):
            for name in names:
                if parse_file_name(name) == address:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)
                        is_removed = True
            if is_removed:
                directories.sync_directory(directory)
        return is_removed

    @contextlib.contextmanager
    def _listed(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the descriptor of the directory, and the notes' files.

        A directory that does not exist has none; its descriptor is -1.

        :raises UnreadableError: the directory can't be listed.
        """
        with contextlib.ExitStack() as stack:
            directory, names = -1, []
            try:
                directory = stack.enter_context(
                    directories.open_directory(self.path)
                )
                names = sorted(os.listdir(directory))
            except FileNotFoundError:
                pass
            except OSError as error:
                raise errors.UnreadableError(
                    self.path, error.errno or 0
                ) from error
            yield directory, [n for n in names if n.endswith(_SUFFIX)]

    def _read(self, directory: int, name: str) -> N | None:
        path, address = os.path.join(self.path, name), parse_file_name(name)
        try:
            text = directories.read_file(name, directory, _MAX_BYTES)
            return self._parse(address, text)
        except FileNotFoundError:
            return None  # removed since it was listed
        except (OSError, ValueError) as error:
            return self._kind(
                address=address,
                reason=f"the reason in {path} can't be read ({error})",
            )

    def _parse(self, address: str, text: bytes) -> N:
        note = self._format.decode(text)
        if note.address != address:
            raise ValueError(f"it is on {note.address}")
        return dataclasses.replace(note, reason=single_line(note.reason))


class NoteWatch:
    """Detector of changes in a directory of notes.

    It compares the directory's modification time: each write is a rename.
    A note that an operator edits in place is not detected.
    """

    def __init__(self, path: str) -> None:
        """Watch a directory, which need not exist, from now on."""
        self._path = path
        self._stamp = self._read()

    def has_changed(self) -> bool:
        """Return whether a note was written or removed since the last call."""
        before, self._stamp = self._stamp, self._read()
        return before != self._stamp

    def _read(self) -> tuple[int, int] | None:
        """Return inode and modification time, None without directory."""
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns


def single_line(text: str) -> str:
    """Return a text as one printable line.

    Arguments of a command may contain undecodable bytes.
    """
    line = " ".join(text.split()).encode(errors="replace").decode()
    return "".join(c if c.isprintable() else "?" for c in line)


def now() -> str:
    """Return the time in ISO 8601, in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def file_name(address: str) -> str:
    """Return the file name of the note on a device."""
    return f"{urllib.parse.quote(address, safe='')}{_SUFFIX}"


def parse_file_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the devices' addresses of the notes in a directory.

    :param names: of all files in the directory.
    """
    notes = (n for n in names if n.endswith(_SUFFIX) and n[0] != ".")
    return tuple(sorted({parse_file_name(name) for name in notes}))


def parse_file_name(name: str) -> str:
    """Return the device's address in the file name of a note."""
    return urllib.parse.unquote(name.removesuffix(_SUFFIX))
