# SPDX-License-Identifier: Apache-2.0
"""One pass: write the provider tree of a host to Placement, in attempts.

An attempt fetches the tree, plans against it and makes the calls in order.
A refused call stops its provider for this attempt; the next attempt plans
again.
"""

import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable

from nova_accel import errors, model
from nova_accel.model import names, providers
from placement_sync.client import calls, resource_providers
from placement_sync.sync import diff, refusals

LOG = logging.getLogger(__name__)

Calls = tuple[calls.Call, ...]
Reread = Callable[[], tuple[providers.ProviderTree, model.HostState]]

# Seconds for which a provider that should shrink and is allocated counts
# as allocated without a request: no generation changes when its last
# allocation is deleted. All its units are reserved meanwhile.
RECHECK_SECONDS = 300.0
# Attempts of one pass: as many as Nova's resource tracker makes after a
# conflict (_update_to_placement). The next pass continues anyway.
ATTEMPTS = 4
# Maximum seconds before the second attempt, and their growth with each
# further one: writers in conflict must not stay in step, and a service
# that is down must not be flooded. Half of each wait is random.
CONFLICT_DELAY = 0.1
FAILURE_DELAY = 1.0
GROWTH = 3


def compute_delay(attempt: int, is_failure: bool, chance: float) -> float:
    """Return the seconds after an attempt, from 1, before the next one.

    :param is_failure: Placement did not answer; else there was a conflict.
    :param chance: a random number from 0 to 1.
    """
    longest = FAILURE_DELAY if is_failure else CONFLICT_DELAY
    return longest * float(GROWTH ** (attempt - 1)) * (1 + chance) / 2


class _PassMemory:
    """Cache of one pass for the next one, to save requests.

    ``missing_traits`` are standard traits that Placement does not have.
    ``shrinking`` are the providers that should shrink, ``allocated`` those
    of them that had allocations when last read. ``taken_names`` are refused
    creations by name: another provider has the name.
    """

    def __init__(self) -> None:
        self.missing_traits: frozenset[str] = frozenset()
        self.shrinking: frozenset[str] = frozenset()
        self.allocated: frozenset[str] = frozenset()
        self.taken_names: dict[str, refusals.RefusedCall] = {}
        self._expiry = 0.0

    def expire(self, now: float) -> None:
        """Clear entries that may have changed without a new generation."""
        if now >= self._expiry:
            self.shrinking = self.allocated = frozenset()
            self.taken_names.clear()
            self._expiry = now + RECHECK_SECONDS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _PassOptions:
    """Options of one pass; see ``Synchronizer.run``."""

    is_dry: bool = False
    create_root: bool = False
    is_shared: bool = False
    reread: Reread | None = None


