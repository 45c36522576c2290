# SPDX-License-Identifier: Apache-2.0
"""Record of a removal, and the files of the state directory.

The classes and traits of a provider are unknown once it is deleted, so they
are recorded before: a removal that is killed goes on where it ended.
"""

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterable

from nova_accel.host.state import (
    claims_file,
    directories,
    notes,
    service_lock,
)
from nova_accel.host.state import state_dir as state_dirs
from nova_accel.model import json_codec

_RECORD = "removal.json"
_MODE = 0o644
_MAX_BYTES = 1 << 20
# Directories of one level. The lock files go last: they prove that a
# nova-compute with this library ran here, which the next attempt requires.
_DIRECTORIES = (*notes.DIRECTORIES, "status")
_UNCLEAN = frozenset(
    kind.directory
    for kind in (
        notes.FAULTED,
        notes.SCRUBBING,
        notes.UNRELEASED,
        notes.SERIALS,
    )
)
_FILES = (
    *(claims_file.NAME, state_dirs.ADOPTION),
    *("stock-compute", "sync.lock", _RECORD),
    *service_lock.NAMES,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    names: frozenset[str] = frozenset()


_FORMAT = json_codec.Format(kind=_Record)


def record_names(state_dir: str, names: Iterable[str]) -> None:
    """Add classes and traits to the record.

    :raises OSError: the record can't be written.
    """
    before = read_names(state_dir)
    after = before | frozenset(names)
    if after != before:
        directories.replace_file(
            os.path.join(state_dir, _RECORD),
            _FORMAT.encode(_Record(names=after), indent=1).encode(),
            _MODE,
            is_durable=True,
        )


def read_names(state_dir: str) -> frozenset[str]:
    """Return the recorded classes and traits, none without a record.

    A record that can't be used counts as none: these names are then left in
    Placement, unused.
    """
    path = os.path.join(state_dir, _RECORD)
    try:
        return _FORMAT.decode(directories.read_path(path, _MAX_BYTES)).names
    except (OSError, ValueError):
        return frozenset()


def has_files(state_dir: str) -> bool:
    """Return whether a directory has files of this library."""
    try:
        return not {*_DIRECTORIES, *_FILES}.isdisjoint(os.listdir(state_dir))
    except FileNotFoundError:
        return False


def remove_files(state_dir: str, unclean: Collection[str] = ()) -> None:
    """Remove this library's files; the directory and other files stay.

    Links are not followed.

    :param unclean: addresses whose notes stay, and with them the lock files.
    :raises OSError: a file can't be removed.
    """
    files = _FILES[: -len(service_lock.NAMES)] if unclean else _FILES
    with directories.open_directory(state_dir) as top:
        for name in _DIRECTORIES:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path = os.path.join(state_dir, name)
                stays = unclean if name in _UNCLEAN else ()
                _remove_directory(path, name, top, stays)
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=top)


def _remove_directory(
    path: str, name: str, parent: int, stays: Collection[str]
) -> None:
    with directories.open_directory(path) as directory:
        entries = os.listdir(directory)
        removed = [e for e in entries if notes.parse_file_name(e) not in stays]
        for entry in removed:
            os.unlink(entry, dir_fd=directory)
    if removed == entries:
        os.rmdir(name, dir_fd=parent)
