# SPDX-License-Identifier: Apache-2.0
"""The collection passes ansible-lint with the profile for production."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

COLLECTION = pathlib.Path(__file__).resolve().parents[4] / "contrib/ansible"


@pytest.mark.long
def test_the_collection_is_clean(tmp_path: pathlib.Path) -> None:
    # ansible-lint finds the roles by the path of an installed collection.
    collections = tmp_path / "collections"
    place = collections / "ansible_collections/nova_accel/host"
    shutil.copytree(COLLECTION, place)
    programs = pathlib.Path(sys.executable).parent
    result = subprocess.run(  # noqa: S603 - no input of users
        [
            *(programs / "ansible-lint", "--offline", "--nocolor"),
            *("--profile", "production", "--strict"),
        ],
        cwd=place,
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(collections),
            "ANSIBLE_HOME": str(tmp_path / "home"),
            "PATH": f"{programs}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Passed: 0 failure(s)" in result.stdout + result.stderr
