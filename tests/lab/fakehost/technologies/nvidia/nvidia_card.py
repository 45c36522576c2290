# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's host driver and the cards under it.

VFs come through pci-pf-stub, never from nvidia itself (it has no
sriov_configure: ENOENT), which is what sriov-manage is for. A rebind loses
everything but MIG mode. Whether vGPUs are mdevs or types of a VF is a
matter of the host, not of the card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.buses.pci_driver import PciDriver
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.errnos import chain
from tests.lab.fakehost.sysfs.tree import constant
from tests.lab.fakehost.technologies.nvidia.nvidia_gpu import Gpu
from tests.lab.fakehost.technologies.nvidia.nvidia_mdev import MdevInterface
from tests.lab.fakehost.technologies.nvidia.nvidia_types import MODELS
from tests.lab.fakehost.technologies.nvidia.nvidia_vfio import VfioInterface
from tests.lab.fakehost.technologies.pci_card import PciCard

VENDOR = 0x10DE
VERSION = "570.133.10"
#: 3D controller
CLASS = 0x030200
REVISION = 0xA1
#: Routing offset of the first VF: .00.4
VF_OFFSET = 4

Interface = MdevInterface | VfioInterface


class NvidiaDriver(PciDriver):
    """The host driver: gives the cards it knows their interface."""

    def __init__(self) -> None:
        ids = frozenset((VENDOR, m.device) for m in MODELS.values())
        super().__init__("nvidia", ids)
        self.gpus: dict[str, Gpu] = {}
        self._interfaces: dict[str, Interface] = {}

    def add(self, address: str, gpu: Gpu, interface: Interface) -> None:
        """Know the card that will be found at ``address``."""
        self.gpus[address] = gpu
        self._interfaces[address] = interface

    def probe(self, function: PciFunction) -> None:
        """Attach the function, or the VFs whose PF has come."""
        if function.physfn is not None:
            if function.physfn.driver is self:
                self._attach(function)
            return
        self._attach(function)
        for vf in function.sriov.vfs if function.sriov else ():
            if vf.driver is self:
                self._attach(vf)

    def disconnect(self, function: PciFunction) -> None:
        """Detach; without its PF no VF offers anything."""
        gone = [function]
        if function.sriov is not None:
            gone += function.sriov.vfs
        self._detach(gone)

    def _attach(self, function: PciFunction) -> None:
        owner = (function.physfn or function).address
        if owner in self.gpus:
            self._interfaces[owner].attach(function, self.gpus[owner])

    def _detach(self, functions: list[PciFunction]) -> None:
        if not functions:
            return
        first, *rest = functions
        owner = (first.physfn or first).address
        interface = self._interfaces.get(owner)
        if interface is None:
            return

        def next_one() -> None:
            self.gpus[owner].remove(first.address)
            self._detach(rest)
            if first.physfn is None:
                self.gpus[owner].reset()

        chain(lambda: interface.detach(first), next_one)


@dataclass(frozen=True, kw_only=True)
class NvidiaGpu:
    """A card of a known model under the nvidia driver.

    ``enabled_vfs`` VFs exist from the start, of ``total_vfs`` (None: the
    model's own). ``interface`` is "mdev" or "vfio". ``remove_in_use``
    "blocks" (kernel 6.1 and later) or "busy" (older drivers: EBUSY).
    ``types`` limits what is offered to some types (``4Q``; none: all).
    ``mig`` and ``mixed`` are the mode, ``instances`` the GPU instances
    (kind, start) that a boot script has made. ``port`` is the root port's
    address. ``links`` are the other ends of its NVLinks: addresses of
    GPUs, "switch", or "" for a link that is down.
    """

    kind: ClassVar[str] = "nvidia"
    address: str
    model: str
    numa_node: int = 0
    enabled_vfs: int = 0
    total_vfs: int | None = None
    interface: str = "mdev"
    remove_in_use: str = "blocks"
    types: tuple[str, ...] = ()
    mig: bool = False
    mixed: bool = False
    instances: tuple[tuple[str, int], ...] = ()
    port: str = ""
    links: tuple[str, ...] = ()

    def build(self, kernel: Kernel) -> None:
        """Load the driver, put the card on the bus, enable its VFs."""
        model = MODELS[self.model]
        total = model.total_vfs if self.total_vfs is None else self.total_vfs
        driver = kernel.pci.register(
            kernel.pci.drivers.get("nvidia") or NvidiaDriver()
        )
        assert isinstance(driver, NvidiaDriver)
        kernel.tree.add("module/nvidia/version", constant(VERSION))
        gpu = Gpu(model, offered=self.types, mig=self.mig)
        gpu.links = tuple(self.links)
        driver.add(self.address, gpu, self._interface(kernel))
        PciCard(
            address=self.address,
            vendor=VENDOR,
            device=model.device,
            class_code=CLASS,
            subsystem_vendor=VENDOR,
            subsystem_device=model.subsystem,
            revision=REVISION,
            numa_node=self.numa_node,
            total_vfs=total,
            vf_offset=VF_OFFSET,
            enabled_vfs=self.enabled_vfs,
            port=self.port,
        ).build(kernel)
        gpu.mixed = self.mixed
        for name, start in self.instances:
            gpu.create_instance(name, start)

    def _interface(self, kernel: Kernel) -> Interface:
        if self.interface == "vfio":
            return VfioInterface(kernel)
        if self.interface != "mdev":
            raise ValueError(f"no interface {self.interface!r}: mdev or vfio")
        return MdevInterface(kernel.mdev, busy=self.remove_in_use == "busy")
