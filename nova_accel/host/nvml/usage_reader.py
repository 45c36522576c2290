# SPDX-License-Identifier: Apache-2.0
"""Usage of GPUs and their vGPUs through NVML, one thread per GPU.

Processes of guests are never read: their names belong to tenants.

Only GPUs that are bound to NVIDIA's driver have figures. The utilisation of
a time-sliced vGPU is a share of the whole GPU, that of a MIG-backed vGPU one
of its GPU instance.
"""

import functools
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from nova_accel.catalog import mdev_names
from nova_accel.host.nvml import gpu_state, nvml_library, nvml_query
from nova_accel.host.nvml.nvml_library import NvmlError, call
from nova_accel.model import device, usage

# Seconds to wait for all GPUs.
TIMEOUT_S = 10.0
# nvml.h: INVALID_GPU_INSTANCE_ID, of a vGPU that is not in a GPU instance.
_NO_INSTANCE = 0xFFFFFFFF
# nvml.h: nvmlTemperatureSensors_t, NVML_TEMPERATURE_GPU.
_GPU_SENSOR = 0
_PERCENT = 100
_MILLIWATTS = 1000
# Engines by their fields in NVML's samples. Drivers before R535 have no
# samples with the last two.
_ENGINES = {
    "smUtil": "compute",
    "memUtil": "memory",
    "encUtil": "encoder",
    "decUtil": "decoder",
    "jpgUtil": "jpeg",
    "ofaUtil": "ofa",
}

# One reading at a time.
_reading_lock = threading.Lock()


def read_usage(timeout_s: float = TIMEOUT_S) -> usage.UsageSample:
    """Return the usage of every GPU and vGPU; never raises.

    Without NVML, and while another reading runs, there are no figures.

    :param timeout_s: seconds to wait for all GPUs.
    """
    if not nvml_library.is_installed():
        return usage.UsageSample()
    if not _reading_lock.acquire(blocking=False):
        return usage.UsageSample()
    try:
        return _read_all(time.monotonic() + timeout_s)
    finally:
        _reading_lock.release()


def _read_all(deadline: float) -> usage.UsageSample:
    query = nvml_query.NvmlQuery(
        "usage of GPUs", lambda: call("nvmlDeviceGetCount")
    )
    query.wait(deadline)
    error = query.error
    if isinstance(error, NvmlError) and error.is_not_installed:
        return usage.UsageSample()
    if query.result is None:
        return usage.UsageSample(problems=(query.problem(),))
    queries = [
        nvml_query.NvmlQuery(
            f"usage of GPU {index}", functools.partial(_read_gpu, index)
        )
        for index in range(query.result)
    ]
    for query in queries:
        query.wait(deadline)
    return usage.merge(
        *(
            query.result or usage.UsageSample(problems=(query.problem(),))
            for query in queries
        )
    )


def _read_gpu(index: int) -> usage.UsageSample:
    gpu = call("nvmlDeviceGetHandleByIndex", index)
    bus_id = nvml_library.text(call("nvmlDeviceGetPciInfo", gpu).busId)
    address = gpu_state.parse_bus_id(bus_id)
    reader = nvml_query.ValueReader()
    used, total = reader.read(
        "memory", lambda: nvml_library.read_memory(gpu), (None, None)
    )
    power = reader.read(
        "power", lambda: call("nvmlDeviceGetPowerUsage", gpu), None
    )
    temperature = reader.read(
        "temperature",
        lambda: call("nvmlDeviceGetTemperature", gpu, _GPU_SENSOR),
        None,
    )
    gpu_usage = usage.DeviceUsage(
        address=address,
        engines=tuple(_list_engines(gpu, reader)),
        memory_used=used,
        memory_total=total,
        power_watts=None if power is None else int(power) / _MILLIWATTS,
        temperature_celsius=(
            None if temperature is None else float(temperature)
        ),
    )
    vgpus = tuple(_list_vgpus(gpu, address, reader))
    problems = tuple(
        device.Problem.of_device(address, reason)
        for reason in reader.errors.values()
    )
    return usage.UsageSample(
        devices=(gpu_usage,), partitions=vgpus, problems=problems
    )


