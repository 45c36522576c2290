# SPDX-License-Identifier: Apache-2.0
"""The simulated NVML works with NVIDIA's Python binding."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.functional.fakehost.support.cards import (
    A100,
    L40S,
    L40S_MIXED,
    store,
    vf_of,
)
from tests.lab.fakehost import Controller, nvml

pytestmark = pytest.mark.fakehost


@pytest.fixture
def lib(gpus: Controller) -> Iterator[Any]:
    pynvml = pytest.importorskip("pynvml")
    nvml.load(gpus)
    pynvml.nvmlInit()
    yield pynvml
    pynvml.nvmlShutdown()


def gpu(lib: Any, address: str) -> Any:
    return lib.nvmlDeviceGetHandleByPciBusId(address.encode())


def test_the_cards_are_those_of_the_kernel(gpus: Controller, lib: Any) -> None:
    handles = [
        lib.nvmlDeviceGetHandleByIndex(n)
        for n in range(lib.nvmlDeviceGetCount())
    ]
    infos = [lib.nvmlDeviceGetPciInfo(h) for h in handles]
    assert [f.busId.lower()[4:] for f in infos] == sorted(gpus.gpus())
    first = gpu(lib, L40S)
    assert lib.nvmlDeviceGetName(first) == "NVIDIA L40S"
    assert lib.nvmlDeviceGetPciInfo(first).pciDeviceId == 0x26B910DE
    for version in (None, lib.nvmlMemory_v2):
        memory = lib.nvmlDeviceGetMemoryInfo(first, version)
        assert memory.total == 48 << 30
        assert memory.free == memory.total
    with pytest.raises(lib.NVMLError_NotFound):
        gpu(lib, "0000:00:1f.0")


def test_types_agree_with_sysfs(gpus: Controller, lib: Any) -> None:
    card = gpu(lib, L40S)
    assert len(lib.nvmlDeviceGetSupportedVgpus(card)) == 23
    vfs = [gpus.sys / f"bus/pci/devices/{vf_of(L40S, n)}" for n in range(2)]
    store(vfs[0] / "nvidia/current_vgpu_type", "1155")
    text = (vfs[1] / "nvidia/creatable_vgpu_types").read_text()
    assert {
        f"{number:<5d} : {lib.nvmlVgpuTypeGetName(number)}"
        for number in lib.nvmlDeviceGetCreatableVgpus(card)
    } == set(text.splitlines()[1:])
    assert lib.nvmlVgpuTypeGetFramebufferSize(1155) == 24 << 30
    assert lib.nvmlVgpuTypeGetMaxInstances(card, 1155) == 2
    assert lib.nvmlVgpuTypeGetGpuInstanceProfileId(1155) == 0xFFFFFFFF
    store(vfs[0] / "nvidia/current_vgpu_type", "0")


def test_modes(gpus: Controller, lib: Any) -> None:
    plain, mixed, mig = (gpu(lib, a) for a in (L40S, L40S_MIXED, A100))
    assert lib.nvmlDeviceGetVgpuHeterogeneousMode(plain) == 0
    assert lib.nvmlDeviceGetVgpuHeterogeneousMode(mixed) == 1
    vf = gpus.sys / f"bus/pci/devices/{vf_of(L40S_MIXED, 0)}/nvidia"
    store(vf / "current_vgpu_type", "1155")
    with pytest.raises(lib.NVMLError_InUse):
        lib.nvmlDeviceSetVgpuHeterogeneousMode(mixed, 0)
    store(vf / "current_vgpu_type", "0")
    lib.nvmlDeviceSetVgpuHeterogeneousMode(mixed, 0)
    assert not gpus.gpus()[L40S_MIXED]["mixed"]
    assert lib.nvmlDeviceGetMigMode(mig) == [1, 1]
    with pytest.raises(lib.NVMLError_NotSupported):
        lib.nvmlDeviceGetMigMode(plain)
    for card in (plain, mig):
        assert lib.nvmlDeviceGetVgpuCapabilities(
            card, lib.NVML_DEVICE_VGPU_CAP_HETEROGENEOUS_TIMESLICE_SIZES
        )


def placements(lib: Any, card: Any, profile: int) -> list[tuple[int, int]]:
    count = ctypes.c_uint(0)
    lib.nvmlDeviceGetGpuInstancePossiblePlacements(
        card, profile, None, ctypes.byref(count)
    )
    array = (lib.c_nvmlGpuInstancePlacement_t * count.value)()
    lib.nvmlDeviceGetGpuInstancePossiblePlacements(
        card, profile, array, ctypes.byref(count)
    )
    return [(placement.start, placement.size) for placement in array]


def test_a_gpu_instance_lives_and_dies(gpus: Controller, lib: Any) -> None:
    card = gpu(lib, A100)
    info = lib.nvmlDeviceGetGpuInstanceProfileInfo(
        card, lib.NVML_GPU_INSTANCE_PROFILE_2_SLICE
    )
    assert (info.id, info.sliceCount, info.instanceCount) == (14, 2, 3)
    assert info.name == "MIG 2g.10gb"
    old = lib.nvmlDeviceGetGpuInstanceProfileInfo(
        card, lib.NVML_GPU_INSTANCE_PROFILE_2_SLICE, version=1
    )
    assert (old.id, old.memorySizeMB) == (14, 10240)
    with pytest.raises(lib.NVMLError_NotSupported):
        lib.nvmlDeviceGetGpuInstanceProfileInfo(
            card, lib.NVML_GPU_INSTANCE_PROFILE_8_SLICE
        )
    assert placements(lib, card, info.id) == [(0, 2), (2, 2), (4, 2)]
    instance = lib.nvmlDeviceCreateGpuInstanceWithPlacement(
        card,
        info.id,
        ctypes.byref(lib.c_nvmlGpuInstancePlacement_t(2, 2)),
    )
    created = lib.nvmlGpuInstanceGetInfo(instance)
    assert (created.profileId, created.placement.start) == (14, 2)
    part = lib.nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance, lib.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE, 0
    )
    compute = lib.nvmlGpuInstanceCreateComputeInstance(instance, part.id)
    listed = (lib.c_nvmlGpuInstance_t * info.instanceCount)()
    count = ctypes.c_uint(0)
    lib.nvmlDeviceGetGpuInstances(card, info.id, listed, ctypes.byref(count))
    assert count.value == 1
    assert lib.nvmlGpuInstanceGetInfo(listed[0]).id == created.id
    with pytest.raises(lib.NVMLError_InUse):
        lib.nvmlGpuInstanceDestroy(instance)
    lib.nvmlComputeInstanceDestroy(compute)
    lib.nvmlGpuInstanceDestroy(instance)
    assert gpus.gpus()[A100]["instances"] == {}


def test_a_forked_child_has_a_connection_of_its_own(lib: Any) -> None:
    child = os.fork()
    if not child:
        os._exit(0 if lib.nvmlDeviceGetCount() else 1)
    for _ in range(100):
        assert lib.nvmlDeviceGetCount()
    assert os.waitpid(child, 0)[1] == 0


def test_another_driver_takes_a_card_from_nvml(
    gpus: Controller, lib: Any
) -> None:
    before = lib.nvmlDeviceGetCount()
    store(gpus.sys / "bus/pci/drivers/nvidia/unbind", L40S)
    assert lib.nvmlDeviceGetCount() == before - 1


def test_without_a_kernel_there_is_no_driver(
    gpus: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    pynvml = pytest.importorskip("pynvml")
    nvml.load(gpus)
    monkeypatch.setenv("FAKEHOST_CONTROL", "/nonexistent")
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()
