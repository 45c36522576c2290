# SPDX-License-Identifier: Apache-2.0
"""A Lifecycle on a simulated kernel: three L40S without mdevs.

The third GPU has no VFs yet.
"""

from pathlib import Path

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import change_detection, note_stores, snapshot
from nova_accel.host.execute import action_executor
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import actions, flavors, names
from nova_accel.vendors.nvidia import vfio_driver
from tests.lab import fakehost
from tests.support.hosts.simulated import ROOT
from virt_hooks.guest import connection
from virt_hooks.spawn import host_access, lifecycle

GPU, OTHER, BARE = "0000:3d:00.0", "0000:3e:00.0", "0000:3f:00.0"
FIRST, SECOND = "0000:3d:00.4", "0000:3d:00.5"
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.NvidiaGpu(
            address=GPU,
            model="L40S",
            interface="vfio",
            total_vfs=4,
            enabled_vfs=4,
        ),
        fakehost.NvidiaGpu(
            address=OTHER,
            model="L40S",
            interface="vfio",
            total_vfs=2,
            enabled_vfs=2,
        ),
        fakehost.NvidiaGpu(
            address=BARE, model="L40S", interface="vfio", total_vfs=3
        ),
    )
)
EIGHT_Q = "CUSTOM_VGPU_NVIDIA_L40S_8Q"
FOUR_Q = "CUSTOM_VGPU_NVIDIA_L40S_4Q"
#: The type's number in this driver release.
EIGHT = "1152"
DEFAULT = policy.DeviceRules()
ENABLE = policy.DeviceRules(rules=(policy.Rule(address=BARE, num_vfs=3),))


def started(
    kernel: fakehost.Controller,
    rules: policy.DeviceRules = DEFAULT,
    state_dir: str = "",
    domains: connection.HostdevReader | None = None,
) -> lifecycle.Lifecycle:
    """Return the Lifecycle of a nova-compute that has just started.

    :param state_dir: the directory of its notes; without it there are none.
    """
    faulted = device_notes.FaultNotes(state_dir or None)
    drivers = {"nvidia_vfio": vfio_driver.NvidiaVfioDriver()}

    def read_host() -> host_reader.HostReader:
        return host_reader.HostReader(kernel.root)

    life = lifecycle.Lifecycle(
        drivers,
        rules,
        action_executor.Executor(str(kernel.root), read_gpus=dict),
        snapshot.Snapshot(
            change_detection.ChangeDetector(
                fs.DiskSource(kernel.root),
                drivers,
                rules,
                stores=note_stores.NoteStores(faulted=faulted),
            )
        ),
        host_access.HostAccess(
            domains=domains or connection.NO_DOMAINS,
            read_host=read_host,
            faults=faulted,
        ),
    )
    life.adopt(ROOT)
    life.host.refresh()
    return life


def slot(function: str = FIRST) -> model.Slot:
    card = f"{function[:-1]}0"
    return model.Slot(
        provider=names.provider_uuid(ROOT.uuid, card),
        resource_class="VGPU",
        identifier=function,
    )


def asks(trait: str = EIGHT_Q) -> flavors.RequestGroup:
    return flavors.RequestGroup(
        suffix="_G", resources={"VGPU": 1}, required=frozenset({trait})
    )


def types(kernel: fakehost.Controller) -> dict[str, str]:
    """Return the VFs that have a type."""
    bus = Path(kernel.root) / "sys/bus/pci/devices"
    types_by_vf = {
        path.parent.parent.name: path.read_text().strip()
        for path in bus.glob("*/nvidia/current_vgpu_type")
    }
    return {
        name: type_id
        for name, type_id in types_by_vf.items()
        if type_id != "0"
    }


def type_by_hand(kernel: fakehost.Controller, function: str) -> None:
    action_executor.Executor(str(kernel.root)).apply(
        actions.SetVgpuType(function=function, type_id=EIGHT)
    )


def clear_by_hand(kernel: fakehost.Controller, function: str) -> None:
    action_executor.Executor(str(kernel.root)).apply(
        actions.ClearVgpuType(function=function, type_id=EIGHT)
    )


def asks_many(count: int) -> flavors.RequestGroup:
    return flavors.RequestGroup(
        suffix="_G",
        resources={"VGPU": count},
        required=frozenset({EIGHT_Q}),
    )
