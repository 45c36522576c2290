# SPDX-License-Identifier: Apache-2.0
"""Databases made once per installation and copied back at the next start."""

import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.lab.cloud.layout import Layout

_OWN_WHEEL = "nova_accel-"


def installation_key(layout: Layout) -> str:
    """Return a digest of what a prepared database depends on.

    That is the installed distributions but our own, the paths and ports that
    the databases hold, and the program that prepares them.
    """
    installed = sorted(
        path.name
        for path in layout.venv.glob("lib/python3*/site-packages/*.dist-info")
        if not path.name.startswith(_OWN_WHEEL)
    )
    program = (layout.inside / "lab_prepare.py").read_text()
    facts = repr((str(layout.state), layout.base_port, installed, program))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


class Snapshots:
    """Snapshots of the databases of one installation."""

    def __init__(self, layout: Layout) -> None:
        """Take the layout; snapshots of other installations are dropped."""
        self._layout = layout
        root = layout.cache / "databases"
        self._directory = root / installation_key(layout)
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in root.iterdir():
            if path != self._directory:
                shutil.rmtree(path)

    def restore(self, name: str) -> bool:
        """Copy a snapshot back; False when there is none."""
        snapshot = self._directory / name
        if not snapshot.is_dir():
            return False
        for path in snapshot.glob("*.sqlite"):
            shutil.copy(path, self._layout.databases / path.name)
        for path in snapshot.iterdir():
            if path.is_dir():
                target = self._layout.etc / path.name
                shutil.copytree(path, target, dirs_exist_ok=True)
        return True

    def keep(
        self, name: str, databases: Sequence[str], keys: Sequence[str] = ()
    ) -> None:
        """Keep databases, and directories of keys, as they are now."""
        part = self._directory / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        for database in databases:
            file = f"{database}.sqlite"
            _back_up(self._layout.databases / file, part / file)
        for key in keys:
            shutil.copytree(self._layout.etc / key, part / key)
        part.rename(self._directory / name)

    def once(
        self, name: str, databases: Sequence[str], make: Callable[[], None]
    ) -> None:
        """Restore a snapshot, or make the databases and keep them."""
        if not self.restore(name):
            make()
            self.keep(name, databases)


def _back_up(source: Path, target: Path) -> None:
    """Copy a database that may be open elsewhere."""
    connection, copy = sqlite3.connect(source), sqlite3.connect(target)
    try:
        connection.backup(copy)
    finally:
        connection.close()
        copy.close()
