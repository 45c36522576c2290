# SPDX-License-Identifier: Apache-2.0
"""Roles in a Debian 13 root: installed, verified, repeated, removed.

A removal restores the files and packages of before. Packages of vendors are
substitutes, built here with dpkg-deb: they have the files, services and names
of the real ones, and no drivers. The substitute installer has the options and
exit statuses of NVIDIA's.
"""

import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tests.functional.contrib.ansible import debian_host

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="mounts file systems"
)

Variables = Mapping[str, Any]
_SUBSTITUTES = pathlib.Path(__file__).with_name("substitutes")
_NOVA_CONF = """\
[DEFAULT]
compute_driver = libvirt.LibvirtDriver
[devices]
enabled_mdev_types = nvidia-35,
    nvidia-36
"""
_UNIT = """\
[Service]
ExecStart=/bin/true
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture
def host() -> Iterator[debian_host.DebianHost]:
    with debian_host.DebianHost() as host:
        yield host


def build_package(
    host: debian_host.DebianHost, name: str, files: Mapping[str, str]
) -> list[dict[str, str]]:
    """Build a substitute of a package; return it for a role."""
    top = host.files / name
    control = f"Package: {name}\nVersion: 1.0\nArchitecture: all\n"
    control += "Maintainer: nova-accel <tests@localhost>\n"
    control += "Description: substitute of the tests\n"
    for path, text in {"/DEBIAN/control": control, **files}.items():
        target = top / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    host.run("dpkg-deb", "--build", f"/mnt/{name}")
    content = (host.files / f"{name}.deb").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return [{"source": f"/mnt/{name}.deb", "sha256": digest}]


def prepare_iommu(host: debian_host.DebianHost) -> Variables:
    line = 'GRUB_CMDLINE_LINUX="intel_iommu=off console=ttyS0"\n'
    host.write("/etc/default/grub", line)
    host.write("/boot/vmlinuz-6.12.0-test", "")
    host.run("update-grub")
    return {"iommu_arguments": ["intel_iommu=on"]}


def prepare_nova(host: debian_host.DebianHost) -> Variables:
    host.write("/etc/nova/nova.conf", _NOVA_CONF)
    host.write("/var/lib/nova/compute_id", "")
    return {"nova_accel_services": ["compute", "scheduler"]} | {
        "nova_accel_user": "root"
    }


def prepare_blacklist(host: debian_host.DebianHost) -> Variables:
    host.write("/etc/modprobe.d/local.conf", "blacklist vfio-pci\n# xe\n")
    return {}


def prepare_vfio(host: debian_host.DebianHost) -> Variables:
    text = "options vfio-pci ids=10de:2235\noptions kvm nested=1\n"
    host.write("/etc/modprobe.d/local.conf", text)
    return {"vfio_released_ids": ["10de:2235"]}


def prepare_vgpu(host: debian_host.DebianHost) -> Variables:
    source = _SUBSTITUTES / "vgpu-kvm.run"
    shutil.copy(source, host.files)
    return {
        "nvidia_vgpu_host_installer": f"/mnt/{source.name}",
        "nvidia_vgpu_host_sha256": hashlib.sha256(
            source.read_bytes()
        ).hexdigest(),
        "nvidia_vgpu_host_prerequisites": ["make"],
    }


def prepare_fabric(host: debian_host.DebianHost) -> Variables:
    config = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
    unit = "/usr/lib/systemd/system/nvidia-fabricmanager.service"
    files = {config: "LOG_LEVEL=4\nFABRIC_MODE=0\n", unit: _UNIT}
    package = build_package(host, "nvidia-fabricmanager", files)
    return {"nvidia_fabric_manager_package_files": package}


def prepare_gim(host: debian_host.DebianHost) -> Variables:
    package = build_package(host, "gim-dkms", {"/usr/src/gim/Makefile": "\n"})
    return {
        "amd_gim_package_files": package,
        "amd_gim_prerequisites": ["make"],
    }


def prepare_xrt(host: debian_host.DebianHost) -> Variables:
    version = {"/opt/xilinx/xrt/version.json": "{}\n"}
    package = build_package(host, "xrt", version)
    return {"xrt_package_files": package, "xrt_prerequisites": ["make"]}


def prepare_datacenter(host: debian_host.DebianHost) -> Variables:
    package = build_package(host, "nvidia-open", {"/usr/src/nvidia/x": "\n"})
    return {
        "nvidia_datacenter_packages": [],
        "nvidia_datacenter_package_files": package,
    }


def without_preparation(variables: Variables) -> Callable[..., Variables]:
    return lambda _host: variables


class Case(NamedTuple):
    """A role, its preparation, and a file that it writes."""

    prepare: Callable[[debian_host.DebianHost], Variables]
    path: str
    text: str


CASES = {
    "iommu": Case(
        prepare_iommu, "/boot/grub/grub.cfg", " console=ttyS0 intel_iommu=on"
    ),
    "vfio": Case(
        prepare_vfio,
        "/etc/modules-load.d/nova-accel-vfio.conf",
        "vfio_iommu_type1",
    ),
    "blacklist": Case(
        prepare_blacklist,
        "/etc/modprobe.d/nova-accel-blacklist.conf",
        "blacklist nouveau",
    ),
    "nvidia_vgpu_host": Case(
        prepare_vgpu, "/usr/lib/nvidia/sriov-manage", "substitute"
    ),
    "nvidia_datacenter": Case(
        prepare_datacenter, f"{debian_host.MANIFESTS}/nvidia_datacenter.json",
        "nvidia-open",
    ),
    "nvidia_fabric_manager": Case(
        prepare_fabric,
        "/usr/share/nvidia/nvswitch/fabricmanager.cfg",
        "\nFABRIC_MODE=1",
    ),
    "amd_gim": Case(
        prepare_gim,
        "/etc/modprobe.d/nova-accel-amd-gim.conf",
        "blacklist amdgpu",
    ),
    "intel_xe": Case(
        without_preparation({"intel_xe_packages": [], "intel_xe_guc": True}),
        "/etc/modprobe.d/nova-accel-intel-xe.conf",
        "options xe max_vfs=31",
    ),
    # qatlib is Debian's own; its firmware is in non-free-firmware.
    "qat": Case(
        without_preparation({"qat_packages": [], "qat_host_use": True}),
        f"{debian_host.MANIFESTS}/qat.json",
        "qatlib-service",
    ),
    "dfl_opae": Case(
        without_preparation({}),
        "/etc/modules-load.d/nova-accel-dfl-opae.conf",
        "dfl-fme",
    ),
    "xrt": Case(
        prepare_xrt, "/etc/modules-load.d/nova-accel-xrt.conf", "xclmgmt"
    ),
    "nova_accel": Case(
        prepare_nova, "/etc/nova/nova.conf", "config_source = accel"
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("role", CASES)
def test_a_removal_restores_the_host(
    host: debian_host.DebianHost, role: str
) -> None:
    case = CASES[role]
    variables = case.prepare(host)
    files, packages = host.list_files(), host.list_packages()
    check = host.play("install", role, variables, "--check")
    assert check.status == 0, check.output
    assert host.list_files() == files
    install = host.play("install", role, variables)
    assert install.status == 0, install.output
    assert case.text in host.read(case.path)
    verify = host.play("verify", role, variables)
    assert verify.status == 0, verify.output
    again = host.play("install", role, variables)
    assert (again.status, again.changed) == (0, 0), again.output
    remove = host.play("remove", role, variables)
    assert remove.status == 0, remove.output
    assert host.list_packages() == packages
    assert host.list_files() == files


def test_the_command_installs_and_removes(
    host: debian_host.DebianHost,
) -> None:
    files = host.list_files()
    command = ("nova-accel", "driver")
    install = host.execute(*command, "install", "--role", "blacklist")
    assert install.returncode == 0, install.stdout + install.stderr
    assert "reboot this host for blacklist" in install.stdout
    assert "blacklist: Blacklist modules: changed" in install.stderr
    status = host.execute(*command, "status", "-f", "json")
    (row,) = json.loads(status.stdout)
    assert (row["Role"], row["Reboot"]) == ("blacklist", True)
    remove = host.execute(*command, "remove")
    assert remove.returncode == 0, remove.stdout + remove.stderr
    assert host.list_files() == files


@pytest.mark.long
def test_a_failed_installer_ends_the_play(
    host: debian_host.DebianHost,
) -> None:
    variables = {
        **prepare_vgpu(host),
        "nvidia_vgpu_host_options": ["--silent", "--no-such-option"],
    }
    files = host.list_files()
    install = host.play("install", "nvidia_vgpu_host", variables)
    assert install.status != 0
    assert "unrecognized option" in install.output
    remove = host.play("remove", "nvidia_vgpu_host", variables)
    assert remove.status == 0, remove.output
    assert host.list_files() == files


@pytest.mark.long
def test_a_file_with_another_checksum_is_refused(
    host: debian_host.DebianHost,
) -> None:
    variables = {**prepare_vgpu(host), "nvidia_vgpu_host_sha256": "0" * 64}
    install = host.play("install", "nvidia_vgpu_host", variables)
    assert install.status != 0
    assert "expected 0000" in install.output
    assert "usr/lib/nvidia" not in host.list_files()


@pytest.mark.long
def test_a_failed_check_ends_a_verification(
    host: debian_host.DebianHost,
) -> None:
    tree = host.files / "bad/sys/bus/pci/devices/0000:65:00.0"
    tree.mkdir(parents=True)
    for name, text in (
        ("vendor", "0x10de"), ("device", "0x2235"), ("class", "0x030200"),
        ("subsystem_vendor", "0x10de"), ("subsystem_device", "0x145a"),
        ("config", ""), ("resource", ""), ("numa_node", "0"),
    ):  # fmt: skip
        (tree / name).write_text(f"{text}\n")
    verify = host.play("verify", "iommu", {"doctor_root": "/mnt/bad"})
    assert verify.status != 0
    assert "iommu.enabled" in verify.output


@pytest.mark.long
def test_a_file_changed_by_others_is_not_restored(
    host: debian_host.DebianHost,
) -> None:
    install = host.play("install", "blacklist", {})
    assert install.status == 0, install.output
    path = "/etc/modprobe.d/nova-accel-blacklist.conf"
    host.write(path, "blacklist nouveau\nblacklist other\n")
    remove = host.play("remove", "blacklist", {})
    assert remove.status != 0
    assert "was changed after the role blacklist" in remove.output
    assert "other" in host.read(path)
