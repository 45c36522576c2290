# SPDX-License-Identifier: Apache-2.0
"""sriov-manage, and the true state of the cards, for a judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.lab.fakehost.buses.pci import PciFunction
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.sysfs.errnos import Blocked
from tests.lab.fakehost.technologies.nvidia.nvidia_card import NvidiaDriver
from tests.lab.fakehost.technologies.nvidia.nvidia_gpu import Gpu

#: The fake tool: sriov-manage -e|-d ADDRESS|ALL. It has the interpreter's
#: path in it, as its caller may have cleaned the environment.
SCRIPT = """\
#!{python}
import json, socket, sys
if len(sys.argv) != 3 or sys.argv[1] not in ("-e", "-d"):
    sys.exit("usage: sriov-manage -e|-d <ssss:bb:dd.f|ALL>")
server = socket.socket(socket.AF_UNIX)
server.connect({socket!r})
call = {{"address": sys.argv[2], "enable": sys.argv[1] == "-e"}}
call = {{"command": "sriov_manage", "arguments": call}}
server.sendall(json.dumps(call).encode() + b"\\n")
answer = json.loads(server.makefile().readline())
if "error" in answer:
    sys.exit(answer["error"])
print(answer["result"])
"""


def write_tool(path: Path, python: str, socket: Path) -> Path:
    """Write the fake sriov-manage to ``path`` and return that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT.format(python=python, socket=str(socket)))
    path.chmod(0o755)
    return path


def sriov_manage(kernel: Kernel, address: str, *, enable: bool) -> str:
    """Enable all VFs of a card, or disable them; returns what it says.

    Unbinds nvidia, sets the number under pci-pf-stub, binds nvidia again:
    GPU instances, types and mixed sizes are lost. Enabling what is
    enabled changes nothing. Raises ValueError when a guest runs, or for
    what is no card of the driver.
    """
    driver = kernel.pci.drivers.get("nvidia")
    if not isinstance(driver, NvidiaDriver):
        raise ValueError("no nvidia driver")
    addresses = sorted(driver.gpus) if address == "ALL" else [address]
    lines = []
    for card in addresses:
        function = kernel.pci.functions.get(card)
        if function is None or card not in driver.gpus:
            raise ValueError(f"{card} is no GPU of the nvidia driver")
        if function.sriov is None:
            if address != "ALL":
                raise ValueError(f"{card} has no SR-IOV")
            continue
        lines.append(_switch(kernel, function, driver, enable=enable))
    return "\n".join(lines)


def _switch(
    kernel: Kernel,
    function: PciFunction,
    driver: NvidiaDriver,
    *,
    enable: bool,
) -> str:
    assert function.sriov is not None
    capability = function.sriov
    total = capability.total if enable else 0
    verb = "Enabling" if enable else "Disabling"
    if len(capability.vfs) == total:
        return f"{verb} VFs on {function.address}: nothing to do"
    if _is_busy(kernel, function):
        raise ValueError(f"Cannot obtain unbindLock for {function.address}")
    try:
        function.unbind()
        function.bind(kernel.pci.drivers["pci-pf-stub"])
        capability.apply(0)
        if total:
            capability.apply(total)
        function.unbind()
    except Blocked:
        raise ValueError(f"{function.address} is in use") from None
    function.bind(driver)
    return f"{verb} VFs on {function.address}"


def _is_busy(kernel: Kernel, function: PciFunction) -> bool:
    assert function.sriov is not None
    addresses = {function.address, *(vf.address for vf in function.sriov.vfs)}
    groups = {kernel.pci.functions[a].group for a in addresses}
    groups |= {
        mdev.group
        for mdev in kernel.mdev.devices.values()
        if mdev.parent.name in addresses
    }
    return any(kernel.iommu.in_use(group) for group in groups)


def has_room(kernel: Kernel, address: str, gpu: Gpu) -> bool:
    """Return whether a vGPU has a function to sit on."""
    function = kernel.pci.functions.get(address)
    if function is None or function.sriov is None:
        return function is not None
    busy = {mdev.parent.name for mdev in kernel.mdev.devices.values()}
    return any(
        vf.address not in gpu.vgpus and vf.address not in busy
        for vf in function.sriov.vfs
        if vf.driver is function.driver
    )


def gpu_states(kernel: Kernel) -> dict[str, dict[str, Any]]:
    """Return each card's mode, GPU instances and vGPUs."""
    driver = kernel.pci.drivers.get("nvidia")
    if not isinstance(driver, NvidiaDriver):
        return {}
    return {
        address: {
            **_present(gpu),
            **_possible(gpu, free=has_room(kernel, address, gpu)),
        }
        for address, gpu in driver.gpus.items()
    }


def _present(gpu: Gpu) -> dict[str, Any]:
    return {
        "mig": gpu.mig,
        "mixed": gpu.mixed,
        "instances": {
            str(i.id): [i.kind.name, i.start]
            for i in gpu.instances.present.values()
        },
        "vgpus": {
            key: {
                "type": vgpu.kind.name,
                "start": vgpu.start,
                "instance": vgpu.instance,
            }
            for key, vgpu in gpu.vgpus.items()
        },
    }


def _possible(gpu: Gpu, *, free: bool) -> dict[str, Any]:
    kinds = gpu.types.values()
    return {
        "could_make": [k.name for k in kinds if free and gpu.could_make(k)],
        "remaining": {k.name: gpu.remaining(k) if free else 0 for k in kinds},
    }
