# SPDX-License-Identifier: Apache-2.0
"""A host that returns to Nova's own driver, by way of a real conductor."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.site import Site, fault, wait_for
from tests.lab.cloud import settings
from tests.lab.cloud.cloud import COMPUTE

pytestmark = pytest.mark.lab


@pytest.fixture
def stopped(lab: Site, clean: None) -> Iterator[None]:
    """Let a test stop nova-compute, and offer all devices again after it.

    Its servers are deleted after that: nova-compute has to run.
    """
    del clean
    before, devices = list_open(lab), tuple(lab.providers())
    yield
    lab.cloud.restart_compute()
    for name in devices:
        # A provider of a region has its number behind the card's address.
        card, _, number = name.partition("_region_")
        address = re.sub("_(?=.*_)", ":", card).replace("_", ".")
        lab.sync(
            "undrain", f"{address}/region-{number}" if number else address
        )
    wait_for(
        lambda: list_open(lab) >= before, "nova-compute to offer all again"
    )


def list_open(lab: Site) -> set[str]:
    """Return the devices of which servers can get a part."""
    return {
        name
        for name, provider in lab.providers().items()
        if any(
            inventory["reserved"] < inventory["total"]
            for inventory in provider.inventories.values()
        )
    }


def _write_stock(lab: Site) -> Path:
    """Write the lines of nova.conf that switch to Nova's own driver."""
    overlay = lab.layout.etc / "stock.conf"
    driver = {"compute_driver": "libvirt.LibvirtDriver"}
    overlay.write_text(settings.render({"DEFAULT": driver}))
    return overlay


@pytest.mark.long
@pytest.mark.usefixtures("stopped")
def test_a_removal_has_the_conductor_remove_the_slots(lab: Site) -> None:
    """The command is a process of its own, and has no database of Nova."""
    flavor = lab.flavor(
        "mdev",
        resources_ACCEL1__CUSTOM_MDEV="1",
        trait_ACCEL1__CUSTOM_MDEV_MTTY_2="required",
    )
    server = lab.boot("e2e-left", flavor)
    mdevs = lab.hostdevs(server, "mdev")
    assert lab.claims()[server.id]
    assert server.id in lab.synced("remove", "plan")
    refused = lab.sync("remove", "apply")
    assert refused.returncode == 2
    assert "must be stopped" in refused.stderr
    lab.cloud.processes.stop(COMPUTE)
    refused = lab.sync("remove", "apply")
    assert refused.returncode == 2
    assert "--keep-servers" in refused.stderr
    text = lab.synced("remove", "apply", "--keep-servers")
    assert f"Server {server.id}: its slots were removed" in text
    assert server.id not in lab.claims()
    # The provider of the server stays, closed; the others are deleted.
    assert len(lab.providers()) == 1
    assert list_open(lab) == set()
    assert lab.mdevs() == set(mdevs)

    offset = lab.log_offset(COMPUTE)
    lab.cloud.restart_compute(_write_stock(lab))
    assert not lab.logged(COMPUTE, " ERROR ", offset)
    assert lab.hard_reboot(server).status == "ACTIVE"
    assert lab.hostdevs(server, "mdev") == mdevs
    refused_server = lab.await_build(lab.request("e2e-none", flavor))
    assert "No valid host" in fault(refused_server)
    lab.delete(server)
    lab.wait_gone(server)
    lab.synced("remove", "apply")
    assert lab.providers() == {}
    assert lab.mdevs() == set()
