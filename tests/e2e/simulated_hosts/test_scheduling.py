# SPDX-License-Identifier: Apache-2.0
"""Placing of servers by the real scheduler, conductor and Placement.

There are three simulated hosts beside the lab's own: four L40S, two T4,
and one without devices. Flavors are written by our own command. What the
filter and the weigher decide is in tests/functional/scheduler.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.support.simulated_site import (
    T4,
    T4_B,
    T4S,
    Simulated,
    place,
)
from tests.e2e.support.site import Site
from tests.lab.cloud import settings
from tests.lab.vm import topology

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("clean"),
]

REAL = "labvm"


def land(hosts: Simulated, flavor: Any, **arguments: Any) -> set[str]:
    """Boot a server; return the devices that it got."""
    server = hosts.lab.boot("e2e-server", flavor, **arguments)
    return hosts.places(server)


def take(hosts: Simulated, host: str, address: str, profile: str) -> None:
    """Have a server take a vGPU of this very card."""
    where = f"{host}/{address}"
    flavor = hosts.flavor("--profile", profile, "--device", where)
    assert land(hosts, flavor) == {place(host, address)}


@pytest.fixture
def spread(lab: Site) -> Iterator[Any]:
    """Return an aggregate that spreads the servers over its hosts."""
    compute = lab.api.compute
    made = compute.create_aggregate(name="e2e-spread")
    compute.set_aggregate_metadata(
        made, {"accelerator_packing_weight_multiplier": "-10"}
    )
    yield made
    for host in compute.get_aggregate(made).hosts or ():
        compute.remove_host_from_aggregate(made, host)
    compute.delete_aggregate(made)


def test_the_real_host_and_a_simulated_one_are_packed_and_spread(
    hosts: Simulated, spread: Any
) -> None:
    """The real host's card has a server, the other host's have none."""
    lab = hosts.lab
    take(hosts, REAL, topology.T4_ADDRESS, "T4-4Q")
    used = lab.mdevs()
    assert len(used) == 1
    flavor = hosts.flavor("--profile", "T4-4Q")

    packed = lab.boot("e2e-packed", flavor)
    assert hosts.places(packed) == {place(REAL, topology.T4_ADDRESS)}
    assert set(lab.hostdevs(packed, "mdev")) == lab.mdevs() - used

    used = lab.mdevs()
    for host in (settings.HOST, T4S):
        lab.api.compute.add_host_to_aggregate(spread, host)
    (card,) = land(hosts, flavor)
    assert card in {place(T4S, T4), place(T4S, T4_B)}
    assert lab.mdevs() == used
