# SPDX-License-Identifier: Apache-2.0
"""Fixture: a host on which commands run."""

import pathlib

import pytest

from tests.functional.sync.support import servers, sites


@pytest.fixture
def site(
    placement: servers.Server, tmp_path: pathlib.Path, capsys: sites.Output
) -> sites.Site:
    """Return a host whose compute node Placement has."""
    new_site = sites.Site(placement, tmp_path, capsys)
    new_site.register()
    return new_site
