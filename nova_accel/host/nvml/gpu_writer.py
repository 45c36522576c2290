# SPDX-License-Identifier: Apache-2.0
"""Changes through NVML: GPU instances, mixed-size mode, MIG mode.

All functions need root and are idempotent. Each returns 0 or the errno of
the refusal. They validate their arguments: a privileged process calls them
with arguments from an unprivileged one.
"""

import errno
from collections.abc import Callable
from typing import Any

from nova_accel import errors
from nova_accel.host.nvml import nvml_library
from nova_accel.host.nvml.nvml_library import NvmlError, call
from nova_accel.model import pci

# GPUs have 8 (A100, H100) or 12 (RTX PRO 6000) memory slices; the limit
# leaves room for larger ones.
_MAX_START = 63


def create_instance(address: str, kind: str, start: int) -> int:
    """Create a GPU instance and the compute instance that fills it.

    EEXIST: another instance is in the way (some drivers return ENOSPC).
    ENODEV: the GPU does not exist or does not support the kind. EINVAL:
    the kind can't start there.

    :param address: the GPU's PCI address.
    :param kind: NVIDIA's name, such as ``1g.5gb``.
    :param start: the first memory slice.
    :raises MalformedError: an argument has another form.
    """
    _check(address, kind, start)
    return _in_session(lambda: _create(address, kind, start))


def destroy_instance(address: str, kind: str, start: int | None) -> int:
    """Destroy a GPU instance with its compute instances.

    :param start: the first memory slice; EBUSY if a vGPU uses the
        instance. None for every instance of the kind: those in use stay,
        and 0 is returned.
    :raises MalformedError: an argument has another form.
    """
    _check(address, kind, start)
    return _in_session(lambda: _destroy(address, kind, start))


def set_mixed(address: str, is_mixed: bool) -> int:
    """Switch a GPU between mixed-size and equal-size mode.

    EBUSY: the GPU has vGPUs. EOPNOTSUPP: it has no mixed-size mode.

    :raises MalformedError: the address has another form.
    """
    _check(address, None, None)
    return _in_session(lambda: _set_mixed(address, is_mixed))


def set_mig(address: str, is_mig: bool) -> int:
    """Switch a GPU's MIG mode.

    EINPROGRESS: the GPU switches at its next reset. EBUSY: a program, a GPU
    instance or a VF is in use. EOPNOTSUPP: it has no MIG mode.

    :raises MalformedError: the address has another form.
    """
    _check(address, None, None)
    return _in_session(lambda: _set_mig(address, is_mig))


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
    except NvmlError as error:
        return error.number


def _create(address: str, kind: str, start: int) -> int:
    gpu = nvml_library.gpu(address)
    info = nvml_library.profiles(gpu).get(kind)
    if info is None:
        return errno.ENODEV
    for instance, state in nvml_library.instances(gpu, info):
        if state.placement.start == start:
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
    """Create the compute instance of all slices, unless one exists."""
    full = None
    for profile in nvml_library.compute_profiles(instance):
        if nvml_library.compute_instances(instance, profile):
            return 0
        if full is None and profile.sliceCount == info.sliceCount:
            full = profile
    if full is None:
        return errno.EOPNOTSUPP
    try:
        call("nvmlGpuInstanceCreateComputeInstance", instance, full.id)
    except NvmlError as error:
        return error.number
    return 0


def _destroy(address: str, kind: str, start: int | None) -> int:
    gpu = nvml_library.gpu(address)
    info = nvml_library.profiles(gpu).get(kind)
    if info is None:
        return 0  # the GPU does not support the kind
    busy = _used_instance_ids(gpu)
    for instance, state in nvml_library.instances(gpu, info):
        if start is not None and state.placement.start != start:
            continue
        number = errno.EBUSY
        if int(state.id) not in busy:
            number = _remove(instance, info)
        if number and (start is not None or number != errno.EBUSY):
            return number
    return 0


def _used_instance_ids(gpu: Any) -> set[int]:
    """Return the ids of the GPU instances in which a vGPU runs.

    Empty for drivers without this call: they refuse to destroy an instance
    in use.
    """
    try:
        return {
            int(call("nvmlVgpuInstanceGetGpuInstanceId", vgpu))
            for vgpu in call("nvmlDeviceGetActiveVgpus", gpu)
        }
    except NvmlError as error:
        if error.is_unsupported:
            return set()
        raise


def _remove(instance: Any, info: Any) -> int:
    """Destroy an instance; restore it if that fails."""
    try:
        _empty(instance)
        call("nvmlGpuInstanceDestroy", instance)
    except NvmlError as error:
        _fill(instance, info)  # a new vGPU may use the instance
        return error.number
    return 0


def _empty(instance: Any) -> None:
    for profile in nvml_library.compute_profiles(instance):
        for compute in nvml_library.compute_instances(instance, profile):
            call("nvmlComputeInstanceDestroy", compute)


def _set_mixed(address: str, is_mixed: bool) -> int:
    gpu = nvml_library.gpu(address)
    if bool(call("nvmlDeviceGetVgpuHeterogeneousMode", gpu)) != is_mixed:
        call("nvmlDeviceSetVgpuHeterogeneousMode", gpu, int(is_mixed))
    return 0


def _set_mig(address: str, is_mig: bool) -> int:
    gpu = nvml_library.gpu(address)
    _, pending = call("nvmlDeviceGetMigMode", gpu)
    if bool(pending) != is_mig:
        call("nvmlDeviceSetMigMode", gpu, int(is_mig))
    present, _ = call("nvmlDeviceGetMigMode", gpu)
    return 0 if bool(present) == is_mig else errno.EINPROGRESS
