# SPDX-License-Identifier: Apache-2.0
"""A Lifecycle with whole cards and VFs on a simulated kernel.

An unbound GPU with an audio function, a GPU bound to nouveau, and a card
with VFs.
"""

from pathlib import Path

from nova_accel import model
from nova_accel.config import policy
from nova_accel.model import flavors, names
from tests.lab import fakehost
from tests.support.fpga import simulated
from tests.support.hosts.simulated import ROOT, A, node
from virt_hooks.guest import connection
from virt_hooks.spawn import lifecycle

GPU, SOUND = "0000:71:00.0", "0000:71:00.1"
HELD, FLEX, FLEX_VF = "0000:72:00.0", "0000:4d:00.0", "0000:4d:00.1"
NEXT_VF = "0000:4d:00.2"
_SOUND_ID = 0x10F7


def card(
    address: str, driver: str = "", device: int = 0x1E07
) -> fakehost.PciCard:
    is_sound = device == _SOUND_ID
    return fakehost.PciCard(
        address=address,
        vendor=0x10DE,
        device=device,
        class_code=0x040300 if is_sound else 0x030000,
        driver=driver,
        group=40 if address.startswith(GPU[:7]) else 41,
        multifunction=True,
    )


SPEC = fakehost.HostSpec(
    cards=(
        card(GPU),
        card(SOUND, device=_SOUND_ID),
        # Of another model: a card without a driver is no peer of it.
        card(HELD, "nouveau", device=0x1E04),
        fakehost.PciCard(
            address=FLEX,
            vendor=0x8086,
            device=0x56C0,
            class_code=0x038000,
            driver="i915",
            total_vfs=4,
            vf_device=0x56C1,
            enabled_vfs=4,
        ),
    )
)
USES = (
    f'{{"address": "{HELD}", "use": "passthrough"%s}}',
    f'{{"address": "{FLEX}", "use": "vf"%s}}',
    "{%s}",
)


def started(
    kernel: fakehost.Controller,
    state: Path,
    words: str = "",
    domains: connection.HostdevReader = connection.NO_DOMAINS,
) -> lifecycle.Lifecycle:
    """Return a service; ``words`` are added to each device_spec line."""
    separated = (", " + words, ", " + words, words) if words else ("",) * 3
    lines = [use % suffix for use, suffix in zip(USES, separated, strict=True)]
    return simulated.started(
        kernel.root, policy.parse_rules(lines), state, domains
    )


def slot(
    life: lifecycle.Lifecycle, address: str, function: str = ""
) -> model.Slot:
    device = life.host.state.device(address)
    assert device is not None, life.host.state.problems
    return model.Slot(
        provider=names.provider_uuid(ROOT.uuid, address),
        resource_class=device.resource_class,
        identifier=function or address,
    )


def request(
    life: lifecycle.Lifecycle, assigned: model.Slot
) -> flavors.RequestGroup:
    """Return a request for the first profile of a slot's device."""
    device = next(
        d for d in life.host.state.devices if assigned.identifier in d.slots
    )
    (profile, *_) = device.profiles
    return flavors.RequestGroup(
        suffix="_G",
        resources=dict(profile.charges),
        required=frozenset({profile.trait}),
    )


def give(
    life: lifecycle.Lifecycle, assigned: model.Slot, consumer: str = A
) -> model.Claim:
    """Return the claim of a new server."""
    group = request(life, assigned)
    allocations = {assigned.provider: dict(group.resources)}
    (claim,) = life.ensure(consumer, (group,), (assigned,), allocations)
    return claim


def resets(kernel: fakehost.Controller) -> list[str]:
    return [
        write["path"].split("/")[-2]
        for write in kernel.writes()
        if write["path"].endswith("/reset")
    ]


def fault(life: lifecycle.Lifecycle, address: str) -> str:
    device = life.host.state.device(address)
    assert device is not None
    return device.fault


def reserved(life: lifecycle.Lifecycle, address: str) -> bool:
    inventories = node(life, address).inventories.values()
    return all(
        inventory.reserved == inventory.total for inventory in inventories
    )
