# SPDX-License-Identifier: Apache-2.0
"""A simulated host for tests of actions."""

import os
from pathlib import Path
from typing import Any

import pytest

from nova_accel import errors
from nova_accel.host.execute import action_executor
from nova_accel.host.execute.technologies import nvml_privileged
from nova_accel.model import actions
from tests.lab import fakehost

# Two cards with vGPUs on VFs, one with plain VFs, one without any.
GPU, OTHER = "0000:3d:00.0", "0000:3e:00.0"
VF, VF_2, OTHER_VF = "0000:3d:00.4", "0000:3d:00.5", "0000:3e:00.4"
FLEX, FLEX_VF = "0000:4d:00.0", "0000:4d:00.1"
CARD = "0000:71:00.0"
# A card with plain VFs.
FLEX_CARD = fakehost.PciCard(
    address=FLEX,
    vendor=0x8086,
    device=0x56C0,
    class_code=0x038000,
    driver="i915",
    total_vfs=31,
    vf_driver="i915",
)
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.NvidiaGpu(
            address=GPU, model="L40S", interface="vfio", enabled_vfs=4
        ),
        fakehost.NvidiaGpu(
            address=OTHER,
            model="L40S",
            interface="vfio",
            mixed=True,
            enabled_vfs=4,
        ),
        FLEX_CARD,
        fakehost.PciCard(
            address=CARD,
            vendor=0x10DE,
            device=0x1E07,
            class_code=0x030000,
            driver="nouveau",
        ),
    )
)
# 1, 2 and 24 GiB of an L40S, as its driver numbers them.
ONE_Q, TWO_Q, HALF = "1147", "1148", "1155"
TOOL = "usr/lib/nvidia/sriov-manage"


def executor(root: Path) -> action_executor.Executor:
    return action_executor.Executor(
        str(root), read_gpus=nvml_privileged.read_gpus
    )


def failure(root: Path, *failing: actions.Action) -> errors.ActionError:
    """Return the error of a list of actions that fails."""
    with pytest.raises(errors.ActionError) as caught:
        executor(root).apply_all(failing)
    return caught.value


def state(kernel: fakehost.Controller) -> dict[str, Any]:
    """Return the state of a host without the numbers of IOMMU groups."""
    functions = kernel.functions()
    devices = kernel.sys / "bus/pci/devices"
    for address, facts in functions.items():
        del facts["group"]
        facts["files"] = sorted(os.listdir(devices / address))
        for name in ("nvidia/vgpu_params", "sriov_drivers_autoprobe"):
            path = devices / address / name
            facts[name] = path.read_text() if path.exists() else None
    return {
        "functions": functions,
        "gpus": kernel.gpus(),
        "mdevs": {
            uuid: (facts["parent"], facts["type"])
            for uuid, facts in kernel.mdevs().items()
        },
    }


def read(kernel: fakehost.Controller, function: str, name: str) -> str:
    """Return a function's file."""
    path = kernel.sys / "bus/pci/devices" / function / name
    return path.read_text().strip()


def driver_of(kernel: fakehost.Controller, function: str) -> tuple[str, str]:
    """Return a function's driver and its override."""
    facts = kernel.functions()[function]
    return facts["driver"], facts["override"]


def path_of(function: str, name: str) -> str:
    """Return the path of a function's file, relative to sys."""
    return f"bus/pci/devices/{function}/{name}"
