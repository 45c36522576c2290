# SPDX-License-Identifier: Apache-2.0
"""The two hosts; the second one runs while the tests of this folder do."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.support import releases
from tests.e2e.support.live_guest import Booter, LiveGuest, upload_image
from tests.e2e.support.second_host import MTTY_2, Restarter, TwoHosts
from tests.e2e.support.site import Site
from tests.lab.cloud import settings
from tests.lab.cloud.hosts import Host
from tests.lab.cloud.options import read_options
from tests.lab.vm.layout import STOCK


@pytest.fixture(scope="package", params=[releases.OWN])
def two(request: pytest.FixtureRequest, lab: Site) -> Iterator[TwoHosts]:
    """Return both hosts; ``on_all_releases`` runs a test on each release."""
    with releases.start_hosts(lab, request.param) as both:
        yield both


@pytest.fixture(scope="session")
def newer_root(lab: Site) -> None:
    """Skip where the VMs run Debian 12: no device of theirs can migrate."""
    options = read_options(lab.layout)
    if options is None or options.root == STOCK:
        pytest.skip("needs another Debian: tests/lab/lab --root trixie test")


@pytest.fixture
def boot(two: TwoHosts) -> Booter:
    """Return a function that boots a server on the first host."""
    image = upload_image(two)

    def boot_server(flavor: Any = None) -> LiveGuest:
        chosen = flavor or two.flavor(MTTY_2)
        server = two.boot("e2e-live", two.first, chosen, image)
        return LiveGuest(two, server)

    return boot_server


@pytest.fixture
def restart(lab: Site, two: TwoHosts) -> Iterator[Restarter]:
    """Return a function that restarts a nova-compute with more options.

    At the end both run without them, also one that a test has killed.
    """
    # Not in state: Nova looks for compute_id beside configuration files.
    overlay = lab.layout.etc / "restarted.conf"
    restarted: list[Host] = []

    def restart_compute(host: Host, section: str, **options: str) -> None:
        overlay.write_text(settings.render({section: options}))
        restarted.append(host)
        host.start_compute(overlay)

    yield restart_compute
    for host in (two.first, two.second):
        if host in restarted or not host.is_compute_alive():
            host.start_compute()
