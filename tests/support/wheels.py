# SPDX-License-Identifier: Apache-2.0
"""Wheels of the library, built by setuptools from a copy of the source."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("nova_accel", "placement_sync", "filters", "virt_hooks")
_FILES = (
    *("setup.cfg", "setup.py", "pyproject.toml", "README.rst", "LICENSE"),
    *(".gitattributes", ".git_archival.txt"),
)


def copy_source(place: Path) -> Path:
    """Copy what a wheel is built from, so that building leaves no trace."""
    place.mkdir()
    for name in (*PACKAGES, "contrib", "tools"):
        shutil.copytree(
            ROOT / name,
            place / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for name in _FILES:
        shutil.copy(ROOT / name, place)
    return place


def build(kind: str, source: Path, out: Path) -> Path:
    """Return the ``wheel`` or ``sdist`` of setuptools' build backend."""
    script = (
        "import sys; from setuptools import build_meta;"
        f" build_meta.build_{kind}(sys.argv[1])"
    )
    out.mkdir(parents=True)
    subprocess.run(  # noqa: S603 - fixed interpreter and script
        [sys.executable, "-c", script, out],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (made,) = out.iterdir()
    return made
