# SPDX-License-Identifier: Apache-2.0
"""A server that migrates while its guest shows the state of its mdevs.

The guest is ``tests/lab/standins/mover.S``: its devices are mtty's, and their
registers are what a migration has to carry.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.e2e.support import agreement
from tests.e2e.support.second_host import TwoHosts
from tests.e2e.support.site import wait_for
from tests.lab.cloud.hosts import Host
from tests.lab.vm.layout import layout_of

_IMAGE = "mover.img"
#: Says something on the guest's serial port; prints the next line of it.
_SERIAL_PORT = """
tty=$(virsh ttyconsole "$1") && exec 3<> "$tty" && stty raw -echo <&3 || exit
printf %s "$2" >&3
timeout 30 grep -a -m 1 '^=.* [0-9a-f]\\{8\\}' <&3
"""
_LINE = re.compile(r"=(.*) ([0-9a-f]{8})")
#: Changes a host's end of the wire. "slow" makes the memory of a guest, about
#: 1 MB, take long; libvirt's messages wait for seconds behind it, and its
#: connection of the migration ends after 30 seconds without an answer.
_WIRE = """
wire=$(ip -o -4 address | awk '/10\\.0\\.3\\./ { print $2 }')
case $1 in
slow)
    modprobe sch_tbf
    tc qdisc add dev "$wire" root tbf rate "$2" burst 16kb latency 4s
    ;;
fast) tc qdisc del dev "$wire" root ;;
*) ip link set "$wire" "$1" ;;
esac
"""
#: Prints QEMU's connections to the other host (libvirt's migration_port_min).
#: Those that the lab makes to a host may come from as high a port, on another
#: network.
_CONNECTIONS = "ss -Htn state established dst 10.0.3.0/24 dport '>=' :49152"
_MIGRATIONS = "2.80"
#: Statuses of a migration whose server stays where it was. Nova sets the
#: second one where libvirt's error comes after the first, within so many
#: seconds, and then the server to ERROR, though all is undone
#: (ComputeManager._do_live_migration): its administrator resets that.
FAILED = ("failed", "error")
_LATE_S = 3.0
_FINAL = frozenset({"completed", "failed", "error", "cancelled"})


def upload_image(two: TwoHosts) -> str:
    """Upload the guest; return the image's id."""
    place = layout_of(two.lab.layout.lab)
    return two.lab.image("mover", (place.standins / _IMAGE).read_bytes())


@contextlib.contextmanager
def slow_wire(host: Host, rate: str = "400kbit") -> Iterator[None]:
    """Slow down what a host sends to the other one.

    :param rate: as tc(8) takes it; by default a guest takes 20 seconds.
    """
    host.run(_WIRE, "slow", rate)
    try:
        yield
    finally:
        host.run(_WIRE, "fast")


@contextlib.contextmanager
def cut_wire(host: Host) -> Iterator[None]:
    """Cut the wire on which a host takes guests; Nova does not use it."""
    host.run(_WIRE, "down")
    try:
        yield
    finally:
        host.run(_WIRE, "up")


def count_connections(host: Host) -> int:
    """Return how many connections carry guests away from a host."""
    return len(host.run(_CONNECTIONS).splitlines())


class LiveGuest:
    """A server and its guest, on either host."""

    def __init__(self, two: TwoHosts, server: Any) -> None:
        self._two, self._lab = two, two.lab
        self.server = server
        self._ticks = 0

    @property
    def host(self) -> Host:
        """Return the host that Nova has the server on."""
        two = self._two
        name = two.host_of(self.server)
        return two.first if name == two.first.name else two.second

    def set_registers(self, registers: str) -> None:
        """Set the registers of its mtty devices, to successive letters."""
        self._ticks = 0
        wait_for(lambda: self._read(registers[0])[0] == registers, "the guest")

    def check_registers(self, registers: str) -> None:
        """Check the registers, and that the guest was not restarted."""
        seen, ticks = self._read()
        assert seen == registers, seen
        assert ticks > self._ticks, (ticks, self._ticks)
        self._ticks = ticks

    def check_arrived(self, registers: str, host: Host) -> None:
        """Check the registers on a host that Nova does not have it on."""
        seen, ticks = self._read(host=host)
        assert seen == registers, seen
        assert ticks > self._ticks, (ticks, self._ticks)

    def _read(
        self, text: str = "", host: Host | None = None
    ) -> tuple[str, int]:
        output = (host or self.host).run(_SERIAL_PORT, self.server.id, text)
        match = _LINE.search(output)
        assert match, output
        return match[1], int(match[2], 16)

    def begin(self, host: Host | None = None) -> int:
        """Ask Nova to migrate it; return the migration's id.

        :param host: the destination; None to let the scheduler select it.
        """
        before = self._migrations()
        self._lab.act(
            self.server,
            "os-migrateLive",
            host=host.name if host else None,
            block_migration="auto",
        )
        begun: dict[int, str] = wait_for(
            lambda: self._migrations().keys() - before.keys(),
            "the migration",
        )
        (number,) = begun
        return number

    def finish(self, number: int) -> str:
        """Wait for the end of a migration; return its status."""

        def read_status() -> str:
            status = self.status(number)
            server = self._lab.api.compute.get_server(self.server.id)
            is_over = status in _FINAL and server.task_state is None
            return status if is_over else ""

        status: str = wait_for(read_status, f"the end of migration {number}")
        if status != "completed":
            time.sleep(_LATE_S)
            status = self.status(number)
            now = self._lab.api.compute.get_server(self.server.id)
            if now.status == "ERROR":
                self._lab.act(self.server, "os-resetState", state="active")
        self.server = self._lab.reach(self.server, "ACTIVE")
        return status

    def migrate(self, host: Host | None = None) -> str:
        """Migrate it as :meth:`begin` does; return the final status."""
        return self.finish(self.begin(host))

    def await_transfer(self, number: int) -> None:
        """Wait until QEMU sends the guest's memory."""
        wait_for(lambda: self.status(number) == "running", "the transfer")

    def await_arrival(self, host: Host) -> None:
        """Wait until it runs on a host and is gone from the other one."""
        two = self._two
        source = two.second if host == two.first else two.first
        wait_for(
            lambda: (
                self.server.id not in agreement.running(source)
                and self.server.id in agreement.running(host)
            ),
            "the guest to arrive",
        )

    def status(self, number: int) -> str:
        """Return the status of a migration."""
        return self._migrations()[number]

    def abort(self, number: int) -> None:
        """Ask Nova to abort a migration that runs."""
        answer = self._lab.api.compute.delete(
            f"/servers/{self.server.id}/migrations/{number}",
            microversion=_MIGRATIONS,
        )
        assert answer.status_code == 202, answer.text

    def _migrations(self) -> dict[int, str]:
        answer = self._lab.api.compute.get(
            f"/os-migrations?instance_uuid={self.server.id}",
            microversion=_MIGRATIONS,
        )
        assert answer.status_code == 200, answer.text
        listed = answer.json()["migrations"]
        return {item["id"]: item["status"] for item in listed}


#: Boots a server, of a flavor or with an mdev, on the first host.
Booter = Callable[..., LiveGuest]
