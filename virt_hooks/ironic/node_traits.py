# SPDX-License-Identifier: Apache-2.0
"""Traits of a bare-metal node, from the report of its accelerators.

Nova's Ironic driver gives a node's provider the traits of the node and one
unit of its resource class, and a server takes the whole node. So the traits
describe all of the node: none has an address or a NUMA node, or depends on
free resources.

Ironic allows 50 traits for a node. ``list_traits`` returns the most important
ones first: faults, counts, models, NVLink and MIG, FPGA regions and their
functions, services of QAT devices, vendors and ids.
"""

import collections
import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from nova_accel.inventory import node_counts
from nova_accel.model import names
from virt_hooks.ironic import node_report

# MAX_TRAITS_PER_NODE of ironic/db/sqlalchemy/api.py.
MAX_TRAITS = 50
# Bytes of properties['accelerators'] as JSON: each list of nodes has them.
MAX_PROPERTIES = 64 * 1024
NVLINK_TRAIT = names.NVLINK_PREFIX.rstrip("_")
MIG_TRAIT = names.custom_name("ACCELERATOR_MIG_CAPABLE")
# Longest name of a resource class in Ironic (ironic/db/sqlalchemy/models.py).
_MAX_CLASS = 80


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TraitChange:
    """New traits of a node.

    ``own`` are those of this library among them; ``dropped`` did not fit.
    ``retained`` could not be read now, and are those of an earlier
    inspection.
    """

    traits: tuple[str, ...]
    own: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    retained: tuple[str, ...] = ()


def plan_traits(
    report: node_report.NodeReport,
    present: Collection[str],
    recorded: Collection[str],
) -> TraitChange:
    """Return the traits of a node after an inspection.

    Traits that an earlier inspection did not set are the operator's: they
    stay, and count against the limit. An incomplete report removes none.

    :param present: the node's traits.
    :param recorded: those that the last inspection set.
    """
    own = {t for t in recorded if names.is_managed_trait(t)} & {*present}
    foreign = sorted({*present} - own)
    fresh = () if _is_void(report, own) else list_traits(report)
    retained = sorted(
        trait
        for trait in own.difference(fresh)
        if not report.is_complete or _is_unread(trait, report)
    )
    ordered = [*dict.fromkeys((*fresh, *retained))]
    room = max(0, MAX_TRAITS - len(foreign))
    chosen = [trait for trait in ordered if trait not in foreign][:room]
    return TraitChange(
        traits=tuple(sorted({*foreign, *chosen})),
        own=tuple(sorted(chosen)),
        dropped=tuple(t for t in ordered if t not in {*chosen, *foreign}),
        retained=tuple(t for t in retained if t in chosen),
    )


def _is_void(report: node_report.NodeReport, own: Collection[str]) -> bool:
    """Return whether a report must not change a node that has traits.

    The number of cards is not known while one of them can't be read.
    """
    return bool(own) and not report.is_complete


def _is_unread(trait: str, report: node_report.NodeReport) -> bool:
    return trait.startswith(tuple(report.unread))


def list_traits(report: node_report.NodeReport) -> tuple[str, ...]:
    """Return the traits of a report, the most important ones first."""
    devices = report.devices
    groups: Iterable[Iterable[str]] = (
        {names.FAULTED_TRAIT for device in devices if device.fault},
        {count.trait for count in count_devices(report)},
        {names.model_trait(d.vendor_id, d.model) for d in devices if d.model},
        {
            names.custom_name("ACCELERATOR_DEVICE", d.vendor_id, d.product_id)
            for d in devices
            if d.vendor_id and not d.model
        },
        _capability_traits(report),
        set(_region_traits(devices)),
        {names.custom_name("QAT", s) for d in devices for s in d.services},
        {
            trait
            for d in devices
            for trait in names.identity_traits(d.vendor_id, d.product_id, None)
        },
    )
    ordered = (trait for group in groups for trait in sorted(group))
    # A word of a damaged report may leave nothing but the prefix.
    return tuple(dict.fromkeys(filter(names.is_managed_trait, ordered)))


