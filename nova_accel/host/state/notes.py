# SPDX-License-Identifier: Apache-2.0
"""Directory of JSON notes, one file per device."""

import contextlib
import dataclasses
import datetime
import json
import os
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from nova_accel import errors
from nova_accel.host.state import atomic_write, directories
from nova_accel.model import strict_json

_SUFFIX = ".json"
_TEXTS = ("address", "reason", "when")
# Whoever writes a note, as root or not: the service reads it.
_FILE_MODE = 0o644
# Far more than anybody writes as a reason.
_MOST = 64 * 1024


class Note(Protocol):
    """A dataclass that says something of a device, and since when."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def address(self) -> str:
        """Return the device's address."""
        ...


N = TypeVar("N", bound=Note)


class NoteDirectory(Generic[N]):
    """The notes of one directory. Writes are atomic, and on the disk.

    A note that can't be read any more still counts: its file's name tells
    which device it is on.
    """

    def __init__(self, place: str, kind: type[N]) -> None:
        """Keep notes of a kind in a directory; it is not made yet.

        :param kind: a dataclass of texts with address, reason and when;
            others may be None.
        """
        self.place = place
        self._make: Callable[..., N] = kind
        self._fields = tuple(field.name for field in dataclasses.fields(kind))

    def read(self) -> dict[str, N]:
        """Return the notes by address.

        :raises UnreadableError: the directory can't be listed.
        """
        found = {}
        with self._listed() as (place, names):
            for name in names:
                note = self._read(place, name)
                if note is not None:
                    found[note.address] = note
        return found

    def write(self, note: N) -> None:
        """Write a note; it replaces an older one on its device.

        :raises OSError: it can't be written.
        """
        atomic_write.replace(
            os.path.join(self.place, name_of(note.address)),
            json.dumps(dataclasses.asdict(note), indent=2).encode(),
            _FILE_MODE,
            is_lasting=True,
            is_made=True,
        )

    def remove(self, address: str) -> bool:
        """Remove the notes on a device; return whether there was one.

        However a person spelled the name of the file.

        :raises OSError: a note can't be removed.
        :raises UnreadableError: the directory can't be listed.
        """
        is_found = False
        with self._listed() as (place, names):
            for name in names:
                if address_of(name) == address:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=place)
                        is_found = True
            if is_found:
                atomic_write.sync(place)
        return is_found

    @contextlib.contextmanager
    def _listed(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the descriptor of the directory, and the notes' files.

        There are none in a directory that does not exist.

        :raises UnreadableError: the directory can't be listed.
        """
        with contextlib.ExitStack() as stack:
            place, names = -1, []
            try:
                place = stack.enter_context(directories.opened(self.place))
                names = sorted(os.listdir(place))
            except FileNotFoundError:
                pass
            except OSError as error:
                raise errors.UnreadableError(
                    self.place, error.errno or 0
                ) from error
            yield place, [name for name in names if name.endswith(_SUFFIX)]

    def _read(self, place: int, name: str) -> N | None:
        path, address = os.path.join(self.place, name), address_of(name)
        try:
            text = directories.read_file(name, place, _MOST).decode()
            return self._parse(address, strict_json.loads(text))
        except FileNotFoundError:
            return None  # removed since it was listed
        except (OSError, ValueError, LookupError, TypeError) as error:
            return self._make(
                address=address,
                reason=f"why, {path} does not tell any more ({error})",
            )

    def _parse(self, address: str, fields: dict[str, Any]) -> N:
        found = {key: fields[key] for key in self._fields}
        if not all(isinstance(found[key], str) for key in _TEXTS):
            raise ValueError("a text is missing")
        if not all(isinstance(one, str | None) for one in found.values()):
            raise ValueError("what should be a text is none")
        if found["address"] != address:
            raise ValueError(f"it is on {found['address']}")
        return self._make(**found | {"reason": line_of(found["reason"])})


class NoteWatch:
    """Tells when notes were written or removed.

    A directory's own time of change is enough: each note is replaced by a
    rename. A note that a person edits in place is not noticed.
    """

    def __init__(self, place: str) -> None:
        """Compare a directory, which may not exist yet, from now on."""
        self._place = place
        self._seen = self._read()

    def has_changed(self) -> bool:
        """Return whether a note was written or removed since the last call."""
        seen, self._seen = self._seen, self._read()
        return seen != self._seen

    def _read(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._place)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def line_of(text: str) -> str:
    """Return a text as one line that can be printed anywhere.

    What a terminal sent may be no text at all.
    """
    line = " ".join(text.split()).encode(errors="replace").decode()
    return "".join(c if c.isprintable() else "?" for c in line)


def now() -> str:
    """Return the time in ISO 8601, in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def name_of(address: str) -> str:
    """Return the name of the file of the note on a device."""
    return f"{urllib.parse.quote(address, safe='')}{_SUFFIX}"


def address_of(name: str) -> str:
    """Return the address of the device that a file's note is on."""
    return urllib.parse.unquote(name.removesuffix(_SUFFIX))
