# SPDX-License-Identifier: Apache-2.0
"""Answers to the fake NVML: one text for each call.

An answer is the return code of NVML, a blank, and fields between
semicolons; lists in a field are between commas. The library itself
(``standins/nvml/nvml.c``) only moves them into NVML's structures, so that what
NVML says and what sysfs shows come from the same state.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.technologies.nvidia import nvidia_tool
from tests.lab.fakehost.technologies.nvidia.nvidia_card import (
    VERSION,
    NvidiaDriver,
)
from tests.lab.fakehost.technologies.nvidia.nvidia_gpu import Gpu
from tests.lab.fakehost.technologies.nvidia.nvidia_instances import (
    COMPUTE,
    IN_USE,
    INSUFFICIENT_RESOURCES,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    InstanceKind,
    NvmlError,
)
from tests.lab.fakehost.technologies.nvidia.nvidia_types import VgpuType

DRIVER_NOT_LOADED = 9
#: INVALID_GPU_INSTANCE_PROFILE_ID: a type without GPU instance.
NO_PROFILE = 0xFFFFFFFF
#: NVML_DEVICE_VGPU_CAP_* of nvml.h.
CAP_MIXED_SIZES = 2
CAP_MIG_TIMESLICING = 10
SLICES = {profile: slices for slices, profile in COMPUTE.items()}
#: Multiprocessors in a compute slice of GA100.
MULTIPROCESSORS = 14
#: NVML_NVLINK_DEVICE_TYPE_* of nvml.h.
LINK_GPU, LINK_SWITCH = 0, 2
#: What a card has at the end of a link that is no GPU.
SWITCH = "switch"

Answer = tuple[object, ...]


class Nvml:
    """The calls; every public method is one and takes numbers."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def call(self, name: str, arguments: list[int]) -> str:
        """Return the answer to one call; raises ValueError."""
        method: Callable[..., Answer] | None = getattr(
            self, f"do_{name}", None
        )
        if method is None:
            raise ValueError(f"NVML has no call {name!r}")
        try:
            fields = method(*arguments)
        except NvmlError as error:
            return f"{error.code} "
        return "0 " + ";".join(map(str, fields))

    # -- the card --------------------------------------------------------

    def do_system(self) -> Answer:
        """Return the driver's version."""
        self._cards()
        return (VERSION,)

    def do_count(self) -> Answer:
        """Return how many GPUs the driver has."""
        return (len(self._cards()),)

    def do_device(self, index: int) -> Answer:
        """Return a GPU's address, ids, name, and memory in MiB."""
        function, gpu = self._card(index)
        ids = function.identity
        used = sum(v.kind.framebuffer for v in gpu.vgpus.values())
        return (
            function.address,
            ids.device << 16 | ids.vendor,
            ids.subsystem_device << 16 | ids.subsystem_vendor,
            gpu.model.product,
            gpu.model.framebuffer,
            used,
        )

    def do_mig(self, index: int) -> Answer:
        """Return MIG mode."""
        gpu = self._gpu(index)
        if not gpu.model.kinds:
            raise NvmlError(NOT_SUPPORTED)
        return (int(gpu.mig),)

    def do_set_mig(self, index: int, on: int) -> Answer:
        """Switch MIG mode."""
        function, gpu = self._card(index)
        vfs = len(function.sriov.vfs) if function.sriov else 0
        gpu.set_mig(bool(on), vfs=vfs)
        return ()

    def do_mixed(self, index: int) -> Answer:
        """Return mixed-size mode."""
        gpu = self._gpu(index)
        if not gpu.model.total_vfs:
            raise NvmlError(NOT_SUPPORTED)
        return (int(gpu.mixed),)

    def do_set_mixed(self, index: int, on: int) -> Answer:
        """Switch mixed-size mode."""
        self._gpu(index).set_mixed(bool(on))
        return ()

    def do_capability(self, index: int, number: int) -> Answer:
        """Return a vGPU capability."""
        model = self._gpu(index).model
        return (
            {
                CAP_MIXED_SIZES: int(bool(model.total_vfs)),
                CAP_MIG_TIMESLICING: int(model.shares_instances),
            }.get(number, 0),
        )

    def do_link(self, index: int, number: int) -> Answer:
        """Return whether an NVLink is up, and what it leads to."""
        links = self._gpu(index).links
        if not links:
            raise NvmlError(NOT_SUPPORTED)
        if not 0 <= number < len(links):
            raise NvmlError(INVALID_ARGUMENT)
        end = links[number]
        if end == SWITCH:
            return 1, LINK_SWITCH, ""
        is_up = end in {function.address for function, _ in self._cards()}
        return int(is_up), LINK_GPU, end

    # -- types -----------------------------------------------------------

    def do_types(self, index: int, creatable: int) -> Answer:
        """Return the numbers of the types a GPU has, or can make now."""
        function, gpu = self._card(index)
        free = nvidia_tool.has_room(self._kernel, function.address, gpu)
        return tuple(
            kind.number
            for kind in gpu.types.values()
            if not creatable or (free and gpu.remaining(kind) > 0)
        )

    def do_type(self, number: int) -> Answer:
        """Return a type's name, framebuffer, GI profile and sharing."""
        gpu, kind = self._type(number)
        profile = NO_PROFILE
        if kind.instance:
            profile = gpu.instances.kind(kind.instance).profile_id
        return kind.name, kind.framebuffer, profile, kind.per_instance

    def do_most(self, index: int, number: int) -> Answer:
        """Return how many of a type a GPU holds in its present mode."""
        gpu = self._gpu(index)
        kind = gpu.types.get(str(number))
        if kind is None:
            raise NvmlError(INVALID_ARGUMENT)
        return (len(kind.mixed) if gpu.mixed else kind.max_instance,)

    def do_vgpu_placements(self, index: int, number: int, mode: int) -> Answer:
        """Return a type's size and places: mode 0 is mixed, 1 equal sizes."""
        kind = self._gpu(index).types.get(str(number))
        if kind is None or kind.instance:
            raise NvmlError(NOT_SUPPORTED)
        return (kind.size, *(kind.equal if mode else kind.mixed))

    # -- GPU instances ---------------------------------------------------

    def do_profile(self, index: int, number: int) -> Answer:
        """Return a kind's id, slices, count, MiB and name, MIG on or off."""
        kind = self._gpu(index).instances.numbered(number)
        return (
            kind.profile_id,
            kind.slices,
            kind.limit,
            kind.memory * 1024,
            f"MIG {kind.name}",
        )

    def do_placements(self, index: int, profile_id: int) -> Answer:
        """Return size and places of a kind, free or not."""
        kind = self._kind(index, profile_id)
        return (kind.size, *kind.starts)

    def do_instances(self, index: int, profile_id: int) -> Answer:
        """Return the ids of the instances of a kind."""
        kind = self._kind(index, profile_id)
        present = self._mig(index).instances.present
        return tuple(i.id for i in present.values() if i.kind == kind)

    def do_instance(self, index: int, number: int) -> Answer:
        """Return an instance's profile id, start and size."""
        instance = self._mig(index).instances.get(number)
        kind = instance.kind
        return kind.profile_id, instance.start, kind.size

    def do_create(self, index: int, profile_id: int, start: int) -> Answer:
        """Make an instance (start -1: anywhere); return its id."""
        kind = self._kind(index, profile_id)
        at = None if start < 0 else start
        return (self._mig(index).instances.create(kind, at).id,)

    def do_destroy(self, index: int, number: int) -> Answer:
        """Destroy an instance."""
        self._mig(index).destroy_instance(number)
        return ()

    # -- compute instances -----------------------------------------------

    def do_compute_profile(
        self, index: int, number: int, profile: int
    ) -> Answer:
        """Return a compute profile's id, slices, count and SMs."""
        instance = self._mig(index).instances.get(number)
        for slices, compute_profile in COMPUTE.items():
            if compute_profile == profile and slices <= instance.kind.slices:
                count = instance.kind.slices // slices
                return compute_profile, slices, count, slices * MULTIPROCESSORS
        raise NvmlError(NOT_SUPPORTED)

    def do_compute_create(
        self, index: int, number: int, profile: int
    ) -> Answer:
        """Make a compute instance; return its id."""
        gpu = self._mig(index)
        self.do_compute_profile(index, number, profile)
        instance = gpu.instances.get(number)
        used = sum(SLICES[p] for p in instance.compute.values())
        if used + SLICES[profile] > instance.kind.slices:
            raise NvmlError(INSUFFICIENT_RESOURCES)
        made = max(instance.compute, default=-1) + 1
        instance.compute[made] = profile
        return (made,)

    def do_computes(self, index: int, number: int, profile: int) -> Answer:
        """Return the ids of the compute instances of a profile."""
        instance = self._mig(index).instances.get(number)
        return tuple(i for i, p in instance.compute.items() if p == profile)

    def do_compute(self, index: int, number: int, compute: int) -> Answer:
        """Return a compute instance's profile and slices."""
        instance = self._mig(index).instances.get(number)
        if compute not in instance.compute:
            raise NvmlError(NOT_FOUND)
        profile = instance.compute[compute]
        return profile, SLICES[profile]

    def do_compute_destroy(
        self, index: int, number: int, compute: int
    ) -> Answer:
        """Destroy a compute instance; refused while a vGPU runs on it."""
        gpu = self._mig(index)
        instance = gpu.instances.get(number)
        if compute not in instance.compute:
            raise NvmlError(NOT_FOUND)
        if gpu.vgpus_in(number):
            raise NvmlError(IN_USE)
        del instance.compute[compute]
        return ()

    # -- finding ---------------------------------------------------------

    def _driver(self) -> NvidiaDriver:
        driver = self._kernel.pci.drivers.get("nvidia")
        if not isinstance(driver, NvidiaDriver):
            raise NvmlError(DRIVER_NOT_LOADED)
        return driver

    def _cards(self) -> list[tuple[PciFunction, Gpu]]:
        driver = self._driver()
        functions = self._kernel.pci.functions
        return [
            (functions[address], gpu)
            for address, gpu in sorted(driver.gpus.items())
            if address in functions and functions[address].driver is driver
        ]

    def _card(self, index: int) -> tuple[PciFunction, Gpu]:
        cards = self._cards()
        if not 0 <= index < len(cards):
            raise NvmlError(INVALID_ARGUMENT)
        return cards[index]

    def _gpu(self, index: int) -> Gpu:
        return self._card(index)[1]

    def _mig(self, index: int) -> Gpu:
        gpu = self._gpu(index)
        gpu.check_mig()
        return gpu

    def _kind(self, index: int, profile_id: int) -> InstanceKind:
        return self._mig(index).instances.profile(profile_id)

    def _type(self, number: int) -> tuple[Gpu, VgpuType]:
        for _, gpu in self._cards():
            kind = gpu.types.get(str(number))
            if kind is not None:
                return gpu, kind
        raise NvmlError(INVALID_ARGUMENT)
