# SPDX-License-Identifier: Apache-2.0
"""Host on which each check of ``nova-accel doctor`` is ok, and its changes.

The files are records of ``RecordedFiles``. A change is a dictionary: paths
with their new records; None removes a path and all below it.
"""

import errno
import functools
import os
import pathlib
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nova_accel.config import top_packages
from nova_accel.discovery.capture import (
    Record,
    RecordedDirectory,
    RecordedFiles,
    RecordedLink,
    RecordedMode,
)
from nova_accel.doctor import checked_host
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import fs, host_reader
from tests.hosts import build, vgpu_config

L40S, T4, GPU = "0000:41:00.0", "0000:3b:00.0", "0000:65:00.0"
#: Sections of nova.conf that name GPU.
SPEC = '[pci]\ndevice_spec = {"vendor_id": "10de"}'
ALIAS = (
    '[pci]\nalias = {"name": "a10", "vendor_id": "10de", "product_id": "2236"}'
)
MI300X, FLEX, QAT = "0000:c1:00.0", "0000:4d:00.0", "0000:6b:00.0"
DFL, ALVEO, NIC = "0000:b1:00.0", "0000:a1:00.0", "0000:17:00.0"
DEVICES = "/sys/bus/pci/devices"
RELEASE = "6.12.9-amd64"
MODULES = f"/lib/modules/{RELEASE}"
UNITS = "/usr/lib/systemd/system"
SERVICES = "/sys/fs/cgroup/system.slice"
TYPE1 = "/sys/module/vfio_iommu_type1/parameters"
HUGEPAGES = "/sys/devices/system/node/node0/hugepages/hugepages-1048576kB"
SECURE_BOOT = (
    "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
)
CAPABILITIES = "/var/cache/libvirt/qemu/capabilities/0f.xml"

Change = dict[str, Record | None]

# Memory BARs have a flag and an address; six BARs, the ROM, six VF BARs.
BAR = "0x00000000c0000000 0x00000000c0ffffff 0x0000000000040200"
NO_BAR = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
UNSET_BAR = "0x0000000000000000 0x0000000000ffffff 0x0000000000040200"
RESOURCES = "\n".join([BAR, *[NO_BAR] * 6, BAR, *[NO_BAR] * 5])

_FME = "fpga_region/region0/dfl-fme.0"
_PORT = "fpga_region/region0/dfl-port.0"
_XCLBIN = "5a3c1f0e-6f1d-4b6c-8f0e-0c3b1d5e7a90"
_CARD = {
    "resource": RESOURCES,
    "reset_method": "flr bus",
    "max_link_speed": "16.0 GT/s PCIe",
    "current_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
    "current_link_width": "16",
    "aer_dev_fatal": "DLP 0\nTOTAL_ERR_FATAL 0",
    "aer_dev_nonfatal": "DLP 0\nTOTAL_ERR_NONFATAL 0",
    "aer_dev_correctable": "RxErr 0\nTOTAL_ERR_COR 0",
    "power_state": "D0",
    "msi_bus": "1",
    "sriov_drivers_autoprobe": "0",
    "sriov_offset": "4",
    "sriov_stride": "1",
}


def _card(address: str, ids: str, kind: str, **facts: Any) -> dict[str, Any]:
    bus = address[5:7]
    attributes = _CARD | facts.pop("attributes", {})
    return {
        "address": address,
        "id": ids,
        "class": kind,
        "numa": 0,
        "group": int(bus, 16),
        "below": [f"0000:{bus[0]}0:01.0"],
        "attributes": attributes,
    } | facts


def _vfs(group: int, ids: str, driver: str = "vfio-pci") -> dict[str, Any]:
    return {
        "total": 16,
        "count": 2,
        "offset": 4,
        "id": ids,
        "driver": driver,
        "first_group": group,
    }


