# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests, and fixtures of several folders."""

import configparser
import gc
import importlib.metadata
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


def pytest_sessionstart() -> None:
    """Refuse an installation with other entry points than setup.cfg.

    Packages are loaded by them: without, hot attach or a command is missing.
    """
    setup = configparser.ConfigParser()
    setup.read(pathlib.Path(__file__).parents[1] / "setup.cfg")
    listed = {
        (group, *map(str.strip, line.split("=", 1)))
        for group, lines in setup["options.entry_points"].items()
        for line in lines.strip().splitlines()
        if "=" in line
    }
    try:
        own = importlib.metadata.distribution("nova-accel")
    except importlib.metadata.PackageNotFoundError:
        return
    installed = {(p.group, p.name, p.value) for p in own.entry_points}
    if listed != installed:
        pytest.exit(
            "entry points of setup.cfg are not installed: run"
            " tox run --notest -e ENVIRONMENT, or tests/run",
            returncode=4,
        )


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection.

    Collections that walk all modules of Nova took a fifth of the processor
    time in its harness.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the root directory of a Debian with cloud-init."""
    if obstacle := debian_guest.find_obstacle():
        pytest.skip(obstacle)
    return debian_guest.build(tmp_path_factory.mktemp("debian"))
