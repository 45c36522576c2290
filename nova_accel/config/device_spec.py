# SPDX-License-Identifier: Apache-2.0
"""Validators of the values of a ``device_spec`` line."""

import re
from collections.abc import Mapping
from typing import Any

from nova_accel import errors
from nova_accel.model import names, strict_json

OPTION = "[nova_accel] device_spec"
KEYS = (
    "address",
    "vendor_id",
    "product_id",
    "use",
    "max_slots",
    "profiles",
    "max_instances",
    "sizes",
    "num_vfs",
    "mig_instances",
    "vgpu_params",
    "services",
    "blank",
    "scrub",
    "scrub_command",
)
ANY = "*"
# The parts of a PCI address, as Nova's [pci] device_spec names them.
_PARTS = ("domain", "bus", "slot", "function")
_PART_GLOB = re.compile(r"[0-9a-f*?!\[\]-]+")
_HEX_ID = re.compile(r"[0-9a-f]{4}|\*")
# What NVIDIA documents as plugin parameters: words, numbers, paths.
_PARAMS = re.compile(
    r"[A-Za-z_][\w.-]*=[\w.:/+-]*(?:,[A-Za-z_][\w.-]*=[\w.:/+-]*)*", re.ASCII
)
# As the kernel's qat driver writes them (ABI/testing/sysfs-driver-qat).
_SERVICES = re.compile(r"[a-z]+(?:;[a-z]+)*")
_PATH = re.compile(r"/[^\x00-\x1f]*[^\x00-\x1f/]")
# NVIDIA's host driver keeps 1024 bytes, the last one a zero.
_MAX_PARAMS = 1023
# drivers/pci/iov.c, sriov_numvfs_store(): a u16.
_MAX_VFS = 0xFFFF

Fields = Mapping[str, Any]

# Keys that make no sense beside a use: each with the uses that take it.
_GPU_USES = ("auto", "vgpu", "mig")
_WHOLE_USES = ("auto", "vf", "passthrough")
_TAKEN_BY: Mapping[str, tuple[str, ...]] = {
    "profiles": ("auto", "vgpu", "mig", "vf", "mdev"),
    "max_instances": ("auto", "vgpu", "mig", "vf", "mdev"),
    "sizes": ("auto", "vgpu"),
    "num_vfs": ("auto", "vgpu", "mig", "vf", "fpga"),
    "mig_instances": ("auto", "mig"),
    "vgpu_params": _GPU_USES,
    "services": ("auto", "vf"),
    "blank": ("auto", "fpga"),
    "scrub": _WHOLE_USES,
    "scrub_command": _WHOLE_USES,
}


def refusal(line: str, mend: str) -> errors.ConfigurationError:
    """Return the error that names a line and how to mend it."""
    return errors.ConfigurationError(OPTION, line, mend)


def parse_fields(line: str) -> Fields:
    """Return the keys and values of a line.

    :raises ConfigurationError: it is no JSON object, has a key twice or a
        key that is not known.
    """
    try:
        pairs = strict_json.loads(line, object_pairs_hook=_JsonObject)
    except ValueError as error:
        raise refusal(line, f"write one JSON object a line ({error})") from (
            error
        )
    if not isinstance(pairs, _JsonObject):
        raise refusal(line, 'write a JSON object, as {"address": "0000:41:*"}')
    for key in pairs.names:
        if key not in KEYS:
            raise refusal(line, f"unknown key {key!r}; use {', '.join(KEYS)}")
        if pairs.names.count(key) > 1:
            raise refusal(line, f"{key} is there twice; keep one")
    return dict(pairs)


class _JsonObject(dict[str, Any]):
    """A JSON object that remembers each key it was written with."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.names = [name for name, _ in pairs]


def address(line: str, fields: Fields) -> str:
    """Return the glob over addresses; PCI's are in lower case."""
    value = fields.get("address", ANY)
    if isinstance(value, dict):
        return _address_of_parts(line, value)
    if not isinstance(value, str) or not value:
        raise refusal(
            line,
            'address must be a non-empty string, as "0000:41:*", or an object'
            ' of such, as {"bus": "41", "function": "0"}',
        )
    return value.lower() if ":" in value else value


def _address_of_parts(line: str, parts: Mapping[str, Any]) -> str:
    for name, value in parts.items():
        if name not in _PARTS:
            raise refusal(
                line,
                f"address has no part {name!r}; use {', '.join(_PARTS)}",
            )
        # Nova's own lines hold regular expressions; this one is common.
        if not isinstance(value, str) or not (
            value == ".*" or _PART_GLOB.fullmatch(value.lower())
        ):
            raise refusal(
                line,
                f"{name} of address must be a glob over hexadecimal digits,"
                ' as "41", "0?" or "[0-3]"; regular expressions are not read'
                " here",
            )
    domain, bus, slot, function = (
        ANY if parts.get(name, ANY) == ".*" else parts.get(name, ANY).lower()
        for name in _PARTS
    )
    return f"{domain}:{bus}:{slot}.{function}"


