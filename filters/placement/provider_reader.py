# SPDX-License-Identifier: Apache-2.0
"""Reader of provider data: one listing, then only changed providers."""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence

from filters import provider_facts
from filters.placement import queries
from filters.request import AcceleratorRequest
from nova_accel import errors, model
from nova_accel.model import names, providers
from placement_sync.client import provider_cache, provider_records

# Up to how many changed providers are read one by one, in three queries
# each: _FEW, or one of _FEW_PER listed, but never more than _MAX_FEW. For
# more, one query for all is cheaper, which takes a hundredth of the time
# of three queries per provider of the cloud.
_FEW = 2
_FEW_PER = 100
_MAX_FEW = 16
# Providers whose allocations are read for one request, in one query each:
# half a second at 15 ms. Later requests read the next ones.
_MAX_ALLOCATIONS = 32
# Seconds that a request waits for the bulk read of another one, instead of
# reading the same: a bulk read of a thousand hosts takes less.
_PATIENCE_SECONDS = 5.0
# Layouts in which the used units do not determine the partitions' sizes.
_UNEVEN = frozenset(
    names.layout_trait(layout.value)
    for layout in (model.Layout.MIXED, model.Layout.MIG)
)
# Returns whether the traits of a card list all its partitions.
IsPlaced = Callable[[providers.Provider], bool]


