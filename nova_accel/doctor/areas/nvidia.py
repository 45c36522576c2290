# SPDX-License-Identifier: Apache-2.0
"""Checks of the files of NVIDIA's driver, vGPU manager and fabric."""

import re
from collections.abc import Iterator

from nova_accel.catalog import versions
from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.host_checks import (
    Observation,
    fail,
    note,
    unknown,
    warn,
)
from nova_accel.host.sysfs import allowed_paths
from nova_accel.model import pci

AREA = host_checks.Area("nv", page="gpus", technology="nvidia")
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

_LIBRARY = "libnvidia-ml.so.1"
_KERNEL_VERSION = "/proc/driver/nvidia/version"
_SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"
MANAGER = "nvidia_vgpu_vfio"
_NUMBER = re.compile(r"\b(\d{3})\.\d+(?:\.\d+)?\b")
# Links of the distribution's alternatives have no version in their target.
_UNVERSIONED = "the link of the library has no version"
_COMPARE = "run nvidia-smi, which reports a mismatch"
# Programs that open /dev/nvidia* for good.
_MONITORS = ("nvidia-dcgm", "dcgm", "dcgm-exporter")


def _bound(host: _Host) -> list[pci.PciFunction]:
    """Return the cards that NVIDIA's driver has."""
    cards = host.cards_of(checked_host.NVIDIA)
    return [card for card in cards if card.driver == "nvidia"]


def unseen(host: _Host, name: str) -> Observation:
    """Return the observation of a service that these files do not show."""
    return unknown(
        f"the state of {name} can't be seen: it is not installed here, runs in"
        " a container, or these files list no services",
        host.service(name),
        remedy=f"systemctl status {name}  # where it is installed",
    )


def _version(host: _Host) -> str:
    match = _NUMBER.search(host.text(_KERNEL_VERSION))
    return match[0] if match else host.text(host.sys("module/nvidia/version"))


@AREA.check(
    "library",
    why='NVML fails with "driver/library version mismatch": MIG, faults and'
    " NVLink stay unknown",
    remedy="unload the modules, and load the new ones, or reboot:\n"
    "modprobe -r nvidia_vgpu_vfio nvidia\nmodprobe nvidia",
)
def check_library(host: _Host) -> _Results:
    """The library and the kernel module have one version."""
    path, version = host.library(_LIBRARY)
    running = _version(host)
    if not path or not running:
        return
    if not _NUMBER.fullmatch(version):
        yield unknown(_UNVERSIONED, path, remedy=_COMPARE)
    elif version != running:
        yield warn(
            f"the library is {version}, the kernel module {running}",
            path,
            _KERNEL_VERSION,
        )


@AREA.check(
    "modules",
    why="NVIDIA supports no vGPUs with modules of two releases",
    remedy="install the vGPU manager of one release, and reboot",
    ansible="nvidia_vgpu_host",
)
def check_modules(host: _Host) -> _Results:
    """The vGPU module is of the driver's release."""
    path = host.sys("module", MANAGER, "version")
    version = host.text(path)
    driver = host.text(host.sys("module/nvidia/version"))
    if version and driver and version != driver:
        yield warn(
            f"{MANAGER} is {version}, nvidia is {driver}",
            path,
            host.sys("module/nvidia/version"),
        )


@AREA.check(
    "sriov-manage",
    why="NVIDIA's script enables VFs; a plain write is refused",
    remedy="install NVIDIA's vGPU manager, which has the script",
    ansible="nvidia_vgpu_host",
)
def check_sriov_manage(host: _Host) -> _Results:
    """NVIDIA's script for VFs is installed."""
    has_directory = host.exists("/usr/lib/nvidia")
    cards = [card for card in _bound(host) if card.total_vfs]
    if cards and has_directory and not host.exists(_SRIOV_MANAGE):
        is_loaded = host.is_loaded(MANAGER)
        yield warn(
            "sriov-manage is missing",
            _SRIOV_MANAGE,
            remedy="install the package of the loaded vGPU manager anew, as"
            " the script is a part of it"
            if is_loaded
            else "",
        )