class _Pass:
    """One pass of a host; ``calls`` are those made so far."""

    def __init__(
        self,
        placement: resource_providers.PlacementClient,
        desired: providers.ProviderTree,
        host: model.HostState,
        memory: _PassMemory,
        options: _PassOptions,
    ) -> None:
        self._placement = placement
        self._desired = desired
        self._host = host
        self._memory = memory
        self._options = options
        self._present: frozenset[str] = frozenset()
        self._moved: tuple[model.Problem, ...] = ()
        self.calls: list[calls.Call] = []
        self._refused = refusals.RefusedCalls()

    def problems(self) -> tuple[model.Problem, ...]:
        """Return the problems that remain, each with a hint."""
        return (*self._refused.problems(), *self._moved)

    def present(self) -> frozenset[str]:
        """Return the uuids of our providers that Placement has now."""
        present = set(self._present)
        for call in self.calls:
            if isinstance(call, calls.CreateProvider):
                present.add(call.uuid)
            elif isinstance(call, calls.DeleteProvider):
                present.discard(call.uuid)
        return frozenset(present - {self._desired.root.uuid})

    def attempt(self) -> bool:
        """Read, plan and change once; return whether the pass is complete."""
        self._refused.begin_attempt()
        root = self._desired.root
        fetched = self._placement.fetch(
            root.uuid, frozenset(n.uuid for n in self._desired.nodes)
        )
        if fetched.root is None and not self._create_root(root):
            return self._refused.is_final
        self._present = frozenset(node.uuid for node in fetched.tree.nodes)
        if self._options.reread is not None:
            self._desired, self._host = self._options.reread()
        self._moved = tuple(refusals.find_moved(fetched.tree, self._desired))
        plan = self._plan(fetched.tree)
        if self._options.is_dry:
            self.calls += plan
            return True
        self._make_calls(plan, fetched.tree)
        return self._refused.is_final

    def _create_root(self, root: providers.ProviderRoot) -> bool:
        """Register the compute node, or note that it is missing."""
        call = calls.CreateProvider(uuid=root.uuid, name=root.name, parent="")
        if not self._options.create_root:
            self._refused.add_missing_root(root)
            return False
        if self._options.is_dry:
            self.calls.append(call)
            return True
        return self._attempt_call(call)

    # -- the plan --------------------------------------------------------

    def _plan(self, actual: providers.ProviderTree) -> list[calls.Call]:
        """Return the calls, creations of classes and traits first.

        Existing names are read only if there is something to write.
        Standard traits that Placement does not have are omitted: it is
        older than they are.
        """
        memory = self._memory
        guard = self._build_guard(actual, memory.allocated)
        shrinking = diff.find_shrinking(actual, self._desired, guard)
        shrinking -= self._list_nova_only(actual)
        desired = self._build_tree_without(memory.missing_traits)
        if shrinking <= memory.shrinking and not diff.plan(
            actual, desired, guard
        ):
            return []
        memory.shrinking = shrinking
        memory.allocated = frozenset(
            filter(self._placement.has_allocations, sorted(shrinking))
        )
        guard = self._build_guard(actual, memory.allocated)
        plan = diff.plan(actual, desired, guard)
        if not plan:
            return []
        required = frozenset(_list_names(plan)) | memory.missing_traits
        existing = self._placement.filter_existing(required)
        memory.missing_traits = frozenset(
            name for name in required - existing if not _is_custom(name)
        )
        desired = self._build_tree_without(memory.missing_traits)
        return diff.plan(actual, desired, guard, existing)

    def _build_guard(
        self, actual: providers.ProviderTree, allocated: frozenset[str]
    ) -> diff.Guard:
        allocated |= self._refused.undeletable | self._list_nova_only(actual)
        return diff.build_guard(actual, self._desired, self._host, allocated)

    def _list_nova_only(
        self, actual: providers.ProviderTree
    ) -> frozenset[str]:
        """Return the providers that only nova-compute may delete."""
        if not self._options.is_shared:
            return frozenset()
        desired = {node.uuid for node in self._desired.nodes}
        return frozenset(n.uuid for n in actual.nodes) - desired

    def _build_tree_without(
        self, traits: frozenset[str]
    ) -> providers.ProviderTree:
        if not traits:
            return self._desired
        return dataclasses.replace(
            self._desired,
            nodes=tuple(
                dataclasses.replace(node, traits=node.traits - traits)
                for node in self._desired.nodes
            ),
        )

    # -- the calls -------------------------------------------------------

    def _make_calls(
        self, plan: Iterable[calls.Call], actual: providers.ProviderTree
    ) -> None:
        """Make one call after another.

        :raises ServiceError: no further call can succeed, or a call failed
            that may succeed later.
        """
        nested = refusals.Nesting(self._desired, actual)
        for call in plan:
            if (
                self._refused.is_given_up(call)
                or nested.is_stopped(call)
                or not self._attempt_call(call)
            ):
                nested.stop(call)
        self._refused.check_transient()

    def _attempt_call(self, call: calls.Call) -> bool:
        """Make one call; return whether Placement accepted it."""
        if call.name in self._memory.taken_names and isinstance(
            call, calls.CreateProvider
        ):
            self._refused.give_up(self._memory.taken_names[call.name])
            return False
        error = self._apply(call)
        if error is None:
            return True
        find_root = self._placement.find_root
        name_owner = refusals.find_name_owner(call, error, find_root)
        # A provider of this host with the name has a problem of its own.
        own = self._present | {node.uuid for node in self._desired.nodes}
        if name_owner and name_owner not in own:
            refusal = refusals.RefusedCall(
                call=call, error=error, name_owner=name_owner
            )
            self._memory.taken_names[call.name] = refusal
            self._refused.give_up(refusal)
            return False
        self._refused.add(call, error)
        return False

    def _apply(self, call: calls.Call) -> errors.ServiceError | None:
        """Make one call; return the error with which Placement refused it.

        :raises ServiceError: every further call would fail like this one.
        """
        try:
            self._placement.apply(call)
        except errors.ServiceError as error:
            if refusals.ends_pass(error):
                raise
            LOG.debug("%s: %s", call, error)
            if not error.is_conflict:
                self._placement.invalidate(None)
            return error
        LOG.info("%s", call)
        self.calls.append(call)
        return None


def _list_names(plan: Iterable[calls.Call]) -> Iterable[str]:
    """Yield the classes and traits that must exist for a plan."""
    for call in plan:
        if isinstance(call, calls.SetInventories):
            yield from filter(_is_custom, call.inventories)
        elif isinstance(call, calls.ChangeTraits):
            yield from call.added


def _is_custom(name: str) -> bool:
    return name.startswith(names.CUSTOM)


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
        """
        self._placement = placement
        self._sleep = sleep
        self._chance = chance
        self._clock = clock
        self._lock = threading.Lock()
        self._memory = _PassMemory()

    def run(
        self,
        desired: providers.ProviderTree,
        host: model.HostState,
        *,
        is_dry: bool = False,
        create_root: bool = False,
        is_shared: bool = False,
        reread: Reread | None = None,
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
        options = _PassOptions(
            is_dry=is_dry,
            create_root=create_root,
            is_shared=is_shared,
            reread=reread,
        )
        with self._lock:
            self._memory.expire(self._clock())
            return self._run(
                _Pass(self._placement, desired, host, self._memory, options)
            )

    def _run(self, host_pass: _Pass) -> PassResult:
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

    def _retry(self, host_pass: _Pass) -> int:
        """Make attempts until the pass is complete; return their number."""
        for attempt in range(1, ATTEMPTS + 1):
            is_failure = False
            try:
                if host_pass.attempt():
                    return attempt
            except errors.ServiceError as error:
                if attempt == ATTEMPTS or not refusals.is_retriable(error):
                    raise
                LOG.debug("attempt %d: %s", attempt, error)
                is_failure = True
            if attempt < ATTEMPTS:
                chance = self._chance()
                self._sleep(compute_delay(attempt, is_failure, chance))
        return ATTEMPTS
