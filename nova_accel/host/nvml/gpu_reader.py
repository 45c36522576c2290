# SPDX-License-Identifier: Apache-2.0
"""Reader of GPUs through NVML, one thread per GPU.

NVML is optional. Where it is missing, or its driver is, nothing is known
of a card but what sysfs and the catalogue say.

The library is opened for each look and closed after it, so that nothing
of it is held when this process forks, and a driver can be unloaded. Each
GPU is asked in a thread of its own: one that is lost may not answer at
all, and the others shall.

What asks for memory slices needs root (nvmlDeviceGetGpuInstances and
nvmlDeviceGetGpuInstancePossiblePlacements: "Requires privileged user",
NVML API reference). Without it ``kinds`` and ``instances`` are empty,
``unread`` names them and a problem tells the reason.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog import mdev_names
from nova_accel.host.nvml import nvlinks, nvml_library
from nova_accel.host.nvml.gpu_state import (
    NvmlGpu,
    NvmlGpus,
    NvmlVgpuType,
    parse_bus_id,
    problems,
)
from nova_accel.host.nvml.gpu_writer import (
    create_instance,
    destroy_instance,
    set_mixed,
)
from nova_accel.host.nvml.nvml_library import NvmlError, call, is_installed

__all__ = [
    "NvmlGpu",
    "NvmlGpus",
    "NvmlVgpuType",
    "create_instance",
    "destroy_instance",
    "is_installed",
    "parse_bus_id",
    "problems",
    "read_gpus",
    "set_mixed",
]

# A GPU that has not said everything by then is not waited for: drivers
# without persistence mode take seconds to wake each GPU.
TIMEOUT_S = 30.0
_MEBIBYTE = 1024 * 1024
# nvml.h: INVALID_GPU_INSTANCE_PROFILE_ID, of a type that is time-sliced.
_NO_PROFILE = 0xFFFFFFFF
_UNTOLD = (None, None)
# What an nvidia-ml-py whose names or values have another form ends in.
_OTHER_FORM = (AttributeError, TypeError, ValueError)
_PENDING = (
    "its MIG mode changes when it is reset: take its vGPUs off it and run"
    " nvidia-smi --gpu-reset"
)
_SILENT = (
    "gives no answer in time; look for Xid messages of the NVIDIA driver"
    " in the kernel's log"
)


# -- reading --------------------------------------------------------------

# One look at a time: whoever is in the driver still when its look was
# given up is stuck there, and is not joined by another.
_looking = threading.Lock()
_stuck: dict[int, threading.Thread] = {}
_EVERYTHING = -1


def read_gpus(timeout_s: float = TIMEOUT_S) -> NvmlGpus:
    """Return what NVML says of every GPU, by PCI address.

    Nothing is raised: what can't be learnt is missing, and told among the
    result's ``problems`` or as its ``reason``.

    :param timeout_s: seconds after which a silent GPU is given up.
    """
    if not is_installed():
        return NvmlGpus({}, reason="nvidia-ml-py is not installed")
    with _looking:
        deadline = time.monotonic() + timeout_s
        counted = _NvmlQuery(_EVERYTHING, lambda: call("nvmlDeviceGetCount"))
        counted.wait(deadline)
        refusal = counted.refusal
        if isinstance(refusal, NvmlError) and refusal.is_nobody:
            return NvmlGpus({}, reason=str(refusal))
        if counted.result is None:
            return NvmlGpus({}, (_problem("NVML", counted.failure()),))
        return _read_all(counted.result, deadline)


def _read_all(count: int, deadline: float) -> NvmlGpus:
    looks = [_NvmlQuery(index, _reading(index)) for index in range(count)]
    found: dict[str, NvmlGpu] = {}
    told: list[model.Problem] = []
    lost: list[str] = []
    for look in looks:
        look.wait(deadline)
        if look.result is None:
            refusal = look.refusal
            if isinstance(refusal, NvmlError) and refusal.is_ill:
                lost.append(f"NVML: {refusal}")
            told.append(_problem(f"NVML GPU {look.key}", look.failure()))
            continue
        facts, missing = look.result
        found[facts.address] = facts
        told += [_problem(facts.address, text) for text in missing]
    return NvmlGpus(dict(sorted(found.items())), tuple(told), lost=tuple(lost))


def _problem(where: str, reason: str) -> model.Problem:
    return model.Problem(where=where, reason=reason)


class _NvmlQuery:
    """One question to NVML, asked in a thread of its own."""

    def __init__(self, key: int, ask: Callable[[], Any]) -> None:
        self.key = key
        self.result: Any = None
        self.refusal: Exception | None = None
        self._ask = ask
        self._thread = _stuck.get(key)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, name=f"nvml-{key}", daemon=True
            )
            self._thread.start()

    def wait(self, deadline: float) -> None:
        """Return when the answer is there, or at the deadline."""
        thread = self._thread
        if thread is None or _stuck.get(self.key) is thread:
            return
        thread.join(max(0.0, deadline - time.monotonic()))
        _stuck.pop(self.key, None)
        if thread.is_alive():
            _stuck[self.key] = thread

    def failure(self) -> str:
        """Return why there is no result."""
        if isinstance(self.refusal, NvmlError | errors.MalformedError):
            return str(self.refusal)
        return _SILENT if self.refusal is None else repr(self.refusal)

    def _run(self) -> None:
        try:
            with nvml_library.session():
                self.result = self._ask()
        except (NvmlError, errors.MalformedError, *_OTHER_FORM) as refusal:
            self.refusal = refusal


def _reading(index: int) -> Callable[[], tuple[NvmlGpu, list[str]]]:
    return lambda: _read_gpu(index)


def _read_gpu(index: int) -> tuple[NvmlGpu, list[str]]:
    """Return a GPU's facts, and why it did not tell the rest."""
    handle = call("nvmlDeviceGetHandleByIndex", index)
    address = parse_bus_id(
        nvml_library.text(call("nvmlDeviceGetPciInfo", handle).busId)
    )
    missing: dict[str, str] = {}
    ill: list[str] = []

    def ask(name: str, question: Callable[[], Any], default: Any) -> Any:
        try:
            return question()
        except NvmlError as refusal:
            if refusal.is_ill:
                ill.append(f"NVML: {refusal}")
            if not refusal.is_absence:
                missing[name] = f"NVML does not tell its {name}: {refusal}"
                if refusal.is_forbidden:
                    missing[name] += "; run as root"
            return default

    is_mig, is_next = ask("MIG mode", lambda: _mig_modes(handle), _UNTOLD)
    if is_mig != is_next:
        missing["change"] = _PENDING
    infos = ask("profiles", lambda: nvml_library.profiles(handle), {})
    is_mixed = ask("size mode", lambda: _is_mixed(handle), None)
    version = nvml_library.text(call("nvmlSystemGetDriverVersion"))
    state = (address, version, is_mig, is_mixed, frozenset(infos))
    kinds: tuple[model.InstanceKind, ...] = ()
    instances: tuple[model.Instance, ...] = ()
    if is_mig:
        kinds = ask("kinds", lambda: _kinds(handle, infos), ())
        instances = ask("instances", lambda: _instances(handle, infos), ())
    facts = NvmlGpu(
        address=address,
        driver_version=version,
        memory_mb=ask("memory", lambda: _memory_mb(handle), None),
        is_mig=is_mig,
        is_mixed=is_mixed,
        types=ask(
            "types",
            lambda: _types(handle, infos, *state, is_mixed=bool(is_mixed)),
            (),
        ),
        kinds=kinds,
        instances=instances,
        unread=frozenset(missing) & {"types", "kinds", "instances"},
        recovery=ask("health", lambda: nvml_library.recovery(handle), None),
        links=ask("NVLinks", lambda: nvlinks.read(handle), None),
        fault="; ".join(ill[:1]),
    )
    return facts, list(missing.values())


