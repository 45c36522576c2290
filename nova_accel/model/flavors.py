# SPDX-License-Identifier: Apache-2.0
"""Request groups and options, parsed from a flavor's extra specs."""

import dataclasses
import enum
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from nova_accel import errors
from nova_accel.model import names

# Namespace of the library's keys; nova_accel.catalog.extra_specs lists them.
NAMESPACE = "accelerator:"
BITSTREAM = "fpga_bitstream"
GUEST_TOPOLOGY = "guest_topology"
MEMORY_NODES = "memory_nodes"
PROFILES = "profiles"
# Of a guest with eight GPUs there are 128 then, the limit of QEMU
# (include/sysemu/numa.h, MAX_NODES).
MAX_MEMORY_NODES = 15
# Nova's own key patterns (nova/scheduler/utils.py,
# ResourceRequest.XS_KEYPAT): an optional suffix of up to 64 characters
# behind "resources" or "trait" names the request group.
SUFFIX = "[a-zA-Z0-9_-]{1,64}"
_KEY = re.compile(
    rf"(?P<kind>resources|trait)(?P<suffix>{SUFFIX})?:(?P<name>.+)"
)

# Names of the request groups that are proposed for a kind of device.
_GROUP_NAMES = {
    names.FPGA_CLASS: "FPGA",
    names.MDEV_CLASS: "MDEV",
    names.GPU_CLASS: "GPU",
    names.WHOLE_GPU_CLASS: "GPU",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroup:
    """One request group: resources and traits of a single provider.

    ``suffix`` is empty for the unsuffixed group, whose resources may come
    from several providers. ``bitstream`` is the id of the Glance image to
    load into its FPGA regions, empty for none. ``slot`` is a provider and
    one of its identifiers, where no other slot may satisfy the group.
    """

    suffix: str
    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    bitstream: str = ""
    slot: tuple[str, str] | None = None

    def __str__(self) -> str:
        """Return the group in words: ``VGPU 1 with CUSTOM_VGPU_X``."""
        amounts = ", ".join(
            f"{name} {amount}" for name, amount in self.resources.items()
        )
        traits = sorted(self.required) + [
            f"not {trait}" for trait in sorted(self.forbidden)
        ]
        return f"{amounts} with {', '.join(traits)}" if traits else amounts


class SpecValue(enum.Enum):
    """Base class of the values of an extra spec."""

    _value_: str


class GuestTopology(SpecValue):
    """PCIe topology of the host that the guest sees.

    PCIE: its root complexes and switches. NUMA: its NUMA nodes. NONE: all
    devices are on root ports of one bus.
    """

    NONE = "none"
    NUMA = "numa"
    PCIE = "pcie"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a guest's devices; None for libvirt's default.

    ``has_display`` makes vGPUs consoles of the guest, ``has_ramfb`` shows
    them already in the firmware. ``has_rom`` exposes the expansion ROMs of
    its PCI functions to the guest. ``memory_nodes`` is the number of NUMA
    nodes of the guest for the memory of each whole function, 0 for none.
    ``guest_topology`` is None for the default of the host.
    """

    has_display: bool | None = None
    has_ramfb: bool | None = None
    has_rom: bool | None = None
    memory_nodes: int = 0
    guest_topology: GuestTopology | None = None


_Value = TypeVar("_Value", bound=SpecValue)


class Switch(SpecValue):
    """Value of an extra spec that is on or off."""

    ON = "on"
    OFF = "off"


class NumaPolicy(SpecValue):
    """Importance of having the devices on the guest's NUMA nodes."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    NONE = "none"


class Locality(SpecValue):
    """Required locality of the devices of one server.

    NVLINK: each has an NVLink to each other. PCIE: all are below one PCIe
    root port. NUMA: all are on one NUMA node. DIFFERENT_CARD: no two are
    of one card. ANY: no requirement.
    """

    NVLINK = "nvlink"
    PCIE = "pcie"
    NUMA = "numa"
    DIFFERENT_CARD = "different_card"
    ANY = "any"


class Packing(SpecValue):
    """Order of preference among a host's devices with room.

    PACK: the fullest first. SPREAD: the emptiest first. BEST_REMAINING:
    the least loss of what usual requests could use first. EXCLUSIVE: the
    same order, of devices that the server takes as a whole.
    """

    PACK = "pack"
    SPREAD = "spread"
    BEST_REMAINING = "best_remaining"
    EXCLUSIVE = "exclusive"

    @property
    def is_by_loss(self) -> bool:
        """Return whether the loss of usable share decides."""
        return self in (Packing.BEST_REMAINING, Packing.EXCLUSIVE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SelectionPolicy:
    """Choice of a flavor among the devices with room for its server."""

    numa: NumaPolicy = NumaPolicy.PREFERRED
    locality: Locality = Locality.ANY
    packing: Packing = Packing.BEST_REMAINING


DEFAULT_POLICY = SelectionPolicy()


def group_name(resources: Iterable[str]) -> str:
    """Return the name to propose for request groups, such as ``GPU``.

    :param resources: the resource classes that a group requests.
    """
    proposed = (_GROUP_NAMES.get(name) for name in resources)
    return next(filter(None, proposed), "ACCEL")


def parse_selection_policy(extra_specs: Mapping[str, str]) -> SelectionPolicy:
    """Return the selection policy of a flavor.

    It reads ``accelerator:numa_policy``, ``accelerator:locality`` and
    ``accelerator:packing``.

    :raises MalformedError: a value is not allowed.
    """
    return SelectionPolicy(
        numa=_parse_value(extra_specs, "numa_policy", NumaPolicy)
        or DEFAULT_POLICY.numa,
        locality=_parse_value(extra_specs, "locality", Locality)
        or DEFAULT_POLICY.locality,
        packing=_parse_value(extra_specs, "packing", Packing)
        or DEFAULT_POLICY.packing,
    )


def _parse_value(
    extra_specs: Mapping[str, str], name: str, kind: type[_Value]
) -> _Value | None:
    """Return a value in any case: see ``extra_specs.ExtraSpec.accepts``."""
    key = f"{NAMESPACE}{name}"
    if key not in extra_specs:
        return None
    value = str(extra_specs[key])
    try:
        return kind(value.strip().lower())
    except ValueError:
        raise errors.MalformedError(
            f"flavor extra spec {key}",
            value,
            f"one of: {', '.join(member.value for member in kind)}",
        ) from None


def parse_options(extra_specs: Mapping[str, str]) -> Options:
    """Return a flavor's options of the guest's devices.

    It reads ``accelerator:display``, ``accelerator:ramfb`` and
    ``accelerator:rom``, each ``on`` or ``off``,
    ``accelerator:guest_topology`` and ``accelerator:memory_nodes``.

    :raises MalformedError: a value is not allowed, or ramfb is on without
        display.
    """
    options = Options(
        has_display=_parse_switch(extra_specs, "display"),
        has_ramfb=_parse_switch(extra_specs, "ramfb"),
        has_rom=_parse_switch(extra_specs, "rom"),
        memory_nodes=_parse_memory_nodes(extra_specs),
        guest_topology=_parse_value(
            extra_specs, GUEST_TOPOLOGY, GuestTopology
        ),
    )
    if options.has_ramfb and not options.has_display:
        raise errors.MalformedError(
            f"flavor extra spec {NAMESPACE}ramfb",
            "on",
            f"off, or {NAMESPACE}display=on beside it",
        )
    return options


def _parse_switch(extra_specs: Mapping[str, str], name: str) -> bool | None:
    switch = _parse_value(extra_specs, name, Switch)
    return None if switch is None else switch is Switch.ON


def _parse_memory_nodes(extra_specs: Mapping[str, str]) -> int:
    key = f"{NAMESPACE}{MEMORY_NODES}"
    text = str(extra_specs.get(key, "0")).strip()
    if not re.fullmatch("[0-9]{1,2}", text) or int(text) > MAX_MEMORY_NODES:
        raise errors.MalformedError(
            f"flavor extra spec {key}",
            text,
            f"a whole number from 0 to {MAX_MEMORY_NODES}",
        )
    return int(text)


def parse_groups(extra_specs: Mapping[str, str]) -> tuple[RequestGroup, ...]:
    """Return a flavor's request groups, sorted by suffix.

    Values that Nova refuses are ignored: its API has checked them, and its
    scheduler logs them. A group of FPGA regions has the bitstream of
    ``accelerator:fpga_bitstream<suffix>``, or that of
    ``accelerator:fpga_bitstream`` unless it requires a function.
    """
    resources: dict[str, dict[str, int]] = {}
    traits: dict[str, dict[str, str]] = {}
    for key, value in extra_specs.items():
        match = _KEY.fullmatch(key)
        if match is None:
            continue
        suffix = match["suffix"] or ""
        if match["kind"] == "trait":
            traits.setdefault(suffix, {})[match["name"]] = value
        elif (amount := _parse_amount(value)) is not None:
            resources.setdefault(suffix, {})[match["name"]] = amount
    return tuple(
        RequestGroup(
            suffix=suffix,
            resources=resources.get(suffix, {}),
            required=_traits_of(traits.get(suffix, {}), "required"),
            forbidden=_traits_of(traits.get(suffix, {}), "forbidden"),
            bitstream=_find_bitstream(
                extra_specs,
                suffix,
                resources.get(suffix, {}),
                traits.get(suffix, {}),
            ),
        )
        for suffix in sorted(resources.keys() | traits.keys())
    )


def _parse_amount(text: str) -> int | None:
    """Return an amount as Nova parses it, None where Nova ignores it."""
    try:
        amount = int(text)
    except ValueError:
        return None
    return amount if amount >= 0 else None


def _find_bitstream(
    extra_specs: Mapping[str, str],
    suffix: str,
    resources: Mapping[str, int],
    traits: Mapping[str, str],
) -> str:
    if not resources.get(names.FPGA_CLASS):
        return ""
    own = extra_specs.get(f"{NAMESPACE}{BITSTREAM}{suffix}", "")
    if own or any(
        trait.startswith(names.FUNCTION_PREFIX)
        for trait in _traits_of(traits, "required")
    ):
        return str(own).strip()
    return str(extra_specs.get(f"{NAMESPACE}{BITSTREAM}", "")).strip()


def _traits_of(traits: Mapping[str, str], value: str) -> frozenset[str]:
    return frozenset(name for name, text in traits.items() if text == value)
