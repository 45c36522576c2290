# SPDX-License-Identifier: Apache-2.0
"""Versions and parameters of loaded kernel modules."""

from collections.abc import Iterable

from nova_accel import errors
from nova_accel.host.sysfs import fs

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


def read_versions(files: fs.Files, wanted: Iterable[str]) -> dict[str, str]:
    """Return the versions of those modules that are loaded, by name.

    Empty for one that tells none, as the kernel's own don't. One that is
    built in and takes no parameters looks as if it were not there.
    """
    found = {}
    for module in wanted:
        try:
            names = files.names(f"{_MODULES}/{module}")
        except errors.UnreadableError:
            continue
        found[module] = ""
        if "version" in names:
            found[module] = _text(files, f"{_MODULES}/{module}/version")
    return found


def _text(files: fs.Files, path: str) -> str:
    try:
        return files.text(path).strip()
    except errors.UnreadableError:
        return ""
