# SPDX-License-Identifier: Apache-2.0
"""The two hosts; the second one runs while the tests of this folder do."""

from collections.abc import Iterator

import pytest

from tests.e2e.support.second_host import TwoHosts
from tests.e2e.support.site import Site
from tests.lab.cloud.options import read_options
from tests.lab.vm.layout import STOCK


@pytest.fixture(scope="package")
def two(lab: Site) -> Iterator[TwoHosts]:
    """Return both hosts."""
    both = TwoHosts(lab)
    both.start()
    yield both
    lab.clean()
    both.stop()


@pytest.fixture(scope="session")
def newer_root(lab: Site) -> None:
    """Skip where the VMs run Debian 12: no device of theirs can migrate."""
    options = read_options(lab.layout)
    if options is None or options.root == STOCK:
        pytest.skip("needs another Debian: tests/lab/lab --root trixie test")
