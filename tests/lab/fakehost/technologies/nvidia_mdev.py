# SPDX-License-Identifier: Apache-2.0
"""NVIDIA vGPU through mdev: on the PF (T4) or on each VF (A40).

The rules of the vendor's driver, from its documentation and from recorded
hosts: all vGPUs of a card have one framebuffer size; a type has at most
``max_instance`` devices per card; a VF carries one. What the driver cannot
make is EIO. VFs come through pci-pf-stub, never from nvidia itself (it has
no sriov_configure: ENOENT), and a card with VFs enabled offers types on
them only.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tests.lab.fakehost.errnos import chain, fail
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.mdev import Mdev, MdevParent, MdevType
from tests.lab.fakehost.pci import PciFunction
from tests.lab.fakehost.pci_driver import PciDriver
from tests.lab.fakehost.technologies.nvidia_types import (
    MODELS,
    Model,
    VgpuType,
)
from tests.lab.fakehost.technologies.pci_card import PciCard
from tests.lab.fakehost.tree import Attr

VENDOR = 0x10DE
#: 3D controller
CLASS = 0x030200
REVISION = 0xA1
#: Routing offset of the first VF: .00.4
VF_OFFSET = 4


class Gpu:
    """The books of one card, shared by all its parents."""

    def __init__(self, model: Model, *, busy: bool) -> None:
        self.busy = busy
        self.types = {str(t.number): t for t in model.types()}
        self.vgpus: dict[str, VgpuType] = {}

    def left(self, vgpu: VgpuType) -> int:
        """Return how many more of ``vgpu`` the card takes."""
        used = self.vgpus.values()
        if any(other.framebuffer != vgpu.framebuffer for other in used):
            return 0
        return max(0, vgpu.max_instance - len(self.vgpus))


class VgpuParent(MdevParent):
    """A function that vGPUs hang off; ``slots`` limits it (a VF: one)."""

    mdev_driver = "nvidia-vgpu-vfio"

    def __init__(
        self, function: PciFunction, gpu: Gpu, slots: int | None
    ) -> None:
        super().__init__(
            path=function.path,
            prefix="nvidia",
            subsystem="pci",
            types=[t.mdev_type() for t in gpu.types.values()],
        )
        self._gpu = gpu
        self._slots = slots
        self._mine: set[str] = set()
        self.remove_waits = not gpu.busy

    def available(self, kind: MdevType) -> int:
        """Return what both the card and the function still take."""
        left = self._gpu.left(self._gpu.types[kind.suffix])
        if self._slots is None:
            return left
        return min(left, self._slots - len(self._mine))

    def admit(self, mdev: Mdev) -> None:
        """Account for a vGPU; EIO when it cannot be made."""
        if self.available(mdev.kind) < 1:
            fail(errno.EIO)
        self._mine.add(mdev.uuid)
        self._gpu.vgpus[mdev.uuid] = self._gpu.types[mdev.kind.suffix]

    def release(self, mdev: Mdev) -> None:
        """Free the vGPU's framebuffer."""
        self._mine.discard(mdev.uuid)
        self._gpu.vgpus.pop(mdev.uuid, None)

    def files(self, mdev: Mdev) -> Mapping[str, Attr]:
        """Return nvidia/vgpu_params, kept per device."""
        params = [""]

        def store(data: bytes) -> None:
            params[0] = data.decode().strip()

        return {"nvidia/vgpu_params": Attr(lambda: f"{params[0]}\n", store)}


class NvidiaDriver(PciDriver):
    """The host driver: registers parents for the cards it knows."""

    def __init__(self, kernel: Kernel) -> None:
        ids = frozenset((VENDOR, m.device) for m in MODELS.values())
        super().__init__("nvidia", ids)
        self._kernel = kernel
        self.gpus: dict[str, Gpu] = {}
        self._parents: dict[str, VgpuParent] = {}

    def probe(self, function: PciFunction) -> None:
        """Register the function, or the VFs whose PF has come."""
        if function.physfn is not None:
            if function.physfn.driver is self:
                self._register(function, slots=1)
            return
        if function.sriov is None:
            self._register(function, slots=None)
            return
        for vf in function.sriov.vfs:
            if vf.driver is self:
                self._register(vf, slots=1)

    def disconnect(self, function: PciFunction) -> None:
        """Unregister; without its PF no VF offers anything."""
        gone = [function]
        if function.sriov is not None:
            gone += function.sriov.vfs
        self._unregister(gone)

    def _register(self, function: PciFunction, slots: int | None) -> None:
        owner = function.physfn or function
        gpu = self.gpus[owner.address]
        parent = VgpuParent(function, gpu, slots)
        self._parents[function.address] = parent
        self._kernel.mdev.register(parent)

    def _unregister(self, functions: list[PciFunction]) -> None:
        if not functions:
            return
        first, *rest = functions
        parent = self._parents.get(first.address)

        def next_one() -> None:
            self._parents.pop(first.address, None)
            self._unregister(rest)

        if parent is None:
            next_one()
            return
        core = self._kernel.mdev
        chain(lambda: core.unregister(parent), next_one)


@dataclass(frozen=True, kw_only=True)
class NvidiaGpu:
    """A card of a known model under the nvidia driver.

    ``enabled_vfs`` VFs exist from the start. ``remove_in_use`` "blocks"
    (kernel 6.1 and later) or "busy" (older drivers: EBUSY).
    """

    kind: ClassVar[str] = "nvidia"
    address: str
    model: str
    numa_node: int = 0
    enabled_vfs: int = 0
    remove_in_use: str = "blocks"

    def build(self, kernel: Kernel) -> None:
        """Load the driver, put the card on the bus, enable its VFs."""
        model = MODELS[self.model]
        driver = kernel.pci.register(
            kernel.pci.drivers.get("nvidia") or NvidiaDriver(kernel)
        )
        assert isinstance(driver, NvidiaDriver)
        driver.gpus[self.address] = Gpu(
            model, busy=self.remove_in_use == "busy"
        )
        PciCard(
            address=self.address,
            vendor=VENDOR,
            device=model.device,
            class_code=CLASS,
            subsystem_vendor=VENDOR,
            subsystem_device=model.subsystem,
            revision=REVISION,
            numa_node=self.numa_node,
            total_vfs=model.total_vfs,
            vf_offset=VF_OFFSET,
            enabled_vfs=self.enabled_vfs,
        ).build(kernel)
