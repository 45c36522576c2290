# SPDX-License-Identifier: Apache-2.0
"""Rows of devices: state, mode, used and total units, what still fits."""

import dataclasses
from collections.abc import Iterable, Mapping

from nova_accel.inventory import health, wording
from nova_accel.model import names, providers
from placement_sync.fleet.devices import drain_notes, fleet_query, fleet_state
from placement_sync.fleet.flavors import offered_devices, profile_list

#: Units of the classes that are measured; other classes count themselves.
UNITS = {names.GPU_MEMORY_CLASS: "MB", names.MIG_SLICE_CLASS: "slices"}
# Class that a device's use is measured in; the first that it has.
_MEASURED = (names.MIG_SLICE_CLASS, names.GPU_MEMORY_CLASS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnitUsage:
    """Used units and all units of one resource class, reserved included.

    ``unit`` is empty for a device without inventories, such as an FPGA whose
    regions have them.
    """

    used: int
    total: int
    unit: str

    def __str__(self) -> str:
        """Return ``4096/16384 MB``, or ``-`` without a resource class."""
        if not self.unit:
            return "-"
        return f"{self.used}/{self.total} {self.unit}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FreeProfile:
    """Profile that a device can create, and how many more at most."""

    name: str
    count: int
    charges: Mapping[str, int]

    def __str__(self) -> str:
        """Return ``1 x A100-3-20C``."""
        return f"{self.count} x {self.name}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """State of a device. ``fits`` are free profiles, the largest first.

    ``mode`` is the layout of its partitions, empty for a device without
    them. ``consumers`` are the uuids of its holders, empty where the fleet
    has none, ``drains`` the notes on its drain, and ``fault_text`` its fault
    in its host's words, if they were read.
    """

    device: offered_devices.OfferedDevice
    state: str
    mode: str
    usage: UnitUsage
    consumers: tuple[str, ...]
    fits: tuple[FreeProfile, ...]
    drains: tuple[drain_notes.DrainNote, ...] = ()
    fault_text: str = ""

    @property
    def model(self) -> str:
        """Return the model of the card, such as ``NVIDIA A40``."""
        return offered_devices.model_name(self.device.model)

    @property
    def fault(self) -> str:
        """Return its fault in words, else the causes; empty without one."""
        if names.FAULTED_TRAIT not in self.device.traits:
            return ""
        return (
            self.fault_text
            or health.describe_causes(self.device.traits)
            or "`nova-accel inspect` on its host prints the cause"
        )

    @property
    def largest(self) -> FreeProfile | None:
        """Return the largest profile that fits, None if none does."""
        return self.fits[0] if self.fits else None


def list_devices(
    fleet: fleet_state.Fleet, types: offered_devices.VgpuTypes
) -> tuple[DeviceRow, ...]:
    """Return a row for each device, by host and address."""
    devices = sorted(fleet.devices, key=lambda d: (d.host, d.address))
    consumers = fleet.list_consumers()
    # A cloud has thousands of devices, and few kinds and states of them.
    fits: dict[object, tuple[FreeProfile, ...]] = {}
    rows = []
    for device in devices:
        capacities = frozenset(device.capacities.items())
        key = (device.traits, device.model, capacities, device.is_stale)
        if key not in fits:
            fits[key] = list_free_profiles(device, types)
        holders = consumers.get(device.uuid, frozenset())
        row = _build_row(device, holders, fits[key])
        rows.append(
            dataclasses.replace(
                row,
                drains=fleet.drains.get(device.uuid, ()),
                fault_text=fleet.faults.get(device.uuid, ""),
            )
        )
    return tuple(rows)


def select_free(rows: Iterable[DeviceRow]) -> tuple[DeviceRow, ...]:
    """Return the rows of devices that have room for a profile."""
    return tuple(row for row in rows if row.fits)


def _build_row(
    device: offered_devices.OfferedDevice,
    consumers: frozenset[str],
    fits: tuple[FreeProfile, ...],
) -> DeviceRow:
    return DeviceRow(
        device=device,
        state=fleet_query.find_state(device),
        mode=find_mode(device),
        usage=measure(device),
        consumers=tuple(sorted(consumers)),
        fits=fits,
    )


def find_mode(device: offered_devices.OfferedDevice) -> str:
    """Return the layout in a device's traits, empty without one."""
    layouts = sorted(
        t.removeprefix(names.LAYOUT_PREFIX).lower()
        for t in device.traits
        if t.startswith(names.LAYOUT_PREFIX)
    )
    return layouts[0] if layouts else ""


def measured_class(device: offered_devices.OfferedDevice) -> str:
    """Return the class that a device's use is measured in, or ""."""
    return next(
        (name for name in _MEASURED if name in device.capacities),
        min(device.capacities, default=""),
    )


def measure(device: offered_devices.OfferedDevice) -> UnitUsage:
    """Return a device's use in slices, memory or else its own class."""
    name = measured_class(device)
    capacity = device.capacities.get(name, providers.ClassCapacity(capacity=0))
    return UnitUsage(
        used=capacity.used,
        total=capacity.total,
        unit=UNITS.get(name, name),
    )


def list_free_profiles(
    device: offered_devices.OfferedDevice, types: offered_devices.VgpuTypes
) -> tuple[FreeProfile, ...]:
    """Return the profiles that fit now, the largest first."""
    fitting = [
        FreeProfile(name=terms.name, count=count, charges=terms.charges)
        for terms, is_available in offered_devices.list_terms(device, types)
        if is_available
        and (count := profile_list.count_free(device, terms, types)) > 0
    ]
    return tuple(sorted(fitting, key=_sort_key))


def _sort_key(profile: FreeProfile) -> tuple[object, ...]:
    sizes = (profile.charges.get(n, 0) for n in reversed(_MEASURED))
    return (*(-size for size in sizes), wording.natural_key(profile.name))
