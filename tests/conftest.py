# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests, and fixtures of several folders."""

import pathlib

import hypothesis
import pytest

from tests.support import examples
from tests.support.licenses import debian_guest

# Shared machines are slow now and then: no deadline for one example. A
# failure prints the line that repeats it.
hypothesis.settings.register_profile(
    "house",
    deadline=None,
    print_blob=True,
    database=None,
    max_examples=examples.examples(100),
)
hypothesis.settings.load_profile("house")


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the root directory of a Debian with cloud-init."""
    if obstacle := debian_guest.find_obstacle():
        pytest.skip(obstacle)
    return debian_guest.build(tmp_path_factory.mktemp("debian"))
