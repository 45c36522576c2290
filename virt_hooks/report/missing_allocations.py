# SPDX-License-Identifier: Apache-2.0
"""Claims that Placement has no allocation for.

Placement was restored from an older backup, or an operator deleted an
allocation: Placement would sell again what a server has. Nova-compute
looks for such claims; the provider tree reserves what they take, and the
claims file tells placement-sync which they are.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception

from nova_accel import model
from nova_accel.claims import claim_plan
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)

# Seconds between two looks at all providers that have claims. Placement
# raises no generation when it deletes a consumer's allocations, so that
# each provider costs a request. Providers where an allocation is missing
# are asked each time.
CHECK_S = 300.0


class MissingAllocations:
    """Looks for claims without an allocation; for one thread at a time."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        virtapi: Any,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look at these claims.

        :param virtapi: has Nova's client of Placement.
        :param clock: returns seconds.
        """
        self._accel, self._virtapi, self._clock = accel, virtapi, clock
        self._until = clock()

    def look(self) -> None:
        """Have what is claimed and not allocated reserved.

        The allocation of a claim is there before the claim is made, and
        stays until it is released: a claim counts if it was there before
        and after Placement was asked.
        """
        if not self._accel.is_known:
            return
        known = self._accel.unallocated
        held = self._accel.claims()
        providers = {claim.provider for claim in held}
        if self._clock() < self._until:
            providers &= {provider for _, provider, _, _ in known}
        else:
            self._until = self._clock() + CHECK_S
        allocated = self._read(providers)
        missing = claim_plan.find_unallocated(
            held, self._charges(held), allocated
        )
        missing |= {
            key: amount
            for key, amount in known.items()
            if key[1] not in allocated
        }
        claimed = {claim.key for claim in self._accel.claims()}
        missing = {k: n for k, n in missing.items() if k[:3] in claimed}
        for consumer, provider, slot, name in sorted(missing.keys() - known):
            LOG.warning(
                "server %s has slot %s of provider %s, and %d of its %s are"
                " not allocated; they are reserved. See `placement-sync"
                " audit`",
                *(consumer, slot, provider),
                *(missing[consumer, provider, slot, name], name),
            )
        if missing != known:
            self._accel.set_unallocated(missing)

    def _charges(
        self, held: Iterable[model.Claim]
    ) -> dict[model.ClaimKey, dict[str, int]]:
        """Return by claim what it takes of its device, by class."""
        host = self._accel.host.state
        return {
            claim.key: claim_plan.charges(device, claim)
            for claim in held
            if (device := host.device(claim.device)) is not None
        }

    def _read(
        self, providers: Iterable[str]
    ) -> dict[str, Mapping[str, Mapping[str, int]]]:
        """Return amounts by provider, consumer and class.

        A provider of which Placement says nothing is left out.
        """
        context = nova_context.get_admin_context()
        client = self._virtapi.reportclient
        allocated: dict[str, Mapping[str, Mapping[str, int]]] = {}
        for uuid in sorted(providers):
            try:
                answer = client.get_allocations_for_resource_provider(
                    context, uuid
                )
            except exception.ResourceProviderAllocationRetrievalFailed as e:
                LOG.debug("allocations of %s are not known: %s", uuid, e)
                continue
            allocated[uuid] = {
                consumer: record["resources"]
                for consumer, record in answer.allocations.items()
            }
        return allocated
