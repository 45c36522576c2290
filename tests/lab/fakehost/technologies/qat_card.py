# SPDX-License-Identifier: Apache-2.0
"""Intel QAT: a PF that is up or down, and VFs that are all or none.

Source: drivers/crypto/intel/qat/qat_common, adf_sysfs.c (state_store,
cfg_services_store) and adf_sriov.c (adf_sriov_configure).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import ClassVar

from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.buses.pci_driver import PciDriver, VfioPciDriver
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.errnos import chain, fail
from tests.lab.fakehost.sysfs.tree import Attr, constant
from tests.lab.fakehost.technologies.pci_card import PciCard

VENDOR = 0x8086
#: Co-processor.
CLASS = 0x0B4000
#: The words that cfg_services takes (adf_cfg_services.h).
SERVICES = (
    "sym;asym", "asym;sym", "dc", "dcc", "sym", "asym", "asym;dc",
    "dc;asym", "sym;dc", "dc;sym",
)  # fmt: skip
ALL_VFS = 16


class QatDriver(PciDriver):
    """4xxx and its like; ``c6xx`` has no qat/ directory."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        super().__init__(name, sriov=True)
        self._kernel = kernel
        self._tree = kernel.tree
        self.services: dict[str, str] = {}
        self._up: set[str] = set()
        self.has_services = True

    def probe(self, function: PciFunction) -> None:
        """Start the device and make its attributes."""
        address = function.address
        self._up.add(address)
        if not self.has_services:
            return

        def store_services(data: bytes) -> None:
            word = _word(data)
            if word not in SERVICES or address in self._up:
                fail(errno.EINVAL)
            self.services[address] = word

        for name, attr in (
            (
                "state",
                Attr(
                    lambda: "up\n" if address in self._up else "down\n",
                    lambda data: self._store_state(function, data),
                ),
            ),
            (
                "cfg_services",
                Attr(lambda: f"{self.services[address]}\n", store_services),
            ),
            ("pm_idle_enabled", constant(1, 0o644)),
            ("auto_reset", constant("off", 0o644)),
            ("num_rps", constant(64)),
            ("rp2srv", Attr(lambda: fail(errno.EINVAL), lambda _: None)),
        ):
            self._tree.add(f"{function.path}/qat/{name}", attr)
        for name in ("correctable", "nonfatal", "fatal"):
            path = f"{function.path}/qat_ras/errors_{name}"
            self._tree.add(path, constant(0))

    def disconnect(self, function: PciFunction) -> None:
        """Take the device down; may raise Blocked for its VFs."""

        def finish() -> None:
            self._up.discard(function.address)
            for name in ("qat", "qat_ras"):
                self._tree.remove(f"{function.path}/{name}")

        def remove_vfs() -> None:
            if function.sriov is not None:
                function.sriov.apply(0)

        chain(remove_vfs, finish)

    def sriov_configure(self, function: PciFunction, number: int) -> None:
        """Make all VFs, whatever the number; EBUSY for a device in use."""
        assert function.sriov is not None
        if number and self.is_used(function):
            fail(errno.EBUSY)
        function.sriov.apply(function.sriov.total if number else 0)

    def is_used(self, function: PciFunction) -> bool:
        """Return whether some process has one of the VFs."""
        vfs = function.sriov.vfs if function.sriov else []
        return any(self._kernel.iommu.in_use(vf.group) for vf in vfs)

    def _store_state(self, function: PciFunction, data: bytes) -> None:
        word = _word(data)
        if word not in ("up", "down"):
            fail(errno.EINVAL)
        if word == "up":
            self._up.add(function.address)
            return
        if self.is_used(function):
            fail(errno.EBUSY)
        # adf_dev_down(): a device that is down is not taken down again
        if function.address not in self._up:
            fail(errno.EINVAL)
        self._up.discard(function.address)


def _word(data: bytes) -> str:
    return data.decode("ascii", "replace").removesuffix("\n")


class QatVfioDriver(VfioPciDriver):
    """qat_vfio_pci: vfio-pci that can migrate what it holds."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.pci)
        self.name = "qat_vfio_pci"


@dataclass(frozen=True, kw_only=True)
class QatCard:
    """One device of the 4xxx family, or of another by its ids.

    ``enabled`` VFs are all there from the start, or none are.
    ``vf_driver`` is the host's own; "" for a kernel without it.
    ``has_services`` False is a driver without the qat/ directory (c6xx).
    """

    kind: ClassVar[str] = "qat"
    address: str
    device: int = 0x4940
    vf_device: int = 0x4941
    driver: str = "4xxx"
    vf_driver: str = "4xxxvf"
    services: str = "sym;asym"
    total_vfs: int = ALL_VFS
    enabled: bool = False
    has_services: bool = True
    numa_node: int = 0

    def build(self, kernel: Kernel) -> None:
        """Load the drivers and put the device on the bus."""
        drivers = kernel.pci.drivers
        driver = drivers.get(self.driver) or QatDriver(kernel, self.driver)
        assert isinstance(driver, QatDriver)
        driver.has_services = self.has_services
        driver.ids.add((VENDOR, self.device))
        driver.services[self.address] = self.services
        kernel.pci.register(driver)
        if "qat_vfio_pci" not in drivers:
            kernel.pci.register(QatVfioDriver(kernel))
        PciCard(
            address=self.address,
            vendor=VENDOR,
            device=self.device,
            class_code=CLASS,
            subsystem_vendor=VENDOR,
            numa_node=self.numa_node,
            total_vfs=self.total_vfs,
            vf_device=self.vf_device,
            vf_driver=self.vf_driver,
            enabled_vfs=self.total_vfs if self.enabled else 0,
        ).build(kernel)
