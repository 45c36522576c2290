# SPDX-License-Identifier: Apache-2.0
"""Note stores: one JSON file per device or server, by kind of note.

The fields of the files are those of the classes: a new field has a default,
so that notes of earlier releases stay readable.

Root and nova-compute's user write notes, in several processes. A reader
lists the directory each time, so it sees the notes of the others.
"""

import contextlib
import dataclasses
import datetime
import logging
import os
import threading
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from nova_accel import errors, model
from nova_accel.config import logs
from nova_accel.host.state import directories
from nova_accel.inventory import health
from nova_accel.model import json_codec

LOG = logging.getLogger(__name__)

_SUFFIX = ".json"
# Nova-compute's user reads the notes that root writes.
_FILE_MODE = 0o644
# Bytes of a note at most, far above any reason.
_MAX_BYTES = 64 * 1024


N = TypeVar("N", bound=model.Note)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[N]):
    """Kind of notes, each with a directory of its own below ``state_dir``.

    The own fields of the class ``note`` have defaults. ``subject`` is what
    a note is on, for the log; the address follows it.
    """

    directory: str
    note: type[N]
    subject: str


class NoteStore(Generic[N]):
    """Notes of one kind. Thread-safe; writes are synced to the disk.

    An unreadable note still counts: the name of its file has the device's
    address. ``write`` and ``remove`` raise an error if the files can't be
    changed. ``write_or_retain`` and ``remove_or_ignore`` log it once, and the
    change lasts in memory until the service ends.
    """

    def __init__(self, state_dir: str | None, kind: Kind[N]) -> None:
        """Use a directory; the first write creates it.

        :param state_dir: None for notes in memory only.
        """
        self.path = (
            os.path.join(state_dir, kind.directory) if state_dir else ""
        )
        self._kind = kind
        # Releases before json_codec wrote version 1 without its number.
        self._format = json_codec.Format(kind=kind.note, unversioned=1)
        #: Notes that are not written, by address.
        self._unwritten: dict[str, N] = {}
        #: Notes that could not be removed; None if they could not be read.
        self._ignored: dict[str, N | None] = {}
        self._last: dict[str, N] = {}
        self._last_error = ""
        self._lock = threading.RLock()

    def read(self) -> dict[str, N]:
        """Return the notes by address.

        :raises UnreadableError: the directory can't be listed.
        """
        by_address, _ = self._read_files()
        return self._overlay(by_address)

    def read_last(self, effect: str) -> dict[str, N]:
        """Return the notes; those of the last reading if they can't be read.

        :param effect: of notes that can't be read, for the log.
        """
        with self._lock:
            by_address = self.read_if_possible(effect)
            if by_address is not None:
                self._last = by_address
            return self._overlay(self._last)

    def read_if_possible(self, effect: str) -> dict[str, N] | None:
        """Return the notes, None if the directory can't be listed.

        :param effect: of notes that can't be read, for the log.
        """
        by_address = None
        with self._lock:
            try:
                files, unreadable = self._read_files()
                by_address = self._overlay(files)
            except errors.UnreadableError as error:
                unreadable = [f"notes can't be read: {error}"]
            reason = "; ".join(unreadable)
            if reason and reason != self._last_error:
                LOG.warning("%s; %s", reason, effect)
            self._last_error = reason
        return by_address

    def write(self, note: N) -> None:
        """Write a note; it replaces the device's older one.

        :raises OSError: it can't be written.
        """
        with self._lock:
            if not self.path:
                self._unwritten[note.address] = note
                return
            directories.replace_file(
                os.path.join(self.path, file_name(note.address)),
                self._format.encode(note, indent=2).encode(),
                _FILE_MODE,
                is_durable=True,
                make_parents=True,
            )
            self._unwritten.pop(note.address, None)
            self._ignored.pop(note.address, None)

    def write_or_retain(self, note: N) -> None:
        """Write a note, or retain it until the service ends."""
        with self._lock:
            try:
                self.write(note)
            except OSError as error:
                if note.address not in self._unwritten:
                    logs.error(
                        LOG,
                        "The note on the %s %s can't be written (%s): it is"
                        " lost when this service ends; make [nova_accel]"
                        " state_dir writable",
                        self._kind.subject,
                        note.address,
                        error,
                    )
                self._unwritten[note.address] = note

    def remove(self, address: str) -> bool:
        """Remove the notes on a device; return whether there was one.

        The device may have several files: an operator may have created one
        with another spelling of the address.

        :raises OSError: a note can't be removed.
        :raises UnreadableError: the directory can't be listed.
        """
        with self._lock, self._listed() as (directory, names):
            is_retained = self._unwritten.pop(address, None) is not None
            is_removed = False
            for name in names:
                if parse_file_name(name) == address:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)
                        is_removed = True
            if is_removed:
                directories.sync_directory(directory)
            self._last.pop(address, None)
            self._ignored.pop(address, None)
        return is_retained or is_removed

    def remove_or_ignore(self, address: str) -> None:
        """Remove the notes on a device, or ignore the present one."""
        with self._lock:
            try:
                self.remove(address)
            except (OSError, errors.UnreadableError) as error:
                if address not in self._ignored:
                    logs.error(
                        LOG,
                        "The note on the %s %s can't be removed: %s",
                        self._kind.subject,
                        address,
                        error,
                    )
                self._unwritten.pop(address, None)
                self._ignored[address] = None
                with contextlib.suppress(errors.UnreadableError):
                    self._ignored[address] = self._read_files()[0].get(address)

    def _overlay(self, by_address: dict[str, N]) -> dict[str, N]:
        """Return notes of files with the changes that are in memory only."""
        with self._lock:
            counted = {
                address: note
                for address, note in by_address.items()
                if self._ignored.get(address) != note
            }
            return counted | self._unwritten

    def _read_files(self) -> tuple[dict[str, N], list[str]]:
        """Return the notes of the files by address, and unreadable ones.

        :raises UnreadableError: the directory can't be listed.
        """
        by_address, unreadable = {}, []
        with self._listed() as (directory, names):
            for name in names:
                path = os.path.join(self.path, name)
                address = parse_file_name(name)
                try:
                    text = directories.read_file(name, directory, _MAX_BYTES)
                    by_address[address] = self._parse(address, text)
                except FileNotFoundError:
                    continue  # removed since it was listed
                except (OSError, ValueError) as error:
                    reason = f"the reason in {path} can't be read ({error})"
                    unreadable.append(reason)
                    by_address[address] = self._kind.note(
                        address=address, reason=reason
                    )
        return by_address, unreadable

    @contextlib.contextmanager
    def _listed(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the descriptor of the directory, and the notes' files.

        A directory that does not exist has none; its descriptor is -1.

        :raises UnreadableError: the directory can't be listed.
        """
        with contextlib.ExitStack() as stack:
            directory, names = -1, []
            try:
                if self.path:
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScrubInProgress(model.Note):
    """A function that is being scrubbed, since ``when``.

    ``device`` is the address of the device to set aside if the scrub is
    interrupted, None if unknown.
    """

    device: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unreleased(model.Note):
    """A function that was assigned to a server and not verified clean since.

    ``address`` is the function's, ``device`` that of its device,
    ``profile`` the profile it had and ``consumer`` the uuid of the server;
    None if unknown.
    """

    device: str | None = None
    profile: str | None = None
    consumer: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(model.Note):
    """A slot, the server that has it, and its device's serial numbers."""

    server: str | None = None
    nvme: str | None = None
    dsn: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltServer(model.Note):
    """Allocations of a server, whose uuid is ``address``, as JSON."""

    amounts: str | None = None


FAULTED = Kind(directory="faulted", note=model.Fault, subject="fault of")
DRAINED = Kind(directory="drained", note=model.Drain, subject="drain of")
SCRUBBING = Kind(
    directory="scrubbing", note=ScrubInProgress, subject="scrub of"
)
UNRELEASED = Kind(
    directory="unreleased", note=Unreleased, subject="last server of"
)
SERIALS = Kind(
    directory="serials", note=Assignment, subject="serial number of"
)
ACKNOWLEDGED = Kind(
    directory="acknowledged", note=health.Acknowledgment, subject="errors of"
)
BOOKED = Kind(
    directory="booked",
    note=RebuiltServer,
    subject="allocations of server",
)
#: The directory of each kind.
DIRECTORIES = tuple(
    kind.directory
    for kind in (
        FAULTED,
        DRAINED,
        SCRUBBING,
        UNRELEASED,
        SERIALS,
        BOOKED,
        ACKNOWLEDGED,
    )
)
