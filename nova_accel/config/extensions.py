# SPDX-License-Identifier: Apache-2.0
"""Objects that packages register as entry points.

So the core uses packages that it does not import by name. Installed packages
are read once in a process: a service uses nothing of a package that is
installed while it runs. Threads that begin at the same time may each read.
"""

import functools
import re
import sys
from importlib import metadata
from typing import Any, TypeVar

from nova_accel import errors

T = TypeVar("T")
#: Of errors, in place of a file.
PLACE = "entry point"
_REPAIR = "repair or remove its package"
# Groups of nova-accel in entry_points.txt.
_OWN = re.compile(r"\[(nova_accel|openstack\.accel)\.")


def list_points(group: str) -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of a group of nova-accel, sorted by name."""
    points = _read_points(tuple(sys.path))
    return tuple(point for point in points if point.group == group)


@functools.cache
def _read_points(_path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    # metadata.entry_points() parses those of all packages: twice the time.
    packages = (
        package
        for package in metadata.distributions()
        if _OWN.search(package.read_text("entry_points.txt") or "")
    )
    points = {p for package in packages for p in _first(package).entry_points}
    return tuple(sorted(points))


def _first(package: metadata.Distribution) -> metadata.Distribution:
    """Return the package of the same name that Python finds first."""
    try:
        return metadata.distribution(package.name)
    # Damaged metadata; which error depends on the release of Python.
    except (ImportError, OSError, ValueError, LookupError, TypeError):
        return package


def load(group: str, hint: str = _REPAIR) -> dict[str, Any]:
    """Return the objects of a group of entry points, sorted by name.

    :param hint: what to do if one can't be loaded.
    :raises ConfigurationError: one can't be loaded.
    """
    return {point.name: _load(point, hint) for point in list_points(group)}


def build(group: str, context: object) -> dict[str, Any]:
    """Return an object of each registered class, by name.

    :param context: argument of the classes.
    :raises ConfigurationError: one can't be loaded.
    """
    return {name: make(context) for name, make in load(group).items()}


def build_one(group: str, context: object, *default: T) -> T:
    """Return an object of the first registered class.

    :param context: argument of the class.
    :param default: returned without a registered class.
    :raises ConfigurationError: there is neither, or one can't be loaded.
    """
    for make in load(group).values():
        built: T = make(context)
        return built
    if default:
        return default[0]
    raise errors.ConfigurationError(
        group, "", "install nova-accel again", PLACE
    )


def _load(point: metadata.EntryPoint, hint: str) -> Any:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise errors.ConfigurationError(
            point.group,
            point.value,
            f"can't be loaded ({error}); {hint}",
            PLACE,
        ) from error
