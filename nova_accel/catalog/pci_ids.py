# SPDX-License-Identifier: Apache-2.0
"""PCI ids and classes of accelerators, and of similar other devices.

Sources are the ``pci_device_id`` tables of the kernel's drivers and pci.ids.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from nova_accel.model import names, pci

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
    names by ``vendor:product``; ``class_code`` is the 24-bit PCI class of a
    kind that is identified by its class, else 0. ``is_common`` is True
    where most hosts have such devices for their own use, ``keeps_data``
    where they have persistent data.
    """

    word: str
    models: Mapping[str, str] = dataclasses.field(default_factory=dict)
    class_code: int = 0
    is_common: bool = False
    keeps_data: bool = False

    @property
    def whole_class(self) -> str:
        return names.custom_name(self.word)

    @property
    def vf_class(self) -> str:
        return names.custom_name(self.word, "VF")


# NVM Express Base Specification, "Class Code": I/O controllers.
NVME = AcceleratorKind(
    word="NVME", class_code=0x010802, is_common=True, keeps_data=True
)
_KINDS = (
    NVME,
    # drivers/dma/idxd/init.c, idxd_pci_tbl, and registers.h.
    AcceleratorKind(
        word="DSA",
        models={
            "8086:0b25": "DSA SPR",
            "8086:11fb": "DSA GNR-D",
            "8086:1212": "DSA DMR",
        },
    ),
    AcceleratorKind(
        word="IAA",
        models={
            "8086:0cfe": "IAA SPR",
            "8086:1216": "IAA DMR",
            "8086:b02d": "IAA PTL",
            "8086:fd2d": "IAA WCL",
        },
    ),
    # drivers/accel/habanalabs/common/habanalabs_drv.c, and Habana's own
    # driver for models that the kernel's does not support yet.
    AcceleratorKind(
        word="GAUDI",
        models={
            "1da3:1000": "Gaudi",
            "1da3:1001": "Gaudi",
            "1da3:1010": "Gaudi",
            "1da3:1011": "Gaudi",
            "1da3:1020": "Gaudi2",
            "1da3:1021": "Gaudi2",
            "1da3:1060": "Gaudi3",
            "1da3:1062": "Gaudi3",
            "1da3:1063": "Gaudi3",
        },
    ),
    # An inference card of the same driver.
    AcceleratorKind(word="GOYA", models={"1da3:0001": "Goya"}),
    # Huawei's driver (devdrv_device_driver) and OpenStack Cyborg.
    AcceleratorKind(
        word="ASCEND",
        models={
            "19e5:d100": "Ascend 310",
            "19e5:d105": "Ascend 310B",
            "19e5:d500": "Ascend 310P",
            "19e5:d501": "Ascend 310P",
            "19e5:d801": "Ascend 910",
            "19e5:d802": "Ascend 910",
            "19e5:d803": "Ascend 910",
            "19e5:d804": "Ascend 910",
        },
    ),
    # JAX, jax/_src/hardware_utils.py: Google has no kernel driver for them.
    AcceleratorKind(
        word="TPU",
        models={
            "1ae0:0027": "TPU v3",
            "1ae0:005e": "TPU v4",
            "1ae0:0062": "TPU v5p",
            "1ae0:0063": "TPU v5e",
            "1ae0:006f": "TPU v6e",
            "1ae0:0076": "TPU v7",
        },
    ),
)

