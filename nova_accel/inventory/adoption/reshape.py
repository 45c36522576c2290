# SPDX-License-Identifier: Apache-2.0
"""Placement of one host before and after an adoption, both ways.

``adopt`` moves allocations from Nova's providers to those of this library
and removes the former; ``hand_back`` is its inverse. Each is one transaction
of Placement, and fails as a whole where a plan does not hold any more. Each
is idempotent: it is done when it changes nothing.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping

from nova_accel import errors
from nova_accel.inventory.adoption import records
from nova_accel.model import names, providers


class PlanError(errors.AcceleratorError):
    """A plan does not hold any more.

    :param reason: why.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredProvider:
    """Provider of a host; ``parent`` is a uuid, empty for the root."""

    name: str
    parent: str
    inventories: Mapping[str, providers.Inventory]
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Providers of a host by uuid, and the allocations by consumer."""

    providers: Mapping[str, StoredProvider]
    allocations: Mapping[str, records.Allocations]

    def used(self, provider: str) -> dict[str, int]:
        """Return the allocated amounts of a provider by resource class."""
        return records.sum_amounts(
            (uuid, amounts)
            for by_provider in self.allocations.values()
            for uuid, amounts in by_provider.items()
            if uuid == provider
        ).get(provider, {})


def list_sources(stored: Stored, uuids: Iterable[str]) -> frozenset[str]:
    """Return those of some providers that still have inventories.

    Without any the reshape is done, though some may have to be deleted.
    """
    return frozenset(
        uuid
        for uuid in uuids
        if uuid in stored.providers and stored.providers[uuid].inventories
    )


def record(plan: records.Plan, stored: Stored) -> records.Plan:
    """Return the plan with Nova's providers as they are stored now.

    A reshape that was interrupted may have emptied some of them.
    """
    return dataclasses.replace(
        plan,
        natives=tuple(
            dataclasses.replace(
                native,
                inventories=now.inventories,
                traits=now.traits,
                aggregates=now.aggregates,
            )
            if (now := stored.providers.get(native.uuid)) and now.inventories
            else native
            for native in plan.natives
        ),
    )


def adopt(plan: records.Plan, stored: Stored) -> Stored:
    """Return the host with its servers on this library's providers.

    Servers that were deleted since the plan have no allocation. Our
    providers get the operator's traits and aggregates of Nova's.

    :param plan: result of ``record``.
    :raises PlanError: a provider or an allocation is not as planned.
    """
    natives = {native.uuid: native for native in plan.natives}
    own = plan.own_providers()
    for missing in sorted(plan.used_providers() - stored.providers.keys()):
        raise PlanError(f"nova-accel has no provider {missing} yet")
    allocations = {
        consumer: _move(
            consumer,
            by_provider,
            natives.keys(),
            server.native_amounts() if server else {},
            server.own_amounts() if server else {},
        )
        for consumer, by_provider in stored.allocations.items()
        for server in (plan.server(consumer),)
    }
    remaining = {
        uuid: provider
        for uuid, provider in stored.providers.items()
        if uuid not in natives
    }
    for native, provider in own.items():
        remaining[provider] = _carry(remaining[provider], natives[native])
    return Stored(providers=remaining, allocations=allocations)


def hand_back(
    plan: records.Plan, stored: Stored, own: Iterable[str]
) -> Stored:
    """Return the host with its servers on Nova's providers again.

    :param own: uuids of this library's providers of the host; all of them
        are removed.
    :raises PlanError: another consumer has allocations of one, or a name of
        Nova's providers is taken.
    """
    own = {*own}
    allocations = {
        consumer: _move(
            consumer,
            by_provider,
            own,
            server.own_amounts() if server else {},
            server.native_amounts() if server else {},
        )
        for consumer, by_provider in stored.allocations.items()
        for server in (plan.server(consumer),)
    }
    remaining = {u: p for u, p in stored.providers.items() if u not in own}
    taken = {p.name: uuid for uuid, p in remaining.items()}
    for native in plan.natives:
        if taken.get(native.name, native.uuid) != native.uuid:
            raise PlanError(
                f"provider {native.name} exists with another uuid,"
                f" {taken[native.name]}; Nova's own driver has reported it,"
                " empty [devices] enabled_mdev_types until the undo is done"
            )
        remaining[native.uuid] = StoredProvider(
            name=native.name,
            parent=plan.root.uuid,
            inventories=native.inventories,
            traits=native.traits,
            aggregates=native.aggregates,
        )
    return Stored(providers=remaining, allocations=allocations)


def make_room(plan: records.Plan, stored: Stored) -> Stored:
    """Return the node itself and our providers with room for what they hold.

    Placement 13 refuses each reshape of a provider without, and each
    Placement that of one that gets more than it offers. The next report of
    each sets its inventories back.
    """
    uuids = {plan.root.uuid, *plan.used_providers()}
    roomy = {
        uuid: dataclasses.replace(
            provider,
            inventories=_enlarge(provider.inventories, stored.used(uuid)),
        )
        for uuid in uuids
        if (provider := stored.providers.get(uuid)) is not None
    }
    return dataclasses.replace(stored, providers={**stored.providers, **roomy})


def _move(
    consumer: str,
    by_provider: records.Allocations,
    sources: Collection[str],
    expected: records.Allocations,
    moved: records.Allocations,
) -> dict[str, dict[str, int]]:
    """Return a consumer's allocations without the providers it leaves.

    :param sources: the providers that are removed.
    :param expected: what a planned consumer has of them.
    :param moved: what it gets in their place.
    :raises PlanError: it has something else of them.
    """
    removed = {u: dict(a) for u, a in by_provider.items() if u in sources}
    if not removed and expected:
        return {u: dict(a) for u, a in by_provider.items()}
    if removed != {u: dict(a) for u, a in expected.items()}:
        raise PlanError(
            f"consumer {consumer} has {removed} of the providers to be"
            f" removed, and the plan has {expected or 'nothing'}"
        )
    others = {u: a for u, a in by_provider.items() if u not in sources}
    if not removed:
        # Nova reports no providers of its PCI devices: the reshape after an
        # interrupted one finds these amounts.
        moved = {u: a for u, a in moved.items() if u not in others}
    return records.sum_amounts(
        pair for each in (others, moved) for pair in each.items()
    )


def _carry(
    provider: StoredProvider, native: records.NativeProvider
) -> StoredProvider:
    """Return our provider with the operator's traits and aggregates."""
    traits = {t for t in native.traits if t.startswith(names.CUSTOM)}
    return dataclasses.replace(
        provider,
        traits=provider.traits
        | {t for t in traits if not names.is_managed_trait(t)},
        aggregates=provider.aggregates | native.aggregates,
    )


def _enlarge(
    inventories: Mapping[str, providers.Inventory], used: records.Amounts
) -> dict[str, providers.Inventory]:
    """Return inventories whose capacity is at least the used amounts.

    The total is raised: Nova and this library report it anew each time,
    while an allocation ratio may be an operator's.
    """
    enlarged = dict(inventories)
    for name, amount in used.items():
        inventory = inventories.get(name)
        if inventory is not None and inventory.capacity < amount:
            units = math.ceil(amount / inventory.allocation_ratio)
            enlarged[name] = dataclasses.replace(
                inventory, total=inventory.reserved + units
            )
    return enlarged
