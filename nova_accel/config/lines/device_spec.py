# SPDX-License-Identifier: Apache-2.0
"""Validators of the fields of one ``device_spec`` line.

Each ``parse_`` function returns the value of one key, or its default where
the key is missing. All of them raise ConfigurationError, which quotes the
line and says what to write.
"""

import re
from collections.abc import Mapping
from typing import Any

from nova_accel import errors
from nova_accel.config.lines import json_line
from nova_accel.model import actions

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
# Keys that say to which devices a line applies.
IDENTITY = ("address", "vendor_id", "product_id")
# The parts of a PCI address, as Nova's [pci] device_spec names them.
_PARTS = ("domain", "bus", "slot", "function")
_PART_GLOB = re.compile(r"[0-9a-f*?!\[\]-]+")
_HEX_ID = re.compile(r"[0-9a-f]{4}|\*")
# Plugin parameters as NVIDIA documents them: words, numbers, paths.
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

# Keys that only apply to some uses, with these uses.
_GPU_USES = ("auto", "vgpu", "mig")
_WHOLE_USES = ("auto", "vf", "passthrough")
_USES_OF_KEY: Mapping[str, tuple[str, ...]] = {
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


def refusal(line: str, hint: str) -> errors.ConfigurationError:
    """Return the error of a line.

    :param hint: what is wrong with it and what to write instead.
    """
    return errors.ConfigurationError(OPTION, line, hint)


def parse_fields(line: str) -> Fields:
    """Return the keys and values of a line.

    :raises ConfigurationError: the line is not a JSON object, or has a
        duplicate or unknown key.
    """
    return json_line.parse(OPTION, line, KEYS, '{"address": "0000:41:*"}')


def parse_address(line: str, fields: Fields) -> str:
    """Return the glob over addresses; PCI addresses are in lower case."""
    value = fields.get("address", ANY)
    if isinstance(value, dict):
        return _join_address_parts(line, value)
    if not isinstance(value, str) or not value:
        raise refusal(
            line,
            'address must be a non-empty string, as "0000:41:*", or an object'
            ' of such, as {"bus": "41", "function": "0"}',
        )
    return value.lower() if ":" in value else value


def _join_address_parts(line: str, parts: Mapping[str, Any]) -> str:
    for name, value in parts.items():
        if name not in _PARTS:
            raise refusal(
                line,
                f"address has no part {name!r}; use {', '.join(_PARTS)}",
            )
        # Nova's own lines have regular expressions; this one is common.
        if not isinstance(value, str) or not (
            value == ".*" or _PART_GLOB.fullmatch(value.lower())
        ):
            raise refusal(
                line,
                f"{name} of address must be a glob over hexadecimal digits,"
                ' as "41", "0?" or "[0-3]"; regular expressions are not'
                " supported",
            )
    domain, bus, slot, function = (
        ANY if parts.get(name, ANY) == ".*" else parts.get(name, ANY).lower()
        for name in _PARTS
    )
    return f"{domain}:{bus}:{slot}.{function}"


def parse_hex_id(line: str, fields: Fields, key: str) -> str:
    """Return an id as four hex digits, or ``*``."""
    value = fields.get(key, ANY)
    if isinstance(value, str):
        value = value.lower().removeprefix("0x")
        if _HEX_ID.fullmatch(value):
            return value
    raise refusal(line, f'{key} must be four hex digits, as "10de", or "*"')


def parse_choice(
    line: str, fields: Fields, key: str, allowed: tuple[str, ...]
) -> str | None:
    """Return one of the allowed values, None where the key is missing."""
    value = fields.get(key)
    if key in fields and value not in allowed:
        raise refusal(line, f"{key} must be one of {', '.join(allowed)}")
    return value


def parse_number(
    line: str, fields: Fields, key: str, minimum: int
) -> int | None:
    """Return a whole number, None where the key is missing or null."""
    value = fields.get(key)
    if value is None:
        return None
    return _check_number(line, key, value, minimum)


def _check_number(line: str, name: str, value: object, minimum: int) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not minimum <= value <= _MAX_VFS
    ):
        raise refusal(
            line,
            f"{name} must be a whole number from {minimum} to {_MAX_VFS}",
        )
    return value


def parse_globs(line: str, fields: Fields, key: str) -> tuple[str, ...]:
    """Return globs, written as one string or a list of strings."""
    value = fields.get(key, ANY)
    globs = [value] if isinstance(value, str) else value
    if (
        not isinstance(globs, list)
        or not globs
        or not all(isinstance(glob, str) and glob for glob in globs)
    ):
        raise refusal(
            line,
            f'{key} must be a glob, as "A40-*Q", or a list of at least one;'
            ' to offer nothing write "use": "off"',
        )
    return tuple(globs)


def parse_limits(line: str, fields: Fields, key: str) -> dict[str, int]:
    """Return numbers by profile name."""
    value = fields.get(key, {})
    if not isinstance(value, dict) or not all(value):
        raise refusal(
            line,
            f"{key} must be an object of numbers by profile name, as"
            ' {"A40-8Q": 4}',
        )
    return {
        name: _check_number(line, f"{key} of {name}", limit, 0)
        for name, limit in value.items()
    }


def parse_params(line: str, fields: Fields, key: str) -> str:
    """Return the parameters of vGPUs, by default none."""
    value = fields.get(key, "")
    if isinstance(value, str) and len(value) <= _MAX_PARAMS:
        if not value or _PARAMS.fullmatch(value):
            return value
    raise refusal(
        line,
        f'{key} must be "name=value,name=value" of at most {_MAX_PARAMS}'
        " letters, digits and _ . : / + -",
    )


def parse_services(line: str, fields: Fields, key: str) -> str:
    """Return the services of QAT devices, empty for the present ones."""
    value = fields.get(key, "")
    if isinstance(value, str) and (not value or _SERVICES.fullmatch(value)):
        return value
    raise refusal(
        line,
        f'{key} must be a value of qat/cfg_services, as "sym;asym" or "dc"',
    )


def parse_path(line: str, fields: Fields, key: str) -> str:
    """Return an absolute path, by default empty."""
    value = fields.get(key, "")
    if isinstance(value, str) and (not value or _PATH.fullmatch(value)):
        return value
    raise refusal(
        line, f'{key} must be an absolute path, as "/etc/nova/blank.gbs"'
    )


def parse_command(line: str, fields: Fields, key: str) -> str:
    """Return the absolute path of a command, by default empty."""
    value = fields.get(key, "")
    if isinstance(value, str) and (
        not value or actions.is_command_path(value)
    ):
        return value
    raise refusal(
        line,
        f"{key} must be the absolute path of a command without arguments, as"
        ' "/usr/local/sbin/wipe-nvme", of letters, digits and . _ + -',
    )


def has_effect(key: str, use: str) -> bool:
    return use in _USES_OF_KEY.get(key, (use,))


def check_use(line: str, fields: Fields, use: str) -> None:
    """Check that the keys of a line apply to its use.

    :raises ConfigurationError: a key has no effect for this use.
    """
    for key, uses in _USES_OF_KEY.items():
        if key not in fields or has_effect(key, use):
            continue
        if key == "num_vfs" and use == "passthrough" and not fields[key]:
            continue  # a card without VFs can be passed through
        raise refusal(
            line,
            f"{key} has no effect where use is {use}; remove it, or set use"
            f" to one of {', '.join(uses)}",
        )
