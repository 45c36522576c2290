# SPDX-License-Identifier: Apache-2.0
"""The release that upgrades start from: its source, out of git."""

import subprocess
from pathlib import Path

# The one before the packages were arranged anew.
COMMIT = "92ab40bcd611844c8c20e09827d78ad400a8916a"
_REPOSITORY = Path(__file__).resolve().parents[2]


def find_missing() -> str:
    """Return why its source can't be had, or ""."""
    git = _run_git("cat-file", "-e", f"{COMMIT}^{{commit}}")
    return "" if not git.returncode else f"no commit {COMMIT} in this clone"


def extract_source(directory: Path) -> None:
    """Write its source into a directory, as ``git archive`` has it."""
    archive = _run_git("archive", COMMIT)
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
