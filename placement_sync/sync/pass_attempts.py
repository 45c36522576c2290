# SPDX-License-Identifier: Apache-2.0
"""Attempts of one pass: read, plan, change, retry."""

import dataclasses
import logging
from collections.abc import Callable, Iterable

from nova_accel import errors, model
from nova_accel.model import names, providers
from placement_sync.client import calls, resource_providers
from placement_sync.sync import diff, nesting, refusals

LOG = logging.getLogger(__name__)

Anew = Callable[[], tuple[providers.ProviderTree, model.HostState]]

# Seconds for which a provider that should shrink and is in use counts as
# in use unasked, as long as there is nothing else to do: Placement tells
# by no generation that it is free again. It is reserved whole meanwhile.
HELD_SECONDS = 300.0


def guard(
    actual: providers.ProviderTree,
    desired: providers.ProviderTree,
    host: model.HostState,
    held: Iterable[str] = (),
) -> diff.Guard:
    """Return the guard under which a host's tree is planned.

    :param host: the reading that the desired tree was built from.
    :param held: the providers that something is allocated from.
    """
    present = {node.uuid for node in desired.nodes}
    return diff.Guard(
        held=frozenset(held),
        unknown=frozenset()
        if host.complete
        else frozenset(n.uuid for n in actual.nodes) - present,
        unreadable=diff.unreadable(actual, host.unknown),
    )


class PassMemory:
    """What one pass leaves for the next one, to ask less.

    ``absent`` are standard traits that Placement does not know, ``asked``
    the providers that should shrink, and ``held`` those of them that were
    in use when last asked. ``taken`` are refused creations by name: another
    provider has the name.
    """

    def __init__(self) -> None:
        self.absent: frozenset[str] = frozenset()
        self.asked: frozenset[str] = frozenset()
        self.held: frozenset[str] = frozenset()
        self.taken: dict[str, refusals.RefusedCall] = {}
        self._until = 0.0

    def expire(self, now: float) -> None:
        """Forget what may have changed unseen."""
        if now >= self._until:
            self.asked = self.held = frozenset()
            self.taken.clear()
            self._until = now + HELD_SECONDS


