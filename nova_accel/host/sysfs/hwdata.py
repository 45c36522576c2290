# SPDX-License-Identifier: Apache-2.0
"""Names of PCI devices from the host's pci.ids (package hwdata or pci.ids).

The names are for display. Flavors do not require them: an update of the
package may change them.
"""

import dataclasses
import functools
import re
from collections.abc import Collection

from nova_accel import errors, model
from nova_accel.host.sysfs import fs
from nova_accel.model import names as trait_names

# "1002  Advanced Micro Devices, Inc. [AMD/ATI]" is a vendor, and
# "<tab>74a1  Aqua Vanjaram [Instinct MI300X]" a device of that vendor.
# Comments, subsystems and classes have other forms.
_LINE = re.compile(r"(\t?)([0-9a-f]{4})  (\S.*)")
_IN_BRACKETS = re.compile(r".*\[([^][]+)\]")
_MAX_NAME = 100


def read(files: fs.Files, ids: Collection[str]) -> dict[str, str]:
    """Return the names of devices by ``vendor:device``.

    Devices without a printable name of at most 100 characters are left
    out. The result is empty if the host has no readable pci.ids.

    :param ids: pairs of four hex digits in lower case: ``1002:74a1``.
    """
    if not ids:
        return {}
    for path in fs.PCI_IDS:
        try:
            return parse(files.text(path), ids)
        except errors.UnreadableError:
            continue
    return {}


def add_name_trait(
    device: model.Device, source: fs.FileSource
) -> model.Device:
    """Return a device with the trait of its name, if it has no model.

    Each name is read once in a process, so that traits do not change with
    the package.
    """
    has_model = any(
        trait.startswith(trait_names.MODEL_PREFIX) for trait in device.traits
    )
    if has_model or device.parent or not device.vendor_id:
        return device
    name = _find_name(source, f"{device.vendor_id}:{device.product_id}")
    if not name:
        return device
    trait = trait_names.name_trait(device.vendor_id, name)
    return dataclasses.replace(device, traits=device.traits | {trait})


@functools.lru_cache(maxsize=64)
def _find_name(source: fs.FileSource, ids: str) -> str:
    return read(fs.Files(source), {ids}).get(ids, "")


def is_name(value: object) -> bool:
    """Return whether a value is a printable name of at most 100 characters."""
    return (
        isinstance(value, str)
        and value.isprintable()
        and len(value) <= _MAX_NAME
    )


def parse(text: str, ids: Collection[str]) -> dict[str, str]:
    """Return the names in the text of a pci.ids, as ``read`` does.

    The product name is in brackets: ``Instinct MI300X`` of
    ``Aqua Vanjaram [Instinct MI300X]``.
    """
    keys = frozenset(ids)
    names: dict[str, str] = {}
    vendor = ""
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            if line and line[0] not in "\t#":
                vendor = ""  # device classes follow the vendors
            continue
        if not match[1]:
            vendor = match[2]
        elif (key := f"{vendor}:{match[2]}") in keys:
            product = _IN_BRACKETS.fullmatch(match[3])
            name = product[1] if product else match[3]
            if is_name(name):
                names.setdefault(key, name)
    return names
