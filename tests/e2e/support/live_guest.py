# SPDX-License-Identifier: Apache-2.0
"""A server that migrates while its guest shows the state of its mdevs.

The guest is ``tests/lab/standins/mover.S``: its devices are mtty's, and their
registers are what a migration has to carry.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

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
#: Lets through what libvirt says, and makes the memory of a guest take long.
_SLOW_WIRE = """
wire=$(ip -o -4 address | awk '/10\\.0\\.3\\./ { print $2 }')
modprobe sch_tbf
case $1 in
slow) tc qdisc add dev "$wire" root tbf rate 400kbit burst 16kb latency 1s ;;
fast) tc qdisc del dev "$wire" root ;;
esac
"""
_MIGRATIONS = "2.80"
_FINAL = frozenset({"completed", "failed", "error", "cancelled"})


def upload_image(two: TwoHosts) -> str:
    """Upload the guest; return the image's id."""
    place = layout_of(two.lab.layout.lab)
    return two.lab.image("mover", (place.standins / _IMAGE).read_bytes())


@contextlib.contextmanager
def slow_wire(host: Host) -> Iterator[None]:
    """Slow down what a host sends to the other one."""
    host.run(_SLOW_WIRE, "slow")
    try:
        yield
    finally:
        host.run(_SLOW_WIRE, "fast")


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

    def _read(self, text: str = "") -> tuple[str, int]:
        output = self.host.run(_SERIAL_PORT, self.server.id, text)
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
            status = self._migrations()[number]
            server = self._lab.api.compute.get_server(self.server.id)
            is_over = status in _FINAL and server.task_state is None
            return status if is_over else ""

        status: str = wait_for(read_status, f"the end of migration {number}")
        self.server = self._lab.reach(self.server, "ACTIVE")
        return status

    def migrate(self, host: Host | None = None) -> str:
        """Migrate it as :meth:`begin` does; return the final status."""
        return self.finish(self.begin(host))

    def await_transfer(self, number: int) -> None:
        """Wait until QEMU sends the guest's memory."""
        wait_for(
            lambda: self._migrations()[number] == "running", "the transfer"
        )

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
