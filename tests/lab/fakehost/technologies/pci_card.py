# SPDX-License-Identifier: Apache-2.0
"""Any PCI function, with or without SR-IOV: cards to pass through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.buses.pci_attributes import PciIdentity
from tests.lab.fakehost.buses.pci_driver import PciDriver
from tests.lab.fakehost.buses.sriov import SriovCapability
from tests.lab.fakehost.kernel import Kernel


class CardDriver(PciDriver):
    """The driver of a card; ``made`` VFs are made for any number but 0."""

    def __init__(
        self,
        name: str,
        ids: frozenset[tuple[int, int]],
        *,
        sriov: bool,
        made: int = 0,
    ) -> None:
        super().__init__(name, ids, sriov=sriov)
        self._made = made

    def sriov_configure(self, function: PciFunction, number: int) -> None:
        """Make ``number`` VFs, or as many as the card always makes."""
        made = self._made if number and self._made else number
        super().sriov_configure(function, made)


@dataclass(frozen=True, kw_only=True)
class PciCard:
    """One function.

    ``driver`` "" leaves it unbound, any other name is a driver that knows
    its ids (and those of its VFs, ``vf_driver``); ``group`` puts it into
    the IOMMU group of that number, None into one of its own.

    ``takes_vf_count`` False is a driver without sriov_configure (AMD's
    gim: a module option sets the number of VFs). ``made_vfs`` is how many
    the driver makes whatever it is asked for (QAT), 0 for what is asked.
    ``port`` is the root port's address, "" puts it on the root bus.
    ``serial`` is its Device Serial Number, 0 for none, ``bar`` the size of
    its prefetchable memory in bytes. ``reset_methods``
    are those that the kernel has found, none for a function without reset.
    """

    kind: ClassVar[str] = "pci"
    address: str
    vendor: int
    device: int
    class_code: int
    subsystem_vendor: int = 0
    subsystem_device: int = 0
    revision: int = 0
    driver: str = ""
    group: int | None = None
    numa_node: int = 0
    multifunction: bool = False
    boot_vga: bool = False
    total_vfs: int = 0
    vf_device: int | None = None
    vf_offset: int = 1
    vf_stride: int = 1
    vf_driver: str = ""
    enabled_vfs: int = 0
    takes_vf_count: bool = True
    made_vfs: int = 0
    port: str = ""
    serial: int = 0
    bar: int = 0
    reset_methods: tuple[str, ...] = ("flr",)

    def build(self, kernel: Kernel) -> None:
        """Make the function, bind it, and its VFs."""
        self._add_port(kernel)
        function = kernel.pci.add(self.function(kernel))
        self._load_drivers(kernel)
        if self.total_vfs:
            capability = SriovCapability(
                function,
                total=self.total_vfs,
                offset=self.vf_offset,
                stride=self.vf_stride,
                vf_device=self.vf_device,
            )
        kernel.pci.attach(function)
        if self.enabled_vfs:
            capability.apply(self.enabled_vfs)

    def function(self, kernel: Kernel) -> PciFunction:
        """Return the function, not yet on the bus."""
        group = self.group
        return PciFunction(
            kernel.pci,
            self.address,
            PciIdentity(
                vendor=self.vendor,
                device=self.device,
                class_code=self.class_code,
                subsystem_vendor=self.subsystem_vendor,
                subsystem_device=self.subsystem_device,
                revision=self.revision,
                serial=self.serial,
                bar=self.bar,
            ),
            bridge=self._bridge(),
            group=kernel.iommu.allocate() if group is None else group,
            numa_node=self.numa_node,
            multifunction=self.multifunction,
            boot_vga=self.boot_vga,
            reset_methods=self.reset_methods,
        )

    def _add_port(self, kernel: Kernel) -> None:
        """Make the root port, unless a function below it has made it."""
        if not self.port or self.port in kernel.pci.functions:
            return
        port = PciFunction(
            kernel.pci,
            self.port,
            PciIdentity(vendor=0x8086, device=0x2030, class_code=0x060400),
            bridge=self._bridge().partition("/")[0],
            group=kernel.iommu.allocate(),
            numa_node=self.numa_node,
            reset_methods=("pm",),
        )
        kernel.pci.add(port).bind(kernel.pci.drivers["pcieport"])

    def _bridge(self) -> str:
        """Return the directory of the function."""
        domain, bus, _ = (self.port or self.address).split(":")
        if self.port:
            return f"pci{domain}:{bus}/{self.port}"
        return f"pci{domain}:{max(int(bus, 16) - 1, 0):02x}"

    def _load_drivers(self, kernel: Kernel) -> None:
        vf_device = self.device if self.vf_device is None else self.vf_device
        for name, device, sriov in (
            (
                self.driver,
                self.device,
                bool(self.total_vfs) and self.takes_vf_count,
            ),
            (self.vf_driver, vf_device, False),
        ):
            if name:
                ids = frozenset({(self.vendor, device)})
                kernel.pci.register(
                    CardDriver(name, ids, sriov=sriov, made=self.made_vfs)
                )
