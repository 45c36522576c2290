# SPDX-License-Identifier: Apache-2.0
"""What the operator allows: device_spec lines of nova.conf, parsed."""

import dataclasses
import enum
import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel import errors

OPTION = "[nova_accel] device_spec"
_HEX_ID = re.compile(r"[0-9a-f]{4}|\*")
_KEYS = ("address", "vendor_id", "product_id", "use", "max_slots")


class Use(enum.Enum):
    """What a device is used for.

    VGPU: time-sliced vGPUs, by mdev or by NVIDIA's vendor-specific VFIO.
    MIG: vGPUs backed by GPU instances. VF: virtual functions as they are.
    MDEV: the mdevs of whatever else makes them. AUTO: what the device can
    do now without a change of its mode.
    """

    AUTO = "auto"
    VGPU = "vgpu"
    MIG = "mig"
    VF = "vf"
    MDEV = "mdev"
    PASSTHROUGH = "passthrough"
    OFF = "off"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One device_spec line. The first line that matches a device counts.

    ``address`` is a shell-style glob over the device's address or sysfs
    name; ids are four hex digits, or ``*``. ``max_slots`` limits how many
    partitions are offered, None for as many as the hardware can make.

    ``profiles`` are globs over profile names of which one must match,
    ``max_instances`` limits by profile name how many there may be at once.
    ``is_mixed`` asks for mixed or equal sizes, None for what the card does
    now; ``num_vfs`` for so many VFs, None for as many as there are.
    ``is_dynamic`` lets GPU instances be made and unmade for claims.
    ``vgpu_params`` are written to each vGPU. ``line`` is the text.
    """

    address: str = "*"
    vendor_id: str = "*"
    product_id: str = "*"
    use: Use = Use.AUTO
    max_slots: int | None = None
    profiles: tuple[str, ...] = ("*",)
    max_instances: Mapping[str, int] = dataclasses.field(
        default_factory=dict
    )
    is_mixed: bool | None = None
    num_vfs: int | None = None
    is_dynamic: bool = False
    vgpu_params: str = ""
    line: str = ""

    def offers(self, profile: str) -> bool:
        """Return whether a profile of that name is offered."""
        return any(fnmatch.fnmatchcase(profile, p) for p in self.profiles)

    def matches(self, address: str, vendor_id: str, product_id: str) -> bool:
        """Return whether the line speaks of that device."""
        return (
            fnmatch.fnmatchcase(address, self.address)
            and self.vendor_id in ("*", vendor_id)
            and self.product_id in ("*", product_id)
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All lines, in the operator's order."""

    rules: tuple[Rule, ...] = ()

    def rule(
        self, address: str, vendor_id: str = "", product_id: str = ""
    ) -> Rule:
        """Return the line for a device; the default when none matches."""
        return next(
            (
                rule
                for rule in self.rules
                if rule.matches(address, vendor_id, product_id)
            ),
            Rule(),
        )


def parse_policy(lines: Iterable[str]) -> Policy:
    """Return the policy that device_spec lines describe.

    :param lines: one JSON object each, as ``{"address": "0000:41:*",
        "use": "off"}``.
    :raises ConfigurationError: a line is no such object; the error names
        the line and the mend.
    """
    return Policy(rules=tuple(_parse_rule(line) for line in lines))


def _parse_rule(line: str) -> Rule:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise errors.ConfigurationError(
            OPTION, line, f"write one JSON object a line ({error})"
        ) from error
    if not isinstance(fields, dict):
        raise errors.ConfigurationError(
            OPTION, line, 'write a JSON object, as {"address": "0000:41:*"}'
        )
    for key in fields:
        if key not in _KEYS:
            raise errors.ConfigurationError(
                OPTION, line, f"unknown key {key!r}; use {', '.join(_KEYS)}"
            )
    return Rule(
        address=_address(line, fields),
        vendor_id=_hex_id(line, fields, "vendor_id"),
        product_id=_hex_id(line, fields, "product_id"),
        use=_use(line, fields),
        max_slots=_limit(line, fields),
    )


def _text(line: str, fields: dict[str, Any], key: str) -> str:
    value = fields.get(key, "*")
    if not isinstance(value, str) or not value:
        raise errors.ConfigurationError(
            OPTION, line, f"{key} must be a non-empty string"
        )
    return value


def _address(line: str, fields: dict[str, Any]) -> str:
    """Return the glob; the kernel spells PCI addresses in lower case."""
    value = _text(line, fields, "address")
    return value.lower() if ":" in value else value


def _hex_id(line: str, fields: dict[str, Any], key: str) -> str:
    value = _text(line, fields, key).lower().removeprefix("0x")
    if _HEX_ID.fullmatch(value):
        return value
    raise errors.ConfigurationError(
        OPTION, line, f'{key} must be four hex digits, as "10de", or "*"'
    )


def _use(line: str, fields: dict[str, Any]) -> Use:
    value = fields.get("use", Use.AUTO.value)
    allowed = [use.value for use in Use]
    if value not in allowed:
        raise errors.ConfigurationError(
            OPTION, line, f"use must be one of {', '.join(allowed)}"
        )
    return Use(value)


def _limit(line: str, fields: dict[str, Any]) -> int | None:
    value = fields.get("max_slots")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise errors.ConfigurationError(
            OPTION, line, "max_slots must be a whole number from 1"
        )
    return value
