# SPDX-License-Identifier: Apache-2.0
"""A second host under Nova's own driver, which is adopted and handed back.

Its vGPUs are mdevs of the kernel's mtty, a parent that is no PCI function.
"""

import contextlib
import dataclasses
import pathlib
import re
import shlex
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import libvirt

from tests.e2e.support.second_host import MTTY_2, TwoHosts
from tests.e2e.support.site import Site, wait_for
from tests.lab.cloud import actual_state, settings

STOCK, ACCEL = "libvirt.LibvirtDriver", "accel.AccelLibvirtDriver"
_PARENT = "mtty_mtty"
#: Of device_spec: as many mdevs as all servers need.
SPEC = '{"address": "mtty", "max_slots": 8}'
#: Seconds between passes of Nova, so that a test waits less than a minute.
_PASS_S = 5
_MANUAL = pathlib.Path(__file__).parents[3] / "doc/source/admin/adopt.rst"
_STATUS = ["nova-accel", "adopt", "status"]
_PROVIDER_PARTS = ("inventories", "traits", "aggregates", "allocations")
#: Of the control's ticks, those that a guest has at least.
_LEAST_SHARE = 0.8
_VOLATILE = frozenset(
    {"updated_at", "consumer_generation", "resource_provider_generation"}
)
#: What the databases have of a server, and the column of its uuid.
_TABLES = (
    ("nova_cell1", "instances", "uuid"),
    ("nova_cell1", "instance_extra", "instance_uuid"),
    ("nova_api", "request_specs", "instance_uuid"),
)
_HEADERS = {"OpenStack-API-Version": "placement 1.39"}


class StockHost:
    """The second host; ``two`` are both."""

    def __init__(self, lab: Site) -> None:
        self.lab = lab
        self.two = TwoHosts(
            lab, dataclasses.replace(lab.cloud.nova, activation="off")
        )
        self.host = self.two.second
        self._conf = lab.layout.etc / "nova-compute-2.conf"
        self._base = ""

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Run the host under Nova's own driver, and end it."""
        self.two.start()
        self._base = self._conf.read_text()
        try:
            self.switch(STOCK)
            yield
        finally:
            self.lab.clean()
            self.two.stop()
            self.two.first.start_compute()

    def switch(self, driver: str) -> None:
        """Restart nova-compute with the lines of the manual for a driver."""
        types = {"enabled_mdev_types": MTTY_2} if driver == STOCK else {}
        state_dir = self.lab.layout.state / self.host.name / "accel"
        lines = {
            "DEFAULT": {
                "compute_driver": driver,
                "update_resources_interval": str(_PASS_S),
            },
            "devices": types,
            f"mdev_{MTTY_2}": {"device_addresses": _PARENT},
            "nova_accel": {
                "device_spec": SPEC,
                "state_dir": str(state_dir),
            },
        }
        self._conf.write_text(f"{self._base}\n{settings.render(lines)}")
        self.host.start_compute()

    def plan(self) -> str:
        """Run the commands of the manual's section about plans."""
        return self._run_all(read_commands("Plan"))

    def adopt(self) -> str:
        """Adopt as the manual says: nova.conf changes before the status."""
        commands = read_commands("Apply")
        index = commands.index(_STATUS)
        output = self._run_all(commands[:index])
        self.switch(ACCEL)
        return output + self._run_all(commands[index:])

    def hand_back(self) -> str:
        """Undo as the manual says."""
        output = self._run_all(read_commands("Undo"))
        self.switch(STOCK)
        self.lab.api.compute.enable_service(self.two.service(self.host))
        return output

    def _run_all(self, commands: Sequence[Sequence[str]]) -> str:
        return "".join(map(self._run, commands))

    def _run(self, words: Sequence[str]) -> str:
        program, *arguments = words
        if program == "nova-accel":
            if words == _STATUS:
                self._await_end()
            return self.host.synced(*arguments)
        if program == "openstack":
            named = [
                self.host.name if word == "HOST" else word
                for word in arguments
            ]
            return self.lab.commanded(program, *named)
        assert program == "systemctl", words
        # The lab has no systemd, and runs no placement-sync.
        if arguments == ["restart", "nova-compute"]:
            self.host.start_compute()
        return ""

    def _await_end(self) -> None:
        """Wait until nova-compute has carried the plan out."""
        wait_for(
            lambda: (
                not re.search(
                    r"^\S+: (applying|undoing)",
                    self.host.synced("adopt", "status"),
                )
            ),
            "the plan to be carried out",
        )

    def record(self, servers: Sequence[Any]) -> dict[str, Any]:
        """Return all that an undo has to restore."""
        return {
            "placement": {
                name: {
                    part: self._fetch(f"/resource_providers/{uuid}/{part}")
                    for part in _PROVIDER_PARTS
                }
                | {"uuid": uuid}
                for uuid, name in self.lab.provider_names().items()
                if self.host.node in name
            },
            "database": {
                (table, server.name): self._read_row(
                    database, table, column, server.id
                )
                for database, table, column in _TABLES
                for server in servers
            },
            "definitions": self.host.run("mdevctl list -d"),
            "kernel": self.host.mdevs(),
            "domains": self.domains(),
        }

    def domains(self) -> dict[str, tuple[int, str]]:
        """Return number and definition of each domain; -1 if it is off."""
        uri = self.host.libvirt_uri
        with contextlib.closing(libvirt.openReadOnly(uri)) as connection:
            return {
                domain.UUIDString(): (
                    domain.ID(),
                    domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE),
                )
                for domain in connection.listAllDomains(0)
            }

    def await_report(self) -> None:
        """Wait until Placement has as many vGPUs as the kernel."""
        available = self.host.run(
            f"cat {actual_state.MTTY_TYPES}/{MTTY_2}/available_instances"
        )
        total = int(available) + len(self.host.mdevs())
        (uuid,) = (
            uuid
            for uuid, name in self.lab.provider_names().items()
            if name == f"{self.host.node}_{_PARENT}"
        )
        path = f"/resource_providers/{uuid}/inventories"
        wait_for(
            lambda: self._fetch(path)["inventories"]["VGPU"]["total"] == total,
            "Nova to report its vGPUs",
        )

    def _fetch(self, path: str) -> Any:
        answer = self.lab.api.placement.get(path, headers=_HEADERS)
        assert answer.status_code == 200, answer.text
        return _without_volatile(answer.json())

    def _read_row(
        self, database: str, table: str, column: str, server: str
    ) -> Any:
        path = self.lab.layout.databases / f"{database}.sqlite"
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        connection.row_factory = sqlite3.Row
        query = f"SELECT * FROM {table} WHERE {column} = ?"  # noqa: S608
        with contextlib.closing(connection):
            (row,) = connection.execute(query, (server,)).fetchall()
        return _without_volatile(dict(row))


