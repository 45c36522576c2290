# SPDX-License-Identifier: Apache-2.0
"""Guests with mdevs migrate between two hosts while they run.

The kernel's mtty moves its state since Linux 6.7. After each step Nova,
Placement, both hosts' libvirt and both kernels agree, and the guest's devices
have their state.
"""

import pytest

from tests.e2e.support.live_guest import (
    FAILED,
    Booter,
    count_connections,
    slow_wire,
)
from tests.e2e.support.releases import on_all_releases
from tests.e2e.support.second_host import (
    MTTY_1,
    MTTY_2,
    Restarter,
    TwoHosts,
)
from tests.e2e.support.site import Site, wait_for

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("newer_root", "clean"),
]

#: Where this file is, QEMU starts guests with its own defaults (guest/qemu).
_STOCK_QEMU = "/run/qemu-stock"
#: Nova sets the second status where libvirt's error comes after the first.
_ABORTED = ("cancelled", "error")
_CONNECTIONS = 2
#: Of two guests.
_REGISTERS = ("K", "Q")


@on_all_releases
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


def test_two_servers_at_once(
    two: TwoHosts, boot: Booter, restart: Restarter
) -> None:
    restart(two.first, "DEFAULT", max_concurrent_live_migrations="2")
    small = two.flavor(MTTY_1)
    guests = [boot(small), boot(small)]
    for guest, registers in zip(guests, _REGISTERS, strict=True):
        guest.set_registers(registers)

    with slow_wire(two.first):
        moves = [(guest, guest.begin(two.second)) for guest in guests]
        for guest, number in moves:
            guest.await_transfer(number)
        assert {guest.status(number) for guest, number in moves} == {"running"}
    for guest, number in moves:
        assert guest.finish(number) == "completed"
    two.check("migrated", second=f"{MTTY_1} {MTTY_1}")
    for guest, registers in zip(guests, _REGISTERS, strict=True):
        guest.check_registers(registers)


def test_over_several_connections(
    two: TwoHosts, boot: Booter, restart: Restarter
) -> None:
    """QEMU sends memory over these, and the rest over one more (multifd)."""
    restart(
        two.first,
        "libvirt",
        live_migration_parallel_connections=str(_CONNECTIONS),
    )
    guest = boot()
    guest.set_registers("K")

    with slow_wire(two.first):
        number = guest.begin(two.second)
        wait_for(
            lambda: count_connections(two.first) == _CONNECTIONS + 1,
            "the connections",
        )
    assert guest.finish(number) == "completed"
    two.check("migrated", second=MTTY_2)
    guest.check_registers("K")


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

    assert guest.migrate(two.second) in FAILED
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