class Pass:
    """One pass under way."""

    def __init__(
        self,
        placement: resource_providers.PlacementClient,
        desired: providers.ProviderTree,
        host: model.HostState,
        memory: PassMemory,
    ) -> None:
        self._placement = placement
        self._desired = desired
        self._host = host
        self._memory = memory
        self.is_dry = False
        self.create_root = False
        self.is_shared = False
        self.anew: Anew | None = None
        self._found: frozenset[str] = frozenset()
        self.made: list[calls.Call] = []
        self._refused = refusals.RefusedCalls()

    def problems(self) -> tuple[model.Problem, ...]:
        """Return what stayed undone, with what to do about it."""
        return self._refused.problems()

    def present(self) -> frozenset[str]:
        """Return our providers that Placement has now."""
        found = set(self._found)
        for call in self.made:
            if isinstance(call, calls.CreateProvider):
                found.add(call.uuid)
            elif isinstance(call, calls.DeleteProvider):
                found.discard(call.uuid)
        return frozenset(found - {self._desired.root.uuid})

    def attempt(self) -> bool:
        """Look, plan and change once; return whether that was all."""
        self._refused.begin()
        root = self._desired.root
        fetched = self._placement.fetch(
            root.uuid, frozenset(n.uuid for n in self._desired.nodes)
        )
        if fetched.root is None and not self._make_root(root):
            return self._refused.is_final
        self._found = frozenset(node.uuid for node in fetched.tree.nodes)
        if self.anew is not None:
            self._desired, self._host = self.anew()
        plan = self._plan(fetched.tree)
        if self.is_dry:
            self.made += plan
            return True
        self._carry_out(plan, fetched.tree)
        return self._refused.is_final

    def _make_root(self, root: providers.ProviderRoot) -> bool:
        """Register the compute node, or tell that it is missing."""
        call = calls.CreateProvider(uuid=root.uuid, name=root.name, parent="")
        if not self.create_root:
            self._refused.add_missing_root(root)
            return False
        if self.is_dry:
            self.made.append(call)
            return True
        return self._make(call)

    # -- the plan --------------------------------------------------------

    def _plan(self, actual: providers.ProviderTree) -> list[calls.Call]:
        """Return what is to be called, names that must be made first.

        Which names Placement knows is asked only if there is something to
        write. Standard traits that it does not know are left out: it is
        older than they are.
        """
        memory = self._memory
        bound = self._guard(actual, memory.held)
        shrinking = diff.shrinking(actual, self._desired, bound)
        shrinking -= self._left_to_nova(actual)
        wanted = self._without(memory.absent)
        if shrinking <= memory.asked and not diff.plan(actual, wanted, bound):
            return []
        memory.asked = shrinking
        memory.held = frozenset(
            filter(self._placement.is_allocated, sorted(shrinking))
        )
        bound = self._guard(actual, memory.held)
        plan = diff.plan(actual, wanted, bound)
        if not plan:
            return []
        needed = frozenset(_needed(plan)) | memory.absent
        known = self._placement.known(needed)
        memory.absent = frozenset(
            name for name in needed - known if not _is_custom(name)
        )
        wanted = self._without(memory.absent)
        return diff.plan(actual, wanted, bound, known)

    def _guard(
        self, actual: providers.ProviderTree, held: frozenset[str]
    ) -> diff.Guard:
        held |= self._refused.undeletable | self._left_to_nova(actual)
        return guard(actual, self._desired, self._host, held)

    def _left_to_nova(self, actual: providers.ProviderTree) -> frozenset[str]:
        """Return the providers that only nova-compute may delete."""
        if not self.is_shared:
            return frozenset()
        wanted = {node.uuid for node in self._desired.nodes}
        return frozenset(n.uuid for n in actual.nodes) - wanted

    def _without(self, traits: frozenset[str]) -> providers.ProviderTree:
        """Return the desired tree without some traits."""
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

    def _carry_out(
        self, plan: Iterable[calls.Call], actual: providers.ProviderTree
    ) -> None:
        """Make one call after another.

        :raises ServiceError: there is no use in going on.
        """
        found = nesting.Nesting(actual, self._desired)
        for call in plan:
            if (
                self._refused.is_settled(call)
                or found.is_stopped(call)
                or not self._make(call)
            ):
                found.stop(call)
        self._refused.check_broken()

    def _make(self, call: calls.Call) -> bool:
        """Make one call; return whether Placement took it."""
        if call.name in self._memory.taken and isinstance(
            call, calls.CreateProvider
        ):
            self._refused.settle(self._memory.taken[call.name])
            return False
        error = self._apply(call)
        if error is None:
            return True
        find_root = self._placement.find_root
        holder = refusals.find_holder(call, error, find_root)
        # The pass itself renames a provider of this host.
        own = self._found | {node.uuid for node in self._desired.nodes}
        if holder and holder not in own:
            refusal = refusals.RefusedCall(
                call=call, error=error, holder=holder
            )
            self._memory.taken[call.name] = refusal
            self._refused.settle(refusal)
            return False
        move = self._refused.move(call, error, find_root)
        if move is not None and self._apply(move) is None:
            self._refused.plan_anew()
        else:
            self._refused.add(call, error)
        return False

    def _apply(self, call: calls.Call) -> errors.ServiceError | None:
        """Make one call; return why Placement refused it.

        :raises ServiceError: there is no use in going on.
        """
        try:
            self._placement.apply(call)
        except errors.ServiceError as error:
            if refusals.is_everybodys(error):
                raise
            LOG.debug("%s: %s", call, error)
            if not error.is_conflict:
                self._placement.forget(None)
            return error
        LOG.info("%s", call)
        self.made.append(call)
        return None


def _needed(plan: Iterable[calls.Call]) -> Iterable[str]:
    """Return the classes and traits that a plan needs to be known."""
    for call in plan:
        if isinstance(call, calls.SetInventories):
            yield from filter(_is_custom, call.inventories)
        elif isinstance(call, calls.ChangeTraits):
            yield from call.added


def _is_custom(name: str) -> bool:
    return name.startswith(names.CUSTOM)
