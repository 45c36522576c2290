# SPDX-License-Identifier: Apache-2.0
"""A host with cards of ours beside what Nova's own tests have."""

import time
from typing import Any

import pytest

from tests.functional.nova_own import switched
from tests.hosts import build

_began = time.monotonic()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell how many of Nova's own tests passed, and in how long."""
    passed, failed = (
        len(terminalreporter.stats.get(word, ()))
        for word in ("passed", "failed")
    )
    who = "Nova's" if switched.is_stock() else "our"
    terminalreporter.write_line(
        f"{passed} of {passed + failed} tests of Nova's own passed with"
        f" {who} driver, in {time.monotonic() - _began:.0f} s"
    )


@pytest.fixture(scope="session", autouse=True)
def host(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make it; nothing of it is given to a server in Nova's tests."""
    root = tmp_path_factory.mktemp("host")
    build.build(build.load("passthrough"), root)
    switched.Switched.root = root
