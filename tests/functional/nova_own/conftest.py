# SPDX-License-Identifier: Apache-2.0
"""A host with accelerator cards, beside the devices of Nova's tests."""

import time
from typing import Any

import pytest

from tests.functional.nova_own import chosen, switched
from tests.hosts import build

_began = time.monotonic()


# Before tests with marks are deselected.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.partition("::")[2] in chosen.LONG:
            item.add_marker(pytest.mark.long)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the number of Nova's own tests that passed, and the time."""
    passed, failed = (
        len(terminalreporter.stats.get(word, ()))
        for word in ("passed", "failed")
    )
    driver = "Nova's driver" if switched.is_stock() else "AccelLibvirtDriver"
    terminalreporter.write_line(
        f"{passed} of {passed + failed} of Nova's own tests passed with"
        f" {driver}, in {time.monotonic() - _began:.0f} s"
    )


@pytest.fixture(scope="session", autouse=True)
def host(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Create the host; Nova's tests attach none of its cards."""
    root = tmp_path_factory.mktemp("host")
    build.build(build.load("passthrough"), root)
    switched.Switched.root = root
