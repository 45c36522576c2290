# SPDX-License-Identifier: Apache-2.0
"""Peers of a GPU's NVLinks, read through NVML."""

from typing import Any

from nova_accel import errors
from nova_accel.geometry import topology
from nova_accel.host.nvml import gpu_state, nvml_library
from nova_accel.host.nvml.nvml_library import NvmlError, call

# nvml.h: NVML_NVLINK_MAX_LINKS, 18 until 2025 and 36 since; a number that
# a GPU does not have is NVML_ERROR_INVALID_ARGUMENT.
_NUMBERS = range(36)
_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
# nvml.h, nvmlIntNvLinkDeviceType_t: NVML_NVLINK_DEVICE_TYPE_*.
_GPU = 0
_SWITCH = 2
_UNKNOWN = 0xFF


def read(gpu: Any) -> topology.GpuLinks:
    """Return what the active NVLinks of a GPU lead to.

    Nothing of a GPU that has none.

    :param gpu: NVML's handle of it.
    :raises Refusal: this can't be told: the GPU is lost, or the driver is
        too old to know.
    """
    ends = [_end(gpu, number) for number in _NUMBERS if _is_up(gpu, number)]
    return topology.GpuLinks(
        peers=frozenset(address for _, address in ends if address),
        is_switched=any(kind == _SWITCH for kind, _ in ends),
    )


def _is_up(gpu: Any, number: int) -> bool:
    try:
        return bool(call("nvmlDeviceGetNvLinkState", gpu, number))
    except NvmlError as refusal:
        if refusal.code in (_INVALID_ARGUMENT, _NOT_SUPPORTED):
            return False
        raise


def _end(gpu: Any, number: int) -> tuple[int, str]:
    """Return the type of what is there, and the address if it is a GPU.

    Drivers before R470 don't tell the type: then whoever knows the host
    must see whether it is a GPU's address.
    """
    kind = _asked("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, number)
    kind = _UNKNOWN if kind is None else int(kind)
    if kind not in (_GPU, _UNKNOWN):
        return kind, ""
    found = _asked("nvmlDeviceGetNvLinkRemotePciInfo", gpu, number)
    if found is None:
        return kind, ""
    try:
        return kind, gpu_state.parse_bus_id(nvml_library.text(found.busId))
    except errors.MalformedError:
        return kind, ""  # of a virtual machine the other end is hidden


def _asked(name: str, gpu: Any, number: int) -> Any:
    """Return what a call says of a link, None where there is no such."""
    try:
        return call(name, gpu, number)
    except NvmlError as refusal:
        if refusal.is_absence:
            return None
        raise
