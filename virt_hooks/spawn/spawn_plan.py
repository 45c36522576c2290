# SPDX-License-Identifier: Apache-2.0
"""Plan of a spawn: cleared slots, and the claims on them."""

import dataclasses
from collections.abc import Mapping

from nova_accel import model
from nova_accel.claims import claim_plan
from nova_accel.discovery import snapshot
from nova_accel.model import flavors, providers
from virt_hooks.spawn import (
    claim_store,
    ownership,
    region_programs,
    release,
    spawn_checks,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """Partitions that a server needs; see ``Lifecycle.ensure``."""

    consumer: str
    root: providers.ProviderRoot
    groups: tuple[flavors.RequestGroup, ...]
    slots: tuple[model.Slot, ...]
    allocations: model.Allocations
    bitstreams: Mapping[str, model.Bitstream]


class SpawnPlanner:
    """Plans the claims of spawns; callers hold the locks of the cards."""

    def __init__(
        self,
        store: claim_store.ClaimStore,
        release: release.PartitionRelease,
        programs: region_programs.RegionPrograms,
        host: snapshot.Snapshot,
    ) -> None:
        """Plan on ``host``."""
        self._store = store
        self._release = release
        self._programs = programs
        self._host = host

    def plan(
        self,
        request: SpawnRequest,
        previous: tuple[model.Claim, ...],
        host: model.HostState,
    ) -> tuple[model.Claim, ...]:
        """Clear the slots of a request, and return the claims on them.

        :param previous: the claims that the server has.
        :param host: the host, with its cards just read.
        :returns: the claims; those that the server had stay made.
        :raises ClaimError: this host can't make the partitions.
        :raises ActionError: a partition in a slot can't be removed.
        """
        consumer = request.consumer
        before = claim_store.made_only(previous) + self._decide(
            consumer, previous
        )
        host = self._clear_slots(request, before, host)
        claims = claim_plan.plan(
            consumer,
            request.groups,
            request.slots,
            request.root,
            self._store.without_claims_of_others(consumer, host),
            request.allocations,
        )
        claims = self._programs.plan(
            ownership.plan_unless_made(before, claims),
            before,
            request.bitstreams,
            self._store.claims(),
            host,
        )
        self._release.check_serials(claims)
        self._release.note_assigned(ownership.exclude(claims, before))
        return claims

    def _decide(
        self, consumer: str, previous: tuple[model.Claim, ...]
    ) -> tuple[model.Claim, ...]:
        """Return undecided claims on functions that are the consumer's."""
        undecided = self._release.list_undecided(consumer, previous)
        if not undecided:
            return ()
        return tuple(
            dataclasses.replace(claim, state=model.ClaimState.MADE)
            for claim in self._release.exclude_unclean(consumer, undecided)
        )

    def _clear_slots(
        self,
        request: SpawnRequest,
        before: tuple[model.Claim, ...],
        host: model.HostState,
    ) -> model.HostState:
        """Remove other servers' partitions and claims from some slots.

        :returns: the host, read again if a partition was removed.
        """
        consumer, root, slots = request.consumer, request.root, request.slots
        if request.allocations:
            spawn_checks.check_all_available(
                consumer, root, slots, host, self._store.has_claim_on
            )
        # Before the eviction: after an error the other server keeps its
        # claims.
        self._release.clear_slots(consumer, root, slots, before)
        self._store.evict(consumer, slots)
        return self._host.state


def refresh_cards(
    host: snapshot.Snapshot,
    root: providers.ProviderRoot,
    slots: tuple[model.Slot, ...],
    *,
    is_whole: bool = False,
) -> model.HostState:
    """Read the partitions in some slots; all cards if one is new.

    :param is_whole: read the cards of these slots completely.
    """
    slot_providers = {slot.provider for slot in slots}
    addresses = {
        device.address
        for device in ownership.devices_of(root, host.state, slots)
    }
    if len(addresses) < len(slot_providers):
        return host.refresh()
    places = () if is_whole else [slot.identifier for slot in slots]
    return host.refresh_cards(addresses, places)
