# SPDX-License-Identifier: Apache-2.0
"""Fixtures of several folders."""

import pathlib

import pytest

from tests.support import debian_guest


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the root directory of a Debian with cloud-init."""
    if obstacle := debian_guest.find_obstacle():
        pytest.skip(obstacle)
    return debian_guest.build(tmp_path_factory.mktemp("debian"))
