# SPDX-License-Identifier: Apache-2.0
"""Checks of NVSwitches, and of GPUs with memory coherent with the CPU's.

NVSwitches connect the GPUs of a host (HGX). NVIDIA's Fabric Manager sets them
up: on the host, which has the switches and may partition them for several
guests (FABRIC_MODE), or in the one guest that has all GPUs and all switches
("Fabric Manager User Guide", virtualization models).
"""

import re
from collections.abc import Collection, Iterator

from nova_accel.catalog import pci_ids
from nova_accel.config import policy, remedy
from nova_accel.doctor import checked_host, host_checks, remedies
from nova_accel.doctor.areas import nvidia
from nova_accel.doctor.host_checks import (
    Observation,
    fail,
    note,
    warn,
)
from nova_accel.host import host_paths
from nova_accel.inventory import wording
from nova_accel.model import pci

AREA = host_checks.Area("nv", page="gpus", technology="nvidia")
_Host = checked_host.CheckedHost
_Results = Iterator[Observation]

_MANAGER = "nvidia-fabricmanager"
_CONFIG = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
_MODE = re.compile(r"^\s*FABRIC_MODE\s*=\s*(\S+)", re.MULTILINE)
_FOR_GUESTS = "vfio-pci"
_BARE_METAL, _SHARED, _VGPUS = "0", "1", "2"


@AREA.check(
    "fabric-manager",
    why="CUDA fails in guests with GPUs behind NVSwitch (error 802)",
    remedy=remedies.start_service(_MANAGER),
    ansible="nvidia_fabric_manager",
)
def check_fabric_manager(host: _Host) -> _Results:
    """NVSwitches are managed by a fabric manager."""
    switches = host.names(host_paths.NVSWITCHES)
    if not switches or host.is_active(_MANAGER):
        return
    if host.is_stopped(_MANAGER):
        yield fail(
            f"{wording.count_of(len(switches), 'NVSwitch function')}, and"
            f" {_MANAGER} is not active",
            host_paths.NVSWITCHES,
            host.service(_MANAGER),
        )
    else:
        yield nvidia.unseen(host, _MANAGER)


@AREA.check(
    "fabric-mode",
    why="guests with some of the GPUs reach no other GPU over NVSwitch",
    remedy="set FABRIC_MODE in fabricmanager.cfg, then\n"
    "systemctl restart nvidia-fabricmanager",
    ansible="nvidia_fabric_manager",
)
def check_fabric_mode(host: _Host) -> _Results:
    """The fabric manager partitions the fabric for guests."""
    # Those of B200 and later are no PCI functions.
    has_switches = host.names(host_paths.NVSWITCHES)
    if not (has_switches or host.is_active(_MANAGER)):
        return
    modes = _MODE.findall(host.text(_CONFIG))
    if not host.exists(_CONFIG) or (modes and modes[-1] != _BARE_METAL):
        return
    has_vgpus = host.is_loaded(nvidia.MANAGER)
    mode = _VGPUS if has_vgpus else _SHARED
    yield warn(
        f"FABRIC_MODE is {_BARE_METAL if modes else 'not set'} (bare metal)",
        _CONFIG,
        remedy=f"set FABRIC_MODE={mode}"
        f" ({'vGPUs' if has_vgpus else 'whole GPUs'}) in fabricmanager.cfg,"
        f" then\nsystemctl restart {_MANAGER}",
    )


@AREA.check(
    "nvswitch",
    why="CUDA fails in guests with some of the GPUs (error 802, system not"
    " yet initialized)",
    remedy="see admin/gpus, NVSwitch",
)
def check_nvswitches(host: _Host) -> _Results:
    """NVSwitches are under NVIDIA's driver, or go to one guest with all."""
    switches = [f for f in host.nvswitches if f.driver != "nvidia"]
    gpus = host.cards_of(checked_host.NVIDIA)
    if not switches or not gpus:
        return
    paths = [host.path(f, "driver") for f in switches]
    drivers = {f.driver or "no driver" for f in switches}
    text = (
        f"{wording.count_of(len(switches), 'NVSwitch function')} with"
        f" {' and '.join(sorted(drivers))}, beside"
        f" {wording.count_of(len(gpus), 'GPU')}: no Fabric Manager of this"
        " host has them"
    )
    if all(map(host.names_whole, switches)):
        yield note(
            f"{text}; CUDA needs a server that has all of them",
            *paths,
            remedy="request all in one flavor:\n"
            + "\n".join(_list_commands(gpus, switches)),
        )
        return
    bindings = [
        remedy.BindFunction(function=str(f.address), driver=_FOR_GUESTS)
        for f in switches
        if not f.is_vfio_bound
    ]
    lines = [
        host.device_rules.rule(str(f.address), f.vendor, f.product).amend(
            str(f.address), use=policy.DeviceUse.PASSTHROUGH.value
        )
        for f in switches
    ]
    yield warn(
        text,
        *paths,
        remedy="for several servers: give the switches to nvidia and start"
        f" its Fabric Manager with FABRIC_MODE={_SHARED}\nfor one server with"
        " all GPUs and switches: "
        + ", then ".join(map(str, (*bindings, *lines))),
    )


def _list_commands(
    gpus: Collection[pci.PciFunction], switches: Collection[pci.PciFunction]
) -> Iterator[str]:
    """Yield the commands by which a flavor requests all of some devices."""
    for group, functions, option in (
        ("GPU", gpus, "--profile {0}:{1}"),
        ("NVSWITCH", switches, f"--class {pci_ids.PCI_PREFIX}{{0}}_{{1}}"),
    ):
        ids = [(f.vendor, f.product) for f in functions]
        for vendor, product in sorted(set(ids)):
            words = (vendor, product)
            if group == "NVSWITCH":
                words = (vendor.upper(), product.upper())
            yield (
                f"openstack accel flavor set NAME --group {group} --count"
                f" {ids.count((vendor, product))} {option.format(*words)}"
            )


@AREA.check(
    "memory-nodes",
    why="the driver in the guest can't use the GPU's memory",
    remedy="add the nodes to the flavors:\nopenstack accel flavor set NAME"
    f" --memory-nodes {pci_ids.MEMORY_NODES}",
)
def check_memory_nodes(host: _Host) -> _Results:
    """No GPU needs NUMA nodes for its memory in the guest."""
    gpus = [*filter(host.is_coherent_gpu, host.cards)]
    ready = [f for f in gpus if f.driver == pci_ids.COHERENT_DRIVER]
    if ready:
        yield note(
            f"the memory of {', '.join(str(f.address) for f in ready)} is"
            " coherent with the CPU's: flavors for it need"
            f" accelerator:memory_nodes={pci_ids.MEMORY_NODES}",
            *(host.path(f, "driver") for f in ready),
        )
