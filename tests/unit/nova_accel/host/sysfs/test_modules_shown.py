# SPDX-License-Identifier: Apache-2.0
"""Files of a kernel prove its VFIO, its modules and the maker of its IOMMU."""

import pytest

from nova_accel.discovery.capture import (
    Record,
    RecordedDirectory,
    RecordedFiles,
    RecordedLink,
)
from nova_accel.host.sysfs import fs, host_reader, modules

RELEASE = "/proc/sys/kernel/osrelease"
VFIO = "/sys/class/vfio-dev/vfio0"
NPU = "/sys/devices/platform/fdab0000.npu/accel/accel0"
AUXILIARY = "/sys/devices/pci0000:00/0000:00:0b.0/x.npu.0/accel/accel1"


def files(records: dict[str, Record]) -> fs.Files:
    return fs.Files(RecordedFiles(records))


@pytest.mark.parametrize(
    ("records", "version"),
    [
        ({RELEASE: "6.12.9\n"}, ()),
        ({VFIO: RecordedDirectory()}, (6, 1)),
        ({f"{VFIO}/dev": "511:0\n"}, (6, 6)),
    ],
    ids=["none", "class", "device"],
)
def test_files_prove_the_release_of_vfio(
    records: dict[str, Record], version: tuple[int, ...]
) -> None:
    assert modules.read_vfio_version(files(records)) == version


@pytest.mark.parametrize(
    ("records", "words", "missing"),
    [
        ({"/sys/firmware/acpi/tables/DMAR": ""}, "VT-d", "intel_iommu=on"),
        (
            {
                "/sys/class/iommu/dmar0": RecordedDirectory(),
                "/proc/cmdline": "quiet intel_iommu=on\n",
            },
            "VT-d",
            "",
        ),
        (
            {"/sys/module/kvm_amd": RecordedDirectory()},
            "AMD-Vi",
            "",
        ),
        ({RELEASE: "5.14.0-503.el9.aarch64\n"}, "SMMU", ""),
        ({RELEASE: "6.12.9-arm64\n"}, "SMMU", ""),
        ({RELEASE: "6.12.9-amd64\n"}, "the IOMMU", ""),
    ],
    ids=["intel", "argument", "amd", "el-arm", "debian-arm", "unknown"],
)
def test_an_iommu_is_switched_on_as_its_maker_says(
    records: dict[str, Record], words: str, missing: str
) -> None:
    assert words in modules.explain_iommu(files(records))
    assert modules.missing_argument(files(records)) == missing


def test_an_absent_module_is_known_only_beside_a_loaded_one() -> None:
    some = files({"/sys/module/nvidia/version": "580.95.02\n"})
    assert modules.is_loaded(some, "nvidia", "nvidia") is True
    assert modules.is_loaded(some, "nvidia_vgpu_vfio", "nvidia") is False
    assert modules.is_loaded(some, "gim", "amdgpu") is None
    assert modules.is_loaded(files({}), "gim", "amdgpu") is None


def test_a_module_is_installed_where_dkms_puts_it() -> None:
    place = "/lib/modules/6.12.9-amd64/updates/dkms/nvidia-vgpu-vfio.ko.xz"
    image = files({RELEASE: "6.12.9-amd64\n", place: ""})
    assert modules.is_installed(image, "nvidia_vgpu_vfio")
    assert not modules.is_installed(image, "nvidia_vgpu")


def test_a_driver_exists_if_the_kernel_lists_it() -> None:
    image = files({"/sys/bus/pci/drivers": RecordedDirectory(("xocl",))})
    assert modules.has_driver(image, "xocl")
    assert not modules.has_driver(image, "xclmgmt")
    assert not modules.has_driver(files({}), "xocl")


def test_accelerators_of_each_bus_are_listed() -> None:
    links: dict[str, Record] = {
        f"/sys/class/accel/{path.rpartition('/')[2]}": RecordedLink(path)
        for path in (NPU, AUXILIARY)
    }
    records = links | {f"{path}/dev": "261:0\n" for path in (NPU, AUXILIARY)}
    reader = host_reader.HostReader(source=RecordedFiles(records))
    assert reader.accelerators() == ("fdab0000.npu", "0000:00:0b.0")
