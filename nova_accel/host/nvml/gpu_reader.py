# SPDX-License-Identifier: Apache-2.0
"""Reader of GPUs and their NVLinks through NVML, one thread per GPU.

NVML is optional. Without the library or the driver, a card is described
from sysfs and the catalog only.

The library is initialized for each reading and shut down after it: the
process may fork, and the driver can be unloaded between readings. Each GPU
has its own thread: a lost GPU may never answer, and must not block the
others.

Memory slices need root (nvmlDeviceGetGpuInstances and
nvmlDeviceGetGpuInstancePossiblePlacements: "Requires privileged user",
NVML API reference). Without root ``kinds`` and ``instances`` are empty,
``unread`` names them and a problem has the reason.
"""

import dataclasses
import functools
import threading
import time
from collections.abc import Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog import mdev_names
from nova_accel.geometry import topology
from nova_accel.host.nvml import nvml_library, nvml_query, vgpu_reader
from nova_accel.host.nvml.gpu_state import parse_bus_id
from nova_accel.host.nvml.gpu_writer import (
    create_instance,
    destroy_instance,
    set_mig,
    set_mixed,
)
from nova_accel.host.nvml.nvml_library import NvmlError, call, is_installed
from nova_accel.host.nvml_gpus import NvmlGpu, NvmlGpus, NvmlVgpuType

__all__ = [
    "create_instance",
    "destroy_instance",
    "is_installed",
    "parse_bus_id",
    "read_gpus",
    "set_mig",
    "set_mixed",
]

# Seconds to wait for all GPUs: drivers without persistence mode take
# seconds to wake each GPU.
TIMEOUT_S = 30.0
_MEBIBYTE = 1024 * 1024
# nvml.h: INVALID_GPU_INSTANCE_PROFILE_ID, the profile of time-sliced types.
_NO_PROFILE = 0xFFFFFFFF
_UNKNOWN_MODES = (None, None)
_PENDING = (
    "its MIG mode changes when it is reset: take its vGPUs off it and run"
    " nvidia-smi --gpu-reset"
)


# -- reading --------------------------------------------------------------

# One reading at a time.
_reading_lock = threading.Lock()
# Name of the query for the number of GPUs.
_COUNT = "NVML"
# nvml.h: NVML_NVLINK_MAX_LINKS, 18 until 2025 and 36 since. NVML refuses a
# number that the GPU lacks with NVML_ERROR_INVALID_ARGUMENT.
_LINK_NUMBERS = range(36)
_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
# nvml.h, nvmlIntNvLinkDeviceType_t: NVML_NVLINK_DEVICE_TYPE_*.
_GPU_END = 0
_SWITCH_END = 2
_UNKNOWN_END = 0xFF


def read_gpus(timeout_s: float = TIMEOUT_S) -> NvmlGpus:
    """Return the state of every GPU by PCI address; never raises.

    Values that can't be read are among the result's ``problems``; the
    ``reason`` is set if NVML can't be called.

    :param timeout_s: seconds to wait for all GPUs.
    """
    if not is_installed():
        return NvmlGpus({}, reason="nvidia-ml-py is not installed")
    with _reading_lock:
        deadline = time.monotonic() + timeout_s
        query = nvml_query.NvmlQuery(
            _COUNT, lambda: call("nvmlDeviceGetCount")
        )
        query.wait(deadline)
        error = query.error
        if isinstance(error, NvmlError) and error.is_not_installed:
            return NvmlGpus({}, reason=str(error))
        if query.result is None:
            return NvmlGpus({}, (query.problem(),))
        return _read_all(query.result, deadline)


def _read_all(count: int, deadline: float) -> NvmlGpus:
    queries = [
        nvml_query.NvmlQuery(
            f"NVML GPU {index}", functools.partial(_read_gpu, index)
        )
        for index in range(count)
    ]
    gpus: dict[str, NvmlGpu] = {}
    unread: list[model.Problem] = []
    lost: list[str] = []
    for query in queries:
        query.wait(deadline)
        if query.result is None:
            error = query.error
            if isinstance(error, NvmlError) and error.is_faulty:
                lost.append(f"NVML: {error}")
            unread.append(query.problem())
            continue
        gpu, reasons = query.result
        gpus[gpu.address] = gpu
        unread += [
            model.Problem.of_device(gpu.address, reason) for reason in reasons
        ]
    return NvmlGpus(
        dict(sorted(gpus.items())), tuple(unread), lost=tuple(lost)
    )


