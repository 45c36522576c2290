# SPDX-License-Identifier: Apache-2.0
"""Report of a bare-metal node's accelerators, as JSON for Ironic.

The ramdisk writes it from all that it can read; ``from_functions`` makes a
smaller one of the PCI ids that a BMC reports. ``node_traits`` turns both into
traits of the node.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog import pci_ids, vgpu_types
from nova_accel.model import json_codec, names, pci

GPU, FPGA, QAT = "GPU", "FPGA", "QAT"
# Kind of an accelerator that is known only by its PCI class.
OTHER = "ACCELERATOR"
# Xilinx and Altera: their processing accelerators are FPGAs.
_FPGA_VENDORS = frozenset({"10ee", "1172"})
_QAT_PREFIX, _FPGA_TRAITS = "CUSTOM_QAT_", "CUSTOM_FPGA"
_IDS = re.compile(r"(?:0x)?([0-9a-f]{1,4})")
_CLASS = re.compile(r"(?:0x)?([0-9a-f]{6})")
# Classes of Redfish's PCIeFunction schema (DSP2046, DeviceClass).
_REDFISH_CLASSES: Mapping[str, int] = {
    "DisplayController": 0x030200,
    "ProcessingAccelerators": 0x120000,
    "Coprocessor": 0x0B4000,
    "EncryptionController": 0x100000,
}
# Devices of a report; a machine of a tenant may send anything.
_MAX_DEVICES = 1024
# A BMC reports no address.
_NO_ADDRESS = pci.PciAddress(domain=0, bus=0, slot=0, function=0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegion:
    """FPGA region; the fields are those of ``model.Region``."""

    number: int
    function: str | None = None
    interfaces: tuple[str, ...] = ()
    is_programmable: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodePartition:
    """Partition that exists: the fields are those of ``model.Partition``."""

    profile: str
    handle: str


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

    kind: str
    vendor_id: str
    product_id: str
    address: str = ""
    model: str = ""
    name: str = ""
    driver: str = ""
    numa_node: int | None = None
    total_vfs: int = 0
    num_vfs: int = 0
    profiles: tuple[str, ...] = ()
    partitions: tuple[NodePartition, ...] = ()
    regions: tuple[NodeRegion, ...] = ()
    services: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
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

    devices: tuple[NodeDevice, ...] = ()
    problems: tuple[model.Problem, ...] = ()
    error: str = ""
    is_complete: bool = True
    is_counted: bool = True
    has_nvswitch: bool = False
    unread: tuple[str, ...] = ()
    library: str = ""


FORMAT = json_codec.Format(kind=NodeReport, key="version")


def parse(document: Any) -> NodeReport:
    """Return the report in a document of a ramdisk.

    :raises MalformedError: it is of another version, or damaged.
    """
    try:
        report = FORMAT.decode(json.dumps(document))
        if len(report.devices) > _MAX_DEVICES:
            raise ValueError(f"it has {len(report.devices)} devices")
    except (TypeError, ValueError) as error:
        raise errors.MalformedError(
            "report of the collector",
            f"{document!r:.80}",
            f"version {FORMAT.version} of it ({error}); install the same"
            " nova-accel in the ramdisk and in ironic-conductor",
        ) from error
    return report


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
        problems=host.problems,
        is_complete=host.complete and not host.unknown,
        has_nvswitch=any(map(pci_ids.is_nvswitch, by_address.values())),
        unread=tuple(sorted(_list_unread(host))),
        library=library,
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
        _identify(function, catalog)
        if function
        else NodeDevice(kind=OTHER, vendor_id="", product_id="")
    )
    if identity.kind == pci_ids.NVME.word:
        return None
    is_fpga = device.technology == "fpga"
    has_model = any(t.startswith(names.MODEL_PREFIX) for t in device.traits)
    name = identity.model or (device.model if has_model else "")
    regions = [d for d in host.devices if d.parent == device.address]
    return dataclasses.replace(
        identity,
        kind=FPGA if is_fpga else identity.kind,
        vendor_id=device.vendor_id,
        product_id=device.product_id,
        address=device.address,
        model=name,
        name=identity.name or f"{device.vendor} {device.model}".strip(),
        driver=device.driver or "",
        numa_node=device.numa_node,
        profiles=tuple(p.name for p in device.profiles),
        partitions=tuple(
            NodePartition(profile=p.profile, handle=p.handle)
            for p in device.partitions
        ),
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
        fault=device.fault,
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
        if trait.startswith(names.NVLINK_PREFIX):
            parts = trait.removeprefix(names.NVLINK_PREFIX).lower().split("_")
            yield "{}:{}:{}.{}".format(*parts)


def _identify(
    function: pci.PciFunction, catalog: vgpu_types.Catalog
) -> NodeDevice:
    """Return what the ids of a function say about it."""
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
        word, name, title = GPU, gpu.key, gpu.product
    elif family is not None:
        word, name, title = QAT, f"QAT {family.name}", ""
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
        return GPU
    is_fpga = function.vendor in _FPGA_VENDORS or (
        function.driver in pci_ids.FPGA_DRIVERS
    )
    return FPGA if is_fpga else OTHER


# -- reports of a BMC, and of ramdisks without the collector ------------------


def from_functions(
    rows: Sequence[Mapping[str, Any]], catalog: vgpu_types.Catalog
) -> NodeReport:
    """Return the report of Ironic's ``pci_devices``.

    Redfish and ironic-python-agent write them with the same keys; the ids of
    the former begin with 0x. A row without ids is a problem.
    """
    devices: list[NodeDevice] = []
    problems: list[model.Problem] = []
    functions = []
    for number, row in enumerate(rows):
        function = _parse_function(row)
        if function is None:
            where = f"pci_devices[{number}]"
            problems.append(
                model.Problem(where=where, reason=f"has no ids: {row!r:.80}")
            )
            continue
        functions.append(function)
        is_vf = pci_ids.is_qat(function) and not pci_ids.find_qat(function)
        if pci_ids.is_candidate(function) and not is_vf:
            address = str(row.get("bus") or "")
            devices.append(
                dataclasses.replace(
                    _identify(function, catalog), address=address
                )
            )
    return NodeReport(
        devices=tuple(devices),
        problems=tuple(problems),
        is_complete=not problems,
        is_counted=False,
        has_nvswitch=any(map(pci_ids.is_nvswitch, functions)),
        # A function list shows no regions, modes, services or faults.
        unread=(
            names.FAULTED_TRAIT,
            _FPGA_TRAITS,
            names.NVLINK_PREFIX.rstrip("_"),
            _QAT_PREFIX.rstrip("_"),
        ),
    )


def _parse_function(row: object) -> pci.PciFunction | None:
    if not isinstance(row, Mapping):
        return None
    ids = [_parse_id(row.get(key)) for key in ("vendor_id", "product_id")]
    if not all(ids):
        return None
    return pci.PciFunction(
        address=_NO_ADDRESS,
        vendor=ids[0],
        product=ids[1],
        class_code=_parse_class(row.get("class")),
        subsystem_vendor=_parse_id(row.get("subsystem_vendor_id")),
        subsystem_product=_parse_id(row.get("subsystem_id")),
    )


def _parse_id(value: object) -> str:
    match = _IDS.fullmatch(str(value).lower()) if value else None
    return match[1].zfill(4) if match else ""


def _parse_class(value: object) -> int:
    text = str(value or "")
    match = _CLASS.fullmatch(text.lower())
    return int(match[1], 16) if match else _REDFISH_CLASSES.get(text, 0)
