# SPDX-License-Identifier: Apache-2.0
"""Rows of a host's devices and of its servers' partitions, for monitoring.

Amounts are those of claims; measured figures are added where a source has
them.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.discovery import vgpu_guests
from nova_accel.geometry import device_capacity
from nova_accel.model import names, providers, usage

_MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRoom:
    """A device's state, and how many more of each single profile fit.

    ``fragmentation`` is the share of the free memory that the largest
    profile that fits can't take: 0 if it takes all; None for a device
    without memory of its own, with none free, or that accepts no server.
    """

    address: str
    model: str
    state: str
    free: Mapping[str, int] = dataclasses.field(default_factory=dict)
    fragmentation: float | None = usage.figure(
        "fragmentation_ratio",
        "Share of the free memory that the largest profile can't take",
        "%",
        usage.to_percent,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerUsage:
    """A claimed partition, with the figures that a source has for it.

    ``server`` is the uuid of its consumer, ``project`` is empty until Nova
    was asked, ``resource_class`` is empty for a device that is gone.
    Memory is in bytes; ``memory_total`` is that of the profile, and None for
    a profile without memory.
    """

    server: str
    project: str
    device: str
    profile: str
    partition: str
    resource_class: str = ""
    memory_total: int | None = usage.figure(
        *("memory_bytes", "Memory of a server's partition", "MiB"),
        usage.to_mib,
        meter="accelerator.memory",
    )
    memory_used: int | None = usage.figure(
        "memory_used_bytes", "Memory that a server uses", "MiB", usage.to_mib
    )
    engines: tuple[usage.EngineUsage, ...] = usage.figure(
        *("utilisation_ratio", "Utilisation of an engine by a server", "%"),
        usage.to_percent,
        meter="accelerator.utilisation",
        default=(),
    )


def get_state(device: model.Device) -> str:
    """Return a device's state, one of ``status.STATES``."""
    if device.drain:
        return "drained"
    if device.marks_unknown:
        return "unreadable"
    return "faulted" if device.fault or device.unnoted else "ok"


def list_rooms(
    host: model.HostState,
    tree: providers.ProviderTree,
    claims: Iterable[model.Claim],
) -> tuple[DeviceRoom, ...]:
    """Return the devices of a host, with their room.

    :param tree: the provider tree of the host and its claims.
    """
    nodes = {node.name: node for node in tree.nodes}
    by_device: dict[str, list[model.Claim]] = collections.defaultdict(list)
    for claim in claims:
        by_device[claim.device].append(claim)
    rooms = []
    for device in host.devices:
        node = nodes.get(names.provider_name(tree.root.name, device.address))
        if node is not None:
            rooms.append(_build_room(device, node, by_device[device.address]))
    return tuple(rooms)


def _build_room(
    device: model.Device,
    node: providers.ProviderNode,
    claims: list[model.Claim],
) -> DeviceRoom:
    amounts = {
        name: inventory.total - inventory.reserved
        for name, inventory in node.inventories.items()
    }
    for claim in claims:
        if claim.is_allocated:  # else the tree reserves it
            for name, amount in device.charges(claim.profile).items():
                amounts[name] = amounts.get(name, 0) - amount
    reserved = device_capacity.reserve_claims(device, claims)
    counts = device_capacity.remaining(reserved)
    free = {
        profile.name: min(
            (
                counts[profile.name],
                *(
                    max(0, amounts.get(name, 0)) // amount
                    for name, amount in profile.charges.items()
                    if amount
                ),
            )
        )
        for profile in device.profiles
        if profile.trait in node.traits
    }
    memory = amounts.get(names.GPU_MEMORY_CLASS, 0)
    largest = max(
        (
            profile.charges.get(names.GPU_MEMORY_CLASS, 0)
            for profile in device.profiles
            if free.get(profile.name)
        ),
        default=0,
    )
    is_measured = memory > 0 and not device.is_closed
    return DeviceRoom(
        address=device.address,
        model=device.model,
        state=get_state(device),
        free={name: count for name, count in free.items() if count},
        fragmentation=1 - min(1, largest / memory) if is_measured else None,
    )


def list_servers(
    host: model.HostState,
    claims: Iterable[model.Claim],
    projects: Mapping[str, str],
    sample: usage.UsageSample,
) -> tuple[ServerUsage, ...]:
    """Return the claimed partitions of a host, with their usage.

    :param projects: ids of projects by server.
    :param sample: the last sample.
    """
    claims = tuple(claims)
    figures = dict(_match(claims, sample.partitions))
    devices = {device.address: device for device in host.devices}
    return tuple(
        _build_server(
            claim,
            devices.get(claim.device),
            projects.get(claim.consumer, ""),
            figures.get(claim.key),
        )
        for claim in sorted(
            claims,
            key=lambda claim: (claim.consumer, claim.device, claim.slot),
        )
    )


def _match(
    claims: tuple[model.Claim, ...],
    partitions: tuple[usage.PartitionUsage, ...],
) -> Iterator[tuple[model.ClaimKey, usage.PartitionUsage]]:
    """Yield the claims that have figures, with these.

    Of several equal partitions it is not known which one has them: these
    get none.
    """
    for partition in partitions:
        candidates = vgpu_guests.find_claims(
            claims,
            partition.device,
            partition.handle,
            partition.server,
            partition.profile,
        )
        if len(candidates) == 1:
            yield candidates[0].key, partition


def _build_server(
    claim: model.Claim,
    device: model.Device | None,
    project: str,
    figures: usage.PartitionUsage | None,
) -> ServerUsage:
    charges = device.charges(claim.profile) if device else {}
    memory_mb = charges.get(names.GPU_MEMORY_CLASS)
    return ServerUsage(
        server=claim.consumer,
        project=project,
        device=claim.device,
        profile=claim.profile,
        partition=claim.handle,
        resource_class=device.resource_class if device else "",
        memory_total=None if memory_mb is None else memory_mb * _MIB,
        memory_used=figures.memory_used if figures else None,
        engines=figures.engines if figures else (),
    )
