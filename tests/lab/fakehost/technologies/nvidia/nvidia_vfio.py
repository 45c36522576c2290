# SPDX-License-Identifier: Apache-2.0
"""NVIDIA vGPU through vendor-specific VFIO: files on each VF, no mdev.

The files, their formats and errnos are those of NVIDIA's nv-vfio-pci and
of observed hosts with driver 550 and later. The PF has none of them.
"""

from __future__ import annotations

import errno

from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.errnos import Blocked, fail, parse_unsigned
from tests.lab.fakehost.sysfs.tree import Attr
from tests.lab.fakehost.technologies.nvidia.nvidia_gpu import Gpu

HEADER = "ID    : vGPU Name\n"


class VfFiles:
    """The directory ``nvidia`` of one VF."""

    def __init__(
        self, kernel: Kernel, function: PciFunction, gpu: Gpu
    ) -> None:
        self._kernel = kernel
        self._group = function.group
        self._key = function.address
        self._gpu = gpu
        self._params = ""

    def attributes(self) -> dict[str, Attr]:
        """Return the files by name."""
        return {
            "creatable_vgpu_types": Attr(self._creatable),
            "current_vgpu_type": Attr(self._current, self._store_type),
            "vgpu_params": Attr(
                lambda: f"{self._params}\n", self._store_params, 0o600
            ),
            "gpu_instance_id": Attr(
                self._instance, self._store_instance, 0o600
            ),
            "placement_id": Attr(self._place, self._store_place, 0o600),
        }

    def _creatable(self) -> str:
        if self._key in self._gpu.vgpus:
            return HEADER
        return HEADER + "".join(
            f"{kind.number:<5d} : {kind.name}\n"
            for kind in self._gpu.types.values()
            if self._gpu.remaining(kind) > 0
        )

    def _current(self) -> str:
        vgpu = self._gpu.vgpus.get(self._key)
        return f"{vgpu.kind.number if vgpu else 0}\n"

    def _store_type(self, data: bytes) -> None:
        number = parse_unsigned(data, 31)
        is_typed = self._key in self._gpu.vgpus
        if number == 0:
            if not is_typed:
                fail(errno.EPERM)
            self._check_closed()
            self._gpu.remove(self._key)
            self._params = ""
            return
        if is_typed:
            self._check_closed()
            fail(errno.EPERM)
        kind = self._gpu.types.get(str(number))
        if kind is None:
            fail(errno.EIO)
        self._gpu.add(self._key, kind)

    def _store_params(self, data: bytes) -> None:
        self._check_closed()
        self._params = data.decode("ascii", "replace").strip()

    def _place(self) -> str:
        vgpu = self._gpu.vgpus.get(self._key)
        if vgpu is None or vgpu.start is None:
            fail(errno.ENXIO)
        return f"{vgpu.start}\n"

    def _store_place(self, data: bytes) -> None:
        start = parse_unsigned(data, 32)
        self._check_made()
        self._gpu.move(self._key, start)

    def _instance(self) -> str:
        vgpu = self._gpu.vgpus.get(self._key)
        if vgpu is None or vgpu.instance is None:
            fail(errno.ENXIO)
        return f"{vgpu.instance}\n"

    def _store_instance(self, data: bytes) -> None:
        number = parse_unsigned(data, 32)
        self._check_made()
        self._gpu.move_into(self._key, number)

    def _check_made(self) -> None:
        if self._key not in self._gpu.vgpus:
            fail(errno.ENXIO)
        self._check_closed()

    def _check_closed(self) -> None:
        if self._kernel.iommu.in_use(self._group):
            fail(errno.EBUSY)


class VfioInterface:
    """The vGPU manager as a VFIO driver of the card's VFs."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def attach(self, function: PciFunction, gpu: Gpu) -> None:
        """Give a VF its files, and its group a node."""
        if function.physfn is None:
            return
        kernel, path = self._kernel, function.path
        for name, attr in VfFiles(kernel, function, gpu).attributes().items():
            kernel.tree.add(f"{path}/nvidia/{name}", attr)
        kernel.tree.mkdir(f"{path}/vfio-dev/vfio{function.group}")
        kernel.iommu.expose(function.group)

    def detach(self, function: PciFunction) -> None:
        """Take files and vGPU away; Blocked while a guest has it."""
        if self._kernel.iommu.in_use(function.group):
            raise Blocked(lambda: self.detach(function))
        if self._kernel.tree.find(f"{function.path}/nvidia") is None:
            return
        self._kernel.tree.remove(f"{function.path}/nvidia")
        self._kernel.tree.remove(f"{function.path}/vfio-dev")
        self._kernel.iommu.hide(function.group)