_DESCRIPTION: Mapping[str, Any] = {
    "functions": [
        _card(
            L40S,
            "10de:26b9",
            "030200",
            driver="nvidia",
            vfs=_vfs(200, "10de:26b9", "nvidia")
            | {"vgpus": {"creatable": [[1145, "NVIDIA L40S-1B"]]}},
        ),
        _card(T4, "10de:1eb8", "030200", driver="nvidia"),
        _card(GPU, "10de:2236", "030200", driver="vfio-pci"),
        _card(
            MI300X,
            "1002:74a1",
            "120000",
            driver="gim",
            vfs=_vfs(210, "1002:74b5"),
        ),
        _card(
            FLEX,
            "8086:56c0",
            "038000",
            driver="xe",
            vfs=_vfs(220, "8086:56c0"),
        ),
        _card(
            QAT,
            "8086:4940",
            "0b4000",
            driver="4xxx",
            attributes={
                "qat/state": "up",
                "qat/cfg_services": "sym;asym",
                "qat/auto_reset": "on",
                "qat_ras/errors_fatal": "0",
                "qat_ras/errors_nonfatal": "0",
            },
            vfs=_vfs(230, "8086:4941"),
        ),
        _card(
            DFL,
            "8086:bcce",
            "120000",
            driver="dfl-pci",
            attributes={
                f"{_FME}/errors/fme_errors": "0x0",
                f"{_FME}/ports_num": "1",
                f"{_FME}/dfl-fme-region.1/fpga_region/region2/compat_id": (
                    "f64e598bea11517fa28e7bc65d885104"
                ),
                f"{_PORT}/id": "0",
                f"{_PORT}/afu_id": "d8424dc4a4a3c413f89e433683f9040b",
            },
        ),
        _card(
            ALVEO,
            "10ee:5004",
            "120000",
            driver="xclmgmt",
            attributes={
                "ready": "1",
                "mfg": "0",
                "dev_offline": "0",
                "board_name": "u250",
                "rom.m.55296/VBNV": "xilinx_u250_gen3x16_xdma_shell_4_1",
                "interface_uuids": "8d8b5e2a4c7f4f0f9a6a3e2e4b4d5b8d",
            },
        ),
        _card(
            f"{ALVEO[:-1]}1",
            "10ee:5005",
            "120000",
            driver="xocl",
            group=162,
            attributes={"ready": "0x1", "xclbinuuid": _XCLBIN},
        ),
        {
            "address": NIC,
            "id": "8086:1593",
            "class": "020000",
            "driver": "ice",
            "numa": 0,
            "group": 9,
        },
    ],
    "parents": [
        {
            "on": T4,
            "prefix": "nvidia",
            "types": [["232", "GRID T4-4Q", 4, [4096, 4]]],
        }
    ],
    "modules": {
        "nvidia": "580.95.02",
        "nvidia_vgpu_vfio": "580.95.02",
        "gim": "8.7.0",
    },
}

