# SPDX-License-Identifier: Apache-2.0
"""Report of a bare-metal node's accelerators, as JSON for Ironic.

The ramdisk writes it from all that it can read, and ``inspection_data`` reads
it in ironic-conductor. ``node_traits`` turns it into traits of the node.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nova_accel import model
from nova_accel.catalog import pci_ids, vgpu_types
from nova_accel.inventory import node_counts
from nova_accel.model import json_codec, names, pci

# Xilinx and Altera: their processing accelerators are FPGAs.
_FPGA_VENDORS = frozenset({"10ee", "1172"})
_QAT_PREFIX, _FPGA_TRAITS = "CUSTOM_QAT_", "CUSTOM_FPGA"
# Key of the report in the data that the agent sends.
KEY = "accelerators"
# A tenant had root on the machine that sends a report, so it may be anything.
# The largest of a real machine has less than 64 devices.
MAX_TEXT, MAX_ITEMS, MAX_DEVICES, MAX_ROWS = 255, 64, 1024, 4096
_ID = {"pattern": re.compile(r"(?:[0-9a-f]{4})?")}
_KIND = {"pattern": re.compile(r"[0-9A-Z_]{1,32}")}
# PCI addresses, and names of parents of mdevs that are off the PCI bus.
_ADDRESS = {"pattern": re.compile(r"[0-9A-Za-z_.:-]{0,64}")}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegion:
    """FPGA region; the fields are those of ``model.Region``."""

    number: int
    function: str | None = None
    interfaces: tuple[str, ...] = ()
    is_programmable: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeDevice:
    """One accelerator of a node.

    ``kind`` is ``GPU``, ``FPGA``, ``QAT``, the word of a
    ``pci_ids.AcceleratorKind``, or ``ACCELERATOR``. ``model`` is the name in
    traits, empty if unknown; ``name`` is for users. ``address`` is empty in
    reports of a BMC. ``peers`` are the addresses of GPUs that it has an
    NVLink to. ``services`` are those of a QAT device. ``is_mig`` is None
    where the mode can't be read.
    """

    kind: str = dataclasses.field(metadata=_KIND)
    vendor_id: str = dataclasses.field(metadata=_ID)
    product_id: str = dataclasses.field(metadata=_ID)
    address: str = dataclasses.field(default="", metadata=_ADDRESS)
    model: str = ""
    name: str = ""
    driver: str = ""
    numa_node: int | None = None
    total_vfs: int = 0
    num_vfs: int = 0
    regions: tuple[NodeRegion, ...] = ()
    services: tuple[str, ...] = ()
    peers: tuple[str, ...] = dataclasses.field(default=(), metadata=_ADDRESS)
    is_mig_capable: bool = False
    is_mig: bool | None = None
    fault: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """All accelerators of a node.

    ``error`` is the reason why nothing could be read; ``is_complete`` is
    False where a device may be missing. ``unread`` are prefixes of traits
    whose values could not be read. ``is_counted`` is False where several
    functions may be one card.
    """

    devices: tuple[NodeDevice, ...] = dataclasses.field(
        default=(), metadata={"items": MAX_DEVICES}
    )
    problems: tuple[model.Problem, ...] = ()
    error: str = ""
    is_complete: bool = True
    is_counted: bool = True
    has_nvswitch: bool = False
    unread: tuple[str, ...] = ()
    library: str = ""


FORMAT = json_codec.Format(
    kind=NodeReport,
    key="version",
    limits=json_codec.Limits(text=MAX_TEXT, items=MAX_ITEMS, rows=MAX_ROWS),
)


def to_document(report: NodeReport) -> dict[str, Any]:
    """Return the document of a report, of plain values."""
    document: dict[str, Any] = json.loads(FORMAT.encode(report))
    return document


def build(
    host: model.HostState,
    functions: Iterable[pci.PciFunction],
    catalog: vgpu_types.Catalog,
    library: str = "",
) -> NodeReport:
    """Return the report of a host.

    :param host: its devices; accelerators that no vendor driver describes
        are among them as devices without counters.
    :param functions: all its PCI functions.
    :param library: name and version of the program, for users.
    """
    by_address = {str(f.address): f for f in functions}
    devices = (
        _build_device(device, by_address.get(device.address), host, catalog)
        for device in host.devices
        if not device.parent
    )
    return NodeReport(
        devices=tuple(filter(None, devices)),
        problems=cut_problems(host.problems),
        is_complete=host.complete and not host.unknown,
        has_nvswitch=any(map(pci_ids.is_nvswitch, by_address.values())),
        unread=tuple(sorted(_list_unread(host))),
        library=library,
    )


def cut_problems(
    problems: Sequence[model.Problem],
) -> tuple[model.Problem, ...]:
    """Return the first problems with the beginnings of their texts.

    ``model.Problem.address`` is left out: no reader of a report needs it.
    """
    return tuple(
        model.Problem(
            where=problem.where[:MAX_TEXT], reason=problem.reason[:MAX_TEXT]
        )
        for problem in problems[:MAX_ITEMS]
    )


def _list_unread(host: model.HostState) -> set[str]:
    """Return the prefixes of traits that the host can't show now."""
    unread = {
        prefix.rstrip("_")
        for device in host.devices
        for prefix in device.unread_traits
    }
    if any(d.region and d.region.function is None for d in host.devices):
        unread.add(names.FUNCTION_PREFIX.rstrip("_"))
    return unread


