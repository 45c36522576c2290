# SPDX-License-Identifier: Apache-2.0
"""Checks that begin with Placement."""

import collections
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.model import names
from placement_sync.audit import collected_state, findings, node_amounts
from placement_sync.client import nova_types

# Statuses of servers whose allocations are about to change.
_UNSETTLED = frozenset(
    {"BUILD", "RESIZE", "VERIFY_RESIZE", "REVERT_RESIZE", "MIGRATING"}
)
# Consumers have generations from 1.28 on; osc-placement's default is 1.0.
_CLIENT = "openstack --os-placement-api-version 1.28 resource provider"

# By provider and resource class.
_Amounts = Mapping[str, Mapping[str, int]]


def leaked(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
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


def unallocated(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield what servers of this host have claimed and not allocated."""
    missing = world.unallocated()
    for (consumer, provider), claims in missing.items():
        server = world.servers.get(consumer)
        known = world.consumers.get(consumer)
        if (
            known is None
            or server is None
            or server.node != world.root.name
            or server.task
            or server.status in _UNSETTLED
            or world.is_moving(consumer)
        ):
            continue
        after, unknown = known.allocations, ""
        try:
            after = with_node(after, world, server)
        except node_amounts.UnknownAmountsError as error:
            unknown = str(error)
        for (holder, uuid), held in missing.items():
            if holder == consumer:
                after = allocations_after(after, world, uuid, held)
        command = _allocate(world, server, after)
        allocated = known.allocations.get(provider, {})
        profiles = ", ".join(sorted({claim.profile for claim in claims}))
        has = ", ".join(f"{n} {c}" for c, n in sorted(allocated.items()))
        is_partial = world.root.uuid in known.allocations
        yield findings.AuditFinding(
            kind=findings.FindingKind.UNALLOCATED,
            where=world.where(provider),
            provider=provider,
            consumer=consumer,
            reason=f"has {len(claims)} claims ({profiles}), and of this"
            f" provider {has or 'nothing'} is allocated to it"
            + ("" if is_partial else ", nor of the compute node"),
            mend=f"find out what it takes of the compute node ({unknown}),"
            f" and add --allocation rp={world.root.uuid},CLASS=AMOUNT to:"
            f" {command}"
            if unknown
            else command,
            is_safe=not unknown,
        )


def with_node(
    before: _Amounts,
    world: collected_state.StateIndex,
    server: nova_types.Server,
) -> _Amounts:
    """Return a server's allocations, with those of the compute node.

    :param before: its allocations; unchanged if the node is among them.
    :raises UnknownAmountsError: what Nova would allocate is not certain.
    """
    root = world.root.uuid
    if root in before:
        return before
    charged: collections.Counter[str] = collections.Counter()
    for claim in world.claims:
        if claim.consumer == server.uuid:
            charged.update(world.charged(claim.provider, [claim]))
    amounts = node_amounts.compute(
        server, world.inventories.get(root, {}), charged
    )
    for uuid, others in before.items():
        if twice := sorted(others.keys() & amounts.keys()):
            raise node_amounts.UnknownAmountsError(
                f"it has {', '.join(twice)} of provider {uuid}"
            )
    return {**before, root: amounts}


def _allocate(
    world: collected_state.StateIndex,
    server: nova_types.Server,
    after: _Amounts,
) -> str:
    """Return the commands that set a server's allocations.

    What is claimed and not allocated is reserved: where Placement would
    have no room for it, that goes first.
    """
    known = world.consumers[server.uuid]
    project = known.project or server.project
    user = known.user or server.user
    allocations = " ".join(
        f"--allocation rp={uuid},"
        + ",".join(f"{name}={n}" for name, n in sorted(amounts.items()))
        for uuid, amounts in sorted(after.items())
    )
    return " && ".join(
        (
            *_lower_reserved(world, known.allocations, after),
            f"{_CLIENT} allocation set --project-id {project}"
            f" --user-id {user} {allocations} {server.uuid}",
        )
    )


def _lower_reserved(
    world: collected_state.StateIndex, before: _Amounts, after: _Amounts
) -> Iterator[str]:
    """Yield the commands that make room on devices for an allocation."""
    for provider in sorted(after.keys() - {world.root.uuid}):
        more = {
            name: amount - before.get(provider, {}).get(name, 0)
            for name, amount in after[provider].items()
        }
        lowered = "".join(
            f" --resource {name}:reserved="
            f"{max(0, record.reserved - more[name])}"
            for name, record in sorted(
                world.inventories.get(provider, {}).items()
            )
            if more.get(name, 0) and not _has_room(world, provider, name, more)
        )
        if lowered:
            yield f"{_CLIENT} inventory set --amend{lowered} {provider}"


def _has_room(
    world: collected_state.StateIndex,
    provider: str,
    name: str,
    more: Mapping[str, int],
) -> bool:
    record = world.inventories[provider][name]
    capacity = (record.total - record.reserved) * record.allocation_ratio
    used = sum(
        each.amounts.get(name, 0)
        for each in world.allocations
        if each.provider == provider
    )
    return used + more[name] <= capacity


def allocations_after(
    before: _Amounts,
    world: collected_state.StateIndex,
    provider: str,
    claims: Iterable[model.Claim],
) -> _Amounts:
    """Return a consumer's allocations with what it has claimed added.

    :param before: its allocations, amounts by provider and class.
    :param claims: all its claims on the provider.
    """
    amounts = dict(before.get(provider, {}))
    for name, amount in world.charged(provider, claims).items():
        amounts[name] = max(amount, amounts.get(name, 0))
    return {**before, provider: amounts}


def ended(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
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
    world: collected_state.StateIndex,
    found: collected_state.Allocation,
    reason: str,
    is_safe: bool = False,
) -> findings.AuditFinding:
    amounts = ", ".join(f"{n} {c}" for c, n in sorted(found.amounts.items()))
    return findings.AuditFinding(
        kind=findings.FindingKind.LEAKED,
        where=world.where(found.provider),
        provider=found.provider,
        consumer=found.consumer,
        reason=f"has {amounts}, but {reason}",
        mend=f"{_CLIENT} allocation unset --provider"
        f" {found.provider} {found.consumer}",
        is_safe=is_safe,
    )


def unbacked(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield allocations of devices that this host does not have."""
    for found in world.allocations:
        if (
            world.is_absent(found.provider)
            and not world.is_leaked(found)
            and not world.has_claim(found.consumer, found.provider)
        ):
            yield findings.AuditFinding(
                kind=findings.FindingKind.MISSING,
                where=world.where(found.provider),
                provider=found.provider,
                consumer=found.consumer,
                reason="has an allocation, but the device is not on this"
                " host any more",
                mend="bring the device back, or move the server: openstack"
                f" server migrate {found.consumer}",
            )


def elsewhere(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield allocations of servers that are on another host."""
    for found in world.allocations:
        server = world.servers.get(found.consumer)
        if (
            server is None
            or server.node in ("", world.root.name)
            or world.is_moving(found.consumer)
        ):
            continue
        yield findings.AuditFinding(
            kind=findings.FindingKind.DUPLICATE,
            where=world.where(found.provider),
            provider=found.provider,
            consumer=found.consumer,
            reason=f"has an allocation here, but the server is on"
            f" {server.node} and no move of it is under way",
            mend=f"{_CLIENT} allocation unset --provider"
            f" {found.provider} {found.consumer}, if it has one there",
        )


def gone(world: collected_state.StateIndex) -> Iterator[findings.AuditFinding]:
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
        yield findings.AuditFinding(
            kind=findings.FindingKind.GONE,
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


def twice_provided(
    world: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
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
            yield findings.AuditFinding(
                kind=findings.FindingKind.DUPLICATE,
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
