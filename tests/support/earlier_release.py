# SPDX-License-Identifier: Apache-2.0
"""Releases that upgrades start from: their source, out of git."""

import subprocess
from pathlib import Path

# The one before the packages were arranged anew.
COMMIT = "92ab40bcd611844c8c20e09827d78ad400a8916a"
# The release before, 0.9.0: a clone may have no tags.
LAST = "d115d70309d6f099610fd3749a2fb3c02ccffb0e"
_REPOSITORY = Path(__file__).resolve().parents[2]


def find_missing(commit: str = COMMIT) -> str:
    """Return why a release's source can't be had, or ""."""
    git = _run_git("cat-file", "-e", f"{commit}^{{commit}}")
    return "" if not git.returncode else f"no commit {commit} in this clone"


def extract_source(directory: Path, commit: str = COMMIT) -> None:
    """Write its source into a directory, as ``git archive`` has it."""
    archive = _run_git("archive", commit)
    directory.mkdir(parents=True, exist_ok=True)
    # Debian 12's tarfile has no filters.
    subprocess.run(  # noqa: S603 - fixed arguments
        ["tar", "-x", "-C", str(directory)],  # noqa: S607
        input=archive.stdout,
        check=True,
    )


def _run_git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # noqa: S603 - fixed arguments
        ["git", *words],  # noqa: S607
        cwd=_REPOSITORY,
        capture_output=True,
        check=False,
    )
