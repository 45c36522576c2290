# SPDX-License-Identifier: Apache-2.0
"""Checks of versions and resources of the host."""

import re
from collections.abc import Callable, Iterator, Mapping

from nova_accel.catalog import features
from nova_accel.doctor import checked_host, host_checks
from nova_accel.doctor.host_checks import Observation, fail, note, warn
from nova_accel.host import host_paths
from nova_accel.host.sysfs import allowed_paths, attributes

AREA = host_checks.Area("host", page="support-matrix")
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

# Kernel drivers that are part of the kernel since they have the feature.
_VARIANTS = frozenset(features.DRIVERS) - {"mtty"}
_NODES = checked_host.CheckedHost.sys("devices/system/node")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_MEMLOCK = re.compile(r"^Max locked memory\s+(\S+)", re.MULTILINE)
_DAEMONS = ("virtqemud", "libvirtd")
_GIB = 1 << 30


def _current(host: _Host, program: str) -> tuple[checked_host.Version, str]:
    """Return the version of a program, and the file that shows it."""
    if program == features.LIBVIRT:
        return host.libvirt, host.library("libvirt.so.0")[0]
    if program == features.QEMU:
        return host.qemu, host_paths.QEMU_CAPABILITIES
    # The files of VFIO prove more than the number of the kernel does.
    if host.vfio > host.kernel:
        return host.vfio, host.sys("class/vfio-dev")
    return host.kernel, allowed_paths.KERNEL_RELEASE


def _has_variant_driver(host: _Host) -> bool:
    return any(
        f.is_vfio_bound and f.driver not in ("vfio-pci", "pci-stub")
        for f in host.functions.values()
    )


def _has_typed_vf(host: _Host) -> bool:
    return any(
        host.exists(host.path(vf, "nvidia/current_vgpu_type"))
        for card in host.cards_of(checked_host.NVIDIA)
        for vf in host.vfs(card)
    )


def _list_mdev_parents(host: _Host) -> tuple[str, ...]:
    return host.names(host.sys("class/mdev_bus"))


# Whether a host has the devices that a feature is for, by its condition.
_CONDITIONS: Mapping[str, Callable[[_Host], bool]] = {
    "card": lambda host: bool(host.cards),
    "coherent-gpu": lambda host: any(map(host.is_coherent_gpu, host.cards)),
    "mdev": lambda host: bool(_list_mdev_parents(host)),
    "passthrough": lambda host: any(card.is_vfio_bound for card in host.cards),
    "typed-vf": _has_typed_vf,
    "variant-driver": _has_variant_driver,
}


def _uses(host: _Host, condition: str) -> bool:
    """Return whether a host has the devices that a feature is for."""
    if condition not in features.DRIVERS:
        return _CONDITIONS[condition](host)
    return condition in _list_mdev_parents(host) or any(
        (f.driver or "").replace("-", "_") == condition
        for f in host.functions.values()
    )


def _check_floors(host: _Host, program: str) -> _Results:
    version, path = _current(host, program)
    for feature in features.TABLE:
        floor = feature.floors.get(program)
        if floor is None or not version or version >= floor.minimum:
            continue
        if not _uses(host, feature.condition):
            continue
        if program == features.LINUX:
            if feature.condition in _VARIANTS:
                continue  # the driver is there
        elif feature.flag in host.qemu_flags:
            continue
        observe = fail if feature.is_required else note
        yield observe(
            f"{feature.name} needs {program} {features.join(floor.minimum)},"
            f" and this is {features.join(version)} (source: {floor.source})",
            path,
        )


@AREA.check(
    "libvirt",
    why="a feature of Nova or of a driver fails",
    remedy="update libvirt",
)
def check_libvirt(host: _Host) -> _Results:
    """libvirt has all features that the accelerators can use."""
    return _check_floors(host, features.LIBVIRT)


@AREA.check(
    "qemu",
    why="a feature of Nova or of a driver fails",
    remedy="update QEMU, then restart libvirt so that it reads the version",
)
def check_qemu(host: _Host) -> _Results:
    """QEMU has all features that the accelerators can use."""
    return _check_floors(host, features.QEMU)


@AREA.check(
    "kernel",
    why="a feature of Nova or of a driver fails",
    remedy="update the kernel and reboot",
)
def check_kernel_version(host: _Host) -> _Results:
    """The kernel has all features that the accelerators can use."""
    return _check_floors(host, features.LINUX)


@AREA.check(
    "hugepages",
    why="a guest with huge pages can't start near its card",
    remedy="write a larger number to nr_hugepages of the node, or have fewer"
    " guests with huge pages there",
)
def check_hugepages(host: _Host) -> _Results:
    """Nodes with accelerators have free huge pages."""
    nodes = {c.numa_node for c in host.cards if c.numa_node is not None}
    for node in sorted(nodes):
        place = f"{_NODES}/node{node}/hugepages"
        for size in host.names(place):
            total = host.text(f"{place}/{size}/nr_hugepages")
            path = f"{place}/{size}/free_hugepages"
            if total not in ("", "0") and host.text(path) == "0":
                yield warn(f"node {node} has no free {size}", path)


@AREA.check(
    "memlock",
    why="VFIO locks the whole memory of a guest: VFIO_MAP_DMA fails with"
    " ENOMEM",
    remedy="write into /etc/systemd/system/virtqemud.service.d/memlock.conf"
    " (or libvirtd.service.d):\n[Service]\nLimitMEMLOCK=infinity\nthen\n"
    "systemctl daemon-reload\n"
    "systemctl try-restart virtqemud libvirtd",
)
def check_memlock(host: _Host) -> _Results:
    """libvirt may lock as much memory as a guest needs."""
    for name in _DAEMONS:
        for process in host.text(host.service(name)).split()[:1]:
            path = f"/proc/{process}/limits"
            match = _MEMLOCK.search(host.text(path))
            most = attributes.parse_number(match[1]) if match else None
            if most is not None and most < _GIB // 16:
                yield warn(f"{name} may lock {most} bytes", path)


@AREA.check(
    "node-memory",
    why="no guest can have its memory near the card",
    remedy="put memory modules into the sockets of this node",
)
def check_node_memory(host: _Host) -> _Results:
    """The NUMA node of each card has memory."""
    path = f"{_NODES}/has_memory"
    nodes = _parse_ranges(host.text(path))
    for card in host.cards:
        if nodes and card.numa_node is not None:
            if not any(card.numa_node in each for each in nodes):
                yield note(
                    f"node {card.numa_node} of {card.address} has no memory",
                    path,
                )


def _parse_ranges(text: str) -> tuple[range, ...]:
    """Return the ranges of a list of numbers such as ``0-1,4``.

    Parts of another form are ignored; a node has at most four digits
    (include/linux/numa.h, NODES_SHIFT).
    """
    return tuple(
        range(int(match[1]), int(match[2] or match[1]) + 1)
        for match in filter(None, map(_RANGE.fullmatch, text.split(",")))
    )
