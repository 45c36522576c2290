# SPDX-License-Identifier: Apache-2.0
"""A flavor's accelerators, as text and as JSON."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from nova_accel.model import flavors, names
from placement_sync.flavors import flavor_specs, lookup, offered_devices

# A setting of the guest that the flavor leaves alone.
_LEFT = "left to libvirt"
_SAID = {True: "on", False: "off"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorReport:
    """A flavor, and what the cloud has for it.

    ``flavor`` has its id and name. ``never`` is why no host can ever serve
    it, empty if one can; ``room`` for how many servers there is room now,
    at most. ``carriers`` are the devices that have each trait by which
    the flavor names one.
    """

    flavor: Mapping[str, str]
    asked: flavor_specs.FlavorContents
    specs: Mapping[str, str]
    never: str
    room: int
    carriers: Mapping[str, Sequence[str]]


def as_dict(report: FlavorReport) -> dict[str, object]:
    """Return the report for programs; its keys are a stable interface."""
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
            for group in report.asked.groups
        ],
        "settings": {
            name: {"value": value, "is_default": is_default}
            for name, value, is_default in _settings(report)
        },
        "group_policy": report.specs.get(flavor_specs.POLICY),
        "devices": {t: list(who) for t, who in report.carriers.items()},
        "can_be_served": not report.never,
        "reason": report.never or None,
        "room": report.room,
    }


def as_text(report: FlavorReport, types: offered_devices.VgpuTypes) -> str:
    """Return the report for people."""
    flavor = f"{report.flavor['name']} ({report.flavor['id']})"
    if not report.asked.groups:
        return f"{flavor} asks for no accelerators\n"
    lines = [flavor, *(f"  {line}" for line in _lines(report, types))]
    return "\n".join(lines) + "\n"


def _lines(
    report: FlavorReport, types: offered_devices.VgpuTypes
) -> Iterator[str]:
    for word, want in flavor_specs.wants(report.asked):
        yield from _devices(word, want, types)
    for name, value, is_default in _settings(report):
        yield f"{name}: {value}{' (default)' * is_default}"
    if report.asked.is_isolated:
        yield "group_policy: isolate (no two groups on one provider)"
    for trait, who in report.carriers.items():
        yield f"device: {_carried(trait, who)}"
    if report.never:
        yield f"no host can ever serve it: {report.never}"
        return
    yield "can be served: yes"
    plural = "" if report.room == 1 else "s"
    yield f"room now: {report.room} server{plural} at most"


def _devices(
    word: str,
    want: flavor_specs.DeviceRequest,
    types: offered_devices.VgpuTypes,
) -> Iterator[str]:
    group = flavors.RequestGroup(
        suffix=word, resources=want.resources, required=want.required
    )
    each = ", each " if want.count > 1 else ", "
    own_first = sorted(want.resources, key=lambda n: (n in names.MEASURES, n))
    amounts = ", ".join(f"{n} {want.resources[n]}" for n in own_first)
    yield (
        f"{word or '(no group)'}: {want.count} x"
        f" {lookup.say(group, types)}{each}{amounts}"
    )
    if want.required:
        yield f"  requires {', '.join(sorted(want.required))}"
    if want.bitstream:
        yield f"  loads image {want.bitstream}"


def _carried(trait: str, who: Sequence[str]) -> str:
    if who:
        return f"only {' or '.join(who)} ({trait})"
    tail = trait.removeprefix(names.PIN_PREFIX)
    return (
        f"only the one called {tail}, and no provider has {trait} any more;"
        " set the flavor anew with --device, or without"
    )


def _settings(report: FlavorReport) -> Iterator[tuple[str, str, bool]]:
    """Yield each setting, its value, and whether that is the default."""
    placing, options = report.asked.placing, report.asked.options
    values = {
        "numa_policy": placing.numa.value,
        "locality": placing.locality.value,
        "packing": placing.packing.value,
        "display": _switch(options.has_display),
        "ramfb": _switch(options.has_ramfb),
        "rom": _switch(options.has_rom),
    }
    for name in flavor_specs.SETTINGS:
        key = f"{flavors.NAMESPACE}{name}"
        yield name, values[name], key not in report.specs


def _switch(value: bool | None) -> str:
    return _LEFT if value is None else _SAID[value]
