# SPDX-License-Identifier: Apache-2.0
"""Request groups and options, parsed from a flavor's extra specs."""

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import TypeVar

from nova_accel import errors
from nova_accel.model import names

# What begins every key of ours; nova_accel.model.extra_specs lists them.
NAMESPACE = "accelerator:"
BITSTREAM = "fpga_bitstream"
# Nova's own key patterns (nova/scheduler/utils.py,
# ResourceRequest.XS_KEYPAT): an optional suffix of up to 64 characters
# behind "resources" or "trait" names the request group.
SUFFIX = "[a-zA-Z0-9_-]{1,64}"
_KEY = re.compile(
    rf"(?P<kind>resources|trait)(?P<suffix>{SUFFIX})?:(?P<name>.+)"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroup:
    """One request group: what a single provider has to give.

    ``suffix`` is empty for the group without one, whose resources may come
    from several providers. ``bitstream`` is the id of the Glance image that
    is to be loaded into its FPGA regions, empty for none. ``slot`` are a
    provider and an identifier of it, where nothing else may serve it.
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a guest is given its devices; None leaves it to libvirt.

    ``has_display`` makes vGPUs consoles of the guest, ``has_ramfb`` shows
    them from the firmware on. ``has_rom`` tells whether the guest sees the
    expansion ROMs of its PCI functions.
    """

    has_display: bool | None = None
    has_ramfb: bool | None = None
    has_rom: bool | None = None


class SpecValue(enum.Enum):
    """A value of an extra spec, one of a few words."""

    _value_: str


_Word = TypeVar("_Word", bound=SpecValue)


class Switch(SpecValue):
    """Whether the guest has something, or does something."""

    ON = "on"
    OFF = "off"


class NumaPolicy(SpecValue):
    """How much it matters that devices are on the guest's NUMA nodes."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    NONE = "none"


class Locality(SpecValue):
    """What several devices of one server must have in common.

    NVLINK: each has an NVLink to each other. PCIE: all are below one PCIe
    root port. NUMA: all are on one NUMA node. DIFFERENT_CARD: no two are
    of one card. ANY: nothing.
    """

    NVLINK = "nvlink"
    PCIE = "pcie"
    NUMA = "numa"
    DIFFERENT_CARD = "different_card"
    ANY = "any"


class Packing(SpecValue):
    """Which of a host's devices that have room is taken.

    PACK: the fullest. SPREAD: the emptiest. BEST_REMAINING: the one of
    which most of the larger profiles stay possible.
    """

    PACK = "pack"
    SPREAD = "spread"
    BEST_REMAINING = "best_remaining"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPolicy:
    """Which of the devices that have room a server gets."""

    numa: NumaPolicy = NumaPolicy.PREFERRED
    locality: Locality = Locality.ANY
    packing: Packing = Packing.BEST_REMAINING


USUAL_PLACING = PlacementPolicy()


def parse_placing(extra_specs: Mapping[str, str]) -> PlacementPolicy:
    """Return what a flavor says of the choice among devices.

    Read are ``accelerator:numa_policy``, ``accelerator:locality`` and
    ``accelerator:packing``.

    :raises MalformedError: a value is none of the allowed ones.
    """
    return PlacementPolicy(
        numa=_word(extra_specs, "numa_policy", NumaPolicy)
        or USUAL_PLACING.numa,
        locality=_word(extra_specs, "locality", Locality)
        or USUAL_PLACING.locality,
        packing=_word(extra_specs, "packing", Packing)
        or USUAL_PLACING.packing,
    )


def _word(
    extra_specs: Mapping[str, str], name: str, kind: type[_Word]
) -> _Word | None:
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
            f"one of: {', '.join(one.value for one in kind)}",
        ) from None


def parse_options(extra_specs: Mapping[str, str]) -> Options:
    """Return what a flavor's ``accelerator:`` extra specs say of the guest.

    Read are ``accelerator:display``, ``accelerator:ramfb`` and
    ``accelerator:rom``, each ``on`` or ``off``; other keys of the
    namespace are for others.

    :raises MalformedError: a value is neither, or ramfb is asked for
        without a display.
    """
    found = Options(
        has_display=_switch(extra_specs, "display"),
        has_ramfb=_switch(extra_specs, "ramfb"),
        has_rom=_switch(extra_specs, "rom"),
    )
    if found.has_ramfb and not found.has_display:
        raise errors.MalformedError(
            f"flavor extra spec {NAMESPACE}ramfb",
            "on",
            f"off, or {NAMESPACE}display=on beside it",
        )
    return found


def _switch(extra_specs: Mapping[str, str], name: str) -> bool | None:
    found = _word(extra_specs, name, Switch)
    return None if found is None else found is Switch.ON


def parse_groups(extra_specs: Mapping[str, str]) -> tuple[RequestGroup, ...]:
    """Return a flavor's request groups, sorted by suffix.

    Values that Nova itself would refuse are left out: its API has checked
    them, and its scheduler logs them. A group of FPGA regions gets the
    bitstream of ``accelerator:fpga_bitstream<suffix>``, or that of
    ``accelerator:fpga_bitstream`` unless it names a function.
    """
    resources: dict[str, dict[str, int]] = {}
    traits: dict[str, dict[str, str]] = {}
    for key, value in extra_specs.items():
        found = _KEY.fullmatch(key)
        if found is None:
            continue
        suffix = found["suffix"] or ""
        if found["kind"] == "trait":
            traits.setdefault(suffix, {})[found["name"]] = value
        elif (amount := _amount(value)) is not None:
            resources.setdefault(suffix, {})[found["name"]] = amount
    return tuple(
        RequestGroup(
            suffix=suffix,
            resources=resources.get(suffix, {}),
            required=_named(traits.get(suffix, {}), "required"),
            forbidden=_named(traits.get(suffix, {}), "forbidden"),
            bitstream=_bitstream(
                extra_specs,
                suffix,
                resources.get(suffix, {}),
                traits.get(suffix, {}),
            ),
        )
        for suffix in sorted(resources.keys() | traits.keys())
    )


def _amount(text: str) -> int | None:
    """Return what Nova takes for an amount, None for what it leaves out."""
    try:
        amount = int(text)
    except ValueError:
        return None
    return amount if amount >= 0 else None


def _bitstream(
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
        for trait in _named(traits, "required")
    ):
        return str(own).strip()
    return str(extra_specs.get(f"{NAMESPACE}{BITSTREAM}", "")).strip()


def _named(traits: Mapping[str, str], value: str) -> frozenset[str]:
    return frozenset(name for name, said in traits.items() if said == value)
