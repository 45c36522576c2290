# SPDX-License-Identifier: Apache-2.0
"""Usage of devices in sysfs, and in the telemetry of QAT devices.

- power and temperature: ``hwmon`` of each function
  (Documentation/ABI/testing/sysfs-class-hwmon; xe has energy instead of
  power, sysfs-driver-intel-xe-hwmon);
- utilisation and VRAM of AMD GPUs: amdgpu's files
  (Documentation/gpu/amdgpu/driver-misc.rst, "GPU sysfs Power State
  Interfaces"). Its host driver for guests, GIM, has none;
- memory of the VFs of Intel GPUs with i915: ``telemetry`` of each VF.

A DRM client's ``fdinfo`` is not read: a guest with a VF or an mdev is no DRM
client of the host, and the names of the host's processes are not for
monitoring.

A suspended function is not read: reading its sensors would resume it.
"""

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.host.sysfs import fs
from nova_accel.model import pci, usage

_FUNCTIONS = "/sys/bus/pci/devices"
_SUSPENDED = frozenset({"suspended", "suspending"})
_ENGINES = {"gpu_busy_percent": "compute", "mem_busy_percent": "memory"}
_PERCENT = 100
# hwmon has microwatts, microjoules and thousandths of a degree.
_MICRO = 1_000_000
_MILLI = 1000
_SENSOR = re.compile(r"(power|energy|temp)(\d+)_(input|average)")
_VF = re.compile(r"vf[1-9]\d*")
# i915's directories of VFs below a card, in its older and newer versions.
_VF_DIRECTORIES = ("prelim_iov", "iov")
# A kernel or device without telemetry: nothing is wrong.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
# adf_tl_debugfs.c: util_<slice><number>, the current value comes first.
_SLICE = re.compile(r"util_([a-z]+)\d+\s+(\d{1,9})\b")