def hex_id(line: str, fields: Fields, key: str) -> str:
    """Return an id as four hex digits, or ``*``."""
    value = fields.get(key, ANY)
    if isinstance(value, str):
        value = value.lower().removeprefix("0x")
        if _HEX_ID.fullmatch(value):
            return value
    raise refusal(line, f'{key} must be four hex digits, as "10de", or "*"')


def choice(
    line: str, fields: Fields, key: str, allowed: tuple[str, ...]
) -> str | None:
    """Return one of the allowed words, None where the key is missing."""
    value = fields.get(key)
    if key in fields and value not in allowed:
        raise refusal(line, f"{key} must be one of {', '.join(allowed)}")
    return value


def number(line: str, fields: Fields, key: str, least: int) -> int | None:
    """Return a whole number, None where the key is missing or null."""
    value = fields.get(key)
    if value is None:
        return None
    return _whole(line, key, value, least)


def _whole(line: str, what: str, value: object, least: int) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not least <= value <= _MAX_VFS
    ):
        raise refusal(
            line,
            f"{what} must be a whole number from {least} to {_MAX_VFS}",
        )
    return value


def globs(line: str, fields: Fields, key: str) -> tuple[str, ...]:
    """Return globs, written as one string or a list of them."""
    value = fields.get(key, ANY)
    found = [value] if isinstance(value, str) else value
    if (
        not isinstance(found, list)
        or not found
        or not all(isinstance(one, str) and one for one in found)
    ):
        raise refusal(
            line,
            f'{key} must be a glob, as "A40-*Q", or a list of at least one;'
            ' to offer nothing write "use": "off"',
        )
    return tuple(found)


def limits(line: str, fields: Fields, key: str) -> dict[str, int]:
    """Return numbers by profile name."""
    value = fields.get(key, {})
    if not isinstance(value, dict) or not all(value):
        raise refusal(
            line,
            f"{key} must be an object of numbers by profile name, as"
            ' {"A40-8Q": 4}',
        )
    return {
        name: _whole(line, f"{key} of {name}", most, 0)
        for name, most in value.items()
    }


def params(line: str, fields: Fields, key: str) -> str:
    """Return parameters of vGPUs, empty where there are none."""
    value = fields.get(key, "")
    if isinstance(value, str) and len(value) <= _MAX_PARAMS:
        if not value or _PARAMS.fullmatch(value):
            return value
    raise refusal(
        line,
        f'{key} must be "name=value,name=value" of at most {_MAX_PARAMS}'
        " letters, digits and _ . : / + -",
    )


def services(line: str, fields: Fields, key: str) -> str:
    """Return the services of QAT devices, empty to leave them."""
    value = fields.get(key, "")
    if isinstance(value, str) and (not value or _SERVICES.fullmatch(value)):
        return value
    raise refusal(
        line,
        f'{key} must be a word of qat/cfg_services, as "sym;asym" or "dc"',
    )


def path(line: str, fields: Fields, key: str) -> str:
    """Return an absolute path, empty where there is none."""
    value = fields.get(key, "")
    if isinstance(value, str) and (not value or _PATH.fullmatch(value)):
        return value
    raise refusal(
        line, f'{key} must be an absolute path, as "/etc/nova/blank.gbs"'
    )


def command(line: str, fields: Fields, key: str) -> str:
    """Return the path of a command, empty where there is none."""
    value = fields.get(key, "")
    if isinstance(value, str) and (not value or names.is_command(value)):
        return value
    raise refusal(
        line,
        f"{key} must be the absolute path of a command without arguments, as"
        ' "/usr/local/sbin/wipe-nvme", of letters, digits and . _ + -',
    )


def check_use(line: str, fields: Fields, use: str) -> None:
    """Check that the keys of a line agree with the use it names.

    :raises ConfigurationError: naming a key that means nothing there.
    """
    for key, uses in _TAKEN_BY.items():
        if key not in fields or use in uses:
            continue
        if key == "num_vfs" and use == "passthrough" and not fields[key]:
            continue  # a card goes to a guest whole once its VFs are gone
        raise refusal(
            line,
            f"{key} means nothing where use is {use}; remove it, or write"
            f" one of {', '.join(uses)} as use",
        )
