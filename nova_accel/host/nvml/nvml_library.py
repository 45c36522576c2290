# SPDX-License-Identifier: Apache-2.0
"""Calls of NVML and its errors; the only import of pynvml.

``pynvml`` (of nvidia-ml-py) is optional, and so is each of its functions:
an older one, or an older driver's library, lacks some.
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
# of them in 2025), and so are those of compute instances (9 of them);
# numbers beyond are NVML_ERROR_INVALID_ARGUMENT.
_PROFILE_NUMBERS = range(32)
_COMPUTE_NUMBERS = range(16)
# "1g.5gb", "1g.10gb+me", "2g.48gb+gfx", "1g.24gb-me", "1g.24gb+me.all"
KIND = re.compile(r"[1-9]g\.[1-9][0-9]{0,3}gb(?:[+-][a-z]+(?:\.[a-z]+)*)?")

# NVML's refusals (nvml.h, nvmlReturn_t) in the kernel's words.
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
# Not errors but answers: this GPU, or this driver, has no such thing.
_NO_SUCH_THING = frozenset({2, _NOT_SUPPORTED, 6, _FUNCTION_NOT_FOUND})
# What is wrong is the GPU itself: GPU_IS_LOST, RESET_REQUIRED.
_ILL = frozenset({15, 16})
# No library or no driver: there is nobody who could be asked.
_NOBODY = frozenset({9, 12})


class NvmlError(Exception):
    """NVML did not do what it was asked; ``code`` is its nvmlReturn_t."""

    def __init__(self, name: str, code: int, words: str) -> None:
        super().__init__(f"{name}: {words}")
        self.code = code

    @property
    def number(self) -> int:
        """Return the errno that comes nearest."""
        return _ERRNO.get(self.code, errno.EIO)

    @property
    def is_absence(self) -> bool:
        """Return whether this GPU or driver simply has no such thing."""
        return self.code in _NO_SUCH_THING

    @property
    def is_nobody(self) -> bool:
        """Return whether there is no library, or no driver below it."""
        return self.code in _NOBODY

    @property
    def is_ill(self) -> bool:
        """Return whether the GPU is lost, or does nothing until reset."""
        return self.code in _ILL

    @property
    def is_forbidden(self) -> bool:
        """Return whether root would get an answer."""
        return self.code == _NO_PERMISSION


def is_installed() -> bool:
    """Return whether nvidia-ml-py is installed."""
    return pynvml is not None


@contextlib.contextmanager
def session() -> Iterator[None]:
    """Hold NVML open; it counts how often it was opened.

    :raises Refusal: no library, no driver, or another driver's library.
    """
    call("nvmlInit")
    try:
        yield
    finally:
        with contextlib.suppress(NvmlError):
            call("nvmlShutdown")


def call(name: str, *arguments: Any) -> Any:
    """Return what a function of NVML returns.

    :raises Refusal: it is refused, or a library this old has no such.
    """
    function = getattr(pynvml, name, None)
    if function is None:
        raise NvmlError(name, _FUNCTION_NOT_FOUND, "nvidia-ml-py has no such")
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlError(name, int(error.value), str(error)) from error


def text(value: str | bytes) -> str:
    """Return a text of NVML; nvidia-ml-py gives either type."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value


def gpu(address: str) -> Any:
    """Return the handle of the GPU at a PCI address.

    :raises Refusal: there is no such GPU, or it is lost.
    :raises MalformedError: the text is no PCI address.
    """
    found = pci.parse_address(address)
    bus_id = f"{found.domain:08X}:{found.bus:02X}:{found.slot:02X}.0"
    return call("nvmlDeviceGetHandleByPciBusId", bus_id)


def recovery(handle: Any) -> int:
    """Return what NVML recommends so that a GPU recovers.

    It is an nvmlDeviceGpuRecoveryAction_t of nvml.h, 0 for nothing.

    :raises Refusal: drivers before R565 do not tell, for one.
    """
    name = "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"
    number = getattr(pynvml, name, None)
    if number is None:
        raise NvmlError(name, _FUNCTION_NOT_FOUND, "nvidia-ml-py has no such")
    (found,) = call("nvmlDeviceGetFieldValues", handle, [number])
    if found.nvmlReturn:
        raise NvmlError(name, int(found.nvmlReturn), "this GPU has no such")
    return int(found.value.uiVal)