def _build_device(
    device: model.Device,
    function: pci.PciFunction | None,
    host: model.HostState,
    catalog: vgpu_types.Catalog,
) -> NodeDevice | None:
    """Return a row, None for a device that is no accelerator."""
    identity = (
        identify(function, catalog)
        if function
        else NodeDevice(kind=node_counts.OTHER, vendor_id="", product_id="")
    )
    if identity.kind == pci_ids.NVME.word:
        return None
    is_fpga = device.technology == "fpga"
    has_model = any(t.startswith(names.MODEL_PREFIX) for t in device.traits)
    name = identity.model or (device.model if has_model else "")
    regions = [d for d in host.devices if d.parent == device.address]
    return dataclasses.replace(
        identity,
        kind=node_counts.FPGA if is_fpga else identity.kind,
        vendor_id=device.vendor_id,
        product_id=device.product_id,
        address=device.address,
        model=name,
        name=identity.name or f"{device.vendor} {device.model}".strip(),
        driver=device.driver or "",
        numa_node=device.numa_node,
        regions=tuple(_build_region(d.region) for d in regions if d.region),
        services=tuple(
            sorted(
                trait.removeprefix(_QAT_PREFIX).lower()
                for trait in device.traits
                if trait.startswith(_QAT_PREFIX)
            )
        ),
        peers=tuple(sorted(_list_peers(device))),
        is_mig=device.geometry.layout is model.Layout.MIG
        if device.profiles
        else None,
        fault=device.fault[:MAX_TEXT],
    )


def _build_region(region: model.Region) -> NodeRegion:
    return NodeRegion(
        number=region.number,
        function=region.function,
        interfaces=region.interfaces,
        is_programmable=region.is_programmable,
    )


def _list_peers(device: model.Device) -> Iterator[str]:
    """Yield the addresses in a device's NVLink traits."""
    for trait in device.traits:
        if trait == names.NVLINK_SWITCH:
            continue
        if trait.startswith(names.NVLINK_PREFIX):
            parts = trait.removeprefix(names.NVLINK_PREFIX).lower().split("_")
            yield "{}:{}:{}.{}".format(*parts)


def identify(
    function: pci.PciFunction, catalog: vgpu_types.Catalog
) -> NodeDevice:
    """Return what the ids of a function say about it.

    Fields that do not follow from the ids have their defaults.
    """
    ids = f"{function.vendor}:{function.product}"
    gpu = catalog.of_card(
        (),
        function.vendor,
        function.product,
        function.subsystem_vendor,
        function.subsystem_product,
    )
    family, kind = pci_ids.find_qat(function), pci_ids.find(function)
    if gpu is not None:
        word, name, title = node_counts.GPU, gpu.key, gpu.product
    elif family is not None:
        word, name, title = node_counts.QAT, f"QAT {family.name}", ""
    elif kind is not None:
        word, name, title = kind.word, kind.models.get(ids, ""), ""
    else:
        word, name, title = _find_class(function), "", ""
    return NodeDevice(
        kind=word,
        vendor_id=function.vendor,
        product_id=function.product,
        model=name,
        name=title
        or f"{names.vendor_name(function.vendor)} {name or ids}".strip(),
        total_vfs=function.total_vfs,
        num_vfs=function.num_vfs,
        is_mig_capable=gpu is not None and gpu.is_mig_capable,
    )


def _find_class(function: pci.PciFunction) -> str:
    if pci_ids.is_gpu(function):
        return node_counts.GPU
    is_fpga = function.vendor in _FPGA_VENDORS or (
        function.driver in pci_ids.FPGA_DRIVERS
    )
    return node_counts.FPGA if is_fpga else node_counts.OTHER
