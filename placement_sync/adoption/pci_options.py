# SPDX-License-Identifier: Apache-2.0
"""Functions and aliases of Nova's section ``[pci]`` on this host."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from nova_accel import errors
from nova_accel.cli import assigned_functions
from nova_accel.discovery import service_start
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.inventory.adoption import alias_flavors
from nova_accel.model import json_codec, pci
from placement_sync.cli import common_options


def read_functions(
    options: common_options.CommandOptions,
) -> dict[str, alias_flavors.NovaFunction]:
    """Return the functions that ``[pci] device_spec`` names, by address.

    The first line counts for a function, as in Nova.

    :raises ConfigurationError: Nova refuses a line.
    :raises UnreadableError: the PCI bus can't be listed.
    """
    service_start.register(options.parsed)
    reader = host_reader.HostReader(source=fs.DiskSource(options.root))
    functions: dict[str, alias_flavors.NovaFunction] = {}
    for line in options.parsed.pci.device_spec:
        matched: set[str] = set()
        for fields in _parse(line):
            text = json.dumps(fields)
            for function in assigned_functions.list_matches(text, reader):
                address = str(function.address)
                if address in matched:
                    continue
                matched.add(address)
                functions[address] = (
                    _describe(function, fields)
                    if address not in functions
                    else _count(functions[address])
                )
    return functions


def _describe(
    function: pci.PciFunction, fields: Mapping[str, Any]
) -> alias_flavors.NovaFunction:
    if function.physfn is not None:
        kind = "type-VF"
    else:
        kind = "type-PF" if function.total_vfs else "type-PCI"
    return alias_flavors.NovaFunction(
        address=str(function.address),
        vendor_id=function.vendor,
        product_id=function.product,
        kind=kind,
        resource_class=str(
            fields.get("resource_class")
            or f"PCI_{function.vendor}_{function.product}"
        ),
        is_network=bool(fields.get("physical_network")),
    )


def _count(
    function: alias_flavors.NovaFunction,
) -> alias_flavors.NovaFunction:
    count = function.line_count + 1
    return dataclasses.replace(function, line_count=count)


def read_aliases(
    options: common_options.CommandOptions,
) -> tuple[alias_flavors.Alias, ...]:
    """Return the lines of ``[pci] alias``.

    :raises ConfigurationError: one can't be used.
    """
    service_start.register(options.parsed)
    return tuple(
        alias_flavors.Alias(
            name=str(fields.get("name", "")).strip(),
            vendor_id=str(fields.get("vendor_id", "")).lower(),
            product_id=str(fields.get("product_id", "")).lower(),
            kind=str(fields.get("device_type", "")),
            resource_class=str(fields.get("resource_class", "")),
        )
        for line in options.parsed.pci.alias
        for fields in _parse(line, "[pci] alias")
    )


def _parse(
    line: str, option: str = "[pci] device_spec"
) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of a line.

    :raises ConfigurationError: it has another form.
    """
    try:
        value = json_codec.loads(line)
    except ValueError as error:
        raise errors.ConfigurationError(
            option, line, f"it is not JSON ({error})"
        ) from error
    for fields in value if isinstance(value, list) else [value]:
        if not isinstance(fields, dict):
            raise errors.ConfigurationError(
                option, line, "write a JSON object, or a list of objects"
            )
        yield fields
