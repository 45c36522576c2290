# SPDX-License-Identifier: Apache-2.0
"""State that survives a crash: Nova's database, domains, guests."""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Callable
from typing import Any

from nova_accel import model
from tests.lab import fakehost
from tests.support.hosts import mortal
from virt_hooks.guest import connection


@dataclasses.dataclass(frozen=True)
class Record:
    """A server of this host in Nova's database.

    ``is_here`` is False while it is on another host, though this host has
    claimed slots for it.
    """

    slots: tuple[model.Slot, ...]
    state: str
    is_here: bool = True


@dataclasses.dataclass
class Domain:
    """A domain, and the VFIO groups of its running guest."""

    technology: str
    devices: tuple[str, ...]
    groups: list[int] = dataclasses.field(default_factory=list)
    is_running: bool = False

    @property
    def is_managed(self) -> bool:
        """Return whether libvirt gives its functions to vfio-pci."""
        return self.technology == "fpga"


class Outside(mortal.World):
    """Everything but the service, which calls the ``do_`` methods."""

    def __init__(self, kernel: fakehost.Controller) -> None:
        super().__init__()
        self.kernel = kernel
        self.records: dict[str, Record] = {}
        self.domains: dict[str, Domain] = {}
        #: Called with the claims and inventories of the service.
        self.judge: Callable[[str, Any, Any], None] = lambda *_: None

    def leave(self) -> None:
        """Close the guests' VFIO groups: they are not the service's."""
        for domain in self.domains.values():
            for group in domain.groups:
                os.close(group)

    # -- calls from the service --------------------------------------------

    def do_judge(self, *records: Any) -> None:
        self.judge(*records)

    def do_records(self) -> dict[str, Record]:
        return self.records

    def do_save(self, server: str, record: Record | None) -> None:
        if record is None:
            self.records.pop(server, None)
        else:
            self.records[server] = record

    def do_define(
        self, server: str, technology: str, devices: tuple[str, ...]
    ) -> None:
        assert not self.do_is_running(server)
        self.domains[server] = Domain(technology, devices)

    def do_undefine(self, server: str) -> None:
        if server in self.domains:
            assert not self.domains[server].is_running
            del self.domains[server]

    def do_start(self, server: str) -> None:
        domain = self.domains[server]
        bus = "mdev" if domain.technology == "mdev" else "pci"
        for device in domain.devices:
            place = self.kernel.sys / f"bus/{bus}/devices" / device
            if domain.is_managed:
                self._bind(device, "vfio-pci")
            group = (place / "iommu_group").resolve().name
            node = os.open(self.kernel.root / "dev/vfio" / group, os.O_RDONLY)
            domain.groups.append(node)
            fcntl.flock(node, fcntl.LOCK_EX | fcntl.LOCK_NB)
        domain.is_running = True

    def do_stop(self, server: str) -> None:
        domain = self.domains.get(server)
        if domain is not None:
            domain.is_running = False
            while domain.groups:
                os.close(domain.groups.pop())
            if domain.is_managed:
                for device in domain.devices:
                    self._bind(device, "")

    def _bind(self, function: str, override: str) -> None:
        """Bind a function to a driver, or to the host's own."""
        bus = self.kernel.sys / "bus/pci"
        place = bus / "devices" / function
        (place / "driver_override").write_text(f"{override}\n")
        if (place / "driver").exists():
            (place / "driver/unbind").write_text(function)
        (bus / "drivers_probe").write_text(function)

    def do_is_running(self, server: str) -> bool:
        return server in self.domains and self.domains[server].is_running

    def do_use(
        self, is_running: bool, server: str = ""
    ) -> connection.HostdevUse:
        """Return the devices of all domains, or of a server's own."""
        mdevs: set[str] = set()
        functions: set[str] = set()
        for name, domain in self.domains.items():
            if is_running and not domain.is_running:
                continue
            if server in ("", name):
                devices = mdevs if domain.technology == "mdev" else functions
                devices.update(domain.devices)
        return connection.HostdevUse(
            mdevs=frozenset(mdevs), functions=frozenset(functions)
        )