CONF = """\
[DEFAULT]
compute_driver = accel.AccelLibvirtDriver
[libvirt]
virt_type = kvm
num_pcie_ports = 16
[nova_accel]
sync_interval = 60
[filter_scheduler]
available_filters = nova.scheduler.filters.all_filters
available_filters = filters.accelerator_filter.AcceleratorFilter
enabled_filters = ComputeFilter,AcceleratorFilter
weight_classes = nova.scheduler.weights.all_weighers,\
filters.accelerator_weigher.AcceleratorWeigher
"""
_MOUNTS = """\
1 0 0:1 / / rw,relatime - ext4 /dev/vda1 rw
2 1 0:2 / /sys rw,nosuid - sysfs sysfs rw
3 1 0:3 / /dev rw,nosuid - devtmpfs udev rw
"""
_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max locked memory         unlimited            unlimited            bytes
"""
_EMPTY = RecordedDirectory()
_READY: dict[str, Record] = {
    "/proc/cmdline": "intel_iommu=on iommu=pt\n",
    "/etc/default/grub": 'GRUB_CMDLINE_LINUX="intel_iommu=on iommu=pt"\n',
    "/proc/sys/kernel/osrelease": f"{RELEASE}\n",
    "/proc/self": RecordedLink("77"),
    "/proc/77/mountinfo": _MOUNTS,
    "/proc/88/limits": _LIMITS,
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel"
    " Module  580.95.02  Wed\n",
    "/proc/driver/nvidia-nvswitch/devices/0000:05:00.0": "",
    "/usr/share/nvidia/nvswitch/fabricmanager.cfg": "FABRIC_MODE=1\n",
    "/usr/share/nvidia/vgpu/vgpuConfig.xml": vgpu_config.text(
        {"1145": "NVIDIA L40S-1B"}
    ),
    "/usr/lib/nvidia/sriov-manage": "",
    "/usr/lib/x86_64-linux-gnu/libvirt.so.0": RecordedLink(
        "libvirt.so.0.12008.0"
    ),
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": RecordedLink(
        "libnvidia-ml.so.580.95.02"
    ),
    CAPABILITIES: "<qemuCaps>\n  <version>10002000</version>\n</qemuCaps>\n",
    "/etc/modprobe.d/nouveau.conf": "blacklist nouveau\n",
    "/etc/modules-load.d/vfio.conf": "vfio-pci\n",
    f"{MODULES}/updates/dkms/nvidia.ko.zst": "",
    f"{MODULES}/updates/dkms/gim.ko.zst": "",
    f"{MODULES}/build": RecordedLink("/usr/src/headers"),
    "/lib/firmware/qat_4xxx.bin": "",
    "/opt/xilinx/xrt/version.json": "{}",
    "/etc/nova/nova.conf": CONF,
    "/var/lib/nova/accel": _EMPTY,
    "/run/udev/control": "",
    "/dev/kvm": RecordedMode("0o660"),
    "/dev/iommu": RecordedMode("0o600"),
    "/dev/nvidiactl": RecordedMode("0o666"),
    "/dev/vfio/vfio": RecordedMode("0o666"),
    **{
        f"/dev/vfio/{group}": RecordedMode("0o600")
        for group in (101, 210, 211, 220, 221, 230, 231)
    },
    **{
        f"{UNITS}/{name}.service": ""
        for name in (
            *("nvidia-vgpu-mgr", "nvidia-vgpud", "virtqemud", "qat"),
            *("systemd-udevd", "nvidia-fabricmanager"),
        )
    },
    "/etc/systemd/system/multi-user.target.wants/nvidia-vgpud.service": (
        RecordedLink(f"{UNITS}/nvidia-vgpud.service")
    ),
    **{
        f"{SERVICES}/{name}.service/cgroup.procs": "88\n"
        for name in ("nvidia-vgpu-mgr", "virtqemud", "nvidia-fabricmanager")
    },
    "/sys/firmware/acpi/tables/DMAR": "",
    "/sys/firmware/acpi/tables/FACP": "",
    SECURE_BOOT: "\x06\0\0\0\x01",
    "/sys/kernel/security/lockdown": "[none] integrity confidentiality\n",
    "/sys/module/kernel/parameters/panic": "0\n",
    "/sys/module/nvidia/taint": "PO\n",
    "/sys/module/nvidia_drm/parameters/modeset": "N\n",
    "/sys/module/vfio_pci/parameters/disable_denylist": "N\n",
    "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode": "N\n",
    f"{TYPE1}/allow_unsafe_interrupts": "N\n",
    f"{TYPE1}/dma_entry_limit": "65535\n",
    "/sys/module/xe/parameters/max_vfs": "31\n",
    "/sys/class/fpga_manager/fpga0/state": "operating\n",
    "/sys/devices/system/node/has_memory": "0-1\n",
    "/sys/devices/system/node/node1/cpulist": "8-15\n",
    f"{HUGEPAGES}/nr_hugepages": "64\n",
    f"{HUGEPAGES}/free_hugepages": "32\n",
}


def at(address: str, name: str) -> str:
    """Return the real path of an attribute of a card."""
    root = f"0000:{address[5]}0"
    return f"/sys/devices/pci{root}/{root}:01.0/{address}/{name}"


@functools.cache
def records() -> Mapping[str, Record]:
    """Return the files of the prepared host."""
    with tempfile.TemporaryDirectory() as directory:
        root = build.build(_DESCRIPTION, pathlib.Path(directory))
        tree = dict(_read_tree(root))
    for card in (L40S, T4, GPU, MI300X, FLEX, QAT, DFL, ALVEO):
        group = int(card[5:7], 16)
        place = f"/sys/kernel/iommu_groups/{group}"
        tree[f"{place}/type"] = "DMA-FQ\n"
        tree[f"{place}/reserved_regions"] = (
            "0x00000000fee00000 0x00000000feefffff msi\n"
        )
        tree[at(card, "config")] = b"\xde\x10\xb9\x26"
        tree[at(card, "../subordinate_bus_number")] = f"{group}\n"
    return {os.path.normpath(path): r for path, r in (tree | _READY).items()}


def _read_tree(
    root: pathlib.Path,
) -> Iterator[tuple[str, Record]]:
    for directory, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = pathlib.Path(directory, name)
            place = f"/{path.relative_to(root)}"
            if path.is_symlink():
                yield place, RecordedLink(os.readlink(path))
            elif path.is_file():
                yield place, path.read_text()
            elif path.is_dir():
                yield place, RecordedDirectory()


class BlockedFiles:
    """Files of which a path and all below it can't be read."""

    def __init__(self, source: fs.FileSource, blocked: str) -> None:
        self._source, self._blocked = source, blocked

    def link(self, path: str) -> str | None:
        self._check(path)
        return self._source.link(path)

    def content(self, path: str) -> bytes:
        self._check(path)
        return self._source.content(path)

    def names(self, path: str) -> list[str]:
        self._check(path)
        return self._source.names(path)

    def mode(self, path: str) -> int:
        self._check(path)
        return self._source.mode(path)

    def _check(self, path: str) -> None:
        if f"{path}/".startswith(f"{self._blocked}/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def changed(
    change: Change,
    gpus: Mapping[str, nvml_gpus.NvmlGpu] = types.MappingProxyType({}),
    blocked: str = "",
    packages: Sequence[top_packages.ForeignPackage] = (),
    unwrapped: Mapping[str, str] = types.MappingProxyType({}),
) -> checked_host.CheckedHost:
    """Return the prepared host with a change.

    :param blocked: a path that can't be read, nor anything below it.
    :param packages: Python packages of other distributions.
    :param unwrapped: why methods of nova-scheduler can't be wrapped.
    """
    files = dict(records())
    for path, record in change.items():
        for place in list(files):
            if place == path or place.startswith(f"{path}/"):
                del files[place]
        if record is not None:
            files[path] = record
    source: fs.FileSource = RecordedFiles(files)
    if blocked:
        source = BlockedFiles(source, blocked)
    reader = host_reader.HostReader(source=source, gpus=gpus)
    return checked_host.CheckedHost(
        reader, packages=packages, unwrapped=unwrapped
    )