# Vendors whose only PCI functions, bridges aside, are accelerators (pci.ids,
# and the vendors' own drivers).
_VENDORS: Mapping[str, str] = {
    "1d95": "Graphcore",
    "1da3": "Habana",
    "1de0": "Groq",
    "1e36": "Enflame",
    "1e3e": "Iluvatar",
    "1e52": "Tenstorrent",
    "1e60": "Hailo",
    "1ed2": "FuriosaAI",
    "cabc": "Cambricon",
    "1f9d": "Axelera",
    "1fe9": "MemryX",
    "1ff4": "DEEPX",
    "1eff": "Rebellions",
    "1ee0": "Biren",
    "9999": "MetaX",
}
# Accelerators that no driver of this library knows, whatever their PCI class.
_OTHERS: Mapping[str, str] = {
    # drivers/accel/amdxdna/amdxdna_pci_drv.c, pci_ids: class 1180.
    "1022:1502": "XDNA NPU",
    "1022:17f0": "XDNA NPU",
    # drivers/accel/ivpu/ivpu_drv.h.
    "8086:643e": "NPU LNL",
    "8086:7d1d": "NPU MTL",
    "8086:ad1d": "NPU ARL",
    "8086:b03e": "NPU PTL",
    # drivers/accel/qaic/qaic_drv.c, qaic_ids.
    "17cb:a080": "Cloud AI 80",
    "17cb:a100": "Cloud AI 100",
    "17cb:a110": "Cloud AI 200",
    # drivers/crypto/hisilicon: zip_main.c, sec2/sec_main.c, hpre_main.c.
    "19e5:a250": "Kunpeng ZIP",
    "19e5:a255": "Kunpeng SEC",
    "19e5:a258": "Kunpeng HPRE",
    # drivers/crypto/cavium/nitrox/nitrox_main.c; drivers/crypto/marvell.
    "177d:0012": "Nitrox CNN55XX",
    "177d:a0f2": "OcteonTX2 CPT",
    "177d:a0fd": "OcteonTX2 CPT",
    # pci.ids; the device ids of Trainium2 and of later Inferentia are those
    # of Amazon's driver (aws-neuronx-dkms).
    "1ac1:089a": "Coral Edge TPU",
    "1ae0:abcd": "Pixel Neural Core",
    "1d0f:7064": "Inferentia",
    "1d0f:7065": "Inferentia",
    "1d0f:7066": "Inferentia",
    "1d0f:7067": "Inferentia",
    "1d0f:7164": "Trainium",
    "1d0f:7264": "Inferentia2",
    "1d0f:7364": "Trainium2",
    "1d22:3684": "Kunlun",
    "1d22:3685": "Kunlun2",
    "1d87:1808": "RK1808",
    "1de0:0000": "TSP",
    "1d95:0001": "Colossus GC2",
    "1d95:0002": "Colossus GC1",
    "1da3:0030": "Greco",
    "1e52:b140": "Blackhole",
    "1e52:401e": "Wormhole",
    "1e52:faca": "Grayskull",
    "1e60:2864": "Hailo-8",
    "1ed2:0000": "Warboy",
    # Sophgo's driver (bm_drv.c); Bitmain had the vendor id 1e30 before.
    "1e30:1684": "BM1684",
    "1f1c:1684": "BM1684",
    "1f1c:1686": "BM1684X",
}

# PCI base classes of accelerators: display controllers, processing
# accelerators, co-processors (PCI Code and ID Assignment Specification).
_CANDIDATES = (0x03, 0x12, 0x0B)
# Vendors of display controllers that only show a console, emulated by a
# hypervisor or part of a management controller: Cirrus Logic, Matrox, QEMU
# and Bochs, Silicon Motion, Microsoft, VMware, XGI, ASPEED, Parallels, Red
# Hat (virtio-gpu and QXL), XenSource and VirtualBox (pci.ids).
_CONSOLE_VENDORS = frozenset(
    {
        *("1013", "102b", "1234", "126f", "1414", "15ad", "18ca"),
        *("1a03", "1ab8", "1af4", "1b36", "5853", "80ee"),
    }
)
# ATI's Rage XL (drivers/video/fbdev/aty/atyfb_base.c, PCI_CHIP_MACH64GR),
# AMD's ES1000 (drivers/gpu/drm/radeon/radeon.h, ASIC_IS_RN50) and the
# display of HiSilicon's iBMC (drivers/gpu/drm/hisilicon/hibmc).
_CONSOLES = frozenset({"1002:4752", "1002:515e", "1002:5969", "19e5:1711"})

