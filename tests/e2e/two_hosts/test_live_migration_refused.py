# SPDX-License-Identifier: Apache-2.0
"""Live migrations that are refused before anything happens.

The server stays where it is, and its guest does not notice.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.support.live_guest import Booter
from tests.e2e.support.second_host import MTTY_1, MTTY_2, TwoHosts
from tests.e2e.support.site import Site, wait_for
from tests.lab.cloud.hosts import Host

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("newer_root", "clean", "restart"),
]

#: The kernel's sample of a display, whose driver can't move its state.
_MDPY, _MDPY_TYPE = "mdpy", "mdpy-vga"


def test_by_a_host_whose_card_is_full(two: TwoHosts, boot: Booter) -> None:
    guest = boot()
    guest.set_registers("K")
    small = two.flavor(MTTY_1)
    for name in ("e2e-filler-1", "e2e-filler-2"):
        two.boot(name, two.second, small, two.image())

    assert guest.migrate(two.second) == "error"
    two.check("refused", first=MTTY_2, second=f"{MTTY_1} {MTTY_1}")
    guest.check_registers("K")


@pytest.fixture
def no_card(two: TwoHosts) -> Iterator[None]:
    """Take the card from the second host."""

    def switch(command: str) -> None:
        two.second.stop_compute()
        two.second.run(f"{command} mtty")
        two.second.start_compute()

    switch("rmmod")
    yield
    switch("modprobe")


def test_by_a_host_without_a_card(
    two: TwoHosts, boot: Booter, no_card: None
) -> None:
    guest = boot()
    guest.set_registers("K")

    assert guest.migrate(two.second) == "error"
    two.check("refused", first=MTTY_2)
    guest.check_registers("K")


def test_without_a_log_of_written_pages(
    lab: Site, two: TwoHosts, boot: Booter
) -> None:
    guest = boot()
    guest.set_registers("K")
    lab.restart_compute("log", "live_migration_without_iommufd = False")
    offset = lab.log_offset("nova-compute")
    try:
        assert guest.migrate(two.second) == "error"
        assert lab.logged("nova-compute", "has no IOMMUFD", offset)
        two.check("refused", first=MTTY_2)
        guest.check_registers("K")
    finally:
        lab.cloud.restart_compute()


@pytest.fixture
def displays(lab: Site, two: TwoHosts) -> Iterator[None]:
    """Let both hosts make displays, too."""
    hosts = (two.first, two.second)

    def await_provider(node: str) -> None:
        wait_for(lambda: _MDPY in lab.providers(node), "the display")

    for host in hosts:
        host.run(f"modprobe {_MDPY}")
    for host in hosts:
        await_provider(host.node)
    yield
    lab.clean()
    for host in hosts:
        host.stop_compute()
        host.run(f"rmmod {_MDPY}")
        host.start_compute()


def test_with_a_device_that_can_not_move_its_state(
    lab: Site, two: TwoHosts, boot: Booter, displays: None
) -> None:
    """One device is enough, beside another that can."""
    specs = {"group_policy": "none"}
    for group, trait in (
        ("ACCEL1", "CUSTOM_MDEV_MTTY_1"),
        ("ACCEL2", "CUSTOM_MDEV_MDPY_VGA"),
    ):
        specs[f"resources_{group}__CUSTOM_MDEV"] = "1"
        specs[f"trait_{group}__{trait}"] = "required"
    guest = boot(lab.flavor("display", **specs))
    guest.set_registers("K")
    both = f"{MTTY_1} {_MDPY_TYPE}"
    two.check("booted", first=both)
    offset = lab.log_offset("nova-compute")

    assert guest.migrate(two.second) == "error"
    reason = "kernel driver mdpy, which is not known to move"
    assert lab.logged("nova-compute", reason, offset)
    two.check("refused", first=both)
    guest.check_registers("K")


@pytest.mark.parametrize("number", [0, 1], ids=["source", "destination"])
def test_while_a_host_is_known_to_be_dead(
    two: TwoHosts, boot: Booter, number: int
) -> None:
    guest = boot()
    guest.set_registers("K")
    host = Host(two.lab.cloud, number)
    host.kill_compute()
    two.set_dead(host, True)
    try:
        assert guest.migrate(two.second) == "error"
    finally:
        two.set_dead(host, False)
    two.check("refused", first=MTTY_2)
    guest.check_registers("K")

    host.start_compute()
    assert guest.migrate(two.second) == "completed"
    two.check("migrated", second=MTTY_2)
    guest.check_registers("K")
