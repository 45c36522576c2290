# SPDX-License-Identifier: Apache-2.0
"""State directory that an option of a command or nova.conf names."""

import os
import stat

from nova_accel import errors

_FLAG = "--state-dir"


def check_named(path: str) -> None:
    """Check a state directory given with ``--state-dir``.

    :raises MalformedError: the path is relative, or no directory.
    """
    if not os.path.isabs(path):
        raise errors.MalformedError(
            _FLAG, path, "an absolute path, as /var/lib/nova/accel"
        )
    if not os.path.isdir(path):
        raise errors.MalformedError(
            _FLAG,
            path,
            "a directory that exists and that this user can open;"
            " nova-compute's is [nova_accel] state_dir in its nova.conf",
        )


def describe_missing(path: str) -> str:
    """Return the hint for a missing directory, empty if it exists.

    A directory without permission counts as existing: reading its files
    fails with the cause.
    """
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            return ""
    except PermissionError:
        return ""
    except OSError:
        pass
    return (
        "is no directory, so devices that are set aside or drained are not"
        " known; name the nova.conf of nova-compute with --config-file"
    )
