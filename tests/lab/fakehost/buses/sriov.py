# SPDX-License-Identifier: Apache-2.0
"""The SR-IOV capability of a physical function.

Source: drivers/pci/iov.c, sriov_numvfs_store() for the order of the checks
and pci_iov_add_virtfn() for the order of the events.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.lab.fakehost.sysfs.errnos import chain, fail, parse_unsigned
from tests.lab.fakehost.sysfs.tree import Attr, constant

if TYPE_CHECKING:
    from tests.lab.fakehost.buses.pci import PciFunction

#: sriov_numvfs is an unsigned short.
U16 = 16


class SriovCapability:
    """Makes and removes the VFs of one PF."""

    def __init__(
        self,
        function: PciFunction,
        *,
        total: int,
        offset: int = 1,
        stride: int = 1,
        vf_device: int | None = None,
    ) -> None:
        self._pf = function
        self.total = total
        self._offset = offset
        self._stride = stride
        ids = function.identity
        self._vf_device = ids.device if vf_device is None else vf_device
        #: Whether drivers bind to VFs that have no driver_override.
        self.autoprobe = True
        self.vfs: list[PciFunction] = []
        function.sriov = self
        for name, attr in self._attributes().items():
            function.bus.tree.add(f"{function.path}/{name}", attr)

    def apply(self, number: int) -> None:
        """Make ``number`` VFs or remove all; may raise Blocked."""
        if number:
            for index in range(number):
                self._add(index)
            self._pf.announce("change")
        else:
            self._remove_last()

    def _attributes(self) -> dict[str, Attr]:
        def store_autoprobe(data: bytes) -> None:
            self.autoprobe = bool(parse_unsigned(data))

        return {
            "sriov_totalvfs": constant(self.total),
            "sriov_numvfs": Attr(
                lambda: f"{len(self.vfs)}\n", self._store_numvfs
            ),
            "sriov_offset": constant(self._offset),
            "sriov_stride": constant(self._stride),
            "sriov_vf_device": constant(f"{self._vf_device:x}"),
            "sriov_drivers_autoprobe": Attr(
                lambda: f"{int(self.autoprobe)}\n", store_autoprobe
            ),
            "sriov_vf_total_msix": constant(0),
        }

    def _store_numvfs(self, data: bytes) -> None:
        try:
            number = parse_unsigned(data, U16)
        except OSError:
            fail(errno.EINVAL)
        if number > self.total:
            fail(errno.ERANGE)
        if number == len(self.vfs):
            return
        driver = self._pf.driver
        if driver is None or not driver.sriov:
            fail(errno.ENOENT)
        if number and self.vfs:
            fail(errno.EBUSY)
        driver.sriov_configure(self._pf, number)

    def address(self, index: int) -> str:
        """Return the address of a VF, there or not."""
        domain, bus, rest = self._pf.address.split(":")
        slot, function = rest.split(".")
        routing = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
        routing += self._offset + self._stride * index
        return (
            f"{domain}:{routing >> 8:02x}:"
            f"{routing >> 3 & 31:02x}.{routing & 7}"
        )

    def _add(self, index: int) -> None:
        pf = self._pf
        identity = replace(pf.identity, device=self._vf_device)
        vf = type(pf)(
            pf.bus,
            self.address(index),
            identity,
            bridge=pf.bridge,
            group=pf.bus.iommu.allocate(),
            numa_node=pf.numa_node,
            cpulist=pf.cpulist,
            physfn=pf,
        )
        pf.bus.add(vf)
        pf.bus.tree.link(f"{pf.path}/virtfn{index}", vf.path)
        pf.bus.tree.link(f"{vf.path}/physfn", pf.path)
        self.vfs.append(vf)
        vf.announce("change")
        if self.autoprobe:
            pf.bus.attach(vf)

    def _remove_last(self) -> None:
        if not self.vfs:
            return
        vf = self.vfs[-1]

        def finish() -> None:
            self.vfs.pop()
            self._pf.bus.tree.remove(f"{self._pf.path}/virtfn{len(self.vfs)}")
            self._remove_last()

        chain(vf.remove, finish)
