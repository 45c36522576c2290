# SPDX-License-Identifier: Apache-2.0
"""Report on a flavor's accelerators: keys, values and their texts."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from nova_accel.model import flavors, names
from placement_sync.fleet.flavors import flavor_specs, lookup, offered_devices

# A setting of the guest that the flavor does not have.
_UNSET = "left to libvirt"
_LEFT_TO_HOST = "left to the host"
_SWITCH_VALUES = {True: "on", False: "off"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorReport:
    """A flavor, and the capacity of the cloud for it.

    ``flavor`` has its id and name. ``refusal`` is why no host can serve it
    now, empty if a host can. ``room`` is the number of servers that there is
    room for now, at most; None if Placement shows no devices to the user, who
    knows no ``refusal`` then but one by the flavor itself. ``carriers`` are
    the names of the devices with each pin trait of the flavor.
    """

    flavor: Mapping[str, str]
    contents: flavor_specs.FlavorContents
    specs: Mapping[str, str]
    refusal: str
    room: int | None
    carriers: Mapping[str, Sequence[str]]

    @property
    def can_be_served(self) -> bool | None:
        """Return whether a host can serve it now; None if not known."""
        if self.refusal:
            return False
        return None if self.room is None else True


def as_dict(report: FlavorReport) -> dict[str, object]:
    """Return the report for JSON; its keys are a stable interface."""
    return {
        "flavor": dict(report.flavor),
        "groups": [
            {
                "suffix": group.suffix,
                "resources": dict(group.resources),
                "required": sorted(group.required),
                "forbidden": sorted(group.forbidden),
                "bitstream": group.bitstream or None,
            }
            for group in report.contents.groups
        ],
        "settings": {
            name: {"value": value, "is_default": is_default}
            for name, value, is_default in _list_settings(report)
        },
        "group_policy": report.specs.get(flavor_specs.POLICY),
        "devices": {
            t: list(device_names)
            for t, device_names in report.carriers.items()
        },
        "can_be_served": report.can_be_served,
        "reason": report.refusal or None,
        "room": report.room,
    }


def as_cells(
    report: FlavorReport, types: offered_devices.VgpuTypes
) -> Mapping[str, str]:
    """Return the text of those keys of ``as_dict`` that have objects."""
    cells = {
        "groups": _format_groups(report, types),
        "settings": _format_settings(report),
        "devices": _format_pins(report),
    }
    return {name: "\n".join(lines) or "-" for name, lines in cells.items()}


def _format_groups(
    report: FlavorReport, types: offered_devices.VgpuTypes
) -> Iterator[str]:
    for group_name, devices in flavor_specs.list_requests(report.contents):
        yield from _format_devices(group_name, devices, types)


def _format_settings(report: FlavorReport) -> Iterator[str]:
    for name, value, is_default in _list_settings(report):
        yield f"{name}: {value}{' (default)' * is_default}"


def _format_pins(report: FlavorReport) -> Iterator[str]:
    for trait, device_names in report.carriers.items():
        yield _format_pin(trait, device_names)


def _format_devices(
    group_name: str,
    devices: flavor_specs.DeviceRequest,
    types: offered_devices.VgpuTypes,
) -> Iterator[str]:
    group = flavors.RequestGroup(
        suffix=group_name,
        resources=devices.resources,
        required=devices.required,
    )
    each = ", each " if devices.count > 1 else ", "
    own_first = sorted(
        devices.resources, key=lambda n: (n in names.MEASURES, n)
    )
    amounts = ", ".join(f"{n} {devices.resources[n]}" for n in own_first)
    yield (
        f"{group_name or '(no group)'}: {devices.count} x"
        f" {lookup.describe_group(group, types)}{each}{amounts}"
    )
    if devices.required:
        yield f"  requires {', '.join(sorted(devices.required))}"
    if devices.bitstream:
        yield f"  loads image {devices.bitstream}"


def _format_pin(trait: str, device_names: Sequence[str]) -> str:
    if device_names:
        return f"only {' or '.join(device_names)} ({trait})"
    tail = trait.removeprefix(names.PIN_PREFIX)
    return (
        f"only {tail}, but no provider has {trait} any more; set the flavor"
        " again, with another --device or without"
    )


def _list_settings(report: FlavorReport) -> Iterator[tuple[str, str, bool]]:
    """Yield each setting, its value, and whether it is the default."""
    policy, options = report.contents.policy, report.contents.options
    values: dict[str, str] = {
        "numa_policy": policy.numa.value,
        "locality": policy.locality.value,
        "packing": policy.packing.value,
        "display": _format_switch(options.has_display),
        "ramfb": _format_switch(options.has_ramfb),
        "rom": _format_switch(options.has_rom),
        flavors.GUEST_TOPOLOGY: options.guest_topology.value
        if options.guest_topology
        else _LEFT_TO_HOST,
        flavors.MEMORY_NODES: str(options.memory_nodes),
    }
    for name in flavor_specs.SETTINGS:
        key = f"{flavors.NAMESPACE}{name}"
        yield name, values[name], key not in report.specs
    choices = report.specs.get(f"{flavors.NAMESPACE}{flavors.PROFILES}")
    if choices is not None:
        yield flavors.PROFILES, choices, False


def _format_switch(value: bool | None) -> str:
    return _UNSET if value is None else _SWITCH_VALUES[value]