@AREA.check(
    "vgpu-mgr",
    why="guests with a vGPU do not start without this service",
    remedy=remedies.start_service("nvidia-vgpu-mgr"),
    ansible="nvidia_vgpu_host",
)
def check_vgpu_mgr(host: _Host) -> _Results:
    """The service nvidia-vgpu-mgr is active."""
    name = "nvidia-vgpu-mgr"
    if not host.is_loaded(MANAGER) or not _bound(host):
        return
    if host.is_stopped(name):
        yield fail(f"{name} is not active", host.service(name))
    elif not host.is_active(name):
        yield unseen(host, name)


@AREA.check(
    "vgpud",
    why="the driver has no types of vGPUs after the next start",
    remedy="systemctl enable nvidia-vgpud",
    ansible="nvidia_vgpu_host",
)
def check_vgpud(host: _Host) -> _Results:
    """The service nvidia-vgpud is enabled."""
    link = "/etc/systemd/system/multi-user.target.wants/nvidia-vgpud.service"
    if host.unit("nvidia-vgpud") and not host.exists(link):
        yield warn("nvidia-vgpud is not enabled", link)


@AREA.check(
    "types",
    why="sizes of vGPU types are then read from NVML, or unknown",
    remedy="reinstall NVIDIA's vGPU manager",
)
def check_types(host: _Host) -> _Results:
    """NVIDIA's table of vGPU types is installed."""
    path = allowed_paths.VGPU_CONFIG
    has_directory = host.exists("/usr/share/nvidia")
    if has_directory and host.is_loaded(MANAGER) and not host.exists(path):
        yield note("the table of vGPU types is missing", path)


@AREA.check(
    "branch",
    why="NVIDIA fixes security issues of branches with support only",
    remedy="install the vGPU manager of a branch with support, then the"
    " drivers of the guests",
    ansible="nvidia_vgpu_host",
)
def check_branch(host: _Host) -> _Results:
    """The driver's branch has support."""
    version = _version(host)
    number = version.partition(".")[0]
    if not version or not host.is_loaded(MANAGER):
        return
    table = versions.load()
    branch = table.nvidia_branches.get(number)
    if branch is None:
        yield note(
            f"branch {number} of the driver is not in nova-accel's table of"
            f" {table.date}",
            _KERNEL_VERSION,
            remedy="see NVIDIA's list of vGPU releases for its support",
        )
    elif not branch.is_supported:
        yield warn(
            f"vGPU {branch.release} (driver {version}) has no support any"
            f" more as of {table.date}",
            _KERNEL_VERSION,
        )


@AREA.check(
    "gsp",
    why="cards of Turing and newer ones need GSP firmware for MIG, vGPUs on"
    " newer branches and the open modules",
    remedy="remove NVreg_EnableGpuFirmware=0 from /etc/modprobe.d, then\n"
    + remedies.REBUILD,
)
def check_gsp(host: _Host) -> _Results:
    """GSP firmware is not switched off."""
    for line in host.modprobe_lines:
        if "NVreg_EnableGpuFirmware=0" in line.words:
            yield note("GSP firmware is switched off", line.path)


@AREA.check(
    "modeset",
    why="the host's console opens the cards, so that VFs can't be enabled",
    remedy=remedies.set_module_options("nvidia-drm", "modeset=0"),
)
def check_modeset(host: _Host) -> _Results:
    """NVIDIA's driver shows no console."""
    if host.parameter("nvidia_drm", "modeset") == "Y":
        yield note(
            "nvidia_drm sets display modes",
            host.sys("module/nvidia_drm/parameters/modeset"),
        )


@AREA.check(
    "monitors",
    why='sriov-manage fails while a program has the card open ("Cannot obtain'
    ' unbindLock")',
    remedy="systemctl stop nvidia-dcgm dcgm-exporter\nenable the VFs, then\n"
    "systemctl start nvidia-dcgm dcgm-exporter",
)
def check_monitors(host: _Host) -> _Results:
    """No program keeps cards open whose VFs have to be enabled."""
    if all(card.num_vfs or not card.total_vfs for card in _bound(host)):
        return
    for name in _MONITORS:
        if host.is_active(name):
            yield note(
                f"{name} has the cards open, and VFs have to be enabled",
                host.service(name),
            )
