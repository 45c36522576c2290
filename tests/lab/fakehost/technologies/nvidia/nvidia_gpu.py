# SPDX-License-Identifier: Apache-2.0
"""State of one NVIDIA card: what runs on it and what still fits.

The rules of the vendor's driver, from its documentation, its open kernel
modules and recorded hosts. Sizes are equal on a card unless it is in
mixed-size mode, where every vGPU has a place of its own; in MIG mode a
vGPU runs in a GPU instance of its type's kind, and an instance has one
size. Nothing here is shared with the library: this is what judges it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass

from tests.lab.fakehost.sysfs.errnos import fail
from tests.lab.fakehost.technologies.nvidia.nvidia_instances import (
    COMPUTE,
    IN_USE,
    NOT_SUPPORTED,
    GpuInstance,
    Instances,
    NvmlError,
)
from tests.lab.fakehost.technologies.nvidia.nvidia_types import Model, VgpuType


@dataclass(kw_only=True)
class Vgpu:
    """One vGPU; ``start`` is its placement id."""

    kind: VgpuType
    start: int | None = None
    instance: int | None = None


class Gpu:
    """One card. Keys of vGPUs are mdevs' uuids or VFs' addresses."""

    def __init__(
        self,
        model: Model,
        *,
        offered: Iterable[str] = (),
        mig: bool = False,
    ) -> None:
        self.model = model
        names = frozenset(offered)
        self.types = {
            str(kind.number): kind
            for kind in model.types()
            if not names or kind.short in names
        }
        self.mig = mig
        self.mixed = False
        self.instances = Instances(model.kinds)
        self.vgpus: dict[str, Vgpu] = {}
        #: The other ends of its NVLinks, as NvidiaGpu has them.
        self.links: tuple[str, ...] = ()

    # -- vGPUs -----------------------------------------------------------

    def remaining(self, kind: VgpuType) -> int:
        """Return how many more of ``kind`` the card takes."""
        if self.mig:
            return sum(
                self._room_in(instance, kind)
                for instance in self.instances.present.values()
            )
        if kind.instance:
            return 0
        used = len(self.vgpus)
        if self.mixed:
            return min(self.model.most - used, len(self.places(kind)))
        if any(
            vgpu.kind.framebuffer != kind.framebuffer
            for vgpu in self.vgpus.values()
        ):
            return 0
        return max(0, kind.max_instance - used)

    def places(self, kind: VgpuType, but: str = "") -> list[int]:
        """Return the free places of a time-sliced type, in order.

        :param but: a vGPU whose own place counts as free.
        """
        others = [v for key, v in self.vgpus.items() if key != but]
        starts = kind.mixed if self.mixed else kind.equal
        return [
            start
            for start in starts
            if all(_apart(start, kind, other) for other in others)
        ]

    def _room_in(self, instance: GpuInstance, kind: VgpuType) -> int:
        if instance.kind.name != kind.instance:
            return 0
        there = [
            vgpu
            for vgpu in self.vgpus.values()
            if vgpu.instance == instance.id
        ]
        if any(v.kind.framebuffer != kind.framebuffer for v in there):
            return 0
        return max(0, kind.per_instance - len(there))

    def add(self, key: str, kind: VgpuType) -> Vgpu:
        """Make a vGPU where the driver puts it: at the first place.

        Raises OSError EIO when it can't be made.
        """
        if self.remaining(kind) < 1:
            fail(errno.EIO)
        made = Vgpu(kind=kind)
        if self.mig:
            made.instance = next(
                instance.id
                for _, instance in sorted(self.instances.present.items())
                if self._room_in(instance, kind)
            )
        elif kind.size:
            made.start = self.places(kind)[0]
        self.vgpus[key] = made
        return made

    def remove(self, key: str) -> None:
        """Free a vGPU's share; an unknown key is no error."""
        self.vgpus.pop(key, None)

    def move(self, key: str, start: int) -> None:
        """Move a vGPU to another place; raises OSError EINVAL."""
        vgpu = self.vgpus[key]
        if vgpu.start is None or start not in self.places(vgpu.kind, key):
            fail(errno.EINVAL)
        vgpu.start = start

    def move_into(self, key: str, number: int) -> None:
        """Move a vGPU into another GPU instance; raises OSError EINVAL."""
        vgpu = self.vgpus[key]
        instance = self.instances.present.get(number)
        if instance is None:
            fail(errno.EINVAL)
        if vgpu.instance != number and not self._room_in(instance, vgpu.kind):
            fail(errno.EINVAL)
        vgpu.instance = number

    # -- modes -----------------------------------------------------------

    def reset(self) -> None:
        """Forget what a rebind of the driver forgets: all but MIG mode."""
        self.vgpus.clear()
        self.instances.present.clear()
        self.mixed = False

    def set_mixed(self, on: bool) -> None:
        """Switch mixed sizes; raises NvmlError."""
        if not self.model.total_vfs or self.mig:
            raise NvmlError(NOT_SUPPORTED)
        if on != self.mixed and self.vgpus:
            raise NvmlError(IN_USE)
        self.mixed = on

    def set_mig(self, on: bool, *, vfs: int) -> None:
        """Switch MIG mode; with VFs enabled it can't be switched off."""
        if not self.model.kinds:
            raise NvmlError(NOT_SUPPORTED)
        if on == self.mig:
            return
        if self.vgpus or self.instances.present or (vfs and not on):
            raise NvmlError(IN_USE)
        self.mig, self.mixed = on, False

    def create_instance(self, name: str, start: int | None) -> GpuInstance:
        """Make a GPU instance with the compute instance that fills it."""
        self.check_mig()
        made = self.instances.create(self.instances.kind(name), start)
        made.compute[0] = COMPUTE[made.kind.slices]
        return made

    def destroy_instance(self, number: int) -> None:
        """Destroy a GPU instance; raises NvmlError IN_USE."""
        self.check_mig()
        instance = self.instances.get(number)
        if instance.compute or self.vgpus_in(number):
            raise NvmlError(IN_USE)
        del self.instances.present[number]

    def vgpus_in(self, number: int) -> list[Vgpu]:
        """Return the vGPUs in a GPU instance."""
        return [v for v in self.vgpus.values() if v.instance == number]

    def check_mig(self) -> None:
        """Raise NvmlError unless the card is in MIG mode."""
        if not self.mig:
            raise NvmlError(NOT_SUPPORTED)

    def could_make(self, kind: VgpuType) -> bool:
        """Return whether one more fits, a new GPU instance allowed."""
        if self.remaining(kind) > 0:
            return True
        if not self.mig or not kind.instance:
            return False
        return bool(self.instances.room(self.instances.kind(kind.instance)))


def _apart(start: int, kind: VgpuType, other: Vgpu) -> bool:
    if other.start is None:
        return True
    return (
        start + kind.size <= other.start
        or other.start + other.kind.size <= start
    )
