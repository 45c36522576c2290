# SPDX-License-Identifier: Apache-2.0
"""Bounded decoder of what a bare-metal node sends to ironic-conductor.

A tenant had root on the machine, so it may send anything; the conductor has
few workers, and locks the node meanwhile. Any data take at most 0.1 s on one
CPU: the limits of ``node_report`` are checked before anything is computed,
and no part of the data is printed whole.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog import pci_ids, vgpu_types
from nova_accel.model import json_codec, names, pci
from virt_hooks.ironic import node_report

# Key of the PCI functions: of ironic-python-agent's collector in the plugin
# data, of a Redfish inspection in the inventory.
FUNCTIONS_KEY = "pci_devices"
_ID = re.compile(r"(?:0x)?([0-9a-f]{1,4})")
_CLASS = re.compile(r"(?:0x)?([0-9a-f]{6})")
# Classes of Redfish's PCIeFunction schema (DSP2046, DeviceClass).
_REDFISH_CLASSES: Mapping[str, int] = {
    "DisplayController": 0x030200,
    "ProcessingAccelerators": 0x120000,
    "Coprocessor": 0x0B4000,
    "EncryptionController": 0x100000,
}
# Longest id, class and address of a row.
_MAX_WORD = 64
# Traits that a list of functions can't show: no regions, modes, services or
# faults.
_UNREAD = (
    names.FAULTED_TRAIT,
    "CUSTOM_FPGA",
    names.NVLINK_PREFIX.rstrip("_"),
    "CUSTOM_QAT_",
)
# A BMC reports no address.
_NO_ADDRESS = pci.PciAddress(domain=0, bus=0, slot=0, function=0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InspectionData:
    """Report in the data of an inspection, None without a usable one.

    ``warnings`` are the reasons why parts of the data were not used.
    """

    report: node_report.NodeReport | None = None
    warnings: tuple[str, ...] = ()


def read(
    inventory: object, plugin_data: object, catalog: vgpu_types.Catalog
) -> InspectionData:
    """Return the report of the collector, or one of the PCI functions.

    Never raises.

    :param inventory: the inventory of the inspection.
    :param plugin_data: what the collectors of the agent sent.
    """
    sent, listed = _as_mapping(plugin_data), _as_mapping(inventory)
    warnings = []
    document = sent.get(node_report.KEY)
    if document is not None:
        try:
            report = parse(document)
        except errors.MalformedError as error:
            warnings.append(str(error))
        else:
            if not report.error:
                return InspectionData(report=report)
            warnings.append(f"the collector failed: {report.error!r}")
    functions = sent.get(FUNCTIONS_KEY) or listed.get(FUNCTIONS_KEY)
    if isinstance(functions, list) and functions:
        report = read_functions(functions, catalog)
        return InspectionData(report=report, warnings=tuple(warnings))
    if functions:
        quoted = json_codec.quote(functions)
        warnings.append(f"{FUNCTIONS_KEY} is {quoted}, and no list of objects")
    return InspectionData(warnings=tuple(warnings))


def _as_mapping(data: object) -> Mapping[str, Any]:
    return data if isinstance(data, dict) else {}


def parse(document: object) -> node_report.NodeReport:
    """Return the report in a document of a ramdisk.

    :param document: its JSON, decoded.
    :raises MalformedError: it is of another version, damaged, or too large.
    """
    try:
        return node_report.FORMAT.decode_fields(document)
    except ValueError as error:
        raise errors.MalformedError(
            "report of the collector",
            json_codec.quote(document),
            f"version {node_report.FORMAT.version} of it ({error}); install"
            " the same nova-accel in the ramdisk and in ironic-conductor",
        ) from error


# -- reports of a BMC, and of ramdisks without the collector ------------------


def read_functions(
    rows: list[Any], catalog: vgpu_types.Catalog
) -> node_report.NodeReport:
    """Return the report of Ironic's ``pci_devices``.

    Redfish and ironic-python-agent write them with the same keys; the ids of
    the former begin with 0x. A row without ids is a problem. Of more rows or
    devices than ``node_report`` allows, the first are read.
    """
    candidates: list[tuple[pci.PciFunction, Mapping[str, Any]]] = []
    problems: list[model.Problem] = []
    has_nvswitch = False
    for number, row in enumerate(rows[: node_report.MAX_ROWS]):
        function = _parse_function(row)
        if function is None:
            problems.append(
                model.Problem(
                    where=f"{FUNCTIONS_KEY}[{number}]",
                    reason=f"has no ids: {json_codec.quote(row)}",
                )
            )
            continue
        has_nvswitch = has_nvswitch or pci_ids.is_nvswitch(function)
        is_vf = pci_ids.is_qat(function) and not pci_ids.find_qat(function)
        if pci_ids.is_candidate(function) and not is_vf:
            candidates.append((function, row))
    limits = (
        (FUNCTIONS_KEY, len(rows), node_report.MAX_ROWS),
        ("accelerators", len(candidates), node_report.MAX_DEVICES),
    )
    problems += [
        _build_excess(*limit) for limit in limits if limit[1] > limit[2]
    ]
    return node_report.NodeReport(
        devices=tuple(
            _identify(function, row, catalog)
            for function, row in candidates[: node_report.MAX_DEVICES]
        ),
        problems=node_report.cut_problems(problems),
        is_complete=not problems,
        is_counted=False,
        has_nvswitch=has_nvswitch,
        unread=_UNREAD,
    )


def _build_excess(where: str, count: int, limit: int) -> model.Problem:
    reason = f"there are {count}, of which {limit} are read"
    return model.Problem(where=where, reason=reason)


def _identify(
    function: pci.PciFunction,
    row: Mapping[str, Any],
    catalog: vgpu_types.Catalog,
) -> node_report.NodeDevice:
    device = node_report.identify(function, catalog)
    address = _read_word(row, "bus")
    if not pci.is_address(address):
        return device
    return dataclasses.replace(device, address=address)


def _parse_function(row: object) -> pci.PciFunction | None:
    if not isinstance(row, dict):
        return None
    vendor, product = _read_id(row, "vendor_id"), _read_id(row, "product_id")
    if not (vendor and product):
        return None
    return pci.PciFunction(
        address=_NO_ADDRESS,
        vendor=vendor,
        product=product,
        class_code=_parse_class(_read_word(row, "class")),
        subsystem_vendor=_read_id(row, "subsystem_vendor_id"),
        subsystem_product=_read_id(row, "subsystem_id"),
    )


def _read_word(row: Mapping[str, Any], key: str) -> str:
    """Return a short text of a row, empty for any other value."""
    value = row.get(key)
    is_word = isinstance(value, str) and len(value) <= _MAX_WORD
    return str(value) if is_word else ""


def _read_id(row: Mapping[str, Any], key: str) -> str:
    match = _ID.fullmatch(_read_word(row, key).lower())
    return match[1].zfill(4) if match else ""


def _parse_class(text: str) -> int:
    match = _CLASS.fullmatch(text.lower())
    return int(match[1], 16) if match else _REDFISH_CLASSES.get(text, 0)
