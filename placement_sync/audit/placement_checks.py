# SPDX-License-Identifier: Apache-2.0
"""Checks of allocations and providers."""

import collections
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.inventory import wording
from nova_accel.model import flavors, names, providers
from placement_sync.audit import collected_state, findings, node_amounts
from placement_sync.client import nova_api

# Statuses of servers whose allocations are about to change.
_CHANGING = frozenset(
    {"BUILD", "RESIZE", "VERIFY_RESIZE", "REVERT_RESIZE", "MIGRATING"}
)
# Consumers have generations from 1.28 on; osc-placement's default is 1.0.
_CLIENT = "openstack --os-placement-api-version 1.28 resource provider"

# Amounts by provider and resource class.
_Amounts = Mapping[str, Mapping[str, int]]


def find_leaked(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield allocations whose consumer does not exist."""
    for allocation in index.allocations:
        if index.is_leaked(allocation):
            yield _build_leaked(
                index,
                allocation,
                "Nova has neither a server nor a migration of that uuid,"
                " nova-compute no claim, and libvirt no domain",
                is_safe=True,
            )


def find_unallocated(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield claims of this host's servers that exceed the allocations."""
    for (consumer, provider), claims in index.unallocated().items():
        server = index.servers.get(consumer)
        if (
            consumer in index.consumers
            and server is not None
            and _is_stable_here(index, server)
        ):
            yield _build_unallocated(index, server, provider, claims)


def _is_stable_here(
    index: collected_state.StateIndex, server: nova_api.Server
) -> bool:
    """Return whether a server is on this host and nothing changes it."""
    return (
        server.node == index.root.name
        and not server.task
        and server.status not in _CHANGING
        and not index.is_moving(server.uuid)
    )


def _build_unallocated(
    index: collected_state.StateIndex,
    server: nova_api.Server,
    provider: str,
    claims: Collection[model.Claim],
) -> findings.AuditFinding:
    before = index.consumers[server.uuid].allocations
    after, uncertainty = before, ""
    try:
        after = add_node_allocation(before, index, server)
    except node_amounts.UnknownAmountsError as error:
        uncertainty = str(error)
    for (consumer, uuid), unallocated in index.unallocated().items():
        if consumer == server.uuid:
            after = add_claimed_amounts(after, index, uuid, unallocated)
    command = _build_commands(index, server, after)
    amounts = sorted(before.get(provider, {}).items())
    allocated = ", ".join(f"{n} {c}" for c, n in amounts) or "nothing"
    profiles = ", ".join(sorted({claim.profile for claim in claims}))
    has_node = index.root.uuid in before
    return findings.AuditFinding(
        kind=findings.FindingKind.UNALLOCATED,
        where=index.where(provider),
        provider=provider,
        consumer=server.uuid,
        reason=f"has {wording.count_of(len(claims), 'claim')} ({profiles}),"
        f" and of this provider {allocated} is allocated to it"
        + ("" if has_node else ", nor of the compute node"),
        remedy=f"find its amounts of the compute node ({uncertainty}),"
        f" and add --allocation rp={index.root.uuid},CLASS=AMOUNT to:"
        f" {command}"
        if uncertainty
        else command,
        is_safe=not uncertainty,
    )


def add_node_allocation(
    before: _Amounts,
    index: collected_state.StateIndex,
    server: nova_api.Server,
) -> _Amounts:
    """Return a server's allocations, with those of the compute node.

    :param before: its allocations; unchanged if the node is among them.
    :raises UnknownAmountsError: the amounts of the node are not certain.
    """
    root = index.root.uuid
    if root in before:
        return before
    charged: collections.Counter[str] = collections.Counter()
    for claim in index.claims:
        if claim.consumer == server.uuid:
            charged.update(index.charged(claim.provider, [claim]))
    amounts = node_amounts.compute(
        server, index.inventories.get(root, {}), charged
    )
    for uuid, allocated in before.items():
        if duplicates := sorted(allocated.keys() & amounts.keys()):
            raise node_amounts.UnknownAmountsError(
                f"it has {', '.join(duplicates)} of provider {uuid}"
            )
    return {**before, root: amounts}


def _build_commands(
    index: collected_state.StateIndex,
    server: nova_api.Server,
    after: _Amounts,
) -> str:
    """Return the commands that set a server's allocations.

    Units that are claimed and not allocated are reserved. If Placement has
    no other room, the first commands release the reservation.
    """
    consumer = index.consumers[server.uuid]
    project = consumer.project or server.project
    user = consumer.user or server.user
    allocations = " ".join(
        f"--allocation rp={uuid},"
        + ",".join(f"{name}={n}" for name, n in sorted(amounts.items()))
        for uuid, amounts in sorted(after.items())
    )
    return " && ".join(
        (
            *_build_reserved_commands(index, consumer.allocations, after),
            f"{_CLIENT} allocation set --project-id {project}"
            f" --user-id {user} {allocations} {server.uuid}",
        )
    )


def _build_reserved_commands(
    index: collected_state.StateIndex, before: _Amounts, after: _Amounts
) -> Iterator[str]:
    """Yield the commands that lower ``reserved`` for an allocation."""
    for provider in sorted(after.keys() - {index.root.uuid}):
        added = {
            name: amount - before.get(provider, {}).get(name, 0)
            for name, amount in after[provider].items()
        }
        options = "".join(
            f" --resource {name}:reserved="
            f"{max(0, inventory.reserved - added[name])}"
            for name, inventory in sorted(
                index.inventories.get(provider, {}).items()
            )
            if added.get(name, 0)
            and not _has_room(index, provider, name, added[name])
        )
        if options:
            yield f"{_CLIENT} inventory set --amend{options} {provider}"


def _has_room(
    index: collected_state.StateIndex, provider: str, name: str, amount: int
) -> bool:
    inventory = index.inventories[provider][name]
    units = inventory.total - inventory.reserved
    used = sum(
        allocation.amounts.get(name, 0)
        for allocation in index.allocations
        if allocation.provider == provider
    )
    return used + amount <= units * inventory.allocation_ratio


def add_claimed_amounts(
    before: _Amounts,
    index: collected_state.StateIndex,
    provider: str,
    claims: Iterable[model.Claim],
) -> _Amounts:
    """Return a consumer's allocations, raised to the amounts of its claims.

    Of a server that has its devices to itself, to all that is measured.

    :param before: its allocations, amounts by provider and class.
    :param claims: all its claims on the provider.
    """
    claims = tuple(claims)
    charged = index.charged(provider, claims)
    device = index.device(provider)
    if device is not None and _is_exclusive(index.servers[claims[0].consumer]):
        charged |= {
            name: device.counters[name]
            for name in charged.keys() & names.MEASURES
        }
    amounts = dict(before.get(provider, {}))
    for name, amount in charged.items():
        amounts[name] = max(amount, amounts.get(name, 0))
    return {**before, provider: amounts}


def _is_exclusive(server: nova_api.Server | None) -> bool:
    flavor = server.flavor if server is not None else None
    key = f"{flavors.NAMESPACE}packing"
    return flavor is not None and (
        flavor.extra_specs.get(key) == flavors.Packing.EXCLUSIVE.value
    )


def find_ended_moves(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield allocations of migrations that have ended."""
    for allocation in index.allocations:
        migration = index.migrations.get(allocation.consumer)
        if migration is None or not migration.is_over:
            continue
        server, provider = migration.server, allocation.provider
        domain = index.domain(server)
        if (
            index.is_moving(server)
            or index.has_claim(server, provider)
            or (domain and domain.handles & index.handles(provider))
        ):
            continue
        yield _build_leaked(
            index,
            allocation,
            f"it is of a {migration.kind or 'migration'} of server {server}"
            f" that ended ({migration.status}); check that server first",
        )


def find_unreverted(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield failed migrations that still have their server's allocations.

    Nova moves these back to the server when a migration fails. It does not
    if the service of the source host ended during the migration: then the
    server has the allocations of the destination (``_reset_live_migration``
    in nova/compute/manager.py).
    """
    own = {(a.consumer, a.provider) for a in index.allocations}
    reported = set()
    for allocation in sorted(index.allocations, key=lambda a: a.provider):
        migration = index.migrations.get(allocation.consumer)
        if migration is None or migration.uuid in reported:
            continue
        server = index.servers.get(migration.server)
        if (
            server is None
            or not migration.has_failed
            or (server.uuid, allocation.provider) in own
            or not _is_stable_here(index, server)
            or not index.has_claim(server.uuid, allocation.provider)
        ):
            continue
        reported.add(migration.uuid)
        yield _build_unreverted(index, allocation, migration)


def _build_unreverted(
    index: collected_state.StateIndex,
    allocation: providers.Allocation,
    migration: nova_api.Migration,
) -> findings.AuditFinding:
    """Return the finding; it is safe if the guest is on this host, too."""
    has_domain = index.domain(migration.server) is not None
    return findings.AuditFinding(
        kind=findings.FindingKind.UNREVERTED,
        where=index.where(allocation.provider),
        provider=allocation.provider,
        consumer=migration.uuid,
        reason=f"is a {migration.kind or 'migration'} that has failed"
        f" ({migration.status}), and has the allocations of server"
        f" {migration.server}, which is on this host"
        + ("" if has_domain else "; its guest may be on the destination"),
        remedy=(
            "" if has_domain else "end the guest on the destination, then "
        )
        + f"{_CLIENT} allocation show {migration.uuid}, allocation delete"
        f" {migration.uuid}, and allocation set {migration.server} with the"
        " allocations shown, which replaces those of the destination",
        is_safe=has_domain,
    )


def _build_leaked(
    index: collected_state.StateIndex,
    allocation: providers.Allocation,
    reason: str,
    is_safe: bool = False,
) -> findings.AuditFinding:
    provider, consumer = allocation.provider, allocation.consumer
    amounts = sorted(allocation.amounts.items())
    allocated = ", ".join(f"{n} {name}" for name, n in amounts)
    return findings.AuditFinding(
        kind=findings.FindingKind.LEAKED,
        where=index.where(provider),
        provider=provider,
        consumer=consumer,
        reason=f"has {allocated}, but {reason}",
        remedy=f"{_CLIENT} allocation unset --provider {provider} {consumer}",
        is_safe=is_safe,
    )


def find_absent_devices(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield allocations of devices that this host does not have."""
    for allocation in index.allocations:
        provider, consumer = allocation.provider, allocation.consumer
        if (
            index.is_absent(provider)
            and not index.is_leaked(allocation)
            and not index.has_claim(consumer, provider)
        ):
            yield findings.AuditFinding(
                kind=findings.FindingKind.MISSING,
                where=index.where(provider),
                provider=provider,
                consumer=consumer,
                reason="has an allocation, but the device is not on this"
                " host any more",
                remedy="restore the device, or migrate the server: openstack"
                f" server migrate {consumer}",
            )


def find_moved_servers(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield allocations of servers that are on another host."""
    for allocation in index.allocations:
        provider, consumer = allocation.provider, allocation.consumer
        server = index.servers.get(consumer)
        if (
            server is None
            or server.node in ("", index.root.name)
            or index.is_moving(consumer)
        ):
            continue
        yield findings.AuditFinding(
            kind=findings.FindingKind.DUPLICATE,
            where=index.where(provider),
            provider=provider,
            consumer=consumer,
            reason=f"has an allocation here, but the server is on"
            f" {server.node} and is not migrating",
            remedy=f"{_CLIENT} allocation unset --provider"
            f" {provider} {consumer}, if it has an allocation there",
        )


def find_unserved(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield open providers of a host that stock Nova serves."""
    if not index.is_stock:
        return
    for provider in index.providers:
        inventories = index.inventories.get(provider.uuid, {})
        options = "".join(
            f" --resource {name}:reserved={inventory.total}"
            for name, inventory in sorted(inventories.items())
            if inventory.capacity
        )
        if options:
            yield findings.AuditFinding(
                kind=findings.FindingKind.UNSERVED,
                where=index.where(provider.uuid),
                provider=provider.uuid,
                reason=f"nova-compute of {index.root.name} runs without"
                " nova-accel: a server that gets a part of it would be"
                " started without a device",
                remedy=f"{_CLIENT} inventory set --amend{options}"
                f" {provider.uuid}",
                is_safe=True,
            )


def find_removed_hosts(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield providers whose compute node Nova has removed."""
    abandoned = {p.uuid: p for p in index.everywhere if p.root in index.gone}
    undeletable: set[str] = set()
    for used in index.used:
        uuid = used
        while uuid in abandoned and uuid not in undeletable:
            undeletable.add(uuid)
            uuid = abandoned[uuid].parent
    for uuid, provider in abandoned.items():
        is_used = uuid in index.used
        yield findings.AuditFinding(
            kind=findings.FindingKind.GONE,
            where=provider.name,
            provider=uuid,
            reason=f"Nova has no compute node {provider.root} any more"
            + (", but it has allocations" if is_used else ""),
            remedy=f"openstack resource provider show --allocations {uuid},"
            " and remove those servers first"
            if is_used
            else f"openstack resource provider delete {uuid}",
            is_safe=uuid not in undeletable,
        )


def find_duplicate_providers(
    index: collected_state.StateIndex,
) -> Iterator[findings.AuditFinding]:
    """Yield further providers of a device that has one already."""
    for address, group in findings.group_duplicates(
        index.providers,
        lambda provider: index.address(provider) or provider.uuid,
    ):
        first, *others = sorted(
            group, key=lambda p: (index.device(p.uuid) is None, p.uuid)
        )
        for other in others:
            yield findings.AuditFinding(
                kind=findings.FindingKind.DUPLICATE,
                where=other.name,
                provider=other.uuid,
                reason=f"provider {other.uuid} is a second provider of"
                f" device {address}, beside {first.uuid} ({first.name})",
                remedy="openstack resource provider show --allocations"
                f" {other.uuid}, and once nothing is allocated: openstack"
                f" resource provider delete {other.uuid}",
            )
