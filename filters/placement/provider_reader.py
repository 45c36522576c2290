# SPDX-License-Identifier: Apache-2.0
"""Reader of provider data: one listing, then only what has changed."""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence

from filters import provider_facts, request
from filters.placement import generation_cache, queries, responses
from nova_accel import model
from nova_accel.model import names

# Changed providers that are read one by one, in three calls each: so
# many, or one of so many listed, and never more than some. Of more one call
# for all is cheaper, which costs a hundredth of that per provider of the
# cloud.
_FEW = 2
_OUT_OF = 100
_MOST_FEW = 16
# Providers of which each consumer's share is read for one request, in one
# call each: half a second when they take 15 ms. Later requests read on
# where this one stopped.
_MOST_HELD = 32
# For how long one request waits for the bulk read of another, instead of
# reading the same: that of a thousand hosts takes less.
_PATIENCE_SECONDS = 5.0
# Cards of which the sums don't tell what stands on them.
_UNEVEN = frozenset(
    names.layout_trait(layout.value)
    for layout in (model.Layout.MIXED, model.Layout.MIG)
)
# Says whether the traits of a card tell where its partitions are.
IsPlaced = Callable[[provider_facts.ProviderFacts], bool]


class ProviderReader:
    """Reads what has changed, and remembers it for the next request.

    One listing tells by the providers' generations what that is. One may
    serve several threads.

    :param get: asks Placement with questions.MICROVERSION.
    :param known: what is remembered.
    """

    def __init__(
        self, get: queries.Get, known: generation_cache.GenerationCache
    ) -> None:
        self._get = get
        self._cache = known
        self._bulk = threading.Lock()

    def read(
        self,
        wanted: request.AcceleratorRequest,
        named: Sequence[str],
        tree: str,
        problems: queries.Problems,
        is_placed: IsPlaced,
    ) -> dict[str, provider_facts.ProviderFacts]:
        """Return what is known of providers; none of it is exact.

        With all remembered that is one call. What can't be read is as it
        was remembered, or left out.

        :param named: the providers' uuids.
        :param tree: one of them if all are of one tree.
        :param is_placed: says whether a card's traits tell what is on it.
        """
        try:
            listed = responses.fetch_listing(self._get, wanted.groups, tree)
        except queries.QueryError as error:
            problems.append(error)
            return self._cache.recall(named)
        found = self._read_changed(wanted, named, listed, tree, problems)
        self._add_held(named, found, problems, is_placed)
        return found

    def confirm(
        self,
        wanted: request.AcceleratorRequest,
        uuids: Sequence[str],
        problems: queries.Problems,
        is_placed: IsPlaced,
        tree: str = "",
    ) -> dict[str, provider_facts.ProviderFacts]:
        """Return providers as they are now, in three calls for all.

        A provider is exact if the listings before and after tell of the
        same generation, or the second one leaves it out: Placement would
        refuse it too. What consumers hold is read for some dozens of
        cards, in one call each, of others it is as remembered if that is
        unchanged. Those without room in their tree are left out.

        :param is_placed: says whether a card's traits tell what is on it.
        :param tree: one of them if all are of one tree.
        """
        cached = self._cache.recall(uuids)
        fresh = self._cache.recall_fresh(uuids)
        try:
            before = responses.fetch_listing(self._get, wanted.groups, tree)
            bulk = responses.fetch_offers(self._get, wanted.groups[0], tree)
            found = {
                uuid: _listed_as(
                    bulk[uuid], before.get(uuid) or _unlisted(cached.get(uuid))
                )
                for uuid in uuids
                if uuid in bulk
            }
            remembered = {
                uuid: _with_held(one, fresh.get(uuid))
                for uuid, one in found.items()
            }
            self._cache.remember(remembered.values())
            unknown_first = sorted(
                found, key=lambda uuid: remembered[uuid].held is not None
            )
            self._add_held(unknown_first, found, problems, is_placed)
            found = {
                uuid: remembered[uuid] if one.held is None else one
                for uuid, one in found.items()
            }
            after = responses.fetch_listing(self._get, wanted.groups, tree)
        except queries.QueryError as error:
            problems.append(error)
            return {}
        return {
            uuid: dataclasses.replace(
                one,
                exact=uuid not in after
                or one.identity == after[uuid].identity,
            )
            for uuid, one in found.items()
        }

    def _read_changed(
        self,
        wanted: request.AcceleratorRequest,
        named: Sequence[str],
        listed: provider_facts.Facts,
        tree: str,
        problems: queries.Problems,
    ) -> dict[str, provider_facts.ProviderFacts]:
        """Read what has changed; by one for all, where it is much."""
        few = min(_MOST_FEW, max(_FEW, len(listed) // _OUT_OF))
        known = self._cache.compare(listed, named)
        if len(known.changed) <= few:
            changed = self._read_few(known.changed, listed, problems)
            return known.facts | changed
        is_first = self._bulk.acquire(blocking=False)
        if not is_first:  # who reads now may read all of it
            if self._bulk.acquire(timeout=_PATIENCE_SECONDS):
                self._bulk.release()
            known = self._cache.compare(listed, named)
        try:
            return known.facts | (
                self._read_few(known.changed, listed, problems)
                if len(known.changed) <= few
                else self._read_all(
                    wanted, known.changed, listed, tree, problems
                )
            )
        finally:
            if is_first:
                self._bulk.release()

    def _read_few(
        self,
        uuids: Sequence[str],
        listed: provider_facts.Facts,
        problems: queries.Problems,
    ) -> dict[str, provider_facts.ProviderFacts]:
        def fetch(uuid: str) -> provider_facts.ProviderFacts:
            who = listed.get(uuid) or responses.fetch_who(self._get, uuid)
            return responses.fetch_provider(self._get, who)

        found = dict(queries.each(uuids, fetch, problems))
        self._cache.remember(found.values())
        return {
            uuid: dataclasses.replace(one, exact=False)
            for uuid, one in found.items()
        }

    def _read_all(
        self,
        wanted: request.AcceleratorRequest,
        changed: Sequence[str],
        listed: provider_facts.Facts,
        tree: str,
        problems: queries.Problems,
    ) -> dict[str, provider_facts.ProviderFacts]:
        """Read every device that serves the first group, in one call.

        The answer has no generations. It came after the listing, so it is
        as new as the listing's, or newer.
        """
        try:
            found = responses.fetch_offers(self._get, wanted.groups[0], tree)
        except queries.QueryError as error:
            problems.append(error)
            return {}
        before = self._cache.recall_fresh(listed)
        for uuid in listed.keys() & found.keys():
            found[uuid] = _with_held(
                _listed_as(found[uuid], listed[uuid]), before.get(uuid)
            )
        self._cache.remember(found[u] for u in found if u in listed)
        self._cache.put_aside(
            u
            for u in changed
            if u not in found or names.OWNER_TRAIT not in found[u].traits
        )
        return {uuid: found[uuid] for uuid in changed if uuid in found}

    def _add_held(
        self,
        uuids: Iterable[str],
        found: dict[str, provider_facts.ProviderFacts],
        problems: queries.Problems,
        is_placed: IsPlaced,
    ) -> None:
        """Add what each consumer has of cards that don't tell it."""
        wanting = [
            uuid
            for uuid in uuids
            if uuid in found
            and found[uuid].held is None
            and not _UNEVEN.isdisjoint(found[uuid].traits)
            and not is_placed(found[uuid])
        ]

        def fetch(uuid: str) -> responses.Held:
            return responses.fetch_held(self._get, uuid)[0]

        chosen = wanting[:_MOST_HELD]
        for uuid, held in queries.each(chosen, fetch, problems):
            found[uuid] = responses.holding(found[uuid], held)
            self._cache.remember([found[uuid]])


def _listed_as(
    facts: provider_facts.ProviderFacts,
    listed: provider_facts.ProviderFacts | None,
) -> provider_facts.ProviderFacts:
    """Return facts of the bulk read with what only a listing tells."""
    if listed is None:
        return facts
    return dataclasses.replace(
        facts,
        name=listed.name,
        parent=listed.parent,
        root=listed.root,
        generation=listed.generation,
    )


def _unlisted(
    facts: provider_facts.ProviderFacts | None,
) -> provider_facts.ProviderFacts | None:
    """Return facts whose generation is not known any more."""
    return facts and dataclasses.replace(facts, generation=None)


def _with_held(
    facts: provider_facts.ProviderFacts,
    before: provider_facts.ProviderFacts | None,
) -> provider_facts.ProviderFacts:
    """Return facts with what consumers held before, if that is unchanged.

    With one generation no consumer came, and with the same sums none left.
    But a provider that was deleted and created again may have both, so
    the facts expire when the earlier ones do.
    """
    if (
        facts.held is None
        and before is not None
        and before.held is not None
        and before.identity == facts.identity
        and before.stock == facts.stock
    ):
        return dataclasses.replace(
            facts, held=before.held, read_at=before.read_at
        )
    return facts