def _memory_mb(gpu: Any) -> int:
    return int(call("nvmlDeviceGetMemoryInfo", gpu).total) // _MEBIBYTE


def _mig_modes(gpu: Any) -> tuple[bool, bool]:
    """Return whether MIG is on, and whether it will be after a reset."""
    now, pending = call("nvmlDeviceGetMigMode", gpu)
    return bool(now), bool(pending)


def _is_mixed(gpu: Any) -> bool:
    return bool(call("nvmlDeviceGetVgpuHeterogeneousMode", gpu))


# The types of each GPU, by its address and all that they can depend on:
# hundreds of calls, whose answers change with the driver or a mode only.
_types_seen: dict[tuple[object, ...], tuple[NvmlVgpuType, ...]] = {}


def _types(
    gpu: Any, infos: Mapping[str, Any], *state: object, is_mixed: bool
) -> tuple[NvmlVgpuType, ...]:
    """Return the types of a GPU, asked once for each state of it.

    :param is_mixed: whether to ask for places, too; a part of the state.
    """
    numbers = tuple(map(int, call("nvmlDeviceGetSupportedVgpus", gpu)))
    found = _types_seen.get((*state, numbers))
    if found is None:
        kinds = {int(info.id): (name, info) for name, info in infos.items()}
        found = tuple(_type(gpu, number, kinds) for number in numbers)
        if is_mixed:
            found = tuple(_placed(gpu, one) for one in found)
        _types_seen[(*state, numbers)] = found
    return found


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


def _placed(gpu: Any, one: NvmlVgpuType) -> NvmlVgpuType:
    """Return a type with its places, as it is where NVML has none."""
    try:
        span, starts = nvml_library.vgpu_placements(gpu, int(one.type_id))
    except NvmlError:
        return one
    if one.instance or not span:
        return one
    return dataclasses.replace(one, span=span, starts=starts)


def _profile_of(number: int) -> int:
    """Return the GPU instance profile of a vGPU type."""
    try:
        return int(call("nvmlVgpuTypeGetGpuInstanceProfileId", number))
    except NvmlError as refusal:
        if refusal.is_absence:
            return _NO_PROFILE
        raise


def _per_instance(number: int, limit: int, info: Any) -> int:
    """Return how many of a type share a GPU instance.

    Drivers before R570 can't be asked; there the limits tell it.
    """
    try:
        return int(call("nvmlVgpuTypeGetMaxInstancesPerGpuInstance", number))
    except NvmlError as refusal:
        if refusal.is_absence:
            return max(1, limit // max(1, int(info.instanceCount)))
        raise


def _kinds(
    gpu: Any, infos: Mapping[str, Any]
) -> tuple[model.InstanceKind, ...]:
    kinds = []
    for name, info in infos.items():
        places = nvml_library.placements(gpu, info)
        if places:
            kinds.append(
                model.InstanceKind(
                    name=name,
                    size=int(places[0].size),
                    slices=int(info.sliceCount),
                    starts=tuple(sorted(int(p.start) for p in places)),
                    limit=int(info.instanceCount),
                )
            )
    return tuple(kinds)


def _instances(
    gpu: Any, infos: Mapping[str, Any]
) -> tuple[model.Instance, ...]:
    found = [
        model.Instance(
            kind=name,
            handle=str(seen.id),
            span=model.Span(
                start=int(seen.placement.start), size=int(seen.placement.size)
            ),
        )
        for name, info in infos.items()
        for _, seen in nvml_library.instances(gpu, info)
    ]
    return tuple(sorted(found, key=lambda one: int(one.handle)))