# Functions that the kernel's vfio-pci binds only with disable_denylist=1, as
# a guest could harm the host (drivers/vfio/pci/vfio_pci.c,
# vfio_pci_dev_in_denylist; the last two since Linux 6.9).
DENIED = frozenset(
    {
        *("8086:19e2", "8086:19e3", "8086:37c8", "8086:37c9"),
        *("8086:0435", "8086:0443", "8086:0b25", "8086:0cfe"),
    }
)


# NVIDIA's GPUs whose memory is coherent with that of the CPU: GH200, GB200
# and GB300 (drivers/vfio/pci/nvgrace-gpu/main.c, nvgrace_gpu_vfio_pci_table,
# Linux 6.18).
_COHERENT = frozenset({"2342", "2345", "2348", "2941", "31c2"})
COHERENT_DRIVER = "nvgrace_gpu_vfio_pci"
# NUMA nodes that the driver in the guest needs for the memory of one of them
# (NVIDIA's patches of QEMU 9.0, acpi-generic-initiator; KubeVirt's VEP 199).
MEMORY_NODES = 8
# Profile traits of these GPUs, assigned whole.
COHERENT_TRAITS = frozenset(
    names.custom_name("GPU_PCI", _NVIDIA, product) for product in _COHERENT
)


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


# Each VF of generation 2 has all services: all have the same ring to service
# map (drivers/crypto/intel/qat/qat_common/adf_gen2_hw_data.h,
# ADF_GEN2_DEFAULT_RING_TO_SRV_MAP).
_ALL = ("asym", "dc", "sym")

# By product id of the PF; Intel's vendor id is 8086. The last three have
# drivers outside of the kernel, whose files list the services.
QAT: Mapping[str, QatFamily] = MappingProxyType(
    {
        "4940": QatFamily(name="4xxx", driver="4xxx", vf="4941"),
        "4942": QatFamily(name="401xx", driver="4xxx", vf="4943"),
        "4944": QatFamily(name="402xx", driver="4xxx", vf="4945"),
        "4946": QatFamily(name="420xx", driver="420xx", vf="4947"),
        "4948": QatFamily(name="6xxx", driver="6xxx", vf="4949"),
        "37c8": QatFamily(
            name="C62x", driver="c6xx", vf="37c9", services=_ALL
        ),
        "19e2": QatFamily(
            name="C3xxx", driver="c3xxx", vf="19e3", services=_ALL
        ),
        "0435": QatFamily(
            name="DH895xCC", driver="dh895xcc", vf="0443", services=_ALL
        ),
        "6f54": QatFamily(name="D15xx", driver="d15xx", vf="6f55"),
        "18a0": QatFamily(name="C4xxx", driver="c4xxx", vf="18a1"),
        "18ee": QatFamily(name="200xx", driver="200xx", vf="18ef"),
    }
)
QAT_VENDOR = "8086"
_QAT_VFS = frozenset(family.vf for family in QAT.values())

# Resource classes of all kinds.
CLASSES = frozenset(
    {kind.whole_class for kind in _KINDS} | {NVME.vf_class, names.QAT_VF_CLASS}
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
    return next(
        (
            kind
            for kind in _KINDS
            if ids in kind.models
            or (kind.class_code and kind.class_code == function.class_code)
        ),
        None,
    )


def is_console(function: pci.PciFunction) -> bool:
    """Return whether a function is a display that only shows a console."""
    return function.is_display and (
        function.vendor in _CONSOLE_VENDORS
        or f"{function.vendor}:{function.product}" in _CONSOLES
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
        or (function.vendor in _VENDORS and not function.is_bridge)
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
        product in _COHERENT or driver == COHERENT_DRIVER
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
    return _VENDORS.get(function.vendor, "")


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
