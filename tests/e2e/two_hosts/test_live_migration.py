# SPDX-License-Identifier: Apache-2.0
"""Guests with mdevs migrate between two hosts while they run.

The kernel's mtty moves its state since Linux 6.7. After each step Nova,
Placement, both hosts' libvirt and both kernels agree, and the guest's devices
have their state.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.support import agreement
from tests.e2e.support.live_guest import LiveGuest, slow_wire, upload_image
from tests.e2e.support.second_host import MTTY_1, MTTY_2, TwoHosts
from tests.e2e.support.site import Site, wait_for

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("newer_root", "clean"),
]

#: Where this file is, QEMU starts guests with its own defaults (guest/qemu).
_STOCK_QEMU = "/run/qemu-stock"
#: Nova sets the second status where libvirt's error comes after the first.
_FAILED, _ABORTED = ("failed", "error"), ("cancelled", "error")
Booter = Callable[..., LiveGuest]


@pytest.fixture
def boot(two: TwoHosts) -> Booter:
    """Return a function that boots a server on the first host."""
    image = upload_image(two)

    def boot_server(flavor: Any = None) -> LiveGuest:
        chosen = flavor or two.flavor(MTTY_2)
        server = two.boot("e2e-live", two.first, chosen, image)
        return LiveGuest(two, server)

    return boot_server


def test_there_and_back(two: TwoHosts, boot: Booter) -> None:
    guest = boot()
    guest.set_registers("K")
    two.check("booted", first=MTTY_2)

    assert guest.migrate(two.second) == "completed"
    two.check("migrated to the host that was named", second=MTTY_2)
    guest.check_registers("K")
    assert guest.migrate() == "completed"
    two.check("migrated to the host that was selected", first=MTTY_2)
    guest.check_registers("K")


def test_two_mdevs_in_one_server(
    lab: Site, two: TwoHosts, boot: Booter
) -> None:
    specs = {"group_policy": "none"}
    for group in ("ACCEL1", "ACCEL2"):
        specs[f"resources_{group}__CUSTOM_MDEV"] = "1"
        specs[f"trait_{group}__CUSTOM_MDEV_MTTY_1"] = "required"
    guest = boot(lab.flavor("both", **specs))
    guest.set_registers("KL")

    assert guest.migrate(two.second) == "completed"
    two.check("migrated", second=f"{MTTY_1} {MTTY_1}")
    guest.check_registers("KL")


def test_refused_by_a_host_whose_card_is_full(
    two: TwoHosts, boot: Booter
) -> None:
    guest = boot()
    guest.set_registers("K")
    small = two.flavor(MTTY_1)
    for name in ("e2e-filler-1", "e2e-filler-2"):
        two.boot(name, two.second, small, two.image())

    assert guest.migrate(two.second) == "error"
    two.check("refused", first=MTTY_2, second=f"{MTTY_1} {MTTY_1}")
    guest.check_registers("K")


def test_refused_without_a_log_of_written_pages(
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


def test_failed_in_the_middle_and_again(
    two: TwoHosts, boot: Booter, lab: Site
) -> None:
    """QEMU with its defaults fails when it begins to send the memory."""
    two.first.run(f"touch {_STOCK_QEMU}")
    try:
        guest = boot()
    finally:
        two.first.run(f"rm {_STOCK_QEMU}")
    guest.set_registers("K")

    assert guest.migrate(two.second) in _FAILED
    two.check("failed", first=MTTY_2)
    guest.check_registers("K")

    guest.server = lab.hard_reboot(guest.server)
    guest.set_registers("M")
    assert guest.migrate(two.second) == "completed"
    two.check("migrated", second=MTTY_2)
    guest.check_registers("M")


def test_aborted_and_again(two: TwoHosts, boot: Booter) -> None:
    guest = boot()
    guest.set_registers("K")
    with slow_wire(two.first):
        number = guest.begin(two.second)
        guest.await_transfer(number)
        guest.abort(number)
        assert guest.finish(number) in _ABORTED
    two.check("aborted", first=MTTY_2)
    guest.check_registers("K")

    assert guest.migrate(two.second) == "completed"
    two.check("migrated", second=MTTY_2)
    guest.check_registers("K")


def test_destination_is_killed_during_the_transfer(
    two: TwoHosts, boot: Booter
) -> None:
    """libvirt moves the guest; nova-compute there finishes once it is back."""
    guest = boot()
    guest.set_registers("K")
    with slow_wire(two.first):
        number = guest.begin(two.second)
        guest.await_transfer(number)
        two.second.kill_compute()
    wait_for(
        lambda: guest.server.id in agreement.running(two.second),
        "the guest to arrive",
    )
    two.second.start_compute()
    assert guest.finish(number) == "completed"
    two.check("migrated", second=MTTY_2)
    guest.check_registers("K")
