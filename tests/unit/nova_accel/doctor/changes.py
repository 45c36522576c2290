# SPDX-License-Identifier: Apache-2.0
"""One change of the prepared host for each check, with the result."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from nova_accel import model
from nova_accel.config import top_packages
from nova_accel.discovery.capture import (
    Record,
    RecordedDirectory,
    RecordedLink,
    RecordedMode,
)
from nova_accel.doctor.host_checks import Level
from nova_accel.host import nvml_gpus
from nova_accel.host.state import notes
from tests.support.hosts import prepared
from tests.support.hosts.prepared import (
    ALVEO,
    CONF,
    DFL,
    FLEX,
    GPU,
    L40S,
    MI300X,
    MODULES,
    QAT,
    SERVICES,
    T4,
    at,
)

NOTE, WARN, FAIL = Level.NOTE, Level.WARN, Level.FAIL
LINK = RecordedLink
DIRECTORY = RecordedDirectory()
NOVA_CONF = "/etc/nova/nova.conf"
STATE = "/var/lib/nova/accel"
NOTE_FILE = notes.file_name(GPU)
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
VF = "0000:41:00.4"
SERVER = "5f0c7a9e-0000-4000-8000-000000000001"


@dataclasses.dataclass(frozen=True)
class Case:
    """A change of the prepared host, and the level that it causes.

    ``before`` is a change that other checks see, made before.
    """

    level: Level
    change: prepared.Change
    before: prepared.Change = dataclasses.field(default_factory=dict)
    gpus: Mapping[str, nvml_gpus.NvmlGpu] = dataclasses.field(
        default_factory=dict
    )
    packages: tuple[top_packages.ForeignPackage, ...] = ()
    unwrapped: Mapping[str, str] = dataclasses.field(default_factory=dict)


def bound(address: str, driver: str) -> prepared.Change:
    return {at(address, "driver"): LINK(f"/sys/bus/pci/drivers/{driver}")}


def ids(address: str, vendor: str, product: str) -> prepared.Change:
    return {
        at(address, "vendor"): f"0x{vendor}\n",
        at(address, "device"): f"0x{product}\n",
    }


def switch() -> prepared.Change:
    """Make an NVSwitch of the GPU that vfio-pci has."""
    return ids(GPU, "10de", "22a3") | {at(GPU, "class"): "0x068000\n"}


def arguments(word: str) -> prepared.Change:
    return {"/proc/cmdline": f"intel_iommu=on iommu=pt {word}\n"}


def conf(before: str, after: str) -> prepared.Change:
    assert before in CONF
    return {NOVA_CONF: CONF.replace(before, after)}


def section(lines: str) -> prepared.Change:
    return conf("[libvirt]", f"{lines}\n[libvirt]")


def modprobe(line: str) -> prepared.Change:
    return {"/etc/modprobe.d/other.conf": f"{line}\n"}


def resource(line: int) -> prepared.Change:
    lines = prepared.RESOURCES.split("\n")
    lines[line] = prepared.UNSET_BAR
    return {at(L40S, "resource"): "\n".join(lines)}


def no_vfs(card: str) -> prepared.Change:
    """Return the card without VFs."""
    domain_and_slot = card.rpartition(".")[0]
    change: dict[str, Record | None] = {at(card, "sriov_numvfs"): "0\n"}
    for number in (0, 1):
        change |= {
            at(card, f"virtfn{number}"): None,
            f"{prepared.DEVICES}/{domain_and_slot}.{number + 4}": None,
        }
    return change


def container(*missing: str) -> prepared.Change:
    """Return the host as a container with all mounts but some paths."""
    return {
        "/run/.containerenv": "",
        "/proc/77/mountinfo": "1 0 0:1 / / rw - overlay overlay rw\n"
        "2 0 0:2 / /var/lib/nova rw - ext4 /dev/vda1 rw\n",
        **dict.fromkeys(missing),
    }


GONE = b"\xff\xff\xff\xff"
MIG_GPU = {T4: nvml_gpus.NvmlGpu(address=T4, is_mig=True)}
LOST_GPU = {T4: nvml_gpus.NvmlGpu(address=T4, fault="GPU is lost")}


def reported(**values: Any) -> Mapping[str, nvml_gpus.NvmlGpu]:
    return {
        T4: nvml_gpus.NvmlGpu(address=T4, driver_version="580.95.02", **values)
    }


def guest(**values: str) -> Mapping[str, nvml_gpus.NvmlGpu]:
    vgpu = nvml_gpus.NvmlVgpu(server=SERVER, **values)
    return reported(vgpus=(vgpu,))


NVML_PROBLEM = nvml_gpus.NvmlGpus(
    {}, (model.Problem(where="GPU 0", reason="Unknown Error"),)
)
OTHER_KERNEL: prepared.Change = {
    f"{MODULES}/updates/dkms/nvidia.ko.zst": None,
    "/lib/modules/6.1.0-44-amd64/updates/dkms/nvidia.ko.zst": "",
    "/sys/module/nvidia": None,
    "/sys/module/nvidia_vgpu_vfio": None,
}

CASES: Mapping[str, Case] = {
    "iommu.firmware": Case(FAIL, {"/sys/firmware/acpi/tables/DMAR": None}),
    "iommu.enabled": Case(FAIL, {at(GPU, "iommu_group"): None}),
    "iommu.off": Case(FAIL, arguments("intel_iommu=off")),
    "iommu.pending": Case(WARN, {"/etc/kernel/cmdline": "iommu.strict=1\n"}),
    "iommu.group": Case(
        FAIL,
        {
            "/sys/kernel/iommu_groups/101/devices/0000:17:00.0": LINK(
                "/sys/devices/pci0000:17/0000:17:00.0"
            ),
        },
    ),
    "iommu.shared": Case(
        NOTE,
        {
            at(DFL, "iommu_group"): LINK("/sys/kernel/iommu_groups/161"),
            f"/sys/kernel/iommu_groups/161/devices/{DFL}": LINK(
                at(DFL, "x")[:-2]
            ),
        },
    ),
    "iommu.reserved": Case(
        FAIL,
        {
            "/sys/kernel/iommu_groups/101/reserved_regions": "0x0000000000000"
            "000 0x0000000000ffffff direct\n"
        },
    ),
    "iommu.type": Case(
        NOTE, {"/sys/kernel/iommu_groups/101/type": "identity\n"}
    ),
    "iommu.unsafe-interrupts": Case(
        WARN, {f"{prepared.TYPE1}/allow_unsafe_interrupts": "Y\n"}
    ),
    "iommu.remapping": Case(FAIL, arguments("intremap=off")),
    "iommu.noiommu": Case(
        WARN,
        {"/sys/module/vfio/parameters/enable_unsafe_noiommu_mode": "Y\n"},
    ),
    "iommu.acs-override": Case(
        WARN, arguments("pcie_acs_override=downstream")
    ),
    "pci.bars": Case(FAIL, resource(0)),
    "pci.vf-bars": Case(FAIL, resource(7)),
    "pci.large-bars": Case(
        NOTE,
        {
            at(GPU, "resource"): "0x0000200000000000 0x0000203fffffffff"
            " 0x000000000014220c\n"
        },
    ),
    "pci.vf-bus": Case(FAIL, {at(L40S, "sriov_offset"): "4096\n"}),
    "pci.sriov": Case(
        WARN,
        {
            at(QAT, "sriov_totalvfs"): None,
            at(QAT, "sriov_numvfs"): None,
        },
    ),
    "pci.autoprobe": Case(
        NOTE,
        {
            at(FLEX, "sriov_drivers_autoprobe"): "1\n",
            **bound("0000:4d:00.4", "xevf"),
        },
    ),
    "pci.link-width": Case(WARN, {at(L40S, "current_link_width"): "8\n"}),
    "pci.link-speed": Case(
        NOTE, {at(L40S, "current_link_speed"): "2.5 GT/s PCIe\n"}
    ),
    "pci.aer-fatal": Case(
        FAIL, {at(L40S, "aer_dev_fatal"): "DLP 1\nTOTAL_ERR_FATAL 1\n"}
    ),
    "pci.aer-nonfatal": Case(
        NOTE, {at(L40S, "aer_dev_nonfatal"): "TOTAL_ERR_NONFATAL 2\n"}
    ),
    "pci.aer-correctable": Case(
        NOTE, {at(L40S, "aer_dev_correctable"): "TOTAL_ERR_COR 4711\n"}
    ),
    "pci.reset": Case(FAIL, {at(GPU, "reset_method"): "\n"}),
    "pci.presence": Case(FAIL, {at(GPU, "config"): GONE}),
    "pci.power": Case(NOTE, {at(GPU, "power_state"): "D3cold\n"}),
    "pci.offers": Case(
        NOTE,
        {
            at(GPU, "vendor"): "0x1e52\n",
            at(GPU, "class"): "0x120000\n",
            **bound(GPU, "tenstorrent"),
        },
    ),
    "pci.numa": Case(NOTE, {at(GPU, "numa_node"): "-1\n"}),
    "pci.msi": Case(FAIL, {at(GPU, "msi_bus"): "0\n"}),
    "drv.wrong": Case(FAIL, bound(GPU, "nouveau")),
    "drv.blacklist": Case(WARN, {"/etc/modprobe.d/nouveau.conf": "# none\n"}),
    "drv.blacklisted": Case(WARN, modprobe("blacklist vfio-pci")),
    "drv.override": Case(WARN, {at(GPU, "driver_override"): "nvidia\n"}),
    "drv.vfio-ids": Case(WARN, modprobe("options vfio-pci ids=10de:26b9")),
    "drv.kernel": Case(FAIL, OTHER_KERNEL),
    "drv.headers": Case(WARN, {f"{MODULES}/build": None}),
    "drv.dkms": Case(FAIL, {"/var/lib/dkms/gim/1.0/source/Makefile": ""}),
    "drv.secure-boot": Case(
        WARN,
        {f"{MODULES}/extra/xocl.ko": ""},
    ),
    "drv.unsigned": Case(NOTE, {"/sys/module/nvidia/taint": "POE\n"}),
    "drv.lockdown": Case(
        NOTE,
        {
            "/sys/kernel/security/lockdown": "none [integrity]"
            " confidentiality\n"
        },
    ),
    "vfio.module": Case(WARN, {"/sys/module/vfio_pci": None}),
    "vfio.iommu-module": Case(
        WARN,
        {"/sys/module/vfio_iommu_type1": None},
        before={"/dev/iommu": None},
    ),
    "vfio.persistent": Case(NOTE, {"/etc/modules-load.d/vfio.conf": "loop\n"}),
    "vfio.control": Case(FAIL, {"/dev/vfio/vfio": None}),
    "vfio.control-mode": Case(FAIL, {"/dev/vfio/vfio": RecordedMode("0o600")}),
    "vfio.groups": Case(FAIL, {"/dev/vfio/101": None}),
    "vfio.kvm": Case(FAIL, {"/dev/kvm": None}),
    "vfio.kvm-mode": Case(WARN, {"/dev/kvm": RecordedMode("0o600")}),
    "vfio.iommufd": Case(NOTE, {"/dev/iommu": None}),
    "vfio.dma-limit": Case(
        WARN, {f"{prepared.TYPE1}/dma_entry_limit": "1024\n"}
    ),
    "container.sysfs": Case(
        FAIL, {"/proc/77/mountinfo": "2 1 0:2 / /sys ro - sysfs sysfs ro\n"}
    ),
    "container.udev": Case(WARN, container("/run/udev/control")),
    "container.vfio": Case(FAIL, container("/dev/vfio")),
    "container.modules": Case(NOTE, container("/lib/modules")),
    "container.state-dir": Case(
        WARN,
        container()
        | {"/proc/77/mountinfo": "1 0 0:1 / / rw - overlay overlay rw\n"},
    ),
    "container.nvidia": Case(WARN, container("/dev/nvidiactl")),
    "nv.library": Case(
        WARN,
        {f"{LIBRARIES}/libnvidia-ml.so.1": LINK("libnvidia-ml.so.580.105.06")},
    ),
    "nv.modules": Case(
        WARN, {"/sys/module/nvidia_vgpu_vfio/version": "570.158.02\n"}
    ),
    "nv.manager": Case(
        WARN,
        {
            f"/sys/class/mdev_bus/{T4}": None,
            "/sys/module/nvidia_vgpu_vfio": None,
            at("0000:41:00.4", "nvidia"): None,
            at("0000:41:00.5", "nvidia"): None,
        },
    ),
    "nv.offers": Case(NOTE, no_vfs(L40S)),
    "nv.sriov-manage": Case(
        WARN,
        {"/usr/lib/nvidia/sriov-manage": None, "/usr/lib/nvidia": DIRECTORY},
    ),
    "nv.vgpu-mgr": Case(FAIL, {f"{SERVICES}/nvidia-vgpu-mgr.service": None}),
    "nv.vgpud": Case(
        WARN,
        {
            "/etc/systemd/system/multi-user.target.wants/"
            "nvidia-vgpud.service": None
        },
    ),
    "nv.types": Case(NOTE, {"/usr/share/nvidia/vgpu/vgpuConfig.xml": None}),
    "nv.branch": Case(
        WARN,
        {
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64"
            " Kernel Module  525.85.07  Thu\n",
            f"{LIBRARIES}/libnvidia-ml.so.1": LINK(
                "libnvidia-ml.so.525.85.07"
            ),
        },
    ),
    "nv.gsp": Case(NOTE, modprobe("options nvidia NVreg_EnableGpuFirmware=0")),
    "nv.modeset": Case(
        NOTE, {"/sys/module/nvidia_drm/parameters/modeset": "Y\n"}
    ),
    "nv.monitors": Case(
        NOTE,
        {f"{SERVICES}/dcgm.service/cgroup.procs": "99\n"},
        before=no_vfs(L40S),
    ),
    "nv.fabric-manager": Case(
        FAIL, {f"{SERVICES}/nvidia-fabricmanager.service": None}
    ),
    "nv.fabric-mode": Case(
        WARN,
        {
            "/usr/share/nvidia/nvswitch/fabricmanager.cfg": "FABRIC_MODE=0\n",
        },
    ),
    "nv.nvswitch": Case(WARN, switch()),
    "nv.memory-nodes": Case(
        NOTE, bound(GPU, "nvgrace_gpu_vfio_pci") | ids(GPU, "10de", "2941")
    ),
    "nv.nvml": Case(WARN, {}, gpus=NVML_PROBLEM),
    "nv.faults": Case(FAIL, {}, gpus=LOST_GPU),
    "nv.mig": Case(NOTE, {}, gpus=MIG_GPU),
    "nv.ecc": Case(WARN, {}, gpus=reported(ecc=(True, False))),
    "nv.fabric": Case(WARN, {}, gpus=reported(fabric=("completed", 999))),
    "nv.license": Case(WARN, {}, gpus=guest(license="unlicensed_restricted")),
    "nv.guest-driver": Case(WARN, {}, gpus=guest(driver="595.58.03")),
    "intel.offers": Case(NOTE, no_vfs(FLEX)),
    "intel.max-vfs": Case(WARN, {"/sys/module/xe/parameters/max_vfs": "0\n"}),
    "intel.guc": Case(WARN, {"/sys/module/i915/parameters/enable_guc": "0\n"}),
    "intel.vf-memory": Case(
        NOTE, {"/proc/sys/kernel/osrelease": "7.0.3-amd64\n"}
    ),
    "amd.driver": Case(
        WARN,
        bound(MI300X, "amdgpu")
        | no_vfs(MI300X)
        | {
            "/sys/module/gim": None,
            "/sys/bus/pci/drivers/gim": None,
            f"{MODULES}/updates/dkms/gim.ko.zst": None,
        },
    ),
    "amd.offers": Case(NOTE, no_vfs(MI300X)),
    "amd.gim": Case(
        WARN,
        {"/sys/module/gim": None, "/sys/firmware/efi": None},
    ),
    "amd.gim-kernel": Case(
        NOTE, {"/proc/sys/kernel/osrelease": "6.17.1-amd64\n"}
    ),
    "qat.state": Case(WARN, {at(QAT, "qat/state"): "down\n"}),
    "qat.services": Case(WARN, {at(QAT, "qat/cfg_services"): "\n"}),
    "qat.firmware": Case(
        WARN,
        {"/lib/firmware/qat_4xxx.bin": None, "/lib/firmware": DIRECTORY},
    ),
    "qat.host-use": Case(
        WARN, {f"{SERVICES}/qat.service/cgroup.procs": "99\n"}
    ),
    "qat.offers": Case(WARN, bound("0000:6b:00.4", "4xxxvf")),
    "qat.auto-reset": Case(NOTE, {at(QAT, "qat/auto_reset"): "off\n"}),
    "qat.errors-fatal": Case(FAIL, {at(QAT, "qat_ras/errors_fatal"): "3\n"}),
    "qat.errors-nonfatal": Case(
        NOTE, {at(QAT, "qat_ras/errors_nonfatal"): "3\n"}
    ),
    "fpga.driver": Case(
        NOTE,
        bound(ALVEO, "uio_pci_generic")
        | {"/sys/bus/pci/drivers/xclmgmt": None},
    ),
    "fpga.offers": Case(WARN, bound(f"{ALVEO[:-1]}1", "uio_pci_generic")),
    "fpga.regions": Case(WARN, {at(DFL, "fpga_region"): None}),
    "fpga.errors": Case(
        WARN,
        {
            at(DFL, "fpga_region/region0/dfl-fme.0/errors/fme_errors"): (
                "0x40\n"
            )
        },
    ),
    "fpga.xrt": Case(
        WARN, {"/opt/xilinx/xrt/version.json": None, "/opt": DIRECTORY}
    ),
    "fpga.ready": Case(WARN, {at(ALVEO, "ready"): "0x0\n"}),
    "fpga.golden-image": Case(WARN, {at(ALVEO, "mfg"): "1\n"}),
    "fpga.offline": Case(FAIL, {at(ALVEO, "dev_offline"): "1\n"}),
    "fpga.manager": Case(
        WARN, {"/sys/class/fpga_manager/fpga0/state": "write error\n"}
    ),
    "host.libvirt": Case(
        FAIL,
        {f"{LIBRARIES}/libvirt.so.0": LINK("libvirt.so.0.9000.0")},
    ),
    "host.qemu": Case(
        FAIL, {prepared.CAPABILITIES: "  <version>6001000</version>\n"}
    ),
    "host.kernel": Case(
        FAIL,
        {"/proc/sys/kernel/osrelease": "5.14.0\n", "/lib/modules": None},
    ),
    "host.hugepages": Case(
        WARN, {f"{prepared.HUGEPAGES}/free_hugepages": "0\n"}
    ),
    "host.memlock": Case(
        WARN,
        {
            "/proc/88/limits": "Max locked memory   65536   65536   bytes\n",
        },
    ),
    "host.node-memory": Case(
        NOTE, {"/sys/devices/system/node/has_memory": "1\n"}
    ),
    "nova.driver": Case(
        WARN, conf("accel.AccelLibvirtDriver", "libvirt.LibvirtDriver")
    ),
    "nova.options": Case(WARN, conf("sync_interval", "sync_intervall")),
    "nova.sections": Case(WARN, section("[nova-accel]\na = 1")),
    "nova.settings": Case(FAIL, conf("interval = 60", "interval = 60s")),
    "nova.device-spec": Case(
        FAIL, conf("[nova_accel]", "[nova_accel]\ndevice_spec = 41:00.0")
    ),
    "nova.mdev-types": Case(
        FAIL, section("[devices]\nenabled_mdev_types = nvidia-232")
    ),
    "nova.pci-spec": Case(FAIL, section(prepared.SPEC)),
    "nova.pci-alias": Case(WARN, section(prepared.ALIAS)),
    "nova.post-copy": Case(
        WARN,
        conf("virt_type", "live_migration_permit_post_copy = true\nvirt_type"),
    ),
    "nova.virt-type": Case(WARN, conf("virt_type = kvm", "virt_type = qemu")),
    "nova.pcie-ports": Case(NOTE, conf("ports = 16", "ports = 4")),
    "sched.conf": Case(
        FAIL, {NOVA_CONF: CONF.partition("[filter_scheduler]")[0]}
    ),
    "sched.available": Case(
        FAIL, conf("filters.accelerator_filter.AcceleratorFilter", "a.B")
    ),
    "sched.enabled": Case(FAIL, conf("ComputeFilter,AcceleratorFilter", "C")),
    "sched.order": Case(
        WARN,
        conf(
            "ComputeFilter,AcceleratorFilter",
            "AcceleratorFilter,ComputeFilter",
        ),
    ),
    "sched.weigher": Case(
        NOTE, conf(",filters.accelerator_weigher.AcceleratorWeigher", "")
    ),
    "sched.capture": Case(
        WARN,
        {},
        unwrapped={
            "capture": "get_allocation_candidates of"
            " /opt/nova/scheduler/client/report.py takes (self, resources)"
        },
    ),
    "sched.choices": Case(
        WARN,
        {},
        unwrapped={
            "choices": "/opt/nova/scheduler/manager.py has no"
            " select_destinations"
        },
    ),
    "py.packages": Case(
        FAIL,
        {},
        packages=(top_packages.ForeignPackage("filters", "/opt/filters"),),
    ),
    "state.directory": Case(NOTE, {STATE: None, "/var/lib/nova": DIRECTORY}),
    "state.faulted": Case(WARN, {f"{STATE}/faulted/{NOTE_FILE}": ""}),
    "state.drained": Case(NOTE, {f"{STATE}/drained/{NOTE_FILE}": ""}),
    "state.scrubbing": Case(NOTE, {f"{STATE}/scrubbing/{NOTE_FILE}": ""}),
    "state.unreleased": Case(NOTE, {f"{STATE}/unreleased/{NOTE_FILE}": ""}),
    "svc.libvirt": Case(
        WARN,
        {f"{SERVICES}/virtqemud.service": None},
    ),
    "svc.udev": Case(WARN, {"/run/udev/control": None}),
    "svc.mdevctl": Case(
        NOTE,
        {
            f"/etc/mdevctl.d/{T4}/83b8f4f2-509f-382f-3c1e-e6bfe0fa1001": "{}",
        },
    ),
}

# Answers of NVML that are no error.
GOOD_ANSWERS: tuple[Mapping[str, nvml_gpus.NvmlGpu], ...] = (
    reported(ecc=(True, True), fabric=("completed", 0)),
    reported(fabric=("not_supported", 0)),
    guest(license="licensed", driver="580.95.02"),
    guest(license="uninitialized", driver="570.172.08"),
    guest(driver="582.16"),  # Windows, of the branch 580
)

# Hosts that show too little for a verdict of these checks.
UNSEEN: tuple[tuple[str, prepared.Change], ...] = (
    (
        "nv.library",
        {
            f"{LIBRARIES}/libnvidia-ml.so.1": LINK(
                "/etc/alternatives/nvidia--libnvidia-ml.so.1"
            )
        },
    ),
    ("nv.vgpu-mgr", {SERVICES: None}),
    (
        "nv.vgpu-mgr",
        {
            f"{SERVICES}/nvidia-vgpu-mgr.service": None,
            f"{prepared.UNITS}/nvidia-vgpu-mgr.service": "[Service]\n"
            "Slice=gpu.slice\n",
        },
    ),
    (
        "nv.vgpu-mgr",
        {f"{SERVICES}/nvidia-vgpu-mgr.service/cgroup.procs": ""},
    ),
    (
        "nv.fabric-manager",
        {
            f"{SERVICES}/nvidia-fabricmanager.service": None,
            f"{prepared.UNITS}/nvidia-fabricmanager.service": None,
        },
    ),
)