class ProviderReader:
    """Reads changed providers, and caches them for the next request.

    A listing has the generation of each provider, which shows the changed
    ones. Thread-safe.

    :param get: sends queries to Placement.
    :param cache: provider data of former requests.
    """

    def __init__(
        self, get: provider_records.Get, cache: provider_cache.ProviderCache
    ) -> None:
        self._get = get
        self._cache = cache
        self._bulk_lock = threading.Lock()

    def read(
        self,
        request: AcceleratorRequest,
        uuids: Sequence[str],
        tree: str,
        problems: queries.Problems,
        is_placed: IsPlaced,
    ) -> dict[str, providers.Provider]:
        """Return providers by uuid; none of them is exact.

        One query if all are cached. A provider that can't be read is
        returned as cached, or left out.

        :param tree: one of the providers if all are of one tree.
        :param problems: the list that errors are appended to.
        :param is_placed: whether a card's traits list all its partitions;
            its allocations are not read then.
        """
        try:
            listed = queries.fetch_listing(self._get, request.groups, tree)
        except errors.ServiceError as error:
            problems.append(error)
            return self._cache.find(uuids)
        facts = self._read_changed(request, uuids, listed, tree, problems)
        self._add_allocations(uuids, facts, problems, is_placed)
        return facts

    def confirm(
        self,
        request: AcceleratorRequest,
        uuids: Sequence[str],
        problems: queries.Problems,
        is_placed: IsPlaced,
        tree: str = "",
    ) -> dict[str, providers.Provider]:
        """Return the present state of providers, in three queries for all.

        A provider is exact if the listings before and after have the same
        generation of it, or the second one leaves it out: Placement would
        reject it too. Allocations are read for up to _MAX_ALLOCATIONS
        cards, in one query each; those of others are as cached if the
        provider is unchanged. Providers without room in their tree are left
        out.

        :param is_placed: whether a card's traits list all its partitions.
        :param tree: one of the providers if all are of one tree.
        """
        try:
            facts = self._read_present(
                request, uuids, problems, is_placed, tree
            )
            after = queries.fetch_listing(self._get, request.groups, tree)
        except errors.ServiceError as error:
            problems.append(error)
            return {}
        return {
            uuid: dataclasses.replace(
                provider,
                is_exact=uuid not in after
                or provider.identity == after[uuid].identity,
            )
            for uuid, provider in facts.items()
        }

    def fetch(
        self,
        uuids: Iterable[str],
        facts: provider_facts.Facts,
        problems: queries.Problems,
    ) -> dict[str, providers.Provider]:
        """Return the present state of providers, in three queries for each.

        One more for a provider whose name was never read. A provider that
        can't be read is left out.

        :param facts: providers with their names, besides those cached.
        """

        def fetch(uuid: str) -> providers.Provider | None:
            identity = facts.get(uuid) or self._cache.find([uuid]).get(uuid)
            if identity is None or not identity.name:
                identity = provider_records.fetch_identity(self._get, uuid)
            return identity and provider_records.fetch_provider(
                self._get, identity
            )

        present = dict(queries.fetch_each(uuids, fetch, problems))
        self._store(present.values())
        return present

    def find(
        self, uuid: str, facts: provider_facts.Facts
    ) -> providers.Provider:
        """Return a provider of ``facts``, as cached, or only its uuid."""
        return (
            facts.get(uuid)
            or self._cache.find([uuid]).get(uuid)
            or providers.Provider(uuid=uuid)
        )

    def _store(self, several: Iterable[providers.Provider]) -> None:
        """Cache the providers of this library, exclude others."""
        for provider in several:
            if names.OWNER_TRAIT in provider.traits:
                self._cache.store([provider])
            else:
                self._cache.exclude([provider.uuid])

    def _read_present(
        self,
        request: AcceleratorRequest,
        uuids: Sequence[str],
        problems: queries.Problems,
        is_placed: IsPlaced,
        tree: str,
    ) -> dict[str, providers.Provider]:
        """Read providers in bulk, with allocations read or as cached.

        :raises ServiceError: a bulk query failed.
        """
        cached = self._cache.find(uuids)
        fresh = self._cache.find_fresh(uuids)
        listed = queries.fetch_listing(self._get, request.groups, tree)
        bulk = queries.fetch_summaries(self._get, request.groups[0], tree)
        facts = {
            uuid: _with_listing(
                bulk[uuid],
                listed.get(uuid) or _without_generation(cached.get(uuid)),
            )
            for uuid in uuids
            if uuid in bulk
        }
        with_cached = {
            uuid: _with_cached_allocations(provider, fresh.get(uuid))
            for uuid, provider in facts.items()
        }
        self._store(with_cached.values())
        uncached_first = sorted(
            facts, key=lambda uuid: with_cached[uuid].allocations is not None
        )
        self._add_allocations(uncached_first, facts, problems, is_placed)
        return {
            uuid: (
                with_cached[uuid] if provider.allocations is None else provider
            )
            for uuid, provider in facts.items()
        }

    def _read_changed(
        self,
        request: AcceleratorRequest,
        uuids: Sequence[str],
        listed: provider_facts.Facts,
        tree: str,
        problems: queries.Problems,
    ) -> dict[str, providers.Provider]:
        """Read changed providers, many of them in one query for all."""
        few = min(_MAX_FEW, max(_FEW, len(listed) // _FEW_PER))
        cached = self._cache.compare(listed, uuids)
        if len(cached.changed) <= few:
            changed = self.fetch(cached.changed, listed, problems)
            return cached.providers | _inexact(changed)
        is_first = self._bulk_lock.acquire(blocking=False)
        if not is_first:  # The bulk read of the other thread may suffice.
            if self._bulk_lock.acquire(timeout=_PATIENCE_SECONDS):
                self._bulk_lock.release()
            cached = self._cache.compare(listed, uuids)
        try:
            return cached.providers | (
                _inexact(self.fetch(cached.changed, listed, problems))
                if len(cached.changed) <= few
                else self._read_all(
                    request, cached.changed, listed, tree, problems
                )
            )
        finally:
            if is_first:
                self._bulk_lock.release()

    def _read_all(
        self,
        request: AcceleratorRequest,
        changed: Sequence[str],
        listed: provider_facts.Facts,
        tree: str,
        problems: queries.Problems,
    ) -> dict[str, providers.Provider]:
        """Read every device that serves the first group, in one query.

        The response has no generations. It came after the listing, so it
        is at least as new as the listing's generations.
        """
        try:
            facts = queries.fetch_summaries(self._get, request.groups[0], tree)
        except errors.ServiceError as error:
            problems.append(error)
            return {}
        fresh = self._cache.find_fresh(listed)
        for uuid in listed.keys() & facts.keys():
            facts[uuid] = _with_cached_allocations(
                _with_listing(facts[uuid], listed[uuid]), fresh.get(uuid)
            )
        self._store(facts[uuid] for uuid in facts if uuid in listed)
        self._cache.exclude(
            uuid
            for uuid in changed
            if uuid not in facts or names.OWNER_TRAIT not in facts[uuid].traits
        )
        return {uuid: facts[uuid] for uuid in changed if uuid in facts}

    def _add_allocations(
        self,
        uuids: Iterable[str],
        facts: dict[str, providers.Provider],
        problems: queries.Problems,
        is_placed: IsPlaced,
    ) -> None:
        """Read allocations of cards whose traits and sums are ambiguous."""
        ambiguous = [
            uuid
            for uuid in uuids
            if uuid in facts
            and facts[uuid].allocations is None
            and not _UNEVEN.isdisjoint(facts[uuid].traits)
            and not is_placed(facts[uuid])
        ]

        def fetch(
            uuid: str,
        ) -> tuple[int, provider_records.Amounts] | None:
            return provider_records.fetch_allocations(self._get, uuid)

        for uuid, (_, allocations) in queries.fetch_each(
            ambiguous[:_MAX_ALLOCATIONS], fetch, problems
        ):
            facts[uuid] = provider_records.with_allocations(
                facts[uuid], allocations
            )
            self._store([facts[uuid]])


def _inexact(facts: provider_facts.Facts) -> dict[str, providers.Provider]:
    return {
        uuid: dataclasses.replace(provider, is_exact=False)
        for uuid, provider in facts.items()
    }


def _with_listing(
    facts: providers.Provider,
    listed: providers.Provider | None,
) -> providers.Provider:
    """Return facts of the bulk read with identity of the listing."""
    if listed is None:
        return facts
    return dataclasses.replace(
        facts,
        name=listed.name,
        parent=listed.parent,
        root=listed.root,
        generation=listed.generation,
    )


def _without_generation(
    facts: providers.Provider | None,
) -> providers.Provider | None:
    return facts and dataclasses.replace(facts, generation=None)


def _with_cached_allocations(
    facts: providers.Provider,
    cached: providers.Provider | None,
) -> providers.Provider:
    """Return facts with the cached allocations if those are unchanged.

    With one generation no consumer was added, and with the same used units
    none was removed. A provider that was deleted and created again may have
    both, so the facts expire when the cached ones do.
    """
    if (
        facts.allocations is None
        and cached is not None
        and cached.allocations is not None
        and cached.identity == facts.identity
        and cached.capacities == facts.capacities
    ):
        return dataclasses.replace(
            facts, allocations=cached.allocations, read_at=cached.read_at
        )
    return facts
