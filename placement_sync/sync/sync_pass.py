# SPDX-License-Identifier: Apache-2.0
"""One pass: the provider tree of a host is written to Placement."""

import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable

from nova_accel import errors, model
from nova_accel.model import providers
from placement_sync.client import calls, resource_providers
from placement_sync.sync import pass_attempts, refusals

LOG = logging.getLogger(__name__)

Calls = tuple[calls.Call, ...]

# How often one pass looks and plans: as often as Nova's resource tracker
# does for a conflict (_update_to_placement). The next pass comes anyway.
ATTEMPTS = 4
# Seconds that the wait before the second attempt takes at most, and how
# they grow: two writers that met must part, a service that is down must
# not be pressed. Half of each is left to chance.
CONFLICT_DELAY = 0.1
FAILURE_DELAY = 1.0
GROWTH = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """How a pass went.

    ``calls`` are those that were made; in a dry run, those that would be.
    ``reads`` and ``writes`` count requests, refused ones too. ``changed``
    are the uuids of providers that were written, ``present`` those of our
    providers that Placement has after it, ``problems`` what stayed
    undone and what to do about it. ``seconds`` include the waits.
    """

    calls: Calls = ()
    reads: int = 0
    writes: int = 0
    problems: tuple[model.Problem, ...] = ()
    changed: frozenset[str] = frozenset()
    present: frozenset[str] = frozenset()
    seconds: float = 0.0
    attempts: int = 1

    @property
    def is_ok(self) -> bool:
        """Return whether nothing stayed undone."""
        return not self.problems


class Synchronizer:
    """Makes the passes of one host, one at a time; may be shared."""

    def __init__(
        self,
        placement: resource_providers.PlacementClient,
        sleep: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make passes over this Placement.

        :param chance: returns numbers from 0 to 1, for the waits.
        :param clock: returns seconds.
        """
        self._placement = placement
        self._sleep = sleep
        self._chance = chance
        self._clock = clock
        self._lock = threading.Lock()
        self._memory = pass_attempts.PassMemory()

    def run(
        self,
        desired: providers.ProviderTree,
        host: model.HostState,
        *,
        is_dry: bool = False,
        create_root: bool = False,
        is_shared: bool = False,
        anew: pass_attempts.Anew | None = None,
    ) -> PassResult:
        """Make Placement have the desired tree, and return how that went.

        What fails for one provider stops that one, and what nests in it;
        it is tried again a few times. One INFO line is logged per change.

        :param host: the reading that the tree was built from.
        :param is_dry: plan, and change nothing.
        :param create_root: register the compute node if it is missing.
        :param is_shared: whether a nova-compute reports these providers
            too. Its tracker fails each claim and each delete of a server
            while it remembers a provider that somebody else has deleted
            (nova/compute/resource_tracker.py, _update_to_placement): what
            is to go is reserved whole, and left to it.
        :param anew: returns the tree and the reading as they are once
            Placement has been read. For a host whose servers come and go
            while the pass runs: what somebody else sends from then on is
            newer than what was read, and Placement refuses what is older.
        :raises ServiceError: Placement can't be had. What was changed
            before that is right, and the next pass goes on from there.
        """
        with self._lock:
            began = time.monotonic()
            door = self._placement.door
            reads, writes = door.reads, door.writes
            self._memory.expire(self._clock())
            one = pass_attempts.Pass(
                self._placement, desired, host, self._memory
            )
            one.is_dry, one.create_root = is_dry, create_root
            one.is_shared, one.anew = is_shared, anew
            count = self._attempt(one)
            problems = one.problems()
            return PassResult(
                calls=tuple(one.made),
                reads=door.reads - reads,
                writes=door.writes - writes,
                problems=problems,
                changed=frozenset(
                    call.uuid
                    for call in one.made
                    if not isinstance(call, calls.Name)
                ),
                present=one.present(),
                seconds=time.monotonic() - began,
                attempts=count,
            )

    def _attempt(self, one: pass_attempts.Pass) -> int:
        """Try until all is done; return how often that was."""
        for attempt in range(1, ATTEMPTS + 1):
            longest = CONFLICT_DELAY
            try:
                if one.attempt():
                    return attempt
            except errors.ServiceError as error:
                if attempt == ATTEMPTS or not refusals.is_mendable(error):
                    raise
                LOG.debug("attempt %d: %s", attempt, error)
                longest = FAILURE_DELAY
            if attempt < ATTEMPTS:
                longest *= GROWTH ** (attempt - 1)
                self._sleep(longest * (1 + self._chance()) / 2)
        return ATTEMPTS
