# SPDX-License-Identifier: Apache-2.0
"""Records of steps that passed, as JSON below ``NOVA_ACCEL_LAB``.

A step has one record for each scope, that of its last pass. A record that
can't be read or has another digest does not count.
"""

import dataclasses
import json
import os
import tempfile
from pathlib import Path

from tests.steps import tree_digest
from tests.steps.step_list import Step

# A pass of a scope includes those before it.
SCOPES = ("quick", "short", "whole")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Pass of a step: digest of its inputs, local time, commit."""

    digest: str
    date: str
    commit: str

    def __str__(self) -> str:
        return f"passed on {self.date} at {self.commit}"


class Records:
    """Records of the steps of one tree."""

    def __init__(self, place: Path, root: Path) -> None:
        """Read and write records in a directory.

        :param root: top of the tree.
        """
        self._place = place
        self._root = root

    def find(self, name: str, step: Step, scope: str) -> Record | None:
        """Return a pass of a scope, or a larger one, with the same inputs."""
        digest = self._compute(step)
        if digest is None:
            return None
        for candidate in _list_scopes(step, scope):
            record = _read(self._path(name, candidate))
            if record is not None and record.digest == digest:
                return record
        return None

    def compute(self, step: Step) -> str:
        """Return the digest of a step's inputs; empty if it has no record."""
        return self._compute(step) or ""

    def add(
        self, name: str, step: Step, scope: str, digest: str, date: str
    ) -> bool:
        """Record a pass; return False if its inputs are not certain.

        :param digest: that of the inputs before the step ran. If they changed
            meanwhile, nothing is recorded.
        """
        if not digest or self._compute(step) != digest:
            return False
        commit = tree_digest.read_commit(self._root)
        if tree_digest.has_changes(self._root):
            if step.tests_commit:
                return False
            commit += " with changes"
        record = Record(digest=digest, date=date, commit=commit)
        path = self._path(name, _list_scopes(step, scope)[0])
        _write(path, record)
        return True

    def _compute(self, step: Step) -> str | None:
        if not step.is_recorded:
            return None
        try:
            return tree_digest.compute(self._root, step)
        except tree_digest.NoRepositoryError:
            return None

    def _path(self, name: str, scope: str) -> Path:
        return self._place / f"{name}-{scope}.json"


def _list_scopes(step: Step, scope: str) -> tuple[str, ...]:
    """Return a scope and those that include it."""
    if not step.has_scopes:
        return SCOPES[-1:]
    return SCOPES[SCOPES.index(scope) :]


def _read(path: Path) -> Record | None:
    try:
        values = json.loads(path.read_text())
        record = Record(**values)
    except (OSError, ValueError, TypeError):
        return None
    fields = dataclasses.astuple(record)
    return record if all(isinstance(f, str) and f for f in fields) else None


def _write(path: Path, record: Record) -> None:
    """Replace a record; a reader gets the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=".", delete=False
    ) as file:
        json.dump(dataclasses.asdict(record), file)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)
