# SPDX-License-Identifier: Apache-2.0
"""Calls of NVML and their errors; the only import of pynvml.

``pynvml`` (package nvidia-ml-py) is optional, and so is each of its
functions: older releases, and libraries of older drivers, lack some.
Functions and return codes are those of nvml.h.
"""

import contextlib
import ctypes
import errno
import re
from collections.abc import Iterator
from typing import Any

from nova_accel.model import pci

try:
    import pynvml
except ImportError:  # the extra "nvml" is not installed
    pynvml = None

# nvml.h: profile numbers are dense from 0 (NVML_GPU_INSTANCE_PROFILE_*, 18
# of them in 2025), and so are those of compute instances (9 of them).
# NVML refuses others with NVML_ERROR_INVALID_ARGUMENT.
_PROFILE_NUMBERS = range(32)
_COMPUTE_NUMBERS = range(16)
# "1g.5gb", "1g.10gb+me", "2g.48gb+gfx", "1g.24gb-me", "1g.24gb+me.all"
KIND = re.compile(r"[1-9]g\.[1-9][0-9]{0,3}gb(?:[+-][a-z]+(?:\.[a-z]+)*)?")

# errno values of NVML's return codes (nvml.h, nvmlReturn_t).
_ERRNO = {
    2: errno.EINVAL,  # INVALID_ARGUMENT
    3: errno.EOPNOTSUPP,  # NOT_SUPPORTED
    4: errno.EPERM,  # NO_PERMISSION
    6: errno.ENODEV,  # NOT_FOUND
    9: errno.ENXIO,  # DRIVER_NOT_LOADED
    10: errno.ETIMEDOUT,  # TIMEOUT
    12: errno.ENOSYS,  # LIBRARY_NOT_FOUND
    13: errno.ENOSYS,  # FUNCTION_NOT_FOUND
    19: errno.EBUSY,  # IN_USE
    20: errno.ENOMEM,  # MEMORY
    23: errno.ENOSPC,  # INSUFFICIENT_RESOURCES
    28: errno.ENODEV,  # GPU_NOT_FOUND
}
_NOT_SUPPORTED = 3
_NO_PERMISSION = 4
_TIMEOUT = 10
_FUNCTION_NOT_FOUND = 13
_VERSION_MISMATCH = 25
# The GPU or the driver does not support the call: no error.
_UNSUPPORTED = frozenset({2, _NOT_SUPPORTED, 6, _FUNCTION_NOT_FOUND})
# nvml.h: nvmlVgpuVmIdType_t, NVML_VGPU_VM_ID_UUID, libvirt's of the domain.
_VM_UUID = 1
# nvml.h: NVML_VALUE_NOT_AVAILABLE, as 64 bits.
_NOT_AVAILABLE = 2**64 - 1
# The GPU is faulty: GPU_IS_LOST, RESET_REQUIRED.
_FAULTY = frozenset({15, 16})
# No driver or no library: DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND.
_NOT_INSTALLED = frozenset({9, 12})


