# SPDX-License-Identifier: Apache-2.0
"""Described hosts, read with the drivers of the library."""

import pathlib
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import plugin, scan
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import host_reader
from nova_accel.vendors import (
    amd_mxgpu,
    intel_sriov,
    mdev,
    pci_passthrough,
    pci_vf,
    qat,
)
from nova_accel.vendors.amd_alveo import alveo_driver
from nova_accel.vendors.intel_dfl import dfl_driver
from nova_accel.vendors.nvidia import mdev_driver, vfio_driver
from tests.hosts import build

NAMES = tuple(sorted(path.stem for path in build.HERE.glob("*.json")))
DRIVERS: Mapping[str, plugin.Driver] = {
    "nvidia_mdev": mdev_driver.NvidiaMdevDriver(),
    "nvidia_vfio": vfio_driver.NvidiaVfioDriver(),
    "intel_sriov": intel_sriov.IntelSriovDriver(),
    "amd_mxgpu": amd_mxgpu.AmdMxgpuDriver(),
    "dfl": dfl_driver.DflDriver(),
    "alveo": alveo_driver.AlveoDriver(),
    "qat": qat.QatDriver(),
    "mdev": mdev.MdevDriver(),
    "pci_vf": pci_vf.PciVfDriver(),
    "pci_passthrough": pci_passthrough.PciPassthroughDriver(),
}


def make(name: str, root: pathlib.Path) -> pathlib.Path:
    """Make the tree of a described host; return its root."""
    return build.build(build.load(name), root)


def read(
    root: pathlib.Path,
    rules: Iterable[str] = (),
    gpus: Iterable[nvml_gpus.NvmlGpu] = (),
) -> model.HostState:
    """Read a tree with device_spec lines and NVML's GPUs."""
    host = host_reader.HostReader(
        root, gpus={gpu.address: gpu for gpu in gpus}
    )
    return scan.read(host, DRIVERS, policy.parse_rules(rules))


def device(state: model.HostState, address: str) -> model.Device:
    result = state.device(address)
    assert result is not None, f"{address} is not among the devices"
    return result


def profile(owner: model.Device, name: str) -> model.Profile:
    result = owner.profile(name)
    assert result is not None, f"{name} is not among the profiles"
    return result


def reasons(state: model.HostState, where: str) -> str:
    return "\n".join(p.reason for p in state.problems if p.where == where)
