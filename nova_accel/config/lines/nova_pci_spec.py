# SPDX-License-Identifier: Apache-2.0
"""Grammar of Nova's own option ``[pci] device_spec``.

Source: ``nova.conf.pci`` and ``nova.pci.devspec`` of Nova 32 to 34. A line
is a JSON object, or a list of them. Each names functions by ids and by an
address, in one of three forms: a text of numbers and ``*``, whose left parts
may be missing (``41:00.0``); an object of regular expressions; the name of a
network interface (``devname``). A line with the address of one PF means its
VFs, too.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova_accel import errors
from nova_accel.model import json_codec, pci

OPTION = "[pci] device_spec"
# Nova accepts no address of a PCI domain above this one (devspec.MAX_DOMAIN).
MAX_DOMAIN = 0xFFFF
ANY = "*"
_MAX_ID = 0xFFFF
# The parts of an address, with the format and the maximum of their numbers.
_PARTS = (
    ("domain", "04x", MAX_DOMAIN),
    ("bus", "02x", 0xFF),
    ("slot", "02x", 0x1F),
    ("function", "01x", 0x7),
)
_DIGITS = re.compile(r"[0-9a-fA-F]*")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PciSpec:
    """One JSON object of the option.

    Ids are four hex digits, or ``*``. ``address`` has a pattern for each
    part of an address, None if no function has the address. ``single`` is
    the address if it has no wildcard, else empty.
    """

    vendor_id: str = ANY
    product_id: str = ANY
    address: tuple[re.Pattern[str], ...] | None = None
    single: str = ""

    def matches(
        self,
        function: pci.PciFunction,
        functions: Mapping[str, pci.PciFunction],
    ) -> bool:
        """Return whether Nova may assign a function by this object.

        :param functions: all functions of the host by address.
        """
        named = functions.get(self.single)
        is_vf_of_named = (
            named is not None
            and named.total_vfs > 0
            and function.physfn == named.address
        )
        return (
            self.vendor_id in (ANY, function.vendor)
            and self.product_id in (ANY, function.product)
            and (is_vf_of_named or self._has_address(function.address))
        )

    def _has_address(self, address: pci.PciAddress) -> bool:
        if self.address is None or address.domain > MAX_DOMAIN:
            return False
        numbers = dataclasses.astuple(address)
        return all(
            pattern.match(f"{number:{layout}}")
            for pattern, number, (_, layout, _) in zip(
                self.address, numbers, _PARTS, strict=True
            )
        )


def parse(
    line: str, find_interface: Callable[[str], str]
) -> tuple[PciSpec, ...]:
    """Return the objects of one line of the option.

    :param find_interface: returns the PCI address of a network interface,
        empty without one.
    :raises ConfigurationError: Nova refuses the line.
    """
    try:
        value = json_codec.loads(line)
    except ValueError as error:
        raise _refusal(line, f"it is not JSON ({error})") from error
    objects = value if isinstance(value, list) else [value]
    if not all(isinstance(item, dict) for item in objects):
        raise _refusal(line, "write a JSON object, or a list of objects")
    return tuple(_parse_object(line, item, find_interface) for item in objects)


def _refusal(line: str, hint: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(OPTION, line, hint)


def _parse_object(
    line: str,
    fields: Mapping[str, Any],
    find_interface: Callable[[str], str],
) -> PciSpec:
    vendor_id, product_id = (
        _parse_number(line, key, fields.get(key, ANY), "04x", _MAX_ID)
        for key in ("vendor_id", "product_id")
    )
    address, interface = fields.get("address"), fields.get("devname")
    if address and interface:
        raise _refusal(line, "write address or devname, not both")
    if interface:
        address = find_interface(str(interface))
    if isinstance(address, dict) and address:
        patterns, single = _parse_expressions(line, address)
    elif interface and not address:
        return PciSpec(
            vendor_id=vendor_id, product_id=product_id, address=None
        )
    else:
        patterns, single = _parse_glob(line, address or "*:*:*.*")
    return PciSpec(
        vendor_id=vendor_id,
        product_id=product_id,
        address=patterns,
        single=single,
    )


def _parse_number(
    line: str, key: str, value: Any, layout: str, maximum: int
) -> str:
    """Return a hexadecimal number in the kernel's format, or ``*``."""
    text = value.strip() if isinstance(value, str) else ""
    if text == ANY:
        return ANY
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 <= number <= maximum:
        raise _refusal(
            line, f"{key} must be *, or hexadecimal up to {maximum:x}"
        )
    return f"{number:{layout}}"


def _parse_glob(
    line: str, address: Any
) -> tuple[tuple[re.Pattern[str], ...], str]:
    """Return the patterns of an address in text, and a single address."""
    places, _, function = str(address).partition(".")
    fields = [field.strip() or ANY for field in places.split(":")]
    if not isinstance(address, str) or len(fields) >= len(_PARTS):
        raise _refusal(
            line, 'address must be as "0000:41:00.0", "41:00.*" or an object'
        )
    fields = [ANY] * (3 - len(fields)) + [*fields, function.strip() or ANY]
    texts = [
        _parse_number(line, f"{name} of address", field, layout, maximum)
        for field, (name, layout, maximum) in zip(fields, _PARTS, strict=True)
    ]
    patterns = tuple(
        re.compile("" if text == ANY else rf"{text}\Z") for text in texts
    )
    return patterns, _join(texts)


def _parse_expressions(
    line: str, parts: Mapping[str, Any]
) -> tuple[tuple[re.Pattern[str], ...], str]:
    """Return the patterns of an address object, and a single address."""
    texts = [parts.get(name, ".*") for name, _, _ in _PARTS]
    try:
        patterns = tuple(re.compile(text) for text in texts)
    except (re.error, TypeError) as error:
        raise _refusal(
            line, f"the parts of address are regular expressions ({error})"
        ) from error
    return patterns, _join(texts)


def _join(texts: Sequence[str]) -> str:
    """Return the address of four parts, empty if one has a wildcard."""
    if not all(map(_DIGITS.fullmatch, texts)):
        return ""
    domain, bus, slot, function = texts
    return f"{domain}:{bus}:{slot}.{function}"
