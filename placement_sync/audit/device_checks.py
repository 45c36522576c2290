# SPDX-License-Identifier: Apache-2.0
"""Checks of claims, domains and partitions."""

from collections.abc import Iterator

from nova_accel import model
from placement_sync.audit import collected_state, findings


def find_missing_partitions(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield claims whose partition or device the kernel does not have."""
    for claim in index.claims:
        if claim.state is not model.ClaimState.MADE:
            continue
        device = index.host.device(claim.device)
        if device is None:
            if index.host.complete and claim.device not in index.host.unknown:
                yield _build_missing(
                    claim, "its device is not on this host any more",
                    f"restore {claim.device}, or migrate the server:"
                    f" openstack server migrate {claim.consumer}",
                )  # fmt: skip
        elif not _exists(claim, device) and not _is_unread(index, device):
            yield _build_missing(
                claim, f"the kernel has no {claim.handle} on it"
            )


def _exists(claim: model.Claim, device: model.Device) -> bool:
    return claim.handle in {p.handle for p in device.partitions} or (
        claim.technology in model.UNDIVIDED and claim.handle in device.slots
    )


def _is_unread(
    index: collected_state.StateIndex, device: model.Device
) -> bool:
    names = {device.address, device.parent, *device.slots, *device.members}
    return not index.host.complete or any(
        problem.address and problem.address in names
        for problem in index.host.problems
    )


def _build_missing(
    claim: model.Claim, reason: str, remedy: str = ""
) -> findings.AuditFinding:
    return findings.AuditFinding(
        kind=findings.FindingKind.MISSING,
        where=claim.device,
        provider=claim.provider,
        consumer=claim.consumer,
        handle=claim.handle,
        reason=f"has a claim on {claim.profile} in {claim.slot}, but {reason}",
        remedy=remedy or f"openstack server reboot --hard {claim.consumer}",
    )


def find_claims_without_hostdev(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield claims whose hostdev a running guest does not have."""
    for claim in index.claims:
        domain = index.domain(claim.consumer)
        if (
            claim.state is model.ClaimState.MADE
            and domain is not None
            and domain.is_running
            and claim.handle not in domain.handles
            and not index.is_moving(claim.consumer)
        ):
            yield _build_missing(
                claim, f"its domain {domain.name} runs without {claim.handle}"
            )


def find_guests_without_device(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield allocations of running guests without a claim or a hostdev."""
    for allocation in index.allocations:
        provider, server = allocation.provider, allocation.consumer
        device = index.device(provider)
        domain = index.domain(server)
        if (
            device is not None
            and device.resource_class in allocation.amounts
            and domain is not None
            and domain.is_running
            and not domain.handles & index.handles(provider)
            and not index.is_moving(server)
            and not index.has_claim(server, provider)
        ):
            yield findings.AuditFinding(
                kind=findings.FindingKind.MISSING,
                where=device.address,
                provider=provider,
                consumer=server,
                reason="has an allocation, but no claim here, and its domain"
                f" {domain.name} runs without this device",
                remedy=f"openstack server reboot --hard {server}",
            )


def find_foreign_devices(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield hostdevs of our devices without a claim or an allocation."""
    for provider, device in index.devices().items():
        handles = index.handles(provider)
        for domain in index.domains:
            for handle in sorted(domain.handles & handles):
                if not _is_allotted(index, domain.uuid, handle):
                    yield findings.AuditFinding(
                        kind=findings.FindingKind.FOREIGN,
                        where=device.address,
                        provider=provider,
                        consumer=domain.uuid,
                        handle=handle,
                        reason=f"domain {domain.name} has {handle} without a"
                        " claim and without an allocation",
                        remedy=f"remove it from the domain (virsh edit"
                        f" {domain.uuid}), or if it is not for Nova's"
                        " servers, exclude the device in [nova_accel]"
                        " device_spec",
                    )


def _is_allotted(
    index: collected_state.StateIndex, server: str, handle: str
) -> bool:
    """Return whether a claim or an allocation accounts for a handle.

    A function may belong to several devices, such as the regions of a card.
    """
    candidates = {
        provider
        for provider in index.devices()
        if handle in index.handles(provider)
    }
    return any(
        claim.consumer == server
        and (
            claim.handle == handle
            or (
                (device := index.device(claim.provider)) is not None
                and handle in device.members
            )
        )
        for claim in index.claims
    ) or any(
        allocation.provider in candidates
        and index.is_allocation_of(allocation, server)
        for allocation in index.allocations
    )


def find_orphans(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield partitions without a claim, a guest or a pending allocation."""
    claimed = {claim.handle for claim in index.claims}
    for provider, device in index.devices().items():
        if index.is_pending(provider):
            continue
        own_mdevs = collected_state.slot_mdevs(device, provider)
        for partition in device.partitions:
            handle = partition.handle
            if handle in claimed or index.used_by(handle):
                continue
            if handle in own_mdevs:
                yield _build_orphan(provider, device, partition)
            elif device.technology == "vendor-vfio":
                yield _build_typed(provider, device, partition)


def _build_orphan(
    provider: str, device: model.Device, partition: model.Partition
) -> findings.AuditFinding:
    return findings.AuditFinding(
        kind=findings.FindingKind.ORPHAN,
        where=device.address,
        provider=provider,
        handle=partition.handle,
        reason=f"mdev {partition.handle} ({partition.profile}) was created"
        " by nova-accel, as its uuid proves; it has no claim, no domain and"
        " no allocation",
        remedy=f"mdevctl stop --uuid {partition.handle}",
        is_safe=True,
    )


def _build_typed(
    provider: str, device: model.Device, partition: model.Partition
) -> findings.AuditFinding:
    return findings.AuditFinding(
        kind=findings.FindingKind.TYPED,
        where=device.address,
        provider=provider,
        handle=partition.handle,
        reason=f"{partition.handle} has the vGPU type {partition.profile},"
        " but no claim, no domain and no allocation; nothing proves that"
        " nova-accel has set the type",
        remedy="if it is unused, write 0 to nvidia/current_vgpu_type of"
        f" {partition.handle}",
    )


def find_duplicate_claims(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield partitions that two servers have claims on."""
    for handle, group in findings.group_duplicates(
        index.claims, lambda claim: claim.handle
    ):
        consumers = sorted({claim.consumer for claim in group})
        for other in consumers[1:]:
            yield findings.AuditFinding(
                kind=findings.FindingKind.DUPLICATE,
                where=group[0].device,
                provider=group[0].provider,
                consumer=other,
                handle=handle,
                reason=f"claims {handle}, and so does {consumers[0]}",
                remedy=f"openstack server reboot --hard {other}; if Nova"
                f" refuses that: openstack server migrate {other}",
            )


def find_shared_devices(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield hostdevs of our devices that are in two domains."""
    for provider, device in index.devices().items():
        for handle in sorted(index.handles(provider)):
            servers = sorted({d.uuid for d in index.used_by(handle)})
            for other in servers[1:]:
                yield findings.AuditFinding(
                    kind=findings.FindingKind.DUPLICATE,
                    where=device.address,
                    provider=provider,
                    consumer=other,
                    handle=handle,
                    reason=f"its domain has {handle}, and so has that of"
                    f" {servers[0]}",
                    remedy=f"openstack server reboot --hard {other}, which"
                    " defines its domain anew from its claims",
                )