def _list_engines(
    gpu: Any, reader: nvml_query.ValueReader
) -> Iterator[usage.EngineUsage]:
    """Yield the engines of a GPU; a GPU in MIG mode has no figures."""
    rates = reader.read(
        "utilisation",
        lambda: call("nvmlDeviceGetUtilizationRates", gpu),
        None,
    )
    if rates is not None:
        yield from _build_engine("compute", rates.gpu)
        yield from _build_engine("memory", rates.memory)
    for engine in ("encoder", "decoder"):
        name = f"nvmlDeviceGet{engine.capitalize()}Utilization"
        sample = reader.read(engine, functools.partial(call, name, gpu), None)
        if sample is not None:
            # The percentage, and the period in microseconds.
            yield from _build_engine(engine, sample[0])


def _build_engine(
    engine: str, percent: int, scope: usage.Scope = usage.Scope.DEVICE
) -> Iterator[usage.EngineUsage]:
    """Yield an engine, nothing if the number is no percentage.

    NVML marks figures that it does not have with a larger number.
    """
    if 0 <= percent <= _PERCENT:
        yield usage.EngineUsage(
            engine=engine, ratio=percent / _PERCENT, scope=scope
        )


def _list_vgpus(
    gpu: Any, address: str, reader: nvml_query.ValueReader
) -> Iterator[usage.PartitionUsage]:
    numbers = reader.read(
        "vGPUs", lambda: call("nvmlDeviceGetActiveVgpus", gpu), ()
    )
    if not numbers:
        return
    samples = reader.read(
        "utilisation of vGPUs", lambda: _read_samples(gpu), {}
    )
    for number in map(int, numbers):
        vgpu = reader.read(
            f"vGPU {number}",
            functools.partial(_read_vgpu, number, address, samples),
            None,
        )
        if vgpu is not None:
            yield vgpu


def _read_samples(gpu: Any) -> Mapping[int, Any]:
    """Return the last sample of each vGPU that has one, by its number.

    Drivers before R535 have only the first version of the call.
    """
    try:
        samples = call("nvmlDeviceGetVgpuInstancesUtilizationInfo", gpu, 0)
    except NvmlError as error:
        if not error.is_unsupported:
            raise
        samples = call("nvmlDeviceGetVgpuUtilization", gpu, 0)
    ordered = sorted(samples, key=lambda sample: int(sample.timeStamp))
    return {int(sample.vgpuInstance): sample for sample in ordered}


def _read_vgpu(
    number: int, address: str, samples: Mapping[int, Any]
) -> usage.PartitionUsage:
    """Return the usage of a vGPU.

    :raises NvmlError: it can't be read, or has ended meanwhile.
    """
    reader = nvml_query.ValueReader()
    type_number = call("nvmlVgpuInstanceGetType", number)
    name = nvml_library.text(call("nvmlVgpuTypeGetName", type_number))
    instance = reader.read(
        "instance",
        lambda: int(call("nvmlVgpuInstanceGetGpuInstanceId", number)),
        _NO_INSTANCE,
    )
    scope = (
        usage.Scope.DEVICE
        if instance == _NO_INSTANCE
        else usage.Scope.INSTANCE
    )
    handle = reader.read(
        "mdev", lambda: call("nvmlVgpuInstanceGetMdevUUID", number), ""
    )
    return usage.PartitionUsage(
        device=address,
        profile=mdev_names.strip_brand(name),
        handle=nvml_library.text(handle).lower(),
        server=reader.read(
            "domain", lambda: nvml_library.read_server(number), ""
        ),
        engines=tuple(_list_vgpu_engines(samples.get(number), scope)),
        memory_used=reader.read(
            "memory",
            lambda: nvml_library.read_framebuffer_usage(number),
            None,
        ),
    )


def _list_vgpu_engines(
    sample: Any, scope: usage.Scope
) -> Iterator[usage.EngineUsage]:
    for field, engine in _ENGINES.items():
        value = getattr(sample, field, None)
        if value is not None:
            # sampleValType is NVML_VALUE_TYPE_UNSIGNED_INT for percentages.
            yield from _build_engine(engine, int(value.uiVal), scope)
