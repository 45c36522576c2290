# SPDX-License-Identifier: Apache-2.0
"""Health of devices in sysfs: AER counters, configuration space.

At most five small files are read per card, however many VFs it has: the
PF counts the errors of its VFs, and the ids of a healthy VF read as ones.

Reading the configuration space of a suspended function would resume it,
or the port above it (pci_config_pm_runtime_get(),
drivers/pci/pci-sysfs.c). So it is not read while
``power/runtime_status`` is ``suspended`` or ``suspending``
(Documentation/ABI/testing/sysfs-devices-power).
"""

import functools
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.host import bounded_calls, nvml_gpus
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import host_reader
from nova_accel.inventory import health
from nova_accel.model import pci

# Documentation/ABI/testing: sysfs-bus-pci,
# sysfs-bus-pci-devices-aer_stats.
_FUNCTIONS = "/sys/bus/pci/devices"
_ERRORS = "aer_dev_fatal"
_HEAD = "config"
_POWER = "power_state"
_RUNTIME = "power/runtime_status"
_SUSPENDED = frozenset({"suspended", "suspending"})
_PHYSFN = "physfn"
_NVIDIA, _NVIDIA_DRIVER = "10de", "nvidia"


def find_faults(
    reader: host_reader.HostReader,
    devices: tuple[model.Device, ...],
    baseline: device_notes.ErrorBaseline | None = None,
) -> Mapping[str, model.Fault]:
    """Return the faults of devices by address; healthy devices have none.

    A value that can't be read is no fault. A fault disappears as soon as
    its cause does.

    :param reader: the reader that has just described the devices.
    :param baseline: error counts that the operator acknowledged.
    """
    readings = {d.address: read_health(reader, d) for d in devices}
    acknowledged = _prune(baseline, readings.values()) if baseline else {}
    gpus = _judge_gpus(reader)
    reasons = {}
    for device in devices:
        card = device.parent or device.address
        kernel = health.judge(card, readings[device.address], acknowledged)
        causes = filter(None, (kernel, gpus.get(card)))
        reasons[device.address] = "; ".join(causes)
    return health.to_faults(reasons)


def _prune(
    baseline: device_notes.ErrorBaseline,
    readings: Iterable[tuple[health.HealthReading, ...]],
) -> Mapping[str, int]:
    """Remove outdated counts from the baseline; return the others.

    A function with a lower count was enumerated again since.
    """
    acknowledged = baseline.read()
    counts = _counts(
        reading for of_device in readings for reading in of_device
    )
    outdated = {
        address
        for address, count in counts.items()
        if count < acknowledged.get(address, 0)
    }
    baseline.forget(outdated)
    return {
        address: count
        for address, count in acknowledged.items()
        if address not in outdated
    }


def has_changed(last: host_reader.HostReader) -> bool:
    """Return whether a card has left or rejoined its bus since a reading.

    The kernel sends no uevent for that. Error counters are not compared.

    A card that does not answer has changed, too.

    :param last: the reader of that reading.
    """
    return bounded_calls.run(functools.partial(_has_changed, last))


def _has_changed(last: host_reader.HostReader) -> bool:
    fresh = host_reader.HostReader(files=last.files.without_contents())
    places = (*last.files.heads(), *last.files.texts(_RUNTIME))
    names = {place.removesuffix(f"/{_RUNTIME}") for place in places}
    names = {name.removesuffix(f"/{_HEAD}") for name in names}
    is_changed = any(
        _read_presence(last, name) != _read_presence(fresh, name)
        for name in (place.rpartition("/")[2] for place in names)
        if pci.is_address(name)
    )
    return is_changed or bool(fresh.files.late())


def _read_presence(
    reader: host_reader.HostReader, name: str
) -> tuple[bool, bool]:
    reading = _read(reader, name, is_counted=False)
    return reading.is_gone, reading.is_powerless


def read_counts(
    reader: host_reader.HostReader, device: model.Device
) -> Mapping[str, int]:
    """Return the fatal errors of a device's functions by address.

    A function without a counter is left out.
    """
    return _counts(read_health(reader, device))


def read_health(
    reader: host_reader.HostReader, device: model.Device
) -> tuple[health.HealthReading, ...]:
    """Return the readings of a device's functions; for a VF, its PF's."""
    places: dict[str, None] = {}
    for name in _names(device):
        places[_physical(reader, name)] = None
    return tuple(_read(reader, name) for name in places)


def _names(device: model.Device) -> Iterator[str]:
    card = device.region.card if device.region else ""
    names = (device.parent or device.address, *device.members, card)
    return filter(pci.is_address, names)


def _counts(readings: Iterable[health.HealthReading]) -> dict[str, int]:
    return {
        reading.address: reading.fatal
        for reading in readings
        if reading.fatal is not None
    }


def _physical(reader: host_reader.HostReader, name: str) -> str:
    """Return a function's PF, or itself."""
    try:
        physfn = reader.files.link(f"{_FUNCTIONS}/{name}/{_PHYSFN}")
    except errors.UnreadableError:
        return name
    return physfn if pci.is_address(physfn) else name


def _read(
    reader: host_reader.HostReader, name: str, *, is_counted: bool = True
) -> health.HealthReading:
    try:
        present = frozenset(reader.names(name))
    except errors.UnreadableError:
        return health.HealthReading(address=name)
    power = _text(reader, name, _POWER, present)
    counts = _text(reader, name, _ERRORS, present) if is_counted else ""
    return health.HealthReading(
        address=name,
        counts=health.parse_errors(counts),
        head=_head(reader, name, present),
        power=power,
    )


def _head(
    reader: host_reader.HostReader, name: str, present: frozenset[str]
) -> bytes:
    if _HEAD not in present:
        return b""
    if _text(reader, name, _RUNTIME, present) in _SUSPENDED:
        return b""
    try:
        return reader.files.head(f"{_FUNCTIONS}/{name}/{_HEAD}")
    except errors.UnreadableError:
        return b""


def _text(
    reader: host_reader.HostReader,
    name: str,
    path: str,
    present: frozenset[str],
) -> str:
    if path.partition("/")[0] not in present:
        return ""
    try:
        return reader.attribute(name, path).strip()
    except errors.UnreadableError:
        return ""


# -- GPUs -----------------------------------------------------------------


def _judge_gpus(reader: host_reader.HostReader) -> dict[str, str]:
    """Return the reasons of GPUs that NVML reports as faulty, by address.

    NVML has no address for a lost GPU. If as many GPUs are lost as GPUs
    bound to the driver are missing from NVML's list, they are the same.
    """
    reasons = {
        address: gpu.fault or health.judge_recovery(gpu.recovery)
        for address, gpu in reader.gpus.items()
    }
    lost = (
        reader.gpus.lost if isinstance(reader.gpus, nvml_gpus.NvmlGpus) else ()
    )
    missing = _bound_gpus(reader) - reasons.keys() if lost else frozenset()
    if len(missing) == len(lost):
        reasons |= dict.fromkeys(missing, "; ".join(dict.fromkeys(lost)))
    return reasons


def _bound_gpus(reader: host_reader.HostReader) -> frozenset[str]:
    """Return the GPUs bound to NVIDIA's driver: NVML counts these."""
    try:
        functions = reader.all_functions()
    except errors.UnreadableError:
        return frozenset()
    return frozenset(
        str(function.address)
        for function in functions
        if function.vendor == _NVIDIA
        and function.is_display
        and function.driver == _NVIDIA_DRIVER
        and function.physfn is None
    )