def count_devices(
    report: node_report.NodeReport,
) -> tuple[node_counts.NodeCount, ...]:
    """Return the number of devices of each model, sorted.

    Without those of which several functions may be one card.
    """
    counts = collections.Counter(
        (_count_kind(device), _count_model(device))
        for device in report.devices
        if device.vendor_id and (report.is_counted or _is_one(device))
    )
    return tuple(
        node_counts.NodeCount(kind=kind, model=name, count=count)
        for (kind, name), count in sorted(counts.items())
    )


def _is_one(device: node_report.NodeDevice) -> bool:
    return device.kind not in (node_counts.FPGA, node_counts.OTHER)


def _count_kind(device: node_report.NodeDevice) -> str:
    is_listed = device.kind in node_counts.COUNTED_KINDS
    return device.kind if is_listed else node_counts.OTHER


def _count_model(device: node_report.NodeDevice) -> str:
    """Return a model in the spelling of traits; ids for an unknown one.

    The word of the kind is not repeated: QAT_INTEL_4XXX.
    """
    parts = device.vendor_id, device.product_id
    if device.model:
        is_listed = device.kind in node_counts.COUNTED_KINDS
        word = f"{device.kind} " if is_listed else ""
        vendor = names.vendor_name(device.vendor_id)
        parts = vendor, device.model.removeprefix(word)
    return names.custom_name(*parts).removeprefix(names.CUSTOM)


def _capability_traits(report: node_report.NodeReport) -> set[str]:
    traits = set()
    if report.has_nvswitch or any(d.peers for d in report.devices):
        traits.add(NVLINK_TRAIT)
    if any(d.is_mig_capable for d in report.devices):
        traits.add(MIG_TRAIT)
    return traits


def _region_traits(
    devices: Iterable[node_report.NodeDevice],
) -> Iterator[str]:
    for device in devices:
        for region in device.regions:
            yield names.REGION_TRAIT
            if region.is_programmable:
                yield names.PROGRAMMABLE_TRAIT
            if region.function:
                yield names.fpga_function_trait(region.function)
            yield from map(names.interface_trait, region.interfaces)


# -- other fields of a node ---------------------------------------------------


def suggest_resource_class(report: node_report.NodeReport) -> str:
    """Return a resource class for a node, empty without accelerators.

    It names all models with their numbers: ``baremetal.gpu_nvidia_h100xm_x8``.
    """
    counts = count_devices(report)
    words = [
        count.trait.removeprefix(names.CUSTOM).lower() for count in counts
    ]
    text = ".".join(("baremetal", *words)) if words else ""
    return text if len(text) <= _MAX_CLASS else "baremetal.accelerators"


def list_properties(
    report: node_report.NodeReport,
) -> list[Mapping[str, Any]]:
    """Return ``properties['accelerators']`` of a node.

    The first five keys are those of Ironic's own hook. Devices that would
    make it longer than ``MAX_PROPERTIES`` are left out.
    """
    rows: list[Mapping[str, Any]] = []
    size = 0
    for device in report.devices:
        row = _build_row(device)
        size += len(json.dumps(row)) + len(", ")
        if size > MAX_PROPERTIES - len("[]"):
            break
        rows.append(row)
    return rows


def _build_row(device: node_report.NodeDevice) -> Mapping[str, Any]:
    return {
        "vendor_id": device.vendor_id,
        "device_id": device.product_id,
        "type": device.kind,
        "device_info": device.name,
        "pci_address": device.address,
        "model": device.model,
        "numa_node": device.numa_node,
        "total_vfs": device.total_vfs,
        "is_mig_capable": device.is_mig_capable,
        "services": list(device.services),
        "functions": [r.function for r in device.regions],
        "fault": device.fault,
    }