def _read_gpu(index: int) -> tuple[NvmlGpu, list[str]]:
    """Return a GPU's state, and the errors of values that are missing."""
    handle = call("nvmlDeviceGetHandleByIndex", index)
    address = parse_bus_id(
        nvml_library.text(call("nvmlDeviceGetPciInfo", handle).busId)
    )
    reader = nvml_query.ValueReader()
    read = reader.read
    is_mig, is_mig_pending = read(
        "MIG mode", lambda: _mig_modes(handle), _UNKNOWN_MODES
    )
    if is_mig != is_mig_pending:
        reader.errors["change"] = _PENDING
    infos = read("profiles", lambda: nvml_library.profiles(handle), {})
    is_mixed = read("size mode", lambda: _is_mixed(handle), None)
    version = nvml_library.text(call("nvmlSystemGetDriverVersion"))
    state = (address, version, is_mig, is_mixed, frozenset(infos))
    kinds: tuple[model.InstanceKind, ...] = ()
    instances: tuple[model.Instance, ...] = ()
    if is_mig:
        kinds = read("kinds", lambda: _kinds(handle, infos), ())
        instances = read("instances", lambda: _instances(handle, infos), ())
    gpu = NvmlGpu(
        address=address,
        driver_version=version,
        memory_mb=read("memory", lambda: _memory_mb(handle), None),
        is_mig=is_mig,
        is_mixed=is_mixed,
        types=read(
            "types",
            lambda: _types(handle, infos, *state, is_mixed=bool(is_mixed)),
            (),
        ),
        kinds=kinds,
        instances=instances,
        unread=frozenset(reader.errors) & {"types", "kinds", "instances"},
        recovery=read("health", lambda: nvml_library.recovery(handle), None),
        links=read("NVLinks", lambda: _read_links(handle), None),
        vgpus=read("vGPUs", lambda: vgpu_reader.read_vgpus(handle), None),
        ecc=read("ECC mode", lambda: nvml_library.ecc_modes(handle), None),
        fabric=read("fabric", lambda: nvml_library.fabric(handle), None),
        fault="; ".join(reader.faults[:1]),
    )
    return gpu, list(reader.errors.values())


def _memory_mb(gpu: Any) -> int:
    return int(call("nvmlDeviceGetMemoryInfo", gpu).total) // _MEBIBYTE


def _mig_modes(gpu: Any) -> tuple[bool, bool]:
    """Return whether MIG is on, and whether it will be after a reset."""
    now, pending = call("nvmlDeviceGetMigMode", gpu)
    return bool(now), bool(pending)


def _is_mixed(gpu: Any) -> bool:
    return bool(call("nvmlDeviceGetVgpuHeterogeneousMode", gpu))


# Cache of the types by address, driver, modes and type numbers: reading
# them takes hundreds of calls, and they change only with these.
_types_cache: dict[tuple[object, ...], tuple[NvmlVgpuType, ...]] = {}


def _types(
    gpu: Any, infos: Mapping[str, Any], *state: object, is_mixed: bool
) -> tuple[NvmlVgpuType, ...]:
    """Return the types of a GPU, read once for each state.

    :param state: key of the cache, besides the numbers of the types.
    :param is_mixed: whether to read placements; part of the state.
    """
    numbers = tuple(map(int, call("nvmlDeviceGetSupportedVgpus", gpu)))
    types = _types_cache.get((*state, numbers))
    if types is None:
        kinds = {int(info.id): (name, info) for name, info in infos.items()}
        types = tuple(_type(gpu, number, kinds) for number in numbers)
        if is_mixed:
            types = tuple(_add_placements(gpu, each) for each in types)
        _types_cache[(*state, numbers)] = types
    return types