def listen(handle: Any) -> Any:
    """Return a new set of events: the Xid errors of a GPU from now on.

    Root is not needed (nvmlDeviceRegisterEvents, NVML API reference).

    :raises Refusal: NOT_SUPPORTED: the GPU or driver tells of none.
    """
    kind = int(getattr(pynvml, "nvmlEventTypeXidCriticalError", 0))
    if not call("nvmlDeviceGetSupportedEventTypes", handle) & kind:
        raise NvmlError("Xid events", _NOT_SUPPORTED, "this GPU has no such")
    events = call("nvmlEventSetCreate")
    call("nvmlDeviceRegisterEvents", handle, kind, events)
    return events


def wait(events: Any, timeout_ms: int) -> int | None:
    """Return the number of the next Xid error; None if none comes.

    :param timeout_ms: how long to wait for it, in milliseconds.
    :raises Refusal: nothing can come any more: the GPU is lost, for one.
    """
    try:
        found = call("nvmlEventSetWait_v2", events, timeout_ms)
    except NvmlError as refusal:
        if refusal.code == _TIMEOUT:
            return None
        raise
    return int(found.eventData)


def profiles(handle: Any) -> dict[str, Any]:
    """Return a GPU's instance profiles, by the name of their kind.

    :raises Refusal: this can't be told, of a GPU that knows MIG.
    """
    found: dict[str, Any] = {}
    for number in _PROFILE_NUMBERS:
        try:
            info = call("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
        except NvmlError as refusal:
            if refusal.is_absence:
                continue
            raise
        name = text(info.name).removeprefix("MIG ").strip()
        if KIND.fullmatch(name):
            found.setdefault(name, info)
    return found


def placements(handle: Any, info: Any) -> list[Any]:
    """Return where instances of a profile may stand, taken or not.

    :raises Refusal: asking needs root, for one.
    """
    name = "nvmlDeviceGetGpuInstancePossiblePlacements"
    count = ctypes.c_uint(0)
    call(name, handle, info.id, None, ctypes.byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    call(name, handle, info.id, places, ctypes.byref(count))
    return list(places)[: count.value]


def vgpu_placements(handle: Any, number: int) -> tuple[int, tuple[int, ...]]:
    """Return a time-sliced vGPU type's length and starts in mixed-size mode.

    Drivers that do not know the second version of the call answer the
    first one for the mode they are in.

    :param number: of the type.
    :raises Refusal: the GPU or the driver has no placements.
    """
    name = "nvmlDeviceGetVgpuTypeSupportedPlacements"
    try:
        found = call(name, handle, number, 0, 2)
    except NvmlError as refusal:
        if refusal.code != _VERSION_MISMATCH:
            raise
        found = call(name, handle, number, 0, 1)
    starts = found.placementIds[: found.count]
    return int(found.placementSize), tuple(sorted(map(int, starts)))


def placement(start: int, size: int) -> Any:
    """Return a place in the form that NVML takes."""
    return ctypes.byref(
        pynvml.c_nvmlGpuInstancePlacement_t(start=start, size=size)
    )


def instances(handle: Any, info: Any) -> list[tuple[Any, Any]]:
    """Return a profile's instances: the handle and the info of each.

    There can't be more of them than places: so much room is given, as the
    call can't be asked for the count.

    :raises Refusal: asking needs root, for one.
    """
    count = ctypes.c_uint(len(placements(handle, info)))
    found = (pynvml.c_nvmlGpuInstance_t * count.value)()
    call(
        "nvmlDeviceGetGpuInstances",
        handle,
        info.id,
        found,
        ctypes.byref(count),
    )
    return [
        (one, call("nvmlGpuInstanceGetInfo", one))
        for one in list(found)[: count.value]
    ]


def compute_profiles(instance: Any) -> list[Any]:
    """Return the compute instance profiles that a GPU instance offers.

    :raises Refusal: this can't be told.
    """
    found = []
    for number in _COMPUTE_NUMBERS:
        try:
            found.append(
                call(
                    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                    instance,
                    number,
                    pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                )
            )
        except NvmlError as refusal:
            if not refusal.is_absence:
                raise
    return found


def compute_instances(instance: Any, info: Any) -> list[Any]:
    """Return the compute instances of a profile in a GPU instance.

    :raises Refusal: asking needs root, for one.
    """
    count = ctypes.c_uint(max(1, int(info.instanceCount)))
    found = (pynvml.c_nvmlComputeInstance_t * count.value)()
    call(
        "nvmlGpuInstanceGetComputeInstances",
        instance,
        info.id,
        found,
        ctypes.byref(count),
    )
    return list(found)[: count.value]
