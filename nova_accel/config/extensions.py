# SPDX-License-Identifier: Apache-2.0
"""Objects that packages register as entry points.

So the core uses packages that it does not import by name. Installed packages
are read once in a process: a service uses nothing of a package that is
installed while it runs. Threads that begin at the same time may each read.
"""

import functools
import importlib.metadata
import re
import sys
from typing import Any

from nova_accel import errors

# Groups of nova-accel in entry_points.txt.
_OWN = re.compile(r"\[(nova_accel|openstack\.accel)\.")


def list_points(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return the entry points of a group of nova-accel, sorted by name."""
    points = _read_points(tuple(sys.path))
    return tuple(point for point in points if point.group == group)


@functools.cache
def _read_points(
    _path: tuple[str, ...],
) -> tuple[importlib.metadata.EntryPoint, ...]:
    # importlib's entry_points() parses those of all packages, and takes twice
    # as long.
    packages = (
        package
        for package in importlib.metadata.distributions()
        if _OWN.search(package.read_text("entry_points.txt") or "")
    )
    return tuple(
        sorted({p for each in packages for p in _first(each).entry_points})
    )


def _first(
    package: importlib.metadata.Distribution,
) -> importlib.metadata.Distribution:
    """Return the package of the same name that Python finds first."""
    try:
        return importlib.metadata.distribution(package.name)
    # Damaged metadata; which error depends on the release of Python.
    except (ImportError, OSError, ValueError, LookupError, TypeError):
        return package


def load(group: str) -> dict[str, Any]:
    """Return the objects of a group of entry points, sorted by name.

    :raises ConfigurationError: one can't be loaded.
    """
    return {point.name: _load(point) for point in list_points(group)}


def load_one(group: str) -> Any:
    """Return the first object of a group of entry points.

    :raises ConfigurationError: there is none, or it can't be loaded.
    """
    for registered in load(group).values():
        return registered
    raise errors.ConfigurationError(
        f"entry point {group}", "", "install nova-accel again"
    )


def _load(point: importlib.metadata.EntryPoint) -> Any:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise errors.ConfigurationError(
            f"entry point {point.group}",
            point.value,
            f"can't be loaded ({error}); repair or remove its package",
        ) from error