def _type(
    gpu: Any, number: int, kinds: Mapping[int, tuple[str, Any]]
) -> NvmlVgpuType:
    limit = int(call("nvmlVgpuTypeGetMaxInstances", gpu, number))
    kind, info = kinds.get(_profile_of(number), ("", None))
    return NvmlVgpuType(
        name=mdev_names.strip_brand(
            nvml_library.text(call("nvmlVgpuTypeGetName", number))
        ),
        type_id=str(number),
        framebuffer_mb=int(call("nvmlVgpuTypeGetFramebufferSize", number))
        // _MEBIBYTE,
        max_instances=limit,
        instance=kind,
        per_instance=_per_instance(number, limit, info) if kind else 1,
    )


def _add_placements(gpu: Any, vgpu_type: NvmlVgpuType) -> NvmlVgpuType:
    """Return a type with its placements, unchanged if NVML has none."""
    number = int(vgpu_type.type_id)
    try:
        span, starts = nvml_library.vgpu_placements(gpu, number)
    except NvmlError:
        return vgpu_type
    if vgpu_type.instance or not span:
        return vgpu_type
    return dataclasses.replace(vgpu_type, span=span, starts=starts)


def _profile_of(number: int) -> int:
    """Return the GPU instance profile of a vGPU type."""
    try:
        return int(call("nvmlVgpuTypeGetGpuInstanceProfileId", number))
    except NvmlError as error:
        if error.is_unsupported:
            return _NO_PROFILE
        raise


def _per_instance(number: int, limit: int, info: Any) -> int:
    """Return how many vGPUs of a type share a GPU instance.

    Drivers before R570 lack the call; the limits give the quotient.
    """
    try:
        return int(call("nvmlVgpuTypeGetMaxInstancesPerGpuInstance", number))
    except NvmlError as error:
        if error.is_unsupported:
            return max(1, limit // max(1, int(info.instanceCount)))
        raise


def _kinds(
    gpu: Any, infos: Mapping[str, Any]
) -> tuple[model.InstanceKind, ...]:
    kinds = []
    for name, info in infos.items():
        placements = nvml_library.placements(gpu, info)
        if placements:
            kinds.append(
                model.InstanceKind(
                    name=name,
                    size=int(placements[0].size),
                    slices=int(info.sliceCount),
                    starts=tuple(sorted(int(p.start) for p in placements)),
                    limit=int(info.instanceCount),
                )
            )
    return tuple(kinds)


def _instances(
    gpu: Any, infos: Mapping[str, Any]
) -> tuple[model.Instance, ...]:
    instances = [
        model.Instance(
            kind=name,
            handle=str(state.id),
            span=model.Span(
                start=int(state.placement.start),
                size=int(state.placement.size),
            ),
        )
        for name, info in infos.items()
        for _, state in nvml_library.instances(gpu, info)
    ]
    return tuple(sorted(instances, key=lambda i: int(i.handle)))


def _read_links(gpu: Any) -> topology.GpuLinks:
    """Return the peers of a GPU's active NVLinks; none without NVLink.

    :param gpu: NVML's handle of the GPU.
    :raises NvmlError: the GPU is lost, or the driver is too old.
    """
    ends = [
        _link_end(gpu, number)
        for number in _LINK_NUMBERS
        if _is_link_up(gpu, number)
    ]
    return topology.GpuLinks(
        peers=frozenset(address for _, address in ends if address),
        is_switched=any(kind == _SWITCH_END for kind, _ in ends),
    )


def _is_link_up(gpu: Any, number: int) -> bool:
    try:
        return bool(call("nvmlDeviceGetNvLinkState", gpu, number))
    except NvmlError as error:
        if error.code in (_INVALID_ARGUMENT, _NOT_SUPPORTED):
            return False
        raise


def _link_end(gpu: Any, number: int) -> tuple[int, str]:
    """Return the type of a link's remote device, and its address if a GPU.

    Drivers before R470 have no type: then the caller must check whether the
    address is a GPU's.
    """
    kind = _query_link("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, number)
    kind = _UNKNOWN_END if kind is None else int(kind)
    if kind not in (_GPU_END, _UNKNOWN_END):
        return kind, ""
    pci_info = _query_link("nvmlDeviceGetNvLinkRemotePciInfo", gpu, number)
    if pci_info is None:
        return kind, ""
    try:
        return kind, parse_bus_id(nvml_library.text(pci_info.busId))
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
