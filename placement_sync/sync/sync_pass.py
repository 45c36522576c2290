# SPDX-License-Identifier: Apache-2.0
"""One pass: write the provider tree of a host to Placement."""

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

# Attempts of one pass: as many as Nova's resource tracker makes after a
# conflict (_update_to_placement). The next pass continues anyway.
ATTEMPTS = 4
# Maximum seconds before the second attempt, and their growth with each
# further one: writers in conflict must not stay in step, and a service
# that is down must not be flooded. Half of each wait is random.
CONFLICT_DELAY = 0.1
FAILURE_DELAY = 1.0
GROWTH = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """Result of a pass.

    ``calls`` are those made; in a dry run, those that would be made.
    ``reads`` and ``writes`` count requests, refused ones included.
    ``changed`` are the uuids of providers that were written, ``present``
    those of our providers that Placement has afterwards. ``problems`` are
    the calls left undone, each with a hint. ``seconds`` include the waits.
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
        """Return whether no call was left undone."""
        return not self.problems


class Synchronizer:
    """Runs the passes of one host, one at a time. Thread-safe."""

    def __init__(
        self,
        placement: resource_providers.PlacementClient,
        sleep: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Run no pass yet.

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
        reread: pass_attempts.Reread | None = None,
    ) -> PassResult:
        """Write the desired tree to Placement and return the result.

        A failure for one provider stops that provider and its descendants;
        they are retried a few times. One INFO line is logged per change.

        :param host: the snapshot that the tree was built from.
        :param is_dry: plan, and change nothing.
        :param create_root: register the compute node if it is missing.
        :param is_shared: whether a nova-compute reports these providers
            too. Its resource tracker fails each claim and each delete of a
            server while its cache has a provider that another client
            deleted (nova/compute/resource_tracker.py,
            _update_to_placement), so providers to delete get all units
            reserved, and nova-compute deletes them.
        :param reread: returns the present tree and snapshot, after
            Placement was read. For a host whose servers change while the
            pass runs: a later write of another client changes the
            generation, so Placement refuses the older one.
        :raises ServiceError: Placement can't be used. Changes made before
            are valid, and the next pass continues from there.
        """
        options = pass_attempts.PassOptions(
            is_dry=is_dry,
            create_root=create_root,
            is_shared=is_shared,
            reread=reread,
        )
        with self._lock:
            self._memory.expire(self._clock())
            return self._run(
                pass_attempts.Pass(
                    self._placement, desired, host, self._memory, options
                )
            )

    def _run(self, host_pass: pass_attempts.Pass) -> PassResult:
        started = time.monotonic()
        client = self._placement.client
        reads, writes = client.reads, client.writes
        attempts = self._retry(host_pass)
        return PassResult(
            calls=tuple(host_pass.calls),
            reads=client.reads - reads,
            writes=client.writes - writes,
            problems=host_pass.problems(),
            changed=frozenset(
                call.uuid
                for call in host_pass.calls
                if not isinstance(call, calls.Name)
            ),
            present=host_pass.present(),
            seconds=time.monotonic() - started,
            attempts=attempts,
        )

    def _retry(self, host_pass: pass_attempts.Pass) -> int:
        """Make attempts until the pass is complete; return their number."""
        for attempt in range(1, ATTEMPTS + 1):
            max_delay = CONFLICT_DELAY
            try:
                if host_pass.attempt():
                    return attempt
            except errors.ServiceError as error:
                if attempt == ATTEMPTS or not refusals.is_retriable(error):
                    raise
                LOG.debug("attempt %d: %s", attempt, error)
                max_delay = FAILURE_DELAY
            if attempt < ATTEMPTS:
                max_delay *= GROWTH ** (attempt - 1)
                self._sleep(max_delay * (1 + self._chance()) / 2)
        return ATTEMPTS
