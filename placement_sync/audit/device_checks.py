# SPDX-License-Identifier: Apache-2.0
"""Checks that begin with the kernel or libvirt."""

from collections.abc import Iterator

from nova_accel import model
from placement_sync.audit import collected_state, findings


def unmade(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield claims that the kernel has nothing of."""
    for claim in world.claims:
        if claim.state is not model.ClaimState.MADE:
            continue
        device = world.host.device(claim.device)
        if device is None:
            if world.host.complete and claim.device not in world.host.unknown:
                yield _missing(
                    claim, "its device is not on this host any more",
                    f"bring {claim.device} back, or move the server:"
                    f" openstack server migrate {claim.consumer}",
                )  # fmt: skip
        elif not _is_there(claim, device) and not _is_unread(world, device):
            yield _missing(claim, f"the kernel has no {claim.handle} on it")


def _is_there(claim: model.Claim, device: model.Device) -> bool:
    return claim.handle in {p.handle for p in device.partitions} or (
        claim.technology in model.UNDIVIDED and claim.handle in device.slots
    )


def _is_unread(
    world: collected_state.StateIndex, device: model.Device
) -> bool:
    """Return whether part of a device may not have been read."""
    names = {device.address, device.parent, *device.slots, *device.members}
    return not world.host.complete or any(
        problem.where.partition(" ")[0] in names
        for problem in world.host.problems
    )


def _missing(
    claim: model.Claim, reason: str, mend: str = ""
) -> findings.AuditFinding:
    return findings.AuditFinding(
        kind=findings.FindingKind.MISSING,
        where=claim.device,
        provider=claim.provider,
        consumer=claim.consumer,
        handle=claim.handle,
        reason=f"has a claim on {claim.profile} in {claim.slot}, but {reason}",
        mend=mend or f"openstack server reboot --hard {claim.consumer}",
    )


def ungiven(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield claims of running guests that the guest does not have."""
    for claim in world.claims:
        domain = world.domain(claim.consumer)
        if (
            claim.state is model.ClaimState.MADE
            and domain is not None
            and domain.is_running
            and claim.handle not in domain.handles
            and not world.is_moving(claim.consumer)
        ):
            yield _missing(
                claim, f"its domain {domain.name} runs without {claim.handle}"
            )


def unclaimed(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield allocations of running guests that have nothing for them."""
    for found in world.allocations:
        device = world.device(found.provider)
        domain = world.domain(found.consumer)
        if (
            device is not None
            and device.resource_class in found.amounts
            and domain is not None
            and domain.is_running
            and not domain.handles & world.handles(found.provider)
            and not world.is_moving(found.consumer)
            and not world.has_claim(found.consumer, found.provider)
        ):
            yield findings.AuditFinding(
                kind=findings.FindingKind.MISSING,
                where=device.address,
                provider=found.provider,
                consumer=found.consumer,
                reason="has an allocation, but no claim here, and its domain"
                f" {domain.name} runs with nothing of this device",
                mend=f"openstack server reboot --hard {found.consumer}",
            )


def foreign(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield devices of ours in guests that nobody gave them to."""
    for provider, device in world.devices().items():
        handles = world.handles(provider)
        for domain in world.domains:
            for handle in sorted(domain.handles & handles):
                if not _is_given(world, domain.uuid, handle):
                    yield findings.AuditFinding(
                        kind=findings.FindingKind.FOREIGN,
                        where=device.address,
                        provider=provider,
                        consumer=domain.uuid,
                        handle=handle,
                        reason=f"domain {domain.name} has {handle} without a"
                        " claim and without an allocation",
                        mend=f"take it out of the domain (virsh edit"
                        f" {domain.uuid}), or if it is not for Nova's"
                        " servers, switch the device off in [nova_accel]"
                        " device_spec",
                    )


def _is_given(
    world: collected_state.StateIndex, server: str, handle: str
) -> bool:
    """Return whether a claim or an allocation accounts for a handle.

    A function may be part of several devices, as of the regions of a card.
    """
    possible = {
        provider
        for provider in world.devices()
        if handle in world.handles(provider)
    }
    return any(
        claim.consumer == server
        and (
            claim.handle == handle
            or (
                (device := world.device(claim.provider)) is not None
                and handle in device.members
            )
        )
        for claim in world.claims
    ) or any(
        found.provider in possible and world.holds(found, server)
        for found in world.allocations
    )


def orphans(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield partitions that nobody has, nor is about to have."""
    claimed = {claim.handle for claim in world.claims}
    for provider, device in world.devices().items():
        if world.is_pending(provider):
            continue
        ours = collected_state.slot_mdevs(device, provider)
        for partition in device.partitions:
            handle = partition.handle
            if handle in claimed or world.used_by(handle):
                continue
            if handle in ours:
                yield _orphan(provider, device, partition)
            elif device.technology == "vendor-vfio":
                yield _typed(provider, device, partition)


def _orphan(
    provider: str, device: model.Device, partition: model.Partition
) -> findings.AuditFinding:
    return findings.AuditFinding(
        kind=findings.FindingKind.ORPHAN,
        where=device.address,
        provider=provider,
        handle=partition.handle,
        reason=f"mdev {partition.handle} ({partition.profile}) is one of"
        " ours by its uuid; no claim, no domain and no allocation is there"
        " for it",
        mend=f"mdevctl stop --uuid {partition.handle}",
        is_safe=True,
    )


def _typed(
    provider: str, device: model.Device, partition: model.Partition
) -> findings.AuditFinding:
    return findings.AuditFinding(
        kind=findings.FindingKind.TYPED,
        where=device.address,
        provider=provider,
        handle=partition.handle,
        reason=f"{partition.handle} is typed {partition.profile}, and no"
        " claim, no domain and no allocation is there for it; whoever did it"
        " can't be told",
        mend="if nothing needs it, write 0 to nvidia/current_vgpu_type of"
        f" {partition.handle}",
    )


def twice_claimed(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield partitions that two servers have claims on."""
    for handle, group in findings.grouped(world.claims, lambda c: c.handle):
        holders = sorted({claim.consumer for claim in group})
        for other in holders[1:]:
            yield findings.AuditFinding(
                kind=findings.FindingKind.DUPLICATE,
                where=group[0].device,
                provider=group[0].provider,
                consumer=other,
                handle=handle,
                reason=f"claims {handle}, and so does {holders[0]}",
                mend=f"openstack server reboot --hard {other}; if that is"
                " refused, move it: openstack server migrate",
            )


def twice_given(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield host devices of ours that are in two domains."""
    for provider, device in world.devices().items():
        for handle in sorted(world.handles(provider)):
            holders = sorted({d.uuid for d in world.used_by(handle)})
            for other in holders[1:]:
                yield findings.AuditFinding(
                    kind=findings.FindingKind.DUPLICATE,
                    where=device.address,
                    provider=provider,
                    consumer=other,
                    handle=handle,
                    reason=f"its domain has {handle}, and so has that of"
                    f" {holders[0]}",
                    mend=f"openstack server reboot --hard {other}, which"
                    " gives it what Nova knows",
                )
