# SPDX-License-Identifier: Apache-2.0
"""Version, and files below ``share``; the rest is not code.

setup.cfg would need a line for each directory of the collection. Neither it
nor pyproject.toml can say that a copy without tags has this number, too.
"""

import os
import pathlib
from typing import Any

import setuptools

# Number of the release, which has the tag of this name. Other commits have
# their number and hash behind it: 1.0.0+912.g31debac. They come from git, from
# PKG-INFO of an sdist or from .git_archival.txt of `git archive`; a tree that
# has none of these is NUMBER.
NUMBER = "1.0.0"

_SHARE = "share/nova-accel"
_CACHE = "__pycache__"
# Directory of the source, and its place below _SHARE. Ansible finds a
# collection below ``ansible_collections``.
_DIRECTORIES = {
    # For `glance-manage db_load_metadefs`.
    "filters/metadefs": "metadefs",
    "contrib/ansible": "ansible_collections/nova_accel/host",
    "contrib/ceilometer": "ceilometer",
    "contrib/cloudkitty": "cloudkitty",
    "contrib/grafana": "grafana",
    "contrib/prometheus": "prometheus",
    # Where man and bash look for them.
    "contrib/bash-completion": "../bash-completion/completions",
    "contrib/man": "../man/man1",
}


def list_files() -> list[tuple[str, list[str]]]:
    """Return the directories of the installation with their files."""
    files: dict[str, list[str]] = {}
    for top, place in _DIRECTORIES.items():
        for path in sorted(pathlib.Path(top).rglob("*")):
            directory = path.parent.relative_to(top)
            # Settings of linters, and the rules' own tests, are not installed.
            is_installed = not path.match(".*") and not path.match(
                "*.test.yml"
            )
            if path.is_file() and is_installed and path.parent.name != _CACHE:
                target = os.path.normpath(f"{_SHARE}/{place}/{directory}")
                files.setdefault(target, []).append(str(path))
    return list(files.items())


def name_commit(version: Any) -> str:
    """Return the part of a commit's version behind the number.

    pip leaves an installed wheel in place if another one has its version.

    :param version: of a checkout or an archive, as setuptools-scm reads it.
    """
    if version.exact:
        return ""
    # Releases of setuptools-scm give seven, nine or forty digits.
    parts = [version.distance, (version.node or "")[:8]]
    if version.dirty:
        parts.append("dirty")
    return "+" + ".".join(str(part) for part in parts if part)


setuptools.setup(
    data_files=list_files(),
    use_scm_version={
        "version_scheme": lambda version: NUMBER,
        "local_scheme": name_commit,
        "fallback_version": NUMBER,
    },
)
