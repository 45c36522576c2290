# SPDX-License-Identifier: Apache-2.0
"""Owners of the packages that Python finds under nova-accel's names.

Another distribution may install a package of the same name: phx-filters of
the Python package index has ``filters``. In another directory its package may
precede nova-accel's; in the same one the files of both are mixed.

Only the standard library is imported: ``config_source`` uses this module.
"""

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NAMES = ("filters", "placement_sync", "virt_hooks")
_OWN = "nova-accel"
_TOP = Path(__file__).resolve().parents[2]
_REMEDY = "remove it, or install nova-accel in an environment of its own"


class ForeignPackage(NamedTuple):
    """Package under a name of nova-accel that is not only nova-accel's.

    ``path`` is the directory that Python finds, empty for none.
    ``distributions`` are the others that install a package of that name.
    """

    name: str
    path: str
    distributions: tuple[str, ...] = ()

    @property
    def is_own(self) -> bool:
        """Return whether nova-accel's modules are found."""
        own = _TOP / self.name
        return self.path == str(own) and (own / "__init__.py").is_file()

    def __str__(self) -> str:
        owners = ", ".join(self.distributions)
        if not self.path:
            return f"Python finds no package {self.name}: install {_OWN} again"
        if self.path != str(_TOP / self.name):
            return (
                f"Python's package {self.name} is {self.path}"
                f"{f' of {owners}' if owners else ''}, not that of {_OWN} in"
                f" {_TOP}: {_REMEDY}"
            )
        if not self.distributions:
            return f"{self.path} lacks __init__.py: install {_OWN} again"
        return (
            f"{owners} installed files into the package {self.name} of {_OWN}"
            f" ({self.path}): {_REMEDY}; then install {_OWN} again"
        )


def find_foreign() -> tuple[ForeignPackage, ...]:
    """Return the packages that are not nova-accel's alone."""
    others = _find_distributions()
    packages = (
        ForeignPackage(name, _find(name), tuple(sorted(others[name])))
        for name in NAMES
    )
    return tuple(p for p in packages if p.distributions or not p.is_own)


def _find(name: str) -> str:
    """Return the directory of the package that Python imports."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # it was imported without a spec
        return ""
    places = spec.submodule_search_locations if spec else None
    # A module of one file has a path, and no places.
    return str((list(places or ()) or [(spec and spec.origin) or ""])[0])


def _find_distributions() -> dict[str, set[str]]:
    """Return the other distributions that have packages of these names."""
    others: dict[str, set[str]] = {name: set() for name in NAMES}
    for distribution in importlib.metadata.distributions():
        try:
            packages = set(_list_packages(distribution)) & set(NAMES)
            owner = (distribution.name or "") if packages else ""
        # Damaged metadata; which error depends on the release of Python.
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
        if owner.replace("_", "-").lower() not in ("", _OWN):
            for name in packages:
                others[name].add(owner)
    return others


def _list_packages(
    distribution: importlib.metadata.Distribution,
) -> Iterator[str]:
    yield from (distribution.read_text("top_level.txt") or "").split()
    for line in (distribution.read_text("RECORD") or "").splitlines():
        yield line.partition("/")[0]