class NvmlError(Exception):
    """A call failed; ``code`` is NVML's nvmlReturn_t."""

    def __init__(self, name: str, code: int, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.code = code

    @property
    def number(self) -> int:
        """Return the corresponding errno, EIO for other codes."""
        return _ERRNO.get(self.code, errno.EIO)

    @property
    def is_unsupported(self) -> bool:
        return self.code in _UNSUPPORTED

    @property
    def is_not_installed(self) -> bool:
        """Return whether the library or the driver is missing."""
        return self.code in _NOT_INSTALLED

    @property
    def is_faulty(self) -> bool:
        """Return whether the GPU is lost or needs a reset."""
        return self.code in _FAULTY

    @property
    def is_forbidden(self) -> bool:
        """Return whether the call needs root."""
        return self.code == _NO_PERMISSION


def is_installed() -> bool:
    return pynvml is not None


@contextlib.contextmanager
def session() -> Iterator[None]:
    """Initialize NVML for a with block; sessions may be nested.

    :raises NvmlError: no library, no driver, or another driver's library.
    """
    call("nvmlInit")
    try:
        yield
    finally:
        with contextlib.suppress(NvmlError):
            call("nvmlShutdown")


def call(name: str, *arguments: Any) -> Any:
    """Call a function of NVML and return its result.

    :raises NvmlError: it failed, or the library is too old to have it.
    """
    function = getattr(pynvml, name, None)
    if function is None:
        raise NvmlError(name, _FUNCTION_NOT_FOUND, "nvidia-ml-py has no such")
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlError(name, int(error.value), str(error)) from error


def text(value: str | bytes) -> str:
    """Return a text of NVML; nvidia-ml-py returns either type."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value


def gpu(address: str) -> Any:
    """Return the handle of the GPU at a PCI address.

    :raises NvmlError: there is no such GPU, or it is lost.
    :raises MalformedError: the text is no PCI address.
    """
    parsed = pci.parse_address(address)
    bus_id = f"{parsed.domain:08X}:{parsed.bus:02X}:{parsed.slot:02X}.0"
    return call("nvmlDeviceGetHandleByPciBusId", bus_id)


def read_memory(handle: Any) -> tuple[int, int]:
    """Return how much of a GPU's memory is in use, and its size, in bytes.

    Memory that the driver reserves for itself is not in use, as in
    nvidia-smi. Drivers before R510, and nvidia-ml-py before 11.510, lack
    version 2 of the call and include it.

    :raises NvmlError: the call failed.
    """
    name = "nvmlDeviceGetMemoryInfo"
    version = getattr(pynvml, "nvmlMemory_v2", None)
    if version is not None:
        try:
            info = call(name, handle, version)
        except NvmlError as error:
            if not error.is_unsupported:
                raise
        else:
            return int(info.used), int(info.total)
    info = call(name, handle)
    return int(info.used), int(info.total)


def recovery(handle: Any) -> int:
    """Return the action that NVML recommends to recover a GPU.

    It is an nvmlDeviceGpuRecoveryAction_t of nvml.h, 0 for none.

    :raises NvmlError: not supported, as by drivers before R565.
    """
    name = "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"
    number = getattr(pynvml, name, None)
    if number is None:
        raise NvmlError(name, _FUNCTION_NOT_FOUND, "nvidia-ml-py has no such")
    (field,) = call("nvmlDeviceGetFieldValues", handle, [number])
    if field.nvmlReturn:
        raise NvmlError(name, int(field.nvmlReturn), "this GPU has no such")
    return int(field.value.uiVal)


def _constant_name(prefix: str, value: int) -> str:
    """Return the rest of a constant's name in lower case, empty for none.

    The numbers of some constants differ between releases.
    """
    for name in dir(pynvml):
        if name.startswith(prefix) and getattr(pynvml, name) == value:
            return name.removeprefix(prefix).lower()
    return ""


def license_name(state: int) -> str:
    """Return the name of a licence's state, empty if it is not known."""
    name = _constant_name("NVML_GRID_LICENSE_STATE_", state)
    return "" if name == "unknown" else name


def ecc_modes(handle: Any) -> tuple[bool, bool]:
    """Return whether ECC is on, and whether it will be after a reset.

    :raises NvmlError: the GPU has no ECC.
    """
    now, pending = call("nvmlDeviceGetEccMode", handle)
    return bool(now), bool(pending)


def fabric(handle: Any) -> tuple[str, int]:
    """Return the state of a GPU's registration with its NVSwitches.

    It is the name of NVML_GPU_FABRIC_STATE_*, in lower case, and NVML's
    return code of a completed registration, 0 for success.

    :raises NvmlError: the GPU or the driver has no such state, as before
        Hopper and R525.
    """
    make = getattr(pynvml, "c_nvmlGpuFabricInfo_t", None)
    if make is None:
        raise NvmlError("fabric", _FUNCTION_NOT_FOUND, "nvidia-ml-py is older")
    info = make()
    call("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info))
    state = _constant_name("NVML_GPU_FABRIC_STATE_", int(info.state))
    return state, int(info.status)


def listen(handle: Any) -> Any:
    """Return a new event set for the Xid errors of a GPU from now on.

    Root is not needed (nvmlDeviceRegisterEvents, NVML API reference).

    :raises NvmlError: NOT_SUPPORTED if the GPU or driver has no such
        events.
    """
    kind = int(getattr(pynvml, "nvmlEventTypeXidCriticalError", 0))
    if not call("nvmlDeviceGetSupportedEventTypes", handle) & kind:
        raise NvmlError("Xid events", _NOT_SUPPORTED, "this GPU has no such")
    events = call("nvmlEventSetCreate")
    call("nvmlDeviceRegisterEvents", handle, kind, events)
    return events


def wait(events: Any, timeout_ms: int) -> int | None:
    """Return the number of the next Xid error, None after the timeout.

    :param timeout_ms: milliseconds to wait.
    :raises NvmlError: no further event can arrive, as for a lost GPU.
    """
    try:
        event = call("nvmlEventSetWait_v2", events, timeout_ms)
    except NvmlError as error:
        if error.code == _TIMEOUT:
            return None
        raise
    return int(event.eventData)


def read_server(vgpu: Any) -> str:
    """Return the uuid of a vGPU's domain, empty if NVML has another id.

    :param vgpu: NVML's number of the vGPU.
    :raises NvmlError: the call failed.
    """
    name, kind = call("nvmlVgpuInstanceGetVmID", vgpu)
    return text(name).lower() if kind == _VM_UUID else ""


def read_framebuffer_usage(vgpu: int) -> int | None:
    """Return the framebuffer that a vGPU uses, in bytes.

    nvidia-ml-py's own function has a buffer of 32 bits, and nvml.h's of 64
    (nvmlVgpuInstanceGetFbUsage): it returns 4 GiB as 0.

    :param vgpu: NVML's number of the vGPU.
    :returns: None while NVML has no figure (NVML_VALUE_NOT_AVAILABLE).
    :raises NvmlError: the call failed.
    """
    name = "nvmlVgpuInstanceGetFbUsage"
    size = ctypes.c_ulonglong(0)
    function = call("_nvmlGetFunctionPointer", name)
    call("_nvmlCheckReturn", function(vgpu, ctypes.byref(size)))
    return None if size.value == _NOT_AVAILABLE else size.value


def profiles(handle: Any) -> dict[str, Any]:
    """Return a GPU's instance profiles by the name of their kind.

    :raises NvmlError: a GPU that supports MIG refuses the call.
    """
    by_kind: dict[str, Any] = {}
    for number in _PROFILE_NUMBERS:
        try:
            info = call("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
        except NvmlError as error:
            if error.is_unsupported:
                continue
            raise
        name = text(info.name).removeprefix("MIG ").strip()
        if KIND.fullmatch(name):
            by_kind.setdefault(name, info)
    return by_kind


def placements(handle: Any, info: Any) -> list[Any]:
    """Return the possible placements of a profile, free or in use.

    :raises NvmlError: the call failed; it needs root.
    """
    name = "nvmlDeviceGetGpuInstancePossiblePlacements"
    count = ctypes.c_uint(0)
    call(name, handle, info.id, None, ctypes.byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    call(name, handle, info.id, places, ctypes.byref(count))
    return list(places)[: count.value]


def vgpu_placements(handle: Any, number: int) -> tuple[int, tuple[int, ...]]:
    """Return a time-sliced vGPU type's length and starts in mixed-size mode.

    Drivers without version 2 of the call answer version 1 for the current
    mode.

    :param number: the type's number.
    :raises NvmlError: the GPU or the driver has no placements.
    """
    name = "nvmlDeviceGetVgpuTypeSupportedPlacements"
    try:
        supported = call(name, handle, number, 0, 2)
    except NvmlError as error:
        if error.code != _VERSION_MISMATCH:
            raise
        supported = call(name, handle, number, 0, 1)
    starts = supported.placementIds[: supported.count]
    return int(supported.placementSize), tuple(sorted(map(int, starts)))


def placement(start: int, size: int) -> Any:
    """Return a placement as an argument of NVML."""
    return ctypes.byref(
        pynvml.c_nvmlGpuInstancePlacement_t(start=start, size=size)
    )


def instances(handle: Any, info: Any) -> list[tuple[Any, Any]]:
    """Return a profile's instances: the handle and the info of each.

    The buffer has one entry per placement: the call does not return the
    count in advance, and there are no more instances than placements.

    :raises NvmlError: the call failed; it needs root.
    """
    count = ctypes.c_uint(len(placements(handle, info)))
    buffer = (pynvml.c_nvmlGpuInstance_t * count.value)()
    call(
        "nvmlDeviceGetGpuInstances",
        handle,
        info.id,
        buffer,
        ctypes.byref(count),
    )
    return [
        (instance, call("nvmlGpuInstanceGetInfo", instance))
        for instance in list(buffer)[: count.value]
    ]


def compute_profiles(instance: Any) -> list[Any]:
    """Return the compute instance profiles of a GPU instance.

    :raises NvmlError: the call failed.
    """
    supported = []
    for number in _COMPUTE_NUMBERS:
        try:
            supported.append(
                call(
                    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                    instance,
                    number,
                    pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                )
            )
        except NvmlError as error:
            if not error.is_unsupported:
                raise
    return supported


def compute_instances(instance: Any, info: Any) -> list[Any]:
    """Return the compute instances of a profile in a GPU instance.

    :raises NvmlError: the call failed; it needs root.
    """
    count = ctypes.c_uint(max(1, int(info.instanceCount)))
    buffer = (pynvml.c_nvmlComputeInstance_t * count.value)()
    call(
        "nvmlGpuInstanceGetComputeInstances",
        instance,
        info.id,
        buffer,
        ctypes.byref(count),
    )
    return list(buffer)[: count.value]
