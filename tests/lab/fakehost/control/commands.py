# SPDX-License-Identifier: Apache-2.0
"""The server's end of the control socket: one JSON line, one answer."""

from __future__ import annotations

import dataclasses
import json
import socketserver
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.errnos import Blocked
from tests.lab.fakehost.sysfs.faults import OPERATIONS, Fault
from tests.lab.fakehost.sysfs.filesystem import SysfsOperations
from tests.lab.fakehost.sysfs.tree import normal
from tests.lab.fakehost.technologies.fpga import fpga_tools
from tests.lab.fakehost.technologies.nvidia import nvidia_nvml, nvidia_tool

#: Characters that make a fault's path a pattern.
WILDCARDS = frozenset("*?[")


class Control:
    """The commands; every public method is one.

    Their documentation is that of tests.lab.fakehost.control.controller.
    """

    def __init__(
        self,
        operations: SysfsOperations,
        boot: Callable[[], Kernel],
        plug: Callable[[Kernel], None],
    ) -> None:
        self._operations = operations
        self._boot = boot
        self._plug = plug

    @property
    def _kernel(self) -> Kernel:
        return self._operations.kernel

    def call(self, command: str, arguments: dict[str, Any]) -> Any:
        """Run one command; raises ValueError for an unknown one."""
        method = getattr(self, f"do_{command}", None)
        if method is None:
            raise ValueError(f"no command {command!r}")
        try:
            return method(**arguments)
        finally:
            self._operations.sync_nodes()

    def do_fault(self, *, path: str, on: str, effect: dict[str, Any]) -> None:
        """Set a fault; links in ``path`` are followed now."""
        if on not in OPERATIONS:
            operations = ", ".join(OPERATIONS)
            raise ValueError(f"no operation {on!r}; known: {operations}")
        hang_s = effect.get("hang_s", 0)
        vanish = effect.get("vanish", "")
        fault = Fault(
            path=self._real(path),
            on=on,
            errno=effect.get("errno", 0),
            hang_s=float("inf") if hang_s is None else hang_s,
            vanish=self._real(vanish) if vanish else "",
            times=effect.get("times"),
        )
        self._kernel.faults.add(fault)

    def do_heal(self, *, path: str) -> int:
        """Take faults back."""
        self._kernel.fpga.release()
        return self._kernel.faults.clear(self._real(path) if path else None)

    def do_vanish(self, *, path: str) -> None:
        """Remove a node."""
        with self._kernel.lock:
            self._kernel.tree.remove(self._real(path))

    def do_mdevs(self) -> dict[str, dict[str, Any]]:
        """Return the mediated devices."""
        kernel = self._kernel
        with kernel.lock:
            return {
                mdev.uuid: {
                    "type": mdev.parent.type_path(mdev.kind).rsplit("/")[-1],
                    "parent": mdev.parent.name,
                    "group": mdev.group,
                    "active": mdev.active,
                    "in_use": kernel.iommu.in_use(mdev.group),
                }
                for mdev in kernel.mdev.devices.values()
            }

    def do_functions(self) -> dict[str, dict[str, Any]]:
        """Return the PCI functions."""
        kernel = self._kernel
        with kernel.lock:
            return {
                address: {
                    "driver": item.driver.name if item.driver else "",
                    "override": item.override,
                    "group": item.group,
                    "in_use": kernel.iommu.in_use(item.group),
                    "vfs": len(item.sriov.vfs) if item.sriov else 0,
                    "vf_addresses": [
                        vf.address
                        for vf in (item.sriov.vfs if item.sriov else ())
                    ],
                }
                for address, item in kernel.pci.functions.items()
            }

    def do_uevents(self, *, after: int) -> list[dict[str, Any]]:
        """Return the events sent since ``after``."""
        log = list(self._kernel.uevents.log)
        return [dataclasses.asdict(e) for e in log if e.seqnum > after]

    def do_writes(self) -> list[dict[str, Any]]:
        """Return the writes seen."""
        return [dataclasses.asdict(w) for w in self._operations.writes]

    def do_reads(self) -> int:
        """Return how many attribute reads were served."""
        return self._operations.reads

    def do_plug(self) -> None:
        """Restore the cards that have gone."""
        with self._kernel.lock:
            self._plug(self._kernel)

    def do_fpgas(self) -> dict[str, dict[str, Any]]:
        """Return the FPGA cards' regions."""
        with self._kernel.lock:
            return {
                address: {
                    "interface": card.interface,
                    "parts": [dataclasses.asdict(p) for p in card.parts],
                }
                for address, card in self._kernel.fpga.cards.items()
            }

    def do_programmings(self) -> list[dict[str, Any]]:
        """Return what was loaded into regions."""
        with self._kernel.lock:
            return [dataclasses.asdict(p) for p in self._kernel.fpga.log]

    def do_open_port(self, *, card: str, number: int, is_open: bool) -> None:
        """Let a port count as open, or not."""
        with self._kernel.lock:
            hardware = self._kernel.fpga.cards[card]
            hardware.parts[number].is_open = is_open

    def do_fpga_tool(
        self, *, tool: str, arguments: list[str], files: dict[str, str]
    ) -> dict[str, Any]:
        """Do what a vendor's tool does."""
        with self._kernel.lock:
            result = fpga_tools.run(self._kernel, tool, arguments, files)
        return dataclasses.asdict(result)

    def do_unplug(self, *, address: str) -> None:
        """Remove a PCI function."""
        with self._kernel.lock:
            self._run_unblocked(self._function(address).remove)

    def do_die_at_reset(self, *, address: str, is_dying: bool) -> None:
        """Let a function not come back from its next reset, or let it."""
        with self._kernel.lock:
            function = self._function(address)
            function.is_dying = is_dying
            function.is_silent = function.is_silent and is_dying

    def do_set_vfs(self, *, address: str, number: int) -> None:
        """Change the number of VFs behind the driver's back."""
        with self._kernel.lock:
            capability = self._function(address).sriov
            if capability is None:
                raise ValueError(f"{address} has no SR-IOV capability")
            self._run_unblocked(lambda: capability.apply(0))
            if number:
                capability.apply(number)

    def do_nvml(self, *, call: str, arguments: list[int]) -> str:
        """Answer a call of the fake NVML."""
        with self._kernel.lock:
            return nvidia_nvml.Nvml(self._kernel).call(call, arguments)

    def do_sriov_manage(self, *, address: str, enable: bool) -> str:
        """Do what NVIDIA's sriov-manage does."""
        with self._kernel.lock:
            return nvidia_tool.sriov_manage(
                self._kernel, address, enable=enable
            )

    def do_gpus(self) -> dict[str, dict[str, Any]]:
        """Return the state of NVIDIA's cards."""
        with self._kernel.lock:
            return nvidia_tool.gpu_states(self._kernel)

    def do_creatable(self) -> dict[str, dict[str, int]]:
        """Return what each mdev parent would make."""
        with self._kernel.lock:
            return {
                parent.name: {
                    f"{parent.prefix}-{kind.suffix}": parent.available(kind)
                    for kind in parent.types
                }
                for parent in self._kernel.mdev.parents.values()
            }

    def do_reboot(self) -> None:
        """Start over with the same cards."""
        self._operations.reboot(self._boot())

    def _function(self, address: str) -> PciFunction:
        function = self._kernel.pci.functions.get(address)
        if function is None:
            addresses = ", ".join(sorted(self._kernel.pci.functions))
            raise ValueError(f"no PCI function {address}; known: {addresses}")
        return function

    @staticmethod
    def _run_unblocked(action: Callable[[], None]) -> None:
        try:
            action()
        except Blocked as blocked:
            raise ValueError("a process holds the device") from blocked

    def _real(self, path: str) -> str:
        if WILDCARDS & set(path):
            return normal(path)
        with self._kernel.lock:
            return self._kernel.tree.resolve(path)


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, ControlServer)
        for line in self.rfile:
            request = json.loads(line)
            answer: dict[str, Any]
            try:
                result = self.server.control.call(
                    request["command"], request["arguments"]
                )
                answer = {"result": result}
            except (ValueError, TypeError, KeyError, OSError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class ControlServer(
    socketserver.ThreadingMixIn, socketserver.UnixStreamServer
):
    """Listens on a Unix socket; one thread per client."""

    daemon_threads = True

    def __init__(self, path: Path, control: Control) -> None:
        self.control = control
        super().__init__(str(path), _Handler)
