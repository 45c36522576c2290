# SPDX-License-Identifier: Apache-2.0
"""nova-compute dies, or the wire between the hosts, during a live migration.

Nova notices neither: its services count as alive for an hour in the lab, and
the wire carries only what libvirt and QEMU send.
"""

import pytest

from tests.e2e.support import agreement
from tests.e2e.support.live_guest import (
    Booter,
    LiveGuest,
    cut_wire,
    slow_wire,
)
from tests.e2e.support.second_host import (
    MTTY_2,
    Restarter,
    TwoHosts,
)
from tests.e2e.support.site import Site, wait_for

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("newer_root", "clean", "restart"),
]

#: Most that the source waits for a destination that does not answer.
_ANSWER_S = 60
#: A guest takes minutes, longer than a nova-compute that starts.
_SLOWER = "40kbit"


def test_destination_is_killed_before(two: TwoHosts, boot: Booter) -> None:
    """The calls of the other services wait in its queue."""
    guest = boot()
    guest.set_registers("K")
    two.second.kill_compute()
    number = guest.begin(two.second)
    two.second.start_compute()
    _check_migrated(two, guest, number)


def test_destination_is_killed_while_it_makes_the_mdev(
    two: TwoHosts, boot: Booter, restart: Restarter
) -> None:
    """The moment varies, so that the migration fails or continues."""
    restart(two.first, "DEFAULT", rpc_response_timeout=str(_ANSWER_S))
    guest = boot()
    guest.set_registers("K")
    number = guest.begin(two.second)
    wait_for(lambda: guest.status(number) == "preparing", "the preparation")
    two.second.kill_compute()
    two.second.start_compute()
    if guest.finish(number) != "completed":
        two.check("failed", first=MTTY_2)
        guest.check_registers("K")
        _check_migrated(two, guest, guest.begin(two.second))


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
    guest.await_arrival(two.second)
    two.second.start_compute()
    _check_migrated(two, guest, number)


def test_destination_is_killed_after_the_transfer(
    two: TwoHosts, boot: Booter
) -> None:
    """The source has asked it to finish, and it has not begun."""
    guest = boot()
    guest.set_registers("K")
    with slow_wire(two.first):
        number = guest.begin(two.second)
        guest.await_transfer(number)
        two.second.freeze_compute()
    guest.await_arrival(two.second)
    wait_for(lambda: not two.first.mdevs(), "the source to release the mdev")
    two.second.kill_compute()
    two.second.start_compute()
    _check_migrated(two, guest, number)


def test_source_is_killed_during_the_transfer(
    two: TwoHosts, boot: Booter
) -> None:
    """Nova aborts the migration once it is back, but leaves allocations."""
    guest = boot()
    guest.set_registers("K")
    with slow_wire(two.first, _SLOWER):
        number = guest.begin(two.second)
        guest.await_transfer(number)
        two.first.kill_compute()
        two.first.start_compute()
        assert guest.finish(number) == "error"
    assert two.host_of(guest.server) == two.first.name
    guest.check_registers("K")
    wait_for(lambda: not two.second.mdevs(), "the mdev to be released")
    two.first.synced("audit", "--heal")
    two.check("failed", first=MTTY_2)

    _check_migrated(two, guest, guest.begin(two.second))


def test_source_is_killed_after_the_transfer(
    lab: Site, two: TwoHosts, boot: Booter
) -> None:
    """Nova has the server on the source, and its guest is not there.

    Until an operator ends the guest, it keeps its mdev on the destination,
    also when nova-compute restarts there.
    """
    guest = boot()
    guest.set_registers("K")
    with slow_wire(two.first, _SLOWER):
        number = guest.begin(two.second)
        guest.await_transfer(number)
        # Nova sets that status before it calls libvirt.
        wait_for(
            lambda: guest.server.id in agreement.running(two.second),
            "libvirt to begin",
        )
        two.first.freeze_compute()
    guest.await_arrival(two.second)
    two.first.kill_compute()
    two.first.start_compute()
    assert guest.finish(number) == "error"
    assert two.host_of(guest.server) == two.first.name

    two.second.start_compute()
    guest.check_arrived("K", two.second)

    two.second.run(
        'virsh destroy "$1" && virsh undefine "$1"', guest.server.id
    )
    guest.server = lab.hard_reboot(guest.server)
    wait_for(lambda: not two.second.mdevs(), "the mdev to be released")
    two.first.synced("audit", "--heal")
    two.check("ended there, and started here", first=MTTY_2)
    assert agreement.running(two.first) == {guest.server.id}


def test_wire_is_cut_during_the_transfer(
    lab: Site, two: TwoHosts, boot: Booter
) -> None:
    """Nova rolls back, and sets a server to ERROR whose guest runs on."""
    guest = boot()
    guest.set_registers("K")
    with slow_wire(two.first):
        number = guest.begin(two.second)
        guest.await_transfer(number)
        with cut_wire(two.second):
            wait_for(lambda: guest.status(number) == "error", "the failure")
    guest.server = lab.reach(guest.server, "ERROR")
    two.check("failed", first=MTTY_2)
    guest.check_registers("K")

    lab.act(guest.server, "os-resetState", state="active")
    _check_migrated(two, guest, guest.begin(two.second))


def _check_migrated(two: TwoHosts, guest: LiveGuest, number: int) -> None:
    """Wait for the end of a migration to the second host; compare all."""
    assert guest.finish(number) == "completed"
    two.check("migrated", second=MTTY_2)
    guest.check_registers("K")
