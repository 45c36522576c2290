# SPDX-License-Identifier: Apache-2.0
"""Objects that packages register as entry points.

So the core uses packages that it does not import by name.
"""

import importlib.metadata
from typing import Any

from nova_accel import errors


def load(group: str) -> dict[str, Any]:
    """Return the objects of a group of entry points, sorted by name.

    :raises ConfigurationError: one can't be loaded.
    """
    points = importlib.metadata.entry_points(group=group)
    return {
        point.name: _load(point)
        for point in sorted(points, key=lambda point: point.name)
    }


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
