# SPDX-License-Identifier: Apache-2.0
"""Claim store: which server of this host has which claims."""

import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from nova_accel import model
from nova_accel.geometry import device_capacity

LOG = logging.getLogger(__name__)


class ClaimStore:
    """Claims by server. Thread-safe; nothing of it is stored.

    Nova remembers the slots of each server: at the start of the service
    the book is written anew from them.
    """

    def __init__(self, written: Callable[[], None] = lambda: None) -> None:
        """Start an empty book.

        :param written: called whenever claims were written down.
        """
        self._written = written
        self._claims: dict[str, tuple[model.Claim, ...]] = {}
        self._made: dict[str, model.Claim] = {}
        self._known: dict[str, frozenset[tuple[str, str]]] = {}
        #: Of the claims of each server that has any.
        self._versions: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._guard = threading.Lock()

    def versions(self) -> Mapping[str, int]:
        """Return the servers that have claims, each with a version.

        A server gets a new version whenever its claims are written down,
        also if they stay the same, but not when the same are recalled; no
        version is used twice.
        """
        with self._guard:
            return dict(self._versions)

    def claims(self) -> tuple[model.Claim, ...]:
        """Return the claims of all servers."""
        with self._guard:
            return tuple(c for held in self._claims.values() for c in held)

    def claims_of(self, consumer: str) -> tuple[model.Claim, ...]:
        """Return the claims of one server."""
        with self._guard:
            return self._claims.get(consumer, ())

    def recall(
        self,
        consumer: str,
        slots: Iterable[model.Slot],
        found: Iterable[model.Claim],
        expected: tuple[model.Claim, ...],
    ) -> None:
        """Write down a server of which Nova says that it has some slots.

        What it holds in other slots it keeps.

        :param found: the claims whose partitions exist: they are ours.
        :param expected: those together with what a reboot has unmade; what
            stands there by and by is not ours.
        """
        given = tuple(slots)
        with self._guard:
            known = self._known.get(consumer, frozenset())
            self._known[consumer] = known | set(map(_place, given))
            self._made |= {c.handle: c for c in self._typed(found)}
            held = self._claims.get(consumer, ())
            now = (*without(held, given), *self._typed(expected))
            if now == held:
                return
            self._set(consumer, now)
        self._written()

    def holds(self, consumer: str, provider: str) -> bool:
        """Return whether a server has anything of a device."""
        with self._guard:
            held = {c.provider for c in self._claims.get(consumer, ())}
            known = self._known.get(consumer, frozenset())
        return provider in held | {place[0] for place in known}

    def made(self) -> Mapping[str, model.Claim]:
        """Return the claims whose partitions are ours, by handle.

        It is every claim that was ever written down, also of a server
        that is gone, until its partition is known to be unmade.
        """
        with self._guard:
            return dict(self._made)

    def write_down(self, consumer: str, held: tuple[model.Claim, ...]) -> None:
        """Replace the claims of one server."""
        with self._guard:
            held = self._typed(held)
            self._set(consumer, held)
            self._made |= {claim.handle: claim for claim in held}
        self._written()

    def _typed(self, claims: Iterable[model.Claim]) -> tuple[model.Claim, ...]:
        """Return claims with the ids of their types, if ever known.

        A claim planned while the ids can't be read has none, and what was
        made under it could not be cleared.
        """
        return tuple(
            claim
            if claim.type_id
            else dataclasses.replace(claim, type_id=self._type_of(claim))
            for claim in claims
        )

    def _type_of(self, claim: model.Claim) -> str:
        known = self._made.get(claim.handle, claim)
        return known.type_id if is_alike(known, claim) else ""

    def beside(self, consumer: str, host: model.HostState) -> model.HostState:
        """Return the host as it will be once all others' claims are made."""
        others = [c for c in self.claims() if c.consumer != consumer]
        return dataclasses.replace(
            host,
            devices=tuple(
                device_capacity.hold(d, others) for d in host.devices
            ),
        )

    def unmade(self, handles: Iterable[str]) -> None:
        """Forget partitions that exist no more."""
        with self._guard:
            for handle in handles:
                self._made.pop(handle, None)

    def evict(self, consumer: str, slots: Iterable[model.Slot]) -> None:
        """Forget others' claims on slots that Nova has given to a server.

        A server whose clean-up failed is not asked about again.
        """
        given = tuple(slots)
        with self._guard:
            for other in self._known.keys() - {consumer}:
                self._known[other] -= frozenset(map(_place, given))
            for other, held in list(self._claims.items()):
                kept = without(held, given)
                if other != consumer and kept != held:
                    LOG.warning("server %s holds its slots no more", other)
                    self._set(other, kept)

    def forget(self, consumer: str, slots: Iterable[model.Slot]) -> None:
        """Take the claims on some slots from one server."""
        given = tuple(slots)
        with self._guard:
            held = self._claims.get(consumer, ())
            self._set(consumer, without(held, given))
            known = self._known.pop(consumer, frozenset())
            if left := known - frozenset(map(_place, given)):
                self._known[consumer] = left

    def hand_over(
        self, consumer: str, other: str, slots: Iterable[model.Slot]
    ) -> None:
        """Give one consumer's claims on some slots to another one.

        A server that is resized where it is holds what it gets; what it
        had is its migration's, as in Placement, until that ends.
        """
        given = frozenset(map(_place, slots))
        with self._guard:
            held = self._claims.get(consumer, ())
            moved = tuple(
                dataclasses.replace(claim, consumer=other)
                for claim in held
                if (claim.provider, claim.slot) in given
            )
            if not moved:
                return
            gone = {claim.handle for claim in moved}
            self._set(consumer, tuple(c for c in held if c.handle not in gone))
            self._set(other, (*self._claims.get(other, ()), *moved))
            self._made |= {claim.handle: claim for claim in moved}
        self._written()

    def own(
        self, consumer: str, found: Iterable[model.Claim]
    ) -> tuple[model.Claim, ...]:
        """Return those claims that no other server has by now.

        A release may come late, or twice: meanwhile Nova may have handed
        the slot to somebody else.
        """
        others = {
            claim.handle
            for claim in self.claims()
            if claim.consumer != consumer
        }
        return tuple(claim for claim in found if claim.handle not in others)

    def _set(self, consumer: str, held: tuple[model.Claim, ...]) -> None:
        if held:
            self._claims[consumer] = held
            self._versions[consumer] = next(self._numbers)
        else:
            self._claims.pop(consumer, None)
            self._versions.pop(consumer, None)


