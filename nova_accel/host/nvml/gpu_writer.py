# SPDX-License-Identifier: Apache-2.0
"""Changes through NVML: GPU instances and size mode.

All of them need root. Each returns 0 or the errno of the refusal; what is
there already is done. They check their arguments, for they are called in
a privileged process with what an unprivileged one sends.
"""

import errno
from collections.abc import Callable
from typing import Any

from nova_accel import errors
from nova_accel.host.nvml import nvml_library
from nova_accel.host.nvml.nvml_library import NvmlError, call
from nova_accel.model import pci

# Places on GPUs end at 8 (A100, H100) or 12 (RTX PRO 6000): far above
# these no instance can start.
_MAX_START = 63


def create_instance(address: str, kind: str, start: int) -> int:
    """Make a GPU instance and the compute instance that fills it.

    EEXIST: an instance of another place or kind is in the way (ENOSPC
    where the driver says it so). ENODEV: no such GPU, or it can't hold
    that kind. EINVAL: this kind never begins there.

    :param address: the GPU's PCI address.
    :param kind: NVIDIA's name, such as ``1g.5gb``.
    :param start: the memory slice at which it begins.
    :raises MalformedError: an argument can't be such.
    """
    _check(address, kind, start)
    return _in_session(lambda: _create(address, kind, start))


def destroy_instance(address: str, kind: str, start: int | None) -> int:
    """Unmake a GPU instance with its compute instances.

    :param start: where it begins; EBUSY if a vGPU stands in it. None for
        every instance of the kind: those in use stay, and 0 is returned.
    :raises MalformedError: an argument can't be such.
    """
    _check(address, kind, start)
    return _in_session(lambda: _destroy(address, kind, start))


def set_mixed(address: str, is_mixed: bool) -> int:
    """Let a GPU hold vGPUs of different sizes, or of one size only.

    EBUSY: it holds vGPUs. EOPNOTSUPP: it can't mix sizes.

    :raises MalformedError: the address can't be such.
    """
    _check(address, None, None)
    return _in_session(lambda: _switch(address, is_mixed))


def _check(address: str, kind: str | None, start: int | None) -> None:
    pci.parse_address(address)
    if kind is not None and not nvml_library.KIND.fullmatch(kind):
        raise errors.MalformedError(
            "kind of GPU instance", kind, "NVIDIA's name, such as 1g.5gb"
        )
    if start is not None and start not in range(_MAX_START + 1):
        raise errors.MalformedError(
            "memory slice", str(start), f"a number from 0 to {_MAX_START}"
        )


def _in_session(change: Callable[[], int]) -> int:
    if not nvml_library.is_installed():
        return errno.ENOSYS
    try:
        with nvml_library.session():
            return change()
    except NvmlError as refusal:
        return refusal.number


def _create(address: str, kind: str, start: int) -> int:
    gpu = nvml_library.gpu(address)
    info = nvml_library.profiles(gpu).get(kind)
    if info is None:
        return errno.ENODEV
    for instance, seen in nvml_library.instances(gpu, info):
        if seen.placement.start == start:
            return _fill(instance, info)
    size = next(
        (
            p.size
            for p in nvml_library.placements(gpu, info)
            if p.start == start
        ),
        None,
    )
    if size is None:
        return errno.EINVAL
    instance = call(
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        gpu,
        info.id,
        nvml_library.placement(start, size),
    )
    number = _fill(instance, info)
    if number:
        _empty(instance)
        call("nvmlGpuInstanceDestroy", instance)
    return number


def _fill(instance: Any, info: Any) -> int:
    """Make the compute instance of all slices, unless there is one."""
    whole = None
    for profile in nvml_library.compute_profiles(instance):
        if nvml_library.compute_instances(instance, profile):
            return 0
        if whole is None and profile.sliceCount == info.sliceCount:
            whole = profile
    if whole is None:
        return errno.EOPNOTSUPP
    try:
        call("nvmlGpuInstanceCreateComputeInstance", instance, whole.id)
    except NvmlError as refusal:
        return refusal.number
    return 0


def _destroy(address: str, kind: str, start: int | None) -> int:
    gpu = nvml_library.gpu(address)
    info = nvml_library.profiles(gpu).get(kind)
    if info is None:
        return 0  # no instance of a kind that the GPU doesn't know
    busy = _held(gpu)
    for instance, seen in nvml_library.instances(gpu, info):
        if start is not None and seen.placement.start != start:
            continue
        number = errno.EBUSY
        if int(seen.id) not in busy:
            number = _remove(instance, info)
        if number and (start is not None or number != errno.EBUSY):
            return number
    return 0


def _held(gpu: Any) -> set[int]:
    """Return the ids of the GPU instances in which a vGPU runs.

    Drivers that can't tell it refuse to take those away.
    """
    try:
        return {
            int(call("nvmlVgpuInstanceGetGpuInstanceId", vgpu))
            for vgpu in call("nvmlDeviceGetActiveVgpus", gpu)
        }
    except NvmlError as refusal:
        if refusal.is_absence:
            return set()
        raise


def _remove(instance: Any, info: Any) -> int:
    """Unmake an instance, or leave it as it was."""
    try:
        _empty(instance)
        call("nvmlGpuInstanceDestroy", instance)
    except NvmlError as refusal:
        _fill(instance, info)  # a vGPU that has been made needs it still
        return refusal.number
    return 0


def _empty(instance: Any) -> None:
    for profile in nvml_library.compute_profiles(instance):
        for one in nvml_library.compute_instances(instance, profile):
            call("nvmlComputeInstanceDestroy", one)


def _switch(address: str, is_mixed: bool) -> int:
    gpu = nvml_library.gpu(address)
    if bool(call("nvmlDeviceGetVgpuHeterogeneousMode", gpu)) != is_mixed:
        call("nvmlDeviceSetVgpuHeterogeneousMode", gpu, int(is_mixed))
    return 0
