# SPDX-License-Identifier: Apache-2.0
"""OpenStack's own tests, unmodified, with our driver, filter and weigher."""

import pathlib

import pytest

from tests.e2e.support.site import Site
from tests.e2e.tempest import suite

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("clean"),
]
# The lab has neither a network nor volumes, and one host in this test;
# Nova itself has removed some calls since.
ABSENT = (
    "Neutron",
    "Volume",
    "volume",
    "network",
    "microversion range",
    "not available",
    "not enabled",
    "not supported",
    "feature is disabled",
    "Instance validation",
    "distinct images",
    "Less than 2 compute nodes",
    "Marked as unstable",
)


@pytest.fixture(scope="module")
def tempest(lab: Site) -> suite.Tempest:
    installed = suite.Tempest(lab)
    installed.install()
    return installed


def check(results: suite.Results, minimum: int) -> None:
    assert not results.failed, results.output[-20_000:]
    assert len(results.passed) >= minimum, results.output[-5_000:]
    unexplained = {
        name: reason
        for name, reason in results.skipped.items()
        if not any(word in reason for word in ABSENT)
    }
    assert not unexplained


def test_servers_without_accelerators(
    lab: Site, tempest: suite.Tempest, tmp_path: pathlib.Path
) -> None:
    """Tempest's smoke tests of compute."""
    flavor, other = (lab.flavor(name) for name in ("plain", "other"))
    check(
        tempest.run(
            tmp_path / "tempest",
            r"tempest\.api\.compute\..*\[.*\bsmoke\b",
            flavor.id,
            other.id,
        ),
        8,
    )


def test_servers_with_an_mdev(
    lab: Site, tempest: suite.Tempest, tmp_path: pathlib.Path
) -> None:
    """Each action of a server and each state in which one is deleted."""
    specs = {
        "resources_ACCEL__CUSTOM_MDEV": "1",
        "trait_ACCEL__CUSTOM_MDEV_MTTY_1": "required",
    }
    flavor, other = (lab.flavor(name, **specs) for name in ("mdev", "other"))
    check(
        tempest.run(
            tmp_path / "tempest",
            r"tempest\.api\.compute\.servers\."
            r"(test_server_actions|test_delete_server|test_server_rescue)\.",
            flavor.id,
            other.id,
            # The lab's guests have no system that releases a device, and
            # Tempest's users may not offload shelved servers.
            without=["suspend", "shelve"],
        ),
        6,
    )
    assert not lab.mdevs()
