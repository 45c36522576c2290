# SPDX-License-Identifier: Apache-2.0
"""PCI drivers: what they match and what they do to a function."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from tests.lab.fakehost.sysfs.errnos import Blocked, fail, parse_unsigned
from tests.lab.fakehost.sysfs.tree import Attr

if TYPE_CHECKING:
    from tests.lab.fakehost.buses.pci import PciBus, PciFunction


class PciDriver:
    """A driver bound by ids (vendor, device), or by override only.

    ``sriov`` is whether it has a sriov_configure callback,
    ``managed_dma`` whether a function bound to it may share an IOMMU group
    with one that a guest holds (struct pci_driver.driver_managed_dma).
    """

    def __init__(
        self,
        name: str,
        ids: frozenset[tuple[int, int]] = frozenset(),
        *,
        sriov: bool = False,
        managed_dma: bool = False,
    ) -> None:
        self.name = name
        self.ids = set(ids)
        self.dynamic: set[tuple[int, int]] = set()
        self.sriov = sriov
        self.managed_dma = managed_dma

    def matches(self, function: PciFunction) -> bool:
        """Return pci_match_device(): the override rules when it is set."""
        if function.override:
            return function.override == self.name
        ids = (function.identity.vendor, function.identity.device)
        return ids in self.ids or ids in self.dynamic

    def probe(self, function: PciFunction) -> None:
        """Take the function over; raises OSError to refuse."""

    def disconnect(self, function: PciFunction) -> None:
        """Let the function go; may raise Blocked."""

    def sriov_configure(self, function: PciFunction, number: int) -> None:
        """Make ``number`` VFs, or none; may raise OSError, Blocked."""
        assert function.sriov is not None
        function.sriov.apply(number)

    def files(self, bus: PciBus) -> dict[str, Attr]:
        """Return the attributes of the driver's directory."""
        return {
            "bind": Attr(None, lambda data: self._bind(bus, data)),
            "unbind": Attr(None, lambda data: self._unbind(bus, data)),
            "new_id": Attr(None, lambda data: self._new_id(bus, data)),
            "remove_id": Attr(None, self._remove_id),
        }

    def _bind(self, bus: PciBus, data: bytes) -> None:
        function = bus.named(data)
        if not self.matches(function):
            fail(errno.ENODEV)
        function.bind(self)

    def _unbind(self, bus: PciBus, data: bytes) -> None:
        function = bus.named(data)
        if function.driver is not self:
            fail(errno.ENODEV)
        function.unbind()

    def _new_id(self, bus: PciBus, data: bytes) -> None:
        ids = _parse_ids(data)
        if ids in self.dynamic or ids in self.ids:
            fail(errno.EEXIST)
        self.dynamic.add(ids)
        for function in list(bus.functions.values()):
            if function.driver is None and self.matches(function):
                bus.try_bind(function, self)

    def _remove_id(self, data: bytes) -> None:
        ids = _parse_ids(data)
        if ids not in self.dynamic:
            fail(errno.ENODEV)
        self.dynamic.discard(ids)


def _parse_ids(data: bytes) -> tuple[int, int]:
    fields = data.decode("ascii", "replace").split()
    if len(fields) < 2:
        fail(errno.EINVAL)
    vendor, device = (
        parse_unsigned(b"0x" + field.removeprefix("0x").encode(), 32)
        for field in fields[:2]
    )
    return vendor, device


class VfioPciDriver(PciDriver):
    """vfio-pci: the group gets a node, unbinding waits for its user."""

    def __init__(self, bus: PciBus) -> None:
        super().__init__("vfio-pci", managed_dma=True)
        self._bus = bus

    def probe(self, function: PciFunction) -> None:
        """Make vfio-dev and the group's node; EINVAL without IOMMU."""
        if not self._bus.iommu.enabled:
            fail(errno.EINVAL)
        name = f"vfio{function.group}"
        path = f"{function.path}/vfio-dev/{name}"
        self._bus.tree.mkdir(path)
        self._bus.iommu.expose(function.group)
        self._bus.uevents.send("add", path, "vfio-dev")

    def disconnect(self, function: PciFunction) -> None:
        """Undo probe when no process holds the group."""
        if self._bus.iommu.in_use(function.group):
            raise Blocked(lambda: self.disconnect(function))
        path = f"{function.path}/vfio-dev"
        self._bus.tree.remove(path)
        if not self._others(function):
            self._bus.iommu.hide(function.group)
        self._bus.uevents.send(
            "remove", f"{path}/vfio{function.group}", "vfio-dev"
        )

    def _others(self, function: PciFunction) -> bool:
        return any(
            other.driver is self and other.group == function.group
            for other in self._bus.functions.values()
            if other is not function
        )
