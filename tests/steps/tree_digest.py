# SPDX-License-Identifier: Apache-2.0
"""Digest of what a step depends on: files of a tree, and the machine."""

import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.steps.step_list import Step, is_input

PYTHONS = ("python3", "python3.11", "python3.12", "python3.13")


class NoRepositoryError(Exception):
    """The tree is not the top of a clone: its files can't be listed."""


def _run(command: Sequence[str], place: Path | None = None) -> str:
    """Return the output of a program; empty if it is missing or fails."""
    try:
        done = subprocess.run(  # noqa: S603 - git, dpkg and Python
            command,
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.decode(errors="surrogateescape")


def list_files(root: Path) -> list[str]:
    """Return the tracked files of a clone, and those not ignored.

    Only ignore files of the tree count, not those of a user.

    :raises NoRepositoryError: there is no clone, or no git.
    """
    top = _run(["git", "rev-parse", "--show-toplevel"], root).strip()
    if not top or Path(top).resolve() != root.resolve():
        raise NoRepositoryError(root)
    options = ("--cached", "--others", "--exclude-per-directory=.gitignore")
    names = _run(["git", "ls-files", "-z", *options], root).split("\0")
    return sorted({name for name in names if name})


def read_commit(root: Path) -> str:
    """Return the commit that is checked out, in short."""
    return _run(["git", "rev-parse", "--short=8", "HEAD"], root).strip()


def has_changes(root: Path) -> bool:
    """Return whether files differ from the commit that is checked out."""
    return _run(["git", "status", "--porcelain"], root) != ""


@functools.cache
def _read_programs() -> tuple[str, ...]:
    """Return the versions of Python and of Debian's packages."""
    versions = (_run([python, "-VV"]) for python in PYTHONS)
    return (*versions, _run(["dpkg-query", "-W"]))


def describe_machine(root: Path) -> Iterator[str]:
    """Yield what decides which tests run here, and with which programs."""
    yield f"{platform.system()} {platform.release()} {platform.machine()}"
    yield f"user {os.geteuid()}"
    yield from _read_programs()
    # Tests of upgrades are skipped in a clone without the earlier release.
    yield _run(["git", "rev-parse", "--is-shallow-repository"], root)


def _describe_file(path: Path) -> str:
    """Return kind and content of a file; empty if it was deleted."""
    if path.is_symlink():
        return f"link {os.readlink(path)}"
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{path.stat().st_mode & 0o111:o} {content}"


def compute(root: Path, step: Step) -> str:
    """Return a digest that differs if an input of a step does.

    :raises NoRepositoryError: there is no clone, or no git.
    """
    digest = hashlib.sha256()
    for line in describe_machine(root):
        digest.update(f"{line}\0".encode(errors="surrogateescape"))
    for name in list_files(root):
        if is_input(name, step) and (state := _describe_file(root / name)):
            line = f"{name}\0{state}\0"
            digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()
