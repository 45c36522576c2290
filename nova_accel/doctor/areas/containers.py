# SPDX-License-Identifier: Apache-2.0
"""Checks of a container with nova-compute or libvirt."""

from collections.abc import Iterator

from nova_accel.doctor import checked_host, host_checks
from nova_accel.doctor.host_checks import Observation, fail, note, warn
from nova_accel.host import host_paths

AREA = host_checks.Area(
    "container", page="troubleshooting", is_of_devices=True
)
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

_SYS = checked_host.CheckedHost.sys()


def _lacks(host: _Host, path: str) -> bool:
    """Return whether a container with accelerators lacks a path."""
    return bool(
        host.is_container
        and host.mounts
        and host.has_accelerators
        and not host.exists(path)
    )


@AREA.check(
    "sysfs",
    why="VFs, mediated devices and drivers are changed through this"
    " directory (nova-accel needs no mdevctl)",
    remedy="run the container privileged, or mount it: --volume"
    f" {_SYS}:{_SYS}",
)
def check_sysfs(host: _Host) -> _Results:
    """The kernel's devices can be changed."""
    if "ro" in host.mounts.get(_SYS, ()):
        yield fail(f"{_SYS} is mounted read-only", host_paths.MOUNTS)


@AREA.check(
    "udev",
    why="nova-accel then sees the kernel's events only, and libvirt misses"
    " new devices",
    remedy="mount it: --volume /run/udev:/run/udev:ro",
)
def check_udev(host: _Host) -> _Results:
    """A container has udev's events."""
    path = "/run/udev/control"
    if _lacks(host, path):
        yield warn("the container has no events of udev", path)


@AREA.check(
    "vfio",
    why="QEMU in the container can't open devices",
    remedy="mount it: --volume /dev:/dev, or --volume /dev/vfio:/dev/vfio",
)
def check_vfio(host: _Host) -> _Results:
    """A container has the device nodes of VFIO."""
    path = "/dev/vfio"
    if _lacks(host, path):
        yield fail("the container has no nodes of VFIO", path)


@AREA.check(
    "modules",
    why="the container can't load drivers",
    remedy="load all drivers on the host at its start, or mount it:"
    " --volume /lib/modules:/lib/modules:ro",
)
def check_modules(host: _Host) -> _Results:
    """A container has the kernel's modules."""
    path = "/lib/modules"
    if _lacks(host, path):
        yield note("the container has no kernel modules", path)


@AREA.check(
    "state-dir",
    why="faults, drains and claims are lost with the container",
    remedy="mount it: --volume nova_compute:/var/lib/nova",
)
def check_state_dir(host: _Host) -> _Results:
    """The state directory outlives the container."""
    if not (host.is_container and host.mounts and host.nova_conf):
        return
    if not any(point.startswith("/var/lib/nova") for point in host.mounts):
        yield warn(
            "/var/lib/nova is no mount of the container",
            host_paths.MOUNTS,
        )


@AREA.check(
    "nvidia",
    why="NVML can't be called: MIG, faults and NVLink stay unknown",
    remedy="give the container the devices: --device /dev/nvidiactl"
    " --device /dev/nvidia0 ..., and the driver's libraries"
    " (nvidia-container-toolkit does both)",
    technology="nvidia",
)
def check_nvidia(host: _Host) -> _Results:
    """A container has the nodes of NVIDIA's driver."""
    path = "/dev/nvidiactl"
    bound = [
        c for c in host.cards_of(checked_host.NVIDIA) if c.driver == "nvidia"
    ]
    if bound and _lacks(host, path):
        yield warn("the container has no nodes of NVIDIA's driver", path)
