# SPDX-License-Identifier: Apache-2.0
"""Packages with entry points, which tests install and damage.

A package hides another one of its name that is later in ``sys.path``. The
product reads each new ``sys.path``.
"""

import importlib.metadata
import pathlib
from collections.abc import Iterable

import pytest

_OWN = "nova-accel"


def install(
    monkeypatch: pytest.MonkeyPatch,
    site: pathlib.Path,
    points: Iterable[importlib.metadata.EntryPoint],
    name: str = "other",
    version: str = "1",
) -> None:
    """Install a package with entry points in a directory for packages."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    (info / "entry_points.txt").write_text(
        "".join(f"[{p.group}]\n{p.name} = {p.value}\n" for p in points)
    )
    monkeypatch.syspath_prepend(str(site))


def remove_groups(
    monkeypatch: pytest.MonkeyPatch, site: pathlib.Path, *groups: str
) -> None:
    """Damage nova-accel: it registers nothing in some groups."""
    own = importlib.metadata.distribution(_OWN)
    points = (p for p in own.entry_points if p.group not in groups)
    install(monkeypatch, site, points, _OWN, own.version)
