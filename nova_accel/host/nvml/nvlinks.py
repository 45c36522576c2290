# SPDX-License-Identifier: Apache-2.0
"""Peers of a GPU's NVLinks, read through NVML."""

from typing import Any

from nova_accel import errors
from nova_accel.geometry import topology
from nova_accel.host.nvml import gpu_state, nvml_library
from nova_accel.host.nvml.nvml_library import NvmlError, call

# nvml.h: NVML_NVLINK_MAX_LINKS, 18 until 2025 and 36 since. NVML refuses a
# number that the GPU lacks with NVML_ERROR_INVALID_ARGUMENT.
_NUMBERS = range(36)
_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
# nvml.h, nvmlIntNvLinkDeviceType_t: NVML_NVLINK_DEVICE_TYPE_*.
_GPU = 0
_SWITCH = 2
_UNKNOWN = 0xFF


def read(gpu: Any) -> topology.GpuLinks:
    """Return the peers of a GPU's active NVLinks; none without NVLink.

    :param gpu: NVML's handle of the GPU.
    :raises NvmlError: the GPU is lost, or the driver is too old.
    """
    ends = [_end(gpu, number) for number in _NUMBERS if _is_up(gpu, number)]
    return topology.GpuLinks(
        peers=frozenset(address for _, address in ends if address),
        is_switched=any(kind == _SWITCH for kind, _ in ends),
    )


def _is_up(gpu: Any, number: int) -> bool:
    try:
        return bool(call("nvmlDeviceGetNvLinkState", gpu, number))
    except NvmlError as error:
        if error.code in (_INVALID_ARGUMENT, _NOT_SUPPORTED):
            return False
        raise


def _end(gpu: Any, number: int) -> tuple[int, str]:
    """Return the type of a link's remote device, and its address if a GPU.

    Drivers before R470 have no type: then the caller must check whether the
    address is a GPU's.
    """
    kind = _query_link("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, number)
    kind = _UNKNOWN if kind is None else int(kind)
    if kind not in (_GPU, _UNKNOWN):
        return kind, ""
    pci_info = _query_link("nvmlDeviceGetNvLinkRemotePciInfo", gpu, number)
    if pci_info is None:
        return kind, ""
    try:
        return kind, gpu_state.parse_bus_id(nvml_library.text(pci_info.busId))
    except errors.MalformedError:
        return kind, ""  # in a virtual machine the remote end is hidden


def _query_link(name: str, gpu: Any, number: int) -> Any:
    """Return the result of a call for a link, None if not supported."""
    try:
        return call(name, gpu, number)
    except NvmlError as error:
        if error.is_unsupported:
            return None
        raise
