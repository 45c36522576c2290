# SPDX-License-Identifier: Apache-2.0
"""PCI ids and classes of accelerators, and of similar other devices.

The ids are in ``data/pci_ids.json``, with their sources: the
``pci_device_id`` tables of the kernel's drivers, pci.ids, and drivers of
vendors.
"""

import dataclasses
from collections.abc import Mapping

from nova_accel.catalog import loader
from nova_accel.model import json_codec, names, pci

# Resource classes of functions without a kind: ``CUSTOM_PCI_144D_A824``.
PCI_PREFIX = "CUSTOM_PCI_"
# AMD's newest GPUs have the class of processing accelerators (12). NICs, DPUs
# and FPGAs of other vendors have it too.
_ACCELERATOR = 0x12
_AMD, _NVIDIA = "1002", "10de"
# Host drivers of FPGA cards. Their VFs are not created as on other cards: the
# number must equal that of released ports, or a vendor's tool creates them.
FPGA_DRIVERS = frozenset(
    {"dfl-pci", "intel-fpga-pci", "xclmgmt", "xocl", "xclmgmt-mpf"}
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorKind:
    """Kind of devices that are equivalent for a guest.

    ``word`` is the stem of their resource classes, ``models`` are their
    names by ``vendor:product``; ``pci_class`` is the PCI class of a kind that
    is identified by its class, in six hexadecimal digits, else empty.
    ``is_common`` is True where most hosts have such devices for their own
    use, ``keeps_data`` where they have persistent data.
    """

    word: str
    models: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pci_class: str = ""
    is_common: bool = False
    keeps_data: bool = False

    @property
    def whole_class(self) -> str:
        return names.custom_name(self.word)

    @property
    def vf_class(self) -> str:
        return names.custom_name(self.word, "VF")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QatFamily:
    """Intel QAT devices of one design.

    ``driver`` is the host's driver of their PFs, ``vf`` the product id of
    their VFs. ``services`` are those of a design with fixed services,
    empty where they are configurable or unknown.
    """

    name: str
    driver: str
    vf: str
    services: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Accelerators that no driver of this library knows, by their source."""

    models: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _PciIds:
    """Content of the data file.

    ``vendors`` have no PCI functions but accelerators and bridges. ``qat``
    are the families by product id of the PF. ``consoles`` and all display
    controllers of ``console_vendors`` only show a console: a hypervisor
    emulates them, or they are part of a management controller. The kernel's
    vfio-pci binds ``denied`` functions only with disable_denylist=1, as a
    guest could harm the host. ``coherent`` are NVIDIA's GPUs whose memory is
    coherent with that of the CPU: GH200, GB200 and GB300.
    """

    kinds: tuple[AcceleratorKind, ...]
    vendors: Mapping[str, str]
    others: tuple[_Group, ...]
    qat: Mapping[str, QatFamily]
    console_vendors: frozenset[str]
    consoles: frozenset[str]
    denied: frozenset[str]
    coherent: frozenset[str]


_IDS: _PciIds = json_codec.decode(
    _PciIds, json_codec.loads(loader.text("pci_ids.json"))
)
NVME = next(kind for kind in _IDS.kinds if kind.word == "NVME")
DENIED, QAT = _IDS.denied, _IDS.qat
_OTHERS = {ids: name for g in _IDS.others for ids, name in g.models.items()}

# PCI base classes of accelerators: display controllers, processing
# accelerators, co-processors (PCI Code and ID Assignment Specification).
_CANDIDATES = (0x03, 0x12, 0x0B)
COHERENT_DRIVER = "nvgrace_gpu_vfio_pci"
# NUMA nodes that the driver in the guest needs for the memory of one of them
# (NVIDIA's patches of QEMU 9.0, acpi-generic-initiator; KubeVirt's VEP 199).
MEMORY_NODES = 8
# Profile traits of these GPUs, assigned whole.
COHERENT_TRAITS = frozenset(
    names.custom_name("GPU_PCI", _NVIDIA, product) for product in _IDS.coherent
)


QAT_VENDOR = "8086"
_QAT_VFS = frozenset(family.vf for family in QAT.values())

# Resource classes of all kinds.
CLASSES = frozenset(
    {kind.whole_class for kind in _IDS.kinds}
    | {NVME.vf_class, names.QAT_VF_CLASS}
)

# Classes that only accelerators have, without those of unknown devices. The
# three standard ones are of os-resource-classes.
ACCELERATOR_CLASSES = CLASSES | {
    names.GPU_CLASS,
    names.WHOLE_GPU_CLASS,
    names.FPGA_CLASS,
    names.MDEV_CLASS,
    names.GPU_MEMORY_CLASS,
    names.MIG_SLICE_CLASS,
}


def is_accelerator(resource_class: str) -> bool:
    """Return whether a resource class is only of accelerators.

    That of unknown devices is recognized by its prefix.
    """
    return resource_class in ACCELERATOR_CLASSES or resource_class.startswith(
        PCI_PREFIX
    )


def find(function: pci.PciFunction) -> AcceleratorKind | None:
    """Return the kind of a function, None for unknown ones."""
    ids = f"{function.vendor}:{function.product}"
    pci_class = f"{function.class_code:06x}"
    return next(
        (
            kind
            for kind in _IDS.kinds
            if ids in kind.models or kind.pci_class == pci_class
        ),
        None,
    )


def is_console(function: pci.PciFunction) -> bool:
    """Return whether a function is a display that only shows a console."""
    return function.is_display and (
        function.vendor in _IDS.console_vendors
        or f"{function.vendor}:{function.product}" in _IDS.consoles
    )


def is_gpu(function: pci.PciFunction) -> bool:
    """Return whether a function is a GPU, by its class and vendor."""
    if function.is_display:
        return not is_console(function)
    return function.vendor == _AMD and function.base_class == _ACCELERATOR


def is_candidate(function: pci.PciFunction) -> bool:
    """Return whether a function is likely to be an accelerator.

    Console displays are not, nor are kinds that most hosts use themselves
    (NVMe). What the kernel lists as an accelerator is one, whatever its PCI
    class, and so are the functions of vendors of accelerators.
    """
    kind = find(function)
    return not is_console(function) and (
        function.base_class in _CANDIDATES
        or function.is_accel
        or is_qat(function)
        or function.driver in FPGA_DRIVERS
        or (kind is not None and not kind.is_common)
        or (function.vendor in _IDS.vendors and not function.is_bridge)
        or f"{function.vendor}:{function.product}" in _OTHERS
    )


def is_nvswitch(function: pci.PciFunction) -> bool:
    """Return whether a function is an NVSwitch.

    They are bridges of class "other": 10de:1af1 with A100, 10de:22a3 with
    H100 and H200 (pci.ids). Those of B200 and later are no PCI functions.
    """
    subclass = function.class_code >> 8
    return function.vendor == _NVIDIA and subclass == pci.OTHER_BRIDGE


def has_coherent_memory(vendor: str, product: str, driver: str | None) -> bool:
    """Return whether a GPU's memory is coherent with that of the CPU.

    A guest needs ``MEMORY_NODES`` NUMA nodes for it
    (``accelerator:memory_nodes``).
    """
    return vendor == _NVIDIA and (
        product in _IDS.coherent or driver == COHERENT_DRIVER
    )


def is_coherent_profile(profile: str) -> bool:
    """Return whether a profile, as 10de:2941, is such a GPU as a whole."""
    vendor, _, product = profile.partition(":")
    return has_coherent_memory(vendor, product, None)


def find_model(function: pci.PciFunction) -> str:
    """Return the name of a function's model, empty without one."""
    kind = find(function)
    ids = f"{function.vendor}:{function.product}"
    return kind.models.get(ids, "") if kind else _OTHERS.get(ids, "")


def find_vendor(function: pci.PciFunction) -> str:
    """Return the name of a vendor of accelerators, empty for others."""
    return _IDS.vendors.get(function.vendor, "")


def find_qat(function: pci.PciFunction) -> QatFamily | None:
    """Return the QAT family of a PF, None for other functions."""
    if function.vendor != QAT_VENDOR:
        return None
    return QAT.get(function.product)


def is_qat(function: pci.PciFunction) -> bool:
    """Return whether a function is a PF or a VF of a QAT device."""
    return function.vendor == QAT_VENDOR and (
        function.product in QAT or function.product in _QAT_VFS
    )