class UsageFiles:
    """Reader of the usage of devices. Not thread-safe.

    It keeps the energy of the last reading, from which it computes power.
    """

    def __init__(
        self,
        source: fs.FileSource,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read nothing yet.

        :param clock: returns seconds.
        """
        self._source = source
        self._clock = clock
        #: Seconds and joules of the last reading by address.
        self._energies: dict[str, tuple[float, float]] = {}

    def read(self, addresses: Iterable[str]) -> usage.UsageSample:
        """Return the usage of the devices that have figures in sysfs."""
        return usage.merge(
            *(
                self._read_device(address)
                for address in addresses
                if pci.is_address(address)
            )
        )

    def _read_device(self, address: str) -> usage.UsageSample:
        # New for each reading: it reads each file once.
        files = fs.Files(self._source)
        top = f"{_FUNCTIONS}/{address}"
        if _read_text(files, f"{top}/power/runtime_status") in _SUSPENDED:
            self._energies.pop(address, None)
            return usage.UsageSample()
        sensors = _read_sensors(files, top)
        figures = usage.DeviceUsage(
            address=address,
            engines=tuple(_list_engines(files, top)),
            memory_used=_read_number(files, f"{top}/mem_info_vram_used"),
            memory_total=_read_number(files, f"{top}/mem_info_vram_total"),
            power_watts=self._compute_power(address, sensors),
            temperature_celsius=_scale(sensors.get("temp"), _MILLI),
        )
        is_empty = figures == usage.DeviceUsage(address=address)
        return usage.UsageSample(
            devices=() if is_empty else (figures,),
            partitions=tuple(_list_vfs(files, address)),
        )

    def _compute_power(
        self, address: str, sensors: Mapping[str, int]
    ) -> float | None:
        """Return the power in watts, None before two readings of energy."""
        if "power" in sensors:
            return sensors["power"] / _MICRO
        energy = _scale(sensors.get("energy"), _MICRO)
        if energy is None:
            self._energies.pop(address, None)
            return None
        now = self._clock()
        last = self._energies.get(address)
        self._energies[address] = now, energy
        # The counter begins again when the driver is bound again.
        if last is None or now <= last[0] or energy < last[1]:
            return None
        return (energy - last[1]) / (now - last[0])


def judge_telemetry(
    address: str, number: int, state: str, text: str
) -> usage.UsageSample:
    """Return the usage of a QAT device: the mean of each kind of slice.

    :param number: errno of the reading.
    :param state: text of ``telemetry/control``.
    :param text: text of ``telemetry/device_data``
        (Documentation/ABI/testing/debugfs-driver-qat_telemetry).
    """
    reason = ""
    if number in _ABSENT:
        return usage.UsageSample()
    if number:
        reason = f"its telemetry can't be read: {os.strerror(number)}"
    elif state == "0":
        reason = (
            "its telemetry is off; write 1 to telemetry/control below its"
            " directory in /sys/kernel/debug"
        )
    if reason:
        problem = model.Problem.of_device(address, reason)
        return usage.UsageSample(problems=(problem,))
    slices: dict[str, list[int]] = {}
    for line in text.splitlines():
        if match := _SLICE.match(line):
            slices.setdefault(match[1], []).append(int(match[2]))
    engines = tuple(
        usage.EngineUsage(
            engine=name, ratio=sum(numbers) / len(numbers) / _PERCENT
        )
        for name, numbers in sorted(slices.items())
        if max(numbers) <= _PERCENT
    )
    figures = usage.DeviceUsage(address=address, engines=engines)
    return usage.UsageSample(devices=(figures,) if engines else ())


def _read_sensors(files: fs.Files, top: str) -> dict[str, int]:
    """Return the first sensor of each kind, in units of hwmon.

    The first temperature is the GPU's own: amdgpu numbers "edge" 1, xe
    numbers "pkg" 2 and has no 1.
    """
    sensors: dict[str, int] = {}
    for monitor in _list_names(files, f"{top}/hwmon"):
        place = f"{top}/hwmon/{monitor}"
        matches = filter(
            None, map(_SENSOR.fullmatch, _list_names(files, place))
        )
        for match in sorted(matches, key=lambda m: (int(m[2]), m[3])):
            value = _read_number(files, f"{place}/{match[0]}")
            if value is not None:
                sensors.setdefault(match[1], value)
    return sensors


def _list_engines(files: fs.Files, top: str) -> Iterator[usage.EngineUsage]:
    for name, engine in _ENGINES.items():
        percent = _read_number(files, f"{top}/{name}")
        if percent is not None and 0 <= percent <= _PERCENT:
            yield usage.EngineUsage(engine=engine, ratio=percent / _PERCENT)


def _list_vfs(files: fs.Files, gpu: str) -> Iterator[usage.PartitionUsage]:
    """Yield the usage of the VFs of an Intel GPU, of guests or not."""
    top = f"{_FUNCTIONS}/{gpu}/drm"
    for card in _list_names(files, top):
        for directory in _VF_DIRECTORIES:
            place = f"{top}/{card}/{directory}"
            for name in filter(_VF.fullmatch, _list_names(files, place)):
                address = _read_link(files, f"{place}/{name}/device")
                memory = _read_number(
                    files, f"{place}/{name}/telemetry/lmem_alloc_size"
                )
                if memory is not None and pci.is_address(address):
                    yield usage.PartitionUsage(
                        device=gpu, handle=address, memory_used=memory
                    )


def _list_names(files: fs.Files, path: str) -> tuple[str, ...]:
    with contextlib.suppress(errors.UnreadableError):
        return files.names(path)
    return ()


def _read_link(files: fs.Files, path: str) -> str:
    with contextlib.suppress(errors.UnreadableError):
        return files.link(path)
    return ""


def _read_text(files: fs.Files, path: str) -> str:
    with contextlib.suppress(errors.UnreadableError):
        return files.text(path).strip()
    return ""


def _read_number(files: fs.Files, path: str) -> int | None:
    text = _read_text(files, path)
    return int(text) if re.fullmatch(r"-?\d{1,20}", text) else None


def _scale(value: int | None, divisor: int) -> float | None:
    return None if value is None else value / divisor
