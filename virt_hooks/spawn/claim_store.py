# SPDX-License-Identifier: Apache-2.0
"""Claims of the consumers of this host, and what is published of them.

``ClaimStore`` has the claims in memory. Nova stores the slots of each server:
when the service starts, the claims are restored from them (see
``operations.nova_database``). ``NodeClaims`` writes them to the claims file
with each change, and builds the desired providers of them and of the last
reading of the host; neither before the node and the host devices of its
domains are known: a tree without them would reserve devices that servers
have.
"""

import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import snapshot
from nova_accel.geometry import device_capacity
from nova_accel.inventory import tree_builder
from nova_accel.model import providers
from virt_hooks.guest import connection
from virt_hooks.spawn import host_access

LOG = logging.getLogger(__name__)


class ClaimStore:
    """Claims by consumer. Thread-safe; not persistent."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """Start an empty store.

        :param on_change: called whenever claims were changed.
        """
        self._on_change = on_change
        self._claims: dict[str, tuple[model.Claim, ...]] = {}
        self._made: dict[str, model.Claim] = {}
        #: Slots that each consumer was restored with.
        self._restored: dict[str, frozenset[tuple[str, str]]] = {}
        #: Of the claims of each consumer that has any.
        self._versions: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._guard = threading.Lock()

    def versions(self) -> Mapping[str, int]:
        """Return the consumers that have claims, each with a version.

        A consumer gets a new version whenever its claims are set, also if
        they stay the same, but not when the same claims are restored. No
        version is used twice.
        """
        with self._guard:
            return dict(self._versions)

    def claims(self) -> tuple[model.Claim, ...]:
        with self._guard:
            return tuple(
                claim for claims in self._claims.values() for claim in claims
            )

    def claims_of(self, consumer: str) -> tuple[model.Claim, ...]:
        with self._guard:
            return self._claims.get(consumer, ())

    def restore(
        self,
        consumer: str,
        slots: Iterable[model.Slot],
        existing: Iterable[model.Claim],
        expected: tuple[model.Claim, ...],
    ) -> None:
        """Add the claims of a server that has some slots in Nova.

        Its claims on other slots stay.

        :param existing: the claims whose partitions exist: this library
            owns them.
        :param expected: those, and the claims whose partitions a reboot of
            the host has removed. A partition that appears in their slots
            later is not owned.
        """
        slots = tuple(slots)
        with self._guard:
            restored = self._restored.get(consumer, frozenset())
            self._restored[consumer] = restored | {s.key for s in slots}
            self._made |= {c.handle: c for c in self._with_type_ids(existing)}
            claims = self._claims.get(consumer, ())
            new_claims = (
                *not_in_slots(claims, slots),
                *self._with_type_ids(expected),
            )
            if new_claims == claims:
                return
            self._set(consumer, new_claims)
        self._on_change()

    def has_claim_on(self, consumer: str, provider: str) -> bool:
        """Return whether a server has anything of a device."""
        with self._guard:
            claimed = {c.provider for c in self._claims.get(consumer, ())}
            restored = self._restored.get(consumer, frozenset())
        return provider in claimed | {uuid for uuid, _ in restored}

    def made(self) -> Mapping[str, model.Claim]:
        """Return the claims whose partitions this library owns, by handle.

        Every claim that was ever set, also of a server that is deleted,
        until its partition was seen removed.
        """
        with self._guard:
            return dict(self._made)

    def set_claims(
        self, consumer: str, claims: tuple[model.Claim, ...]
    ) -> None:
        with self._guard:
            claims = self._with_type_ids(claims)
            self._set(consumer, claims)
            self._made |= {claim.handle: claim for claim in claims}
        self._on_change()

    def _with_type_ids(
        self, claims: Iterable[model.Claim]
    ) -> tuple[model.Claim, ...]:
        """Return claims with the ids of their types, if ever read.

        A claim planned while the ids can't be read has none, and its
        partition could not be removed.
        """
        return tuple(
            claim
            if claim.type_id
            else dataclasses.replace(claim, type_id=self._type_id(claim))
            for claim in claims
        )

    def _type_id(self, claim: model.Claim) -> str:
        made = self._made.get(claim.handle, claim)
        return made.type_id if has_same_profile(made, claim) else ""

    def without_claims_of_others(
        self, consumer: str, host: model.HostState
    ) -> model.HostState:
        """Return the host less what all other consumers have claimed."""
        others = [
            claim for claim in self.claims() if claim.consumer != consumer
        ]
        return dataclasses.replace(
            host,
            devices=tuple(
                device_capacity.reserve_claims(device, others)
                for device in host.devices
            ),
        )

    def forget_made(self, handles: Iterable[str]) -> None:
        """Forget partitions that do not exist any more."""
        with self._guard:
            for handle in handles:
                self._made.pop(handle, None)

    def evict(self, consumer: str, slots: Iterable[model.Slot]) -> None:
        """Drop others' claims on slots that Nova has assigned to a server.

        Nova does not clean up a server again whose clean-up failed.
        """
        slots = tuple(slots)
        with self._guard:
            for other in self._restored.keys() - {consumer}:
                self._restored[other] -= frozenset(s.key for s in slots)
            for other, claims in list(self._claims.items()):
                remaining = not_in_slots(claims, slots)
                if other != consumer and remaining != claims:
                    LOG.warning(
                        "dropping claims of server %s: Nova reassigned its"
                        " slots to server %s",
                        other,
                        consumer,
                    )
                    self._set(other, remaining)

    def remove_claims(
        self, consumer: str, slots: Iterable[model.Slot]
    ) -> None:
        slots = tuple(slots)
        with self._guard:
            claims = self._claims.get(consumer, ())
            self._set(consumer, not_in_slots(claims, slots))
            restored = self._restored.pop(consumer, frozenset())
            if remaining := restored - frozenset(s.key for s in slots):
                self._restored[consumer] = remaining
        self._on_change()

    def transfer(
        self, consumer: str, new_consumer: str, slots: Iterable[model.Slot]
    ) -> None:
        """Transfer one consumer's claims on some slots to another one.

        A server that is resized on its host has the claims of the new
        size; those of the old size are its migration's, as in Placement,
        until the migration ends.
        """
        keys = frozenset(s.key for s in slots)
        with self._guard:
            claims = self._claims.get(consumer, ())
            moved = tuple(
                dataclasses.replace(claim, consumer=new_consumer)
                for claim in claims
                if (claim.provider, claim.slot) in keys
            )
            if not moved:
                return
            handles = {claim.handle for claim in moved}
            self._set(
                consumer, tuple(c for c in claims if c.handle not in handles)
            )
            self._set(
                new_consumer, (*self._claims.get(new_consumer, ()), *moved)
            )
            self._made |= {claim.handle: claim for claim in moved}
        self._on_change()

    def slots_of_others(self, consumer: str) -> tuple[model.Slot, ...]:
        """Return the slots that all other consumers have claims on."""
        return slots_of(c for c in self.claims() if c.consumer != consumer)

    def exclude_claimed_by_others(
        self, consumer: str, claims: Iterable[model.Claim]
    ) -> tuple[model.Claim, ...]:
        """Return the claims whose partitions no other consumer has claimed.

        A release may come late, or twice: Nova may have reassigned the
        slot meanwhile.
        """
        others = {
            claim.handle
            for claim in self.claims()
            if claim.consumer != consumer
        }
        return tuple(claim for claim in claims if claim.handle not in others)

    def renew(self, consumer: str) -> None:
        """Give a consumer's claims a new version, if it has any.

        A pass compares them with Nova then.
        """
        with self._guard:
            if consumer in self._versions:
                self._versions[consumer] = next(self._numbers)

    def _set(self, consumer: str, claims: tuple[model.Claim, ...]) -> None:
        if claims:
            self._claims[consumer] = claims
            self._versions[consumer] = next(self._numbers)
        else:
            self._claims.pop(consumer, None)
            self._versions.pop(consumer, None)


def mark(
    claims: Iterable[model.Claim],
    unbacked: Collection[str],
    unallocated: Mapping[model.ClassKey, int],
) -> tuple[model.Claim, ...]:
    """Return claims with whether Nova and Placement back them.

    :param unbacked: consumers that Nova does not back any more.
    :param unallocated: claimed amounts that Placement has not allocated.
    """
    missing: dict[model.ClaimKey, dict[str, int]] = {}
    for (*key, name), amount in unallocated.items():
        missing.setdefault((key[0], key[1], key[2]), {})[name] = amount

    def mark_claim(claim: model.Claim) -> model.Claim:
        if claim.consumer in unbacked:
            return dataclasses.replace(
                claim, is_allocated=False, is_backed=False
            )
        if claim.key in missing:
            return dataclasses.replace(
                claim, is_allocated=False, unallocated=missing[claim.key]
            )
        return claim

    return tuple(map(mark_claim, claims))


def made_only(claims: Iterable[model.Claim]) -> tuple[model.Claim, ...]:
    return tuple(c for c in claims if c.state is model.ClaimState.MADE)


def slots_of(claims: Iterable[model.Claim]) -> tuple[model.Slot, ...]:
    """Return the slots of claims; their resource classes are empty."""
    return tuple(
        model.Slot(
            provider=claim.provider,
            resource_class="",
            identifier=claim.slot,
        )
        for claim in claims
    )


def handles_of(claims: Iterable[model.Claim]) -> frozenset[str]:
    """Return the mdev uuids and PCI addresses of claims."""
    return frozenset(handle for claim in claims for handle in claim.handles)


def in_slots(
    claims: Iterable[model.Claim], slots: Iterable[model.Slot]
) -> tuple[model.Claim, ...]:
    keys = frozenset(s.key for s in slots)
    return tuple(c for c in claims if (c.provider, c.slot) in keys)


def has_claims_on(
    claims: Iterable[model.Claim], slots: Iterable[model.Slot]
) -> bool:
    claimed = frozenset((claim.provider, claim.slot) for claim in claims)
    return claimed.issuperset(s.key for s in slots)


def not_in_slots(
    claims: Iterable[model.Claim], slots: Iterable[model.Slot]
) -> tuple[model.Claim, ...]:
    keys = frozenset(s.key for s in slots)
    return tuple(c for c in claims if (c.provider, c.slot) not in keys)


def has_same_profile(claim: model.Claim, other: model.Claim) -> bool:
    """Return whether two claims are for the same profile of one parent."""
    return (claim.profile, claim.parent) == (other.profile, other.parent)


class NodeClaims:
    """Claims of one compute node. Thread-safe."""

    def __init__(
        self,
        rules: policy.DeviceRules,
        host: snapshot.Snapshot,
        access: host_access.HostAccess,
    ) -> None:
        self.rules = rules
        self.host = host
        self.root: providers.ProviderRoot | None = None
        self.store = ClaimStore(self._publish_claims)
        #: Consumers of claims that Nova does not back any more.
        self.unbacked_consumers: frozenset[str] = frozenset()
        #: Claimed amounts that Placement has not allocated.
        self.unallocated: Mapping[model.ClassKey, int] = {}
        self._use = connection.TrackedUse(access.watched or access.domains)
        self._has_read_use = False
        self._claims_file = access.claims_file
        self._publish_lock = threading.Lock()
        #: Host, further inputs and result of the last call of ``tree``.
        self._built_tree: (
            tuple[model.HostState, object, providers.ProviderTree] | None
        ) = None

    def adopt(self, root: providers.ProviderRoot) -> None:
        """Serve the compute node of this name and uuid."""
        if self.root != root:
            LOG.info("accelerators are children of %s", root.name)
        self.root = root

    @property
    def is_ready(self) -> bool:
        """Return whether claims and hostdevs of the node were read.

        False until the first clean-up.
        """
        return self._has_read_use and self.root is not None

    def tree(
        self, owner_traits: frozenset[str]
    ) -> providers.ProviderTree | None:
        """Return the desired tree from the last reading, no I/O.

        None before the compute node is known. The tree is built again only
        if an input has changed: Nova needs it under the lock of its claims.
        """
        root, state, functions = (
            self.root,
            self.host.state,
            self._use.functions,
        )
        if root is None:
            return None
        claims = self._marked_claims()
        inputs = (root, claims, owner_traits, functions)
        built = self._built_tree
        if built is None or built[0] is not state or built[1] != inputs:
            tree = tree_builder.build_tree(
                root, state, self.rules, claims, owner_traits, functions
            )
            built = self._built_tree = state, inputs, tree
        return built[2]

    def set_unbacked_consumers(self, consumers: frozenset[str]) -> None:
        """Reserve the claims of consumers that Nova does not back any more.

        :param consumers: all of them; Nova backs any other consumer.
        """
        if consumers != self.unbacked_consumers:
            self.unbacked_consumers = consumers
            self._publish_claims()

    def set_unallocated(self, missing: Mapping[model.ClassKey, int]) -> None:
        """Reserve exactly the claimed amounts that are not allocated."""
        self.unallocated = missing
        self._publish_claims()

    def claims(self) -> tuple[model.Claim, ...]:
        return self.store.claims()

    def claims_of(self, consumer: str) -> tuple[model.Claim, ...]:
        return self.store.claims_of(consumer)

    def slots_of(self, consumer: str) -> tuple[model.Slot, ...]:
        return slots_of(self.claims_of(consumer))

    def _marked_claims(self) -> tuple[model.Claim, ...]:
        """Return all claims, with whether Placement and Nova back them."""
        return mark(self.claims(), self.unbacked_consumers, self.unallocated)

    def _publish_claims(self) -> None:
        """Write the claims file, which other processes read."""
        if (
            self._claims_file is None
            or self.root is None
            or not self._has_read_use
        ):
            return
        with self._publish_lock:
            self._claims_file.write(
                self.root, self._marked_claims(), self._use.functions
            )
