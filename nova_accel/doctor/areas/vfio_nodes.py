# SPDX-License-Identifier: Apache-2.0
"""Checks of VFIO: modules, parameters and device nodes."""

from collections.abc import Iterator

from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.host_checks import Observation, fail, note, warn
from nova_accel.host import host_paths
from nova_accel.host.sysfs import attributes
from nova_accel.model import pci

AREA = host_checks.Area("vfio", page="troubleshooting", is_of_devices=True)
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

_CONTROL = f"{host_paths.VFIO_NODES}/vfio"
_KVM, _IOMMUFD = "/dev/kvm", "/dev/iommu"
_ALL_USERS, _GROUP_USERS = 0o666, 0o660
# Default of dma_entry_limit (drivers/vfio/vfio_iommu_type1.c, U16_MAX).
_ENTRIES = 65535
# First kernel with a character device for each function.
_CDEV = (6, 6)


def _has_dev(host: _Host) -> bool:
    """Return whether the host's device nodes can be read."""
    return host.exists(_KVM) or host.exists(host_paths.VFIO_NODES)


def _explain_node(host: _Host, module: str) -> str:
    """Return why a loaded module has no node; empty if it is not loaded."""
    if not host.is_loaded(module):
        return ""
    return f"{module} is loaded: see why udev has made no node (udevadm test)"


def _assigned(host: _Host) -> Iterator[pci.PciFunction]:
    for function in host.functions.values():
        if function.is_vfio_bound and function.driver != "pci-stub":
            yield function


@AREA.check(
    "module",
    why="libvirt loads it when a guest starts; in a container it can't",
    remedy=remedies.load_module("vfio-pci"),
    ansible="vfio",
)
def check_module(host: _Host) -> _Results:
    """The module vfio_pci is loaded."""
    is_known = host.lists_modules and host.cards
    if is_known and not host.is_loaded("vfio_pci"):
        yield warn("vfio_pci is not loaded", host.sys("module/vfio_pci"))


@AREA.check(
    "iommu-module",
    why="QEMU can't map the memory of a guest for a device",
    remedy=remedies.load_module("vfio_iommu_type1"),
    ansible="vfio",
)
def check_iommu_module(host: _Host) -> _Results:
    """The module vfio_iommu_type1 is loaded."""
    path = host.sys("module/vfio_iommu_type1")
    is_known = host.lists_modules and any(_assigned(host))
    if is_known and not (host.exists(path) or host.exists(_IOMMUFD)):
        yield warn("vfio_iommu_type1 is not loaded", path)


@AREA.check(
    "persistent",
    why="functions have no VFIO driver after the next start, until libvirt"
    " or nova-accel loads it",
    remedy="echo vfio-pci > /etc/modules-load.d/nova-accel-vfio.conf",
    ansible="vfio",
)
def check_persistent(host: _Host) -> _Results:
    """The module vfio_pci is loaded at each start."""
    has_files = any(map(host.names, host_paths.MODULES_LOAD))
    if has_files and any(_assigned(host)):
        if "vfio_pci" not in host.loaded_at_boot:
            yield note(
                "vfio-pci is not loaded at the start",
                host_paths.MODULES_LOAD[0],
            )


@AREA.check(
    "control",
    why="QEMU opens this node for each guest with a device",
    remedy=remedies.load_module("vfio"),
    ansible="vfio",
)
def check_control(host: _Host) -> _Results:
    """VFIO's control node exists."""
    is_absent = _has_dev(host) and not host.exists(_CONTROL)
    if is_absent and any(_assigned(host)) and not host.is_container:
        yield fail(
            f"{_CONTROL} is missing",
            _CONTROL,
            remedy=_explain_node(host, "vfio"),
        )


@AREA.check(
    "control-mode",
    why="QEMU runs as another user than root, and opens this node",
    remedy="chmod 0666 /dev/vfio/vfio\nremove the rule of udev that changes"
    " it",
)
def check_control_mode(host: _Host) -> _Results:
    """All users may open VFIO's control node."""
    if host.exists(_CONTROL):
        mode = host.mode(_CONTROL)
        if mode & _ALL_USERS != _ALL_USERS:
            yield fail(f"{_CONTROL} has mode {mode:04o}", _CONTROL)


@AREA.check(
    "groups",
    why="QEMU opens the node of the function's IOMMU group",
    remedy="mount /dev/vfio of the host into the container, with all nodes"
    " that are added later: --volume /dev/vfio:/dev/vfio",
)
def check_groups(host: _Host) -> _Results:
    """Each function bound to VFIO has a group node."""
    nodes = host.names(host_paths.VFIO_NODES)
    for function in _assigned(host):
        group = function.iommu_group
        if nodes and group is not None and str(group) not in nodes:
            yield fail(
                f"{host_paths.VFIO_NODES}/{group} of {function.address} is"
                " missing",
                host_paths.VFIO_NODES,
            )


@AREA.check(
    "kvm",
    why="guests are emulated without it, and far too slow",
    remedy="switch on VT-x or AMD-V in the firmware's setup, then\n"
    "modprobe kvm_intel || modprobe kvm_amd",
)
def check_kvm(host: _Host) -> _Results:
    """KVM is there."""
    if host.exists(host_paths.VFIO_NODES) and not host.exists(_KVM):
        is_loaded = any(map(host.is_loaded, ("kvm_intel", "kvm_amd")))
        yield fail(
            f"{_KVM} is missing",
            _KVM,
            remedy=_explain_node(host, "kvm") if is_loaded else "",
        )


@AREA.check(
    "kvm-mode",
    why="QEMU runs as a member of the group kvm",
    remedy="chgrp kvm /dev/kvm\nchmod 0660 /dev/kvm",
)
def check_kvm_mode(host: _Host) -> _Results:
    """The group of QEMU may open KVM."""
    if host.exists(_KVM):
        mode = host.mode(_KVM)
        if mode & _GROUP_USERS != _GROUP_USERS:
            yield warn(f"{_KVM} has mode {mode:04o}", _KVM)


@AREA.check(
    "iommufd",
    why="guests with encrypted memory can have devices only with it",
    remedy=remedies.load_module("iommufd")
    + "\n# of a kernel with CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV",
)
def check_iommufd(host: _Host) -> _Results:
    """The kernel has iommufd."""
    if not _has_dev(host) or max(host.kernel, host.vfio) < _CDEV:
        return
    if any(_assigned(host)) and not host.exists(_IOMMUFD):
        yield note(
            f"{_IOMMUFD} is missing",
            _IOMMUFD,
            remedy=_explain_node(host, "iommufd"),
        )


@AREA.check(
    "dma-limit",
    why="a guest with much memory can't map all of it",
    remedy=remedies.set_module_options(
        "vfio_iommu_type1", f"dma_entry_limit={_ENTRIES}"
    ),
)
def check_dma_limit(host: _Host) -> _Results:
    """Guests can map as many regions as the kernel's default allows."""
    limit = attributes.parse_number(
        host.parameter("vfio_iommu_type1", "dma_entry_limit")
    )
    if limit is not None and limit < _ENTRIES:
        yield warn(
            f"a guest can map {limit} regions only",
            host.sys("module/vfio_iommu_type1/parameters/dma_entry_limit"),
        )
