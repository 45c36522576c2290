# SPDX-License-Identifier: Apache-2.0
"""A directory of small notes on devices, one JSON file each."""

import contextlib
import dataclasses
import datetime
import json
import os
import urllib.parse
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from nova_accel import errors
from nova_accel.host import whole_file

_SUFFIX = ".json"
_TEXTS = ("address", "reason", "when")
# Whoever writes a note, as root or not: the service reads it.
_FILE_MODE = 0o644
_PLACE_MODE = 0o755
_ROOT = 0
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


class Notes(Generic[N]):
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
        for name in self._names():
            note = self._read(name)
            if note is not None:
                found[note.address] = note
        return found

    def write(self, note: N) -> None:
        """Write a note; it replaces an older one on its device.

        :raises OSError: it can't be written.
        """
        make_place(self.place)
        whole_file.replace(
            os.path.join(self.place, name_of(note.address)),
            json.dumps(dataclasses.asdict(note), indent=2).encode(),
            _FILE_MODE,
            is_lasting=True,
        )

    def remove(self, address: str) -> bool:
        """Remove the notes on a device; return whether there was one.

        However a person spelled the name of the file.

        :raises OSError: a note can't be removed.
        :raises UnreadableError: the directory can't be listed.
        """
        is_found = False
        for name in self._names():
            if address_of(name) == address:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.place, name))
                    is_found = True
        if is_found:
            whole_file.sync(self.place)
        return is_found

    def _names(self) -> list[str]:
        try:
            names = sorted(os.listdir(self.place))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise errors.UnreadableError(
                self.place, error.errno or 0
            ) from error
        return [name for name in names if name.endswith(_SUFFIX)]

    def _read(self, name: str) -> N | None:
        path, address = os.path.join(self.place, name), address_of(name)
        try:
            return self._parse(address, json.loads(_text(path)))
        except FileNotFoundError:
            return None  # removed since it was listed
        except (
            *(OSError, ValueError, LookupError, TypeError),
            RecursionError,  # brackets in brackets, without end
        ) as error:
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


def _text(path: str) -> str:
    """Return the text of a note; what is no file does not keep us.

    :raises OSError: it can't be read.
    :raises ValueError: it is too long, or no text.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:
        content = file.read(_MOST + 1)
    if len(content) > _MOST:
        raise ValueError(f"it is longer than {_MOST} bytes")
    return content.decode()


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


def make_place(place: str) -> None:
    """Make a directory, and those above it, for whom they will serve.

    What root makes goes to the owner of what it is made in: the service
    writes there too.

    :raises OSError: it can't be made.
    """
    if os.path.isdir(place):
        return
    above = os.path.dirname(os.path.abspath(place))
    make_place(above)
    try:
        os.mkdir(place, _PLACE_MODE)
    except FileExistsError:
        return  # somebody else was faster, or it is a file: that is told
    os.chmod(place, _PLACE_MODE)  # whatever the caller's umask is
    if os.geteuid() == _ROOT:
        owner = os.stat(above)
        os.chown(place, owner.st_uid, owner.st_gid, follow_symlinks=False)
