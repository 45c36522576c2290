# SPDX-License-Identifier: Apache-2.0
"""Claims, domains and kernel compared: what is ours and left over."""

from collections.abc import Collection, Iterable

from nova_accel import model, names, providers
from virt_hooks import connection


def find_orphans(
    root: providers.ProviderRoot,
    host: model.HostState,
    claims: Iterable[model.Claim],
    use: connection.HostdevUse,
) -> tuple[model.Partition, ...]:
    """Return the partitions that are provably ours and unused.

    Provably ours: the handle is the uuid5 of one of our slots. Unused: no
    claim stands for it and no domain has it.
    """
    claimed = {claim.handle for claim in claims}
    return tuple(
        partition
        for device in host.devices
        for partition in device.partitions
        if partition.handle in our_handles(root, device)
        and partition.handle not in claimed
        and not use.holds(partition.handle)
    )


def our_handles(
    root: providers.ProviderRoot, device: model.Device
) -> Collection[str]:
    """Return the handles that partitions of ours have on a device."""
    if device.technology != "mdev":
        return frozenset()
    provider = names.provider_uuid(root.uuid, device.address)
    return frozenset(
        names.mdev_uuid(provider, slot) for slot in device.slots
    )
