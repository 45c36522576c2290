# SPDX-License-Identifier: Apache-2.0
"""A small libvirt and its guests, on a kernel in this process.

A domain exists from its start until it is undefined. While it runs, its
functions are bound to vfio-pci and their groups are open.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Iterable

from tests.support.fpga import kernel
from virt_hooks.guest import connection


@dataclasses.dataclass
class Domain:
    """One domain; ``handles`` are open while its guest runs."""

    functions: tuple[str, ...]
    handles: list[int] = dataclasses.field(default_factory=list)

    @property
    def is_running(self) -> bool:
        """Return whether there is a guest."""
        return bool(self.handles)


class Libvirt:
    """The domains of one host."""

    def __init__(self, host: kernel.DirectKernel) -> None:
        self._host = host
        self.domains: dict[str, Domain] = {}

    def use(self, is_running: bool = False) -> connection.HostdevUse:
        """Return what virt_hooks.guest.connection.read_hostdevs() would."""
        return connection.HostdevUse(
            functions=frozenset(
                name
                for domain in self.domains.values()
                if domain.is_running or not is_running
                for name in domain.functions
            )
        )

    def start(self, name: str, functions: Iterable[str]) -> None:
        """Start a domain with ``managed='yes'`` functions."""
        domain = Domain(functions=tuple(functions))
        for function in domain.functions:
            self.detach(function)
            group = self._host.kernel.pci.functions[function].group
            node = self._host.root / f"dev/vfio/{group}"
            handle = os.open(node, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            domain.handles.append(handle)
        self._host.sync()
        self.domains[name] = domain

    def stop(self, name: str) -> None:
        """Stop a guest and reattach its functions to the host."""
        domain = self.domains[name]
        for handle in domain.handles:
            os.close(handle)
        domain.handles.clear()
        self._host.sync()  # removes functions that vanished
        for function in domain.functions:
            self.give_back(function)
        self._host.sync()

    def undefine(self, name: str) -> connection.HostdevUse:
        """Undefine a stopped domain; return its functions."""
        domain = self.domains.pop(name)
        assert not domain.is_running
        return connection.HostdevUse(functions=frozenset(domain.functions))

    def detach(self, function: str) -> None:
        """Bind a function to vfio-pci (virPCIDeviceBindToStub)."""
        place = f"bus/pci/devices/{function}"
        self._host.store(f"{place}/driver_override", "vfio-pci\n")
        if self._host.kernel.pci.functions[function].driver is not None:
            self._host.store(f"{place}/driver/unbind", function)
        self._host.store("bus/pci/drivers_probe", function)

    def give_back(self, function: str) -> None:
        """Bind a function to the host's driver again."""
        pci_function = self._host.kernel.pci.functions.get(function)
        if pci_function is None:
            return
        place = f"bus/pci/devices/{function}"
        self._host.store(f"{place}/driver_override", "\n")
        if pci_function.driver is not None:
            self._host.store(f"{place}/driver/unbind", function)
        self._host.store("bus/pci/drivers_probe", function)
