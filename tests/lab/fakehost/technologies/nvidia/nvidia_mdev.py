# SPDX-License-Identifier: Apache-2.0
"""NVIDIA vGPU through mdev: on the PF (T4) or on each VF (A40).

What the driver cannot make is EIO. A VF carries one vGPU, and a card with
VFs enabled offers types on them only.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from tests.lab.fakehost.buses.mdev import Mdev, MdevCore, MdevParent, MdevType
from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.sysfs.errnos import chain, fail
from tests.lab.fakehost.sysfs.tree import Attr
from tests.lab.fakehost.technologies.nvidia.nvidia_gpu import Gpu


class VgpuParent(MdevParent):
    """A function that vGPUs hang off; ``slots`` limits it (a VF: one)."""

    mdev_driver = "nvidia-vgpu-vfio"

    def __init__(
        self, function: PciFunction, gpu: Gpu, slots: int | None, *, busy: bool
    ) -> None:
        super().__init__(
            path=function.path,
            prefix="nvidia",
            subsystem="pci",
            types=[t.mdev_type() for t in gpu.types.values()],
        )
        self._gpu = gpu
        self._slots = slots
        self._uuids: set[str] = set()
        self.remove_waits = not busy

    def available(self, kind: MdevType) -> int:
        """Return what both the card and the function still take."""
        remaining = self._gpu.remaining(self._gpu.types[kind.suffix])
        if self._slots is None:
            return remaining
        return min(remaining, self._slots - len(self._uuids))

    def admit(self, mdev: Mdev) -> None:
        """Account for a vGPU; EIO when it cannot be made."""
        if self.available(mdev.kind) < 1:
            fail(errno.EIO)
        self._gpu.add(mdev.uuid, self._gpu.types[mdev.kind.suffix])
        self._uuids.add(mdev.uuid)

    def release(self, mdev: Mdev) -> None:
        """Free the vGPU's framebuffer."""
        self._uuids.discard(mdev.uuid)
        self._gpu.remove(mdev.uuid)

    def files(self, mdev: Mdev) -> Mapping[str, Attr]:
        """Return nvidia/vgpu_params, kept per device."""
        params = [""]

        def store(data: bytes) -> None:
            params[0] = data.decode().strip()

        return {"nvidia/vgpu_params": Attr(lambda: f"{params[0]}\n", store)}


class MdevInterface:
    """The vGPU manager as it registers with the mdev core."""

    def __init__(self, core: MdevCore, *, busy: bool) -> None:
        self._core = core
        self._busy = busy
        self._parents: dict[str, VgpuParent] = {}

    def attach(self, function: PciFunction, gpu: Gpu) -> None:
        """Register a VF, or a PF without SR-IOV."""
        if function.sriov is not None:
            return
        slots = None if function.physfn is None else 1
        parent = VgpuParent(function, gpu, slots, busy=self._busy)
        self._parents[function.address] = parent
        self._core.register(parent)

    def detach(self, function: PciFunction) -> None:
        """Unregister; waits for guests, then may raise Blocked."""
        parent = self._parents.get(function.address)
        if parent is None:
            return

        def forget() -> None:
            self._parents.pop(function.address, None)

        chain(lambda: self._core.unregister(parent), forget)
