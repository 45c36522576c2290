# SPDX-License-Identifier: Apache-2.0
"""A Lifecycle on a simulated kernel: two T4s, one mtty."""

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import (
    change_detection,
    note_stores,
    plugin,
    snapshot,
)
from nova_accel.host.execute import action_executor
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import fs
from nova_accel.inventory import tree_builder
from nova_accel.model import flavors, names, providers
from nova_accel.vendors import mdev
from nova_accel.vendors.nvidia import mdev_driver, vfio_driver
from tests.lab import fakehost
from tests.support import strategies
from virt_hooks.spawn import host_access, lifecycle

ROOT = strategies.ROOT
GPU, OTHER = "0000:3b:00.0", "0000:af:00.0"
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.NvidiaGpu(address=GPU, model="T4"),
        fakehost.NvidiaGpu(address=OTHER, model="T4"),
        fakehost.Mtty(),
    )
)
A, B = "aaaaaaaa-0000-4000-8000-00000000000a", "bbbbbbbb-0000-4000-8000-0000b"
FOUR_Q, EIGHT_Q = "CUSTOM_VGPU_NVIDIA_T4_4Q", "CUSTOM_VGPU_NVIDIA_T4_8Q"
MTTY = "CUSTOM_MDEV_MTTY_1"


def started(
    kernel: fakehost.Controller,
    state_dir: str = "",
    access: host_access.HostAccess | None = None,
) -> lifecycle.Lifecycle:
    """Return the Lifecycle of a nova-compute that has just started.

    :param state_dir: directory of its notes, none if empty.
    """
    rules = policy.DeviceRules()
    access = access or host_access.HostAccess()
    faulted = (
        device_notes.FaultNotes(state_dir) if state_dir else access.faults
    )
    drained = device_notes.DrainNotes(state_dir) if state_dir else None
    drivers: dict[str, plugin.Driver] = {
        "nvidia_mdev": mdev_driver.NvidiaMdevDriver(),
        "nvidia_vfio": vfio_driver.NvidiaVfioDriver(),
        "mdev": mdev.MdevDriver(),
    }

    life = lifecycle.Lifecycle(
        drivers,
        rules,
        action_executor.Executor(str(kernel.root)),
        snapshot.Snapshot(
            change_detection.ChangeDetector(
                fs.DiskSource(kernel.root),
                drivers,
                rules,
                stores=note_stores.NoteStores(
                    faulted=faulted, drained=drained
                ),
                uevents=access.uevents,
            )
        ),
        access,
    )
    life.adopt(ROOT)
    life.host.refresh()
    return life


def slot(number: int = 0, address: str = GPU) -> model.Slot:
    """Return a slot that Nova assigned."""
    return model.Slot(
        provider=names.provider_uuid(ROOT.uuid, address),
        resource_class="CUSTOM_MDEV" if address == "mtty" else "VGPU",
        identifier=f"slot-{number}",
    )


def asks(
    trait: str, count: int = 1, suffix: str = "_G"
) -> flavors.RequestGroup:
    """Return a group that requests a number of a profile."""
    name = "CUSTOM_MDEV" if trait == MTTY else "VGPU"
    return flavors.RequestGroup(
        suffix=suffix, resources={name: count}, required=frozenset({trait})
    )


def node(
    life: lifecycle.Lifecycle, address: str = GPU
) -> providers.ProviderNode:
    """Return the provider of a device as it would be reported."""
    tree = life.tree(tree_builder.OWNER_TRAITS)
    assert tree is not None
    provider = tree.node(names.provider_uuid(ROOT.uuid, address))
    assert provider is not None
    return provider


def stopped(_: model.Claim) -> bool:
    """Return that the guest does not run."""
    return False
