# SPDX-License-Identifier: Apache-2.0
"""Checks and cleaning of [nova_accel] state_dir, of notes and claims."""

import contextlib
import errno
import logging
import os
import tempfile

from nova_accel import errors
from nova_accel.config import conf
from nova_accel.host.state import directories, notes

LOG = logging.getLogger(__name__)

#: File of the plan of an adoption; see ``adoption_plan``.
ADOPTION = "adoption.json"
# That of the status files of passes (placement_sync.daemon.heartbeat).
_STATUS = "status"
_REMEDIES = {
    errno.ENOSPC: "free space on the file system of this directory",
    errno.EDQUOT: "raise the quota of the directory's owner, or free space",
    errno.EROFS: "mount the file system of this directory read-write",
    errno.EIO: "replace the disk of this directory, or name another directory",
}
# Bytes that must be free: some notes, and the status with the reason.
_ROOM = 256 * 1024
# Bytes that a try to write takes for a moment.
_TRIED = 64 * 1024
_NO_ACCESS = (
    "let the user of this process write this directory and those below it"
)


def remove_partial_files(path: str) -> None:
    """Remove the partial files of killed writers in all directories.

    :raises OSError: a directory can't be listed.
    """
    for name in ("", *notes.DIRECTORIES, _STATUS):
        directory = os.path.join(path, name)
        with contextlib.suppress(FileNotFoundError):
            removed = directories.remove_partial_files(directory)
            for each in removed:
                LOG.info("Removed partial file %s of %s", each, directory)


def check(settings: conf.Settings) -> None:
    """Check that the directory is writable and its notes are readable.

    It is created if it is missing.

    :raises ConfigurationError: it can't be used; the error has the path
        that failed and the configuration file of the option.
    """
    path = settings.state_dir
    try:
        with (
            directories.open_directory(path, make_parents=True),
            tempfile.TemporaryFile(dir=path),
        ):
            pass
        for name in notes.DIRECTORIES:
            with contextlib.suppress(FileNotFoundError):
                os.listdir(os.path.join(path, name))
    except OSError as error:
        raise _refuse(settings, error) from error


def find_obstacle(
    settings: conf.Settings,
) -> errors.ConfigurationError | None:
    """Return the error of ``check``, as far as it shows without a write.

    None for a missing directory that can be created.
    """
    path = settings.state_dir
    try:
        place = path
        while not os.path.lexists(place):
            place = os.path.dirname(place)
        _check_room(place)
        for name in notes.DIRECTORIES:
            with contextlib.suppress(FileNotFoundError):
                os.listdir(os.path.join(path, name))
    except OSError as error:
        return _refuse(settings, error)
    return None


def find_write_error(path: str, is_dry: bool = False) -> str:
    """Return why no note can be written below a directory, "" if one can.

    Free space counts as users other than root have it, so that all
    processes of the host agree. A missing directory will be created.

    :param is_dry: do not try to write. A quota, or a missing permission,
        does not show then.
    """
    place = os.path.abspath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    try:
        _check_room(place)
        if not is_dry:
            with tempfile.TemporaryFile(dir=place) as tried:
                os.posix_fallocate(tried.fileno(), 0, _TRIED)
    except OSError as error:
        # Others are no errors of the directory, such as EMFILE.
        if error.errno in {*_REMEDIES, errno.EACCES, errno.EPERM}:
            return describe_write_error(path, error)
    return ""


def describe_write_error(path: str, error: OSError) -> str:
    """Return a sentence about a note that can't be written, and the remedy."""
    return (
        f"[nova_accel] state_dir {path} can't be written"
        f" ({os.strerror(error.errno or 0)}), so that it could not be noted"
        f" which server had it last; {explain_remedy(error)}"
    )


def _check_room(place: str) -> None:
    """Check that a directory's file system has room for notes.

    :raises OSError: EROFS or ENOSPC if not.
    """
    with directories.open_directory(place) as directory:
        usage = os.fstatvfs(directory)
    if usage.f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    # Btrfs has no number of inodes.
    has_inodes = usage.f_favail or not usage.f_files
    if usage.f_bavail * usage.f_frsize < _ROOM or not has_inodes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _refuse(
    settings: conf.Settings, error: OSError
) -> errors.ConfigurationError:
    path = settings.state_dir
    return settings.refusal(
        "state_dir",
        path,
        f"can't be used ({_describe(path, error)}): faults, drains and"
        f" claims are not stored or not known; {explain_remedy(error)}",
    )


def explain_remedy(error: OSError) -> str:
    """Return what to do about a write below the directory that failed."""
    return _REMEDIES.get(error.errno or 0, _NO_ACCESS)


def _describe(path: str, error: OSError) -> str:
    reason = os.strerror(error.errno or 0)
    # Don't show the name of the temporary file to the operator.
    if os.path.dirname(str(error.filename)) == path:
        name = os.path.basename(str(error.filename))
        return f"{name}: {reason}" if name in notes.DIRECTORIES else reason
    return reason