def only_made(held: Iterable[model.Claim]) -> tuple[model.Claim, ...]:
    """Return the claims whose partitions are made."""
    return tuple(c for c in held if c.state is model.ClaimState.MADE)


def slots_of(held: Iterable[model.Claim]) -> tuple[model.Slot, ...]:
    """Return the slots that claims stand for, without their classes."""
    return tuple(
        model.Slot(
            provider=claim.provider,
            resource_class="",
            identifier=claim.slot,
        )
        for claim in held
    )


def within(
    held: Iterable[model.Claim], slots: Iterable[model.Slot]
) -> tuple[model.Claim, ...]:
    """Return the claims that stand for one of some slots."""
    given = frozenset(map(_place, slots))
    return tuple(c for c in held if (c.provider, c.slot) in given)


def without(
    held: Iterable[model.Claim], slots: Iterable[model.Slot]
) -> tuple[model.Claim, ...]:
    """Return the claims that stand for none of some slots."""
    gone = frozenset(map(_place, slots))
    return tuple(c for c in held if (c.provider, c.slot) not in gone)


def _place(slot: model.Slot) -> tuple[str, str]:
    return slot.provider, slot.identifier


def is_alike(one: model.Claim, other: model.Claim) -> bool:
    """Return whether two claims are for the same profile of one parent."""
    return (one.profile, one.parent) == (other.profile, other.parent)
