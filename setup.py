# SPDX-License-Identifier: Apache-2.0
"""Files below ``share``; the rest of the package is in setup.cfg.

setup.cfg would need a line for each directory of the collection.
"""

import os
import pathlib

import setuptools

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


setuptools.setup(data_files=list_files())