def _without_volatile(record: Any) -> Any:
    """Return a record without times and generations, at any depth."""
    if not isinstance(record, dict):
        return record
    return {
        key: _without_volatile(value)
        for key, value in record.items()
        if key not in _VOLATILE
    }


def read_commands(section: str) -> list[list[str]]:
    """Return the words of each command in a section of the manual."""
    text = _MANUAL.read_text()
    _, body = text.split(f"\n{section}\n{'=' * len(section)}\n")
    body = re.split(r"\n.+\n={4,}\n", body)[0]
    commands = re.findall(r"^ +[#$] (.+)$", body, re.MULTILINE)
    assert commands, section
    return [shlex.split(command) for command in commands]


class GuestWatch:
    """Progress of guests' counters, and libvirt's events of their host.

    The guests are ``tests/lab/standins/mover.S``, which prints a line every
    16 ticks of its timer. The last one is a control: the guests of a virtual
    machine on a busy computer all wait for its processor.

    :param servers: the guests, the control last.
    """

    _LINE = re.compile(r"=\S* ([0-9a-f]{8})\r?\n")

    def __init__(self, stock: StockHost, servers: Sequence[Any]) -> None:
        self._consoles = [
            stock.lab.layout.instances / server.id / "console.log"
            for server in servers
        ]
        self._uri = stock.host.libvirt_uri
        self._events = stock.lab.layout.run / "events"

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch meanwhile, and check that no guest was paused or restarted."""
        wait_for(self._are_counting, "the guests to count")
        before = self._read()
        argv = ("virsh", "-c", self._uri, "event", "--all", "--loop")
        with (
            self._events.open("w") as file,
            subprocess.Popen(argv, stdout=file) as virsh,  # noqa: S603
        ):
            try:
                yield
            finally:
                after = self._read()
                virsh.terminate()
        events = re.findall(
            "^event .*", self._events.read_text(), re.MULTILINE
        )
        assert events == []
        *lived, control = (b - a for a, b in zip(before, after, strict=True))
        assert min(lived) > _LEAST_SHARE * control > 0, (lived, control)

    def _are_counting(self) -> bool:
        return all(
            console.exists() and self._LINE.search(console.read_text())
            for console in self._consoles
        )

    def _read(self) -> list[int]:
        """Return the ticks of all guests."""
        texts = (console.read_text() for console in self._consoles)
        return [int(self._LINE.findall(text)[-1], 16) for text in texts]
