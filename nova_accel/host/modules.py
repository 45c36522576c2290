# SPDX-License-Identifier: Apache-2.0
"""What kernel modules were told when they were loaded."""

from nova_accel import errors
from nova_accel.host import fs

_MODULES = "/sys/module"


def parameter(files: fs.Files, module: str, name: str) -> str:
    """Return a parameter of a loaded module, empty if it can't be told.

    A module that is not loaded yet has none, though its configuration may
    set one.
    """
    try:
        return files.text(f"{_MODULES}/{module}/parameters/{name}").strip()
    except errors.UnreadableError:
        return ""
