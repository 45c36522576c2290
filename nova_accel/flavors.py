# SPDX-License-Identifier: Apache-2.0
"""What a flavor asks for, read from its extra specs."""

import dataclasses
import re
from collections.abc import Mapping

from nova_accel import errors, names

# What Nova's API lets pass: a namespace that it does not know.
_NAMESPACE = "accelerator:"
_BITSTREAM = f"{_NAMESPACE}fpga_bitstream"
_SWITCH = {"on": True, "off": False}

# Nova's own key patterns (nova/scheduler/utils.py,
# ResourceRequest.XS_KEYPAT): an optional suffix of up to 64 characters
# behind "resources" or "trait" names the request group.
_KEY = re.compile(
    r"(?P<kind>resources|trait)(?P<suffix>[a-zA-Z0-9_-]{1,64})?:(?P<name>.+)"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroup:
    """One request group: what a single provider has to give.

    ``suffix`` is empty for the group without one, whose resources may come
    from several providers. ``bitstream`` is the id of the Glance image that
    is to be loaded into its FPGA regions, empty for none.
    """

    suffix: str
    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    bitstream: str = ""

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
            f"flavor extra spec {_NAMESPACE}ramfb",
            "on",
            f"off, or {_NAMESPACE}display=on beside it",
        )
    return found


def _switch(extra_specs: Mapping[str, str], name: str) -> bool | None:
    key = f"{_NAMESPACE}{name}"
    if key not in extra_specs:
        return None
    value = str(extra_specs[key])
    if value.strip().lower() not in _SWITCH:
        raise errors.MalformedError(
            f"flavor extra spec {key}", value, "on or off"
        )
    return _SWITCH[value.strip().lower()]


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
    own = extra_specs.get(f"{_BITSTREAM}{suffix}", "")
    if own or any(
        trait.startswith(names.FUNCTION_PREFIX)
        for trait in _named(traits, "required")
    ):
        return str(own).strip()
    return str(extra_specs.get(_BITSTREAM, "")).strip()


def _named(traits: Mapping[str, str], value: str) -> frozenset[str]:
    return frozenset(name for name, said in traits.items() if said == value)
