# SPDX-License-Identifier: Apache-2.0
"""Health of devices in sysfs: AER counters, configuration space.

At most five small files are read of each card, however many VFs it has: a
VF has no errors of its own that its PF would not show, and its own ids
read as ones where it is well.

Reading the configuration space of a function that is asleep would wake
it, or the port above it (pci_config_pm_runtime_get(),
drivers/pci/pci-sysfs.c). So it is not read while ``power/runtime_status``
says that it sleeps (Documentation/ABI/testing/sysfs-devices-power).
"""

from collections.abc import Iterable, Iterator, Mapping

from nova_accel import errors, model
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.state import error_baseline
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
_ASLEEP = frozenset({"suspended", "suspending"})
_PHYSFN = "physfn"
_NVIDIA, _NVIDIA_DRIVER = "10de", "nvidia"


def find(
    reader: host_reader.HostReader,
    devices: tuple[model.Device, ...],
    seen_to: error_baseline.ErrorBaseline | None = None,
) -> Mapping[str, model.Fault]:
    """Return what is wrong with devices, by address; healthy ones not.

    What can't be read is unknown, and makes nobody ill. Whoever is ill for
    what is found here heals by itself, when it is found no more.

    :param reader: it has looked at the devices just now.
    :param seen_to: the errors that somebody has seen to; None for none.
    """
    signs = {d.address: read_signs(reader, d) for d in devices}
    done = _still_valid(seen_to, signs.values()) if seen_to else {}
    gpus = _judge_gpus(reader)
    reasons = {}
    for device in devices:
        card = device.parent or device.address
        kernel = health.judge(card, signs[device.address], done)
        told = filter(None, (kernel, gpus.get(card)))
        reasons[device.address] = "; ".join(told)
    return health.ill(reasons)


def _still_valid(
    seen_to: error_baseline.ErrorBaseline,
    signs: Iterable[tuple[health.HealthReading, ...]],
) -> Mapping[str, int]:
    """Return what is acknowledged, but for what is outdated.

    A function that counts less than that was enumerated again since.
    """
    done = seen_to.read()
    counts = _counts(one for them in signs for one in them)
    again = {a for a, count in counts.items() if count < done.get(a, 0)}
    seen_to.forget(again)
    return {a: count for a, count in done.items() if a not in again}


def is_changed(last: host_reader.HostReader) -> bool:
    """Return whether a card went, or came back, since it was looked at.

    The kernel sends no uevent for that. Fatal errors are left out here.

    :param last: what has looked at the cards.
    """
    fresh = host_reader.HostReader(source=last.files.source)
    places = (*last.files.heads(), *last.files.texts(_RUNTIME))
    names = {place.removesuffix(f"/{_RUNTIME}") for place in places}
    names = {name.removesuffix(f"/{_HEAD}") for name in names}
    return any(
        _mood(_read(last, name)) != _mood(_read(fresh, name))
        for name in (place.rpartition("/")[2] for place in names)
        if pci.is_address(name)
    )


def _mood(signs: health.HealthReading) -> tuple[bool, bool]:
    return signs.is_gone, signs.is_powerless


def read_counts(
    reader: host_reader.HostReader, device: model.Device
) -> Mapping[str, int]:
    """Return how many fatal errors each function of a device had.

    By the function's address; one that tells none is left out.
    """
    return _counts(read_signs(reader, device))


def read_signs(
    reader: host_reader.HostReader, device: model.Device
) -> tuple[health.HealthReading, ...]:
    """Return what the kernel shows of a device's functions.

    Of a VF it is what its PF shows.
    """
    places: dict[str, None] = {}
    for name in _names(device):
        places[_physical(reader, name)] = None
    return tuple(_read(reader, name) for name in places)


def _names(device: model.Device) -> Iterator[str]:
    card = device.region.card if device.region else ""
    names = (device.parent or device.address, *device.members, card)
    return filter(pci.is_address, names)


def _counts(signs: Iterable[health.HealthReading]) -> dict[str, int]:
    return {one.address: one.fatal for one in signs if one.fatal is not None}


def _physical(reader: host_reader.HostReader, name: str) -> str:
    """Return a function's PF, or itself."""
    try:
        found = reader.files.link(f"{_FUNCTIONS}/{name}/{_PHYSFN}")
    except errors.UnreadableError:
        return name
    return found if pci.is_address(found) else name


def _read(reader: host_reader.HostReader, name: str) -> health.HealthReading:
    try:
        present = frozenset(reader.names(name))
    except errors.UnreadableError:
        return health.HealthReading(address=name)
    power = _text(reader, name, _POWER, present)
    return health.HealthReading(
        address=name,
        counts=health.parse_errors(_text(reader, name, _ERRORS, present)),
        head=_head(reader, name, present),
        power=power,
    )


def _head(
    reader: host_reader.HostReader, name: str, present: frozenset[str]
) -> bytes:
    if _HEAD not in present:
        return b""
    if _text(reader, name, _RUNTIME, present) in _ASLEEP:
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
    """Return what NVML says against GPUs, by address.

    Of a GPU that is lost NVML does not tell the address. Where as many are
    lost as are missing of those that the driver holds, it is those.
    """
    found = {
        address: one.fault or health.judge_recovery(one.recovery)
        for address, one in reader.gpus.items()
    }
    lost = (
        reader.gpus.lost
        if isinstance(reader.gpus, gpu_reader.NvmlGpus)
        else ()
    )
    missing = _held(reader) - found.keys() if lost else frozenset()
    if len(missing) == len(lost):
        found |= dict.fromkeys(missing, "; ".join(dict.fromkeys(lost)))
    return found


def _held(reader: host_reader.HostReader) -> frozenset[str]:
    """Return the GPUs that NVIDIA's driver holds, and so NVML counts."""
    try:
        functions = reader.functions()
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
