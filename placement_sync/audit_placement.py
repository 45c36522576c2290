# SPDX-License-Identifier: Apache-2.0
"""Comparisons that begin with what Placement has."""

from collections.abc import Iterator

from nova_accel import names
from placement_sync import facts, findings


def leaked(world: facts.World) -> Iterator[findings.Finding]:
    """Yield allocations whose consumer is nobody."""
    for found in world.allocations:
        if world.is_leaked(found):
            yield _unset(
                world,
                found,
                "Nova has neither a server nor a move of that uuid, no claim"
                " of nova-compute is its, and no domain",
                is_safe=True,
            )


def ended(world: facts.World) -> Iterator[findings.Finding]:
    """Yield allocations that a move has left when it ended."""
    for found in world.allocations:
        move = world.migrations.get(found.consumer)
        if move is None or not move.is_over or world.is_moving(move.server):
            continue
        domain = world.domain(move.server)
        if world.has_claim(move.server, found.provider) or (
            domain and domain.handles & world.handles(found.provider)
        ):
            continue
        yield _unset(
            world,
            found,
            f"it is of a {move.kind or 'move'} of server {move.server} that"
            f" ended ({move.status}); see first whether that server is well",
        )


def _unset(
    world: facts.World,
    found: facts.Allocation,
    reason: str,
    is_safe: bool = False,
) -> findings.Finding:
    amounts = ", ".join(f"{n} {c}" for c, n in sorted(found.amounts.items()))
    return findings.Finding(
        kind=findings.Kind.LEAKED,
        where=world.where(found.provider),
        provider=found.provider,
        consumer=found.consumer,
        reason=f"has {amounts}, but {reason}",
        mend="openstack resource provider allocation unset --provider"
        f" {found.provider} {found.consumer}",
        is_safe=is_safe,
    )


def unbacked(world: facts.World) -> Iterator[findings.Finding]:
    """Yield allocations of devices that this host does not have."""
    for found in world.allocations:
        if (
            world.is_absent(found.provider)
            and not world.is_leaked(found)
            and not world.has_claim(found.consumer, found.provider)
        ):
            yield findings.Finding(
                kind=findings.Kind.MISSING,
                where=world.where(found.provider),
                provider=found.provider,
                consumer=found.consumer,
                reason="has an allocation, but the device is not on this"
                " host any more",
                mend="bring the device back, or move the server: openstack"
                f" server migrate {found.consumer}",
            )


def elsewhere(world: facts.World) -> Iterator[findings.Finding]:
    """Yield allocations of servers that are on another host."""
    for found in world.allocations:
        server = world.servers.get(found.consumer)
        if (
            server is None
            or server.node in ("", world.root.name)
            or world.is_moving(found.consumer)
        ):
            continue
        yield findings.Finding(
            kind=findings.Kind.DUPLICATE,
            where=world.where(found.provider),
            provider=found.provider,
            consumer=found.consumer,
            reason=f"has an allocation here, but the server is on"
            f" {server.node} and no move of it is under way",
            mend="openstack resource provider allocation unset --provider"
            f" {found.provider} {found.consumer}, if it has one there",
        )


def gone(world: facts.World) -> Iterator[findings.Finding]:
    """Yield providers whose compute node Nova has no more."""
    lost = {p.uuid: p for p in world.everywhere if p.root in world.gone}
    parents = {p.uuid: p.parent for p in lost.values()}
    kept: set[str] = set()
    for used in world.used:
        uuid = used
        while uuid in lost and uuid not in kept:
            kept.add(uuid)
            uuid = parents[uuid]
    for uuid, provider in lost.items():
        is_used = uuid in world.used
        yield findings.Finding(
            kind=findings.Kind.GONE,
            where=provider.name,
            provider=uuid,
            reason=f"Nova has no compute node {provider.root} any more"
            + (", but it has allocations" if is_used else ""),
            mend=f"openstack resource provider show --allocations {uuid},"
            " and see to those servers first"
            if is_used
            else f"openstack resource provider delete {uuid}",
            is_safe=uuid not in kept,
        )


def twice_provided(world: facts.World) -> Iterator[findings.Finding]:
    """Yield providers that stand for one device."""
    own = {
        uuid: names.provider_name("", device.address)
        for uuid, device in world.devices().items()
    }
    for place, group in findings.grouped(
        world.providers,
        lambda p: own.get(p.uuid) or _place(p.name) or p.uuid,
    ):
        first, *others = sorted(
            group, key=lambda p: (p.uuid not in own, p.uuid)
        )
        for other in others:
            yield findings.Finding(
                kind=findings.Kind.DUPLICATE,
                where=other.name,
                provider=other.uuid,
                reason=f"provider {other.uuid} stands for the device"
                f" {place.lstrip('_')} as provider {first.uuid}"
                f" ({first.name}) does",
                mend="openstack resource provider show --allocations"
                f" {other.uuid}, and once nothing is allocated: openstack"
                f" resource provider delete {other.uuid}",
            )


def _place(name: str) -> str:
    head, mark, tail = name.rpartition(names.PROVIDER_MARK)
    return mark + tail if head or mark else ""
