# SPDX-License-Identifier: Apache-2.0
"""A server's accelerators: made before its guest, unmade after it."""

import dataclasses
import errno
import logging
import types
from collections.abc import Callable, Iterable, Iterator, Mapping

from nova_accel import (
    actions,
    claims,
    errors,
    flavors,
    inventory,
    model,
    plugin,
    policy,
    providers,
)
from nova_accel.host import execute, sysfs
from virt_hooks import (
    arrange,
    book,
    cards,
    checks,
    connection,
    recover,
    snapshot,
)

LOG = logging.getLogger(__name__)

_NOTHING = connection.HostdevUse()


class Lifecycle:
    """The accelerators of one compute node's servers.

    Thread-safe. Changes to one card are made one after another, changes
    to different cards side by side.
    """

    def __init__(
        self,
        drivers: Mapping[str, plugin.Driver],
        rules: policy.Policy,
        executor: execute.Executor,
        host: snapshot.Snapshot,
        look: Callable[[], sysfs.HostReader] | None = None,
    ) -> None:
        """Use these drivers, rules, and this host.

        :param look: returns a fresh reader of the host; without it cards
            stay in the mode they are in.
        """
        self.host = host
        self.root: providers.ProviderRoot | None = None
        #: What the host's domains hold now; libvirt is asked.
        self.read_use: Callable[[], connection.HostdevUse] = lambda: _NOTHING
        #: The same, of domains that run.
        self.read_running = self.read_use
        self._use = _NOTHING
        self._drivers = drivers
        self._rules = rules
        self._executor = executor
        self._book = book.Book()
        self._cards = cards.Cards()
        self._strangers: set[str] = set()
        self._arranged: model.HostState | None = None
        self._arranger = (
            arrange.Arranger(drivers, rules, executor, self._cards, look)
            if look is not None
            else None
        )

    def adopt(self, root: providers.ProviderRoot) -> None:
        """Serve the compute node of this name and uuid."""
        if self.root != root:
            LOG.info("accelerators are children of %s", root.name)
        self.root = root

    def tree(
        self, owner_traits: frozenset[str]
    ) -> providers.ProviderTree | None:
        """Return the desired tree from the last reading, no I/O.

        None before the compute node is known.
        """
        if self.root is None:
            return None
        return inventory.build_tree(
            self.root,
            self.host.state,
            self._rules,
            self.claims(),
            owner_traits,
            self._use.functions,
        )

    def claims(self) -> tuple[model.Claim, ...]:
        """Return the claims of all servers of this host."""
        return self._book.claims()

    def claims_of(self, consumer: str) -> tuple[model.Claim, ...]:
        """Return the claims of one server."""
        return self._book.claims_of(consumer)

    def slots_of(self, consumer: str) -> tuple[model.Slot, ...]:
        """Return the slots that one server's claims stand for."""
        return tuple(
            model.Slot(
                provider=claim.provider,
                resource_class="",
                identifier=claim.slot,
            )
            for claim in self.claims_of(consumer)
        )

    def ensure(
        self,
        consumer: str,
        groups: tuple[flavors.RequestGroup, ...],
        slots: tuple[model.Slot, ...],
        booked: model.Booked = types.MappingProxyType({}),
    ) -> tuple[model.Claim, ...]:
        """Make what a server's slots stand for, unless it is made.

        All of it or nothing: what was made is taken back on a failure.
        A partition that somebody else left in a slot is made anew, never
        passed on.

        :param booked: the server's allocations, where they are known.
        :returns: the claims, made.
        :raises ClaimError: the slots can't be met by this host.
        :raises ActionError: the kernel refused to make one.
        """
        checks.check_booked(consumer, groups, slots, self.host.state)
        if not slots:
            return ()
        root = self._known_root(consumer)
        with self._cards.hold(slot.provider for slot in slots):
            host = self._look_at(root, slots)
            before = self.claims_of(consumer)
            self._book.evict(consumer, slots)
            if self._clear(consumer, slots, before):
                host = self._look_at(root, slots)
            found = recover.unless_held(
                before,
                claims.plan(consumer, groups, slots, root, host, booked),
            )
            self._book.write_down(consumer, found)
            if all(c.state is model.ClaimState.MADE for c in found):
                return found
            try:
                self._executor.apply_all(self._prepare(found))
            except BaseException as error:
                self._book.write_down(consumer, before)
                is_late = getattr(error, "number", 0) == errno.ETIMEDOUT
                self._check_unmade(recover.but(found, before), is_late)
                raise
            made = tuple(
                dataclasses.replace(claim, state=model.ClaimState.MADE)
                for claim in found
            )
            self._book.write_down(consumer, made)
            self._look_at(root, slots)
        return made

    def recall(
        self, consumer: str, slots: Iterable[model.Slot]
    ) -> tuple[model.Claim, ...]:
        """Write down what a server already holds, and return it.

        For the start of the service: nothing is made.
        """
        root, wanted = self._known_root(consumer), tuple(slots)
        with self._cards.hold(slot.provider for slot in wanted):
            found = claims.find(consumer, wanted, root, self.host.state)
            self._book.write_down(consumer, found)
        return found

    def release(
        self,
        consumer: str,
        slots: Iterable[model.Slot],
        in_use: Callable[[model.Claim], bool],
        had: connection.HostdevUse = _NOTHING,
    ) -> None:
        """Unmake what a server's slots stand for, and verify it.

        A partition that can't be unmade stays reserved; the next tidying
        tries again.

        :param in_use: tells whether the server's guest still runs with
            what a claim stands for; then nothing is unmade.
        :param had: what the server's own domain had.
        """
        wanted = tuple(slots)
        if not wanted or self.root is None:
            return
        with self._cards.hold(slot.provider for slot in wanted):
            host = self._look_at(self.root, wanted)
            known = self._book.made()
            found = tuple(
                recover.as_made(claim, known)
                for claim in self._book.own(
                    consumer, claims.find(consumer, wanted, self.root, host)
                )
                if had.holds(claim.handle) or recover.is_ours(claim, known)
            )
            if unknown := recover.but(found, self.claims_of(consumer)):
                use = self.read_use().without(had.mdevs | had.functions)
                taken = [c for c in unknown if use.holds(c.handle)]
                found = recover.but(found, taken)
            if any(in_use(claim) for claim in found):
                LOG.error(
                    "server %s still runs: its accelerators are kept",
                    consumer,
                )
                return
            self._book.forget(consumer, wanted)
            for claim in found:
                self._unmake(claim)
            self._use = self._use.without(
                address
                for claim in found
                for address in (claim.handle, *claim.members)
            )
            self._check_unmade(found)

    def arrange(self) -> bool:
        """Bring cards into the modes that policy asks for.

        The host is read again if any was changed; returned is whether
        that was so. Nothing that fails stops the caller. Nothing is looked
        at while the host is as it was when there was nothing to do.
        """
        before = self.host.state
        if self._arranger is None or self._arranged is before:
            return False
        if self._arranger.arrange(
            self.root, self.read_running, self.claims
        ):
            self.host.refresh()
            return True
        if self._arranger.is_settled:
            self._arranged = before
        return False

    def tidy(self, use: connection.HostdevUse) -> None:
        """Remove partitions that are provably ours and unused.

        The host is read again if there were any.

        :param use: what the host's domains hold; whole functions among it
            are reserved from now on unless a claim of ours stands for them.
        """
        self._use = use
        root = self.root
        if root is None:
            return
        found: list[model.Claim] = []
        for address in [device.address for device in self.host.state.devices]:
            provider = recover.provider_of(root, address)
            with self._cards.try_hold(provider) as got:
                device = self.host.state.device(address)
                if got and device is not None:
                    found += self._tidy_card(root, device, use)
        if found:
            self._check_unmade(found)

    def _tidy_card(
        self,
        root: providers.ProviderRoot,
        device: model.Device,
        use: connection.HostdevUse,
    ) -> Iterator[model.Claim]:
        """Unmake the orphans of a card; yield what they stood for."""
        known, held = self._book.made(), self.claims()
        host = model.HostState(devices=(device,))
        for partition in recover.find_orphans(root, host, held, use, known):
            LOG.warning(
                "%s %s on %s belongs to no server: removing it",
                partition.profile,
                partition.handle,
                partition.parent,
            )
            claim = recover.orphan_claim(device, partition, known)
            self._unmake(claim)
            yield claim
        for partition in recover.find_strangers(root, device, held, known):
            if partition.handle not in self._strangers:
                self._strangers.add(partition.handle)
                LOG.warning(
                    "%s on %s was made by no server that this service"
                    " knows: it stays reserved; if nothing needs it, clear"
                    " it by hand",
                    partition.profile,
                    partition.handle,
                )

    def _prepare(
        self, found: Iterable[model.Claim]
    ) -> Iterator[actions.Action]:
        for claim in found:
            if claim.state is not model.ClaimState.MADE:
                yield from self._drivers[claim.plugin].plan_prepare(claim)

    def _clear(
        self,
        consumer: str,
        slots: tuple[model.Slot, ...],
        before: tuple[model.Claim, ...],
    ) -> bool:
        """Unmake what earlier holders left in a server's slots.

        A removal of theirs failed; it is not for the next one to see. The
        slots are this consumer's now, so nobody else can hold them.

        :returns: whether there was anything.
        :raises ClaimError: it is not ours, or a guest runs with it:
            removing it would block, and take the device from that guest.
        :raises ActionError: it can't be removed now either.
        """
        root, host = self._known_root(consumer), self.host.state
        known = self._book.made()
        left = [
            recover.as_made(claim, known)
            for claim in claims.find(consumer, slots, root, host)
            if claim.handle not in {held.handle for held in before}
            and self._drivers[claim.plugin].plan_release(claim)
        ]
        use = self.read_use() if left else _NOTHING
        for claim in left:
            device = host.device(claim.device)
            ours = recover.our_handles(root, device, known) if device else ()
            if use.holds(claim.handle) or claim.handle not in ours:
                raise errors.ClaimError(
                    consumer, checks.explain_left(claim, use)
                )
        for claim in left:
            self._executor.apply_all(
                self._drivers[claim.plugin].plan_release(claim)
            )
        return bool(left)

    def _unmake(self, claim: model.Claim) -> None:
        try:
            self._executor.apply_all(
                self._drivers[claim.plugin].plan_release(claim)
            )
        except errors.ActionError as error:
            LOG.error("%s; it stays reserved and is tried again", error)
        except Exception:  # a vendor's own code, or the privileged helper
            LOG.exception("%s stays and is tried again", claim.handle)

    def _check_unmade(
        self, found: Iterable[model.Claim], is_late: bool = False
    ) -> None:
        """Read the host, and forget what is not there any more.

        What is there still stays ours, and the next tidying tries again.

        :param is_late: the kernel may be at it yet: nothing is forgotten.
        """
        told = tuple(found)
        host = self.host.refresh_cards({claim.device for claim in told})
        if is_late:
            return
        self._book.unmade(
            claim.handle
            for claim in told
            if (device := host.device(claim.device)) is not None
            and claim.handle not in {p.handle for p in device.partitions}
        )

    def _look_at(
        self, root: providers.ProviderRoot, slots: Iterable[model.Slot]
    ) -> model.HostState:
        """Read the cards that some slots are of; all, if one is new."""
        wanted = {slot.provider for slot in slots}
        addresses = {
            device.address
            for device in self.host.state.devices
            if recover.provider_of(root, device.address) in wanted
        }
        if len(addresses) < len(wanted):
            return self.host.refresh()
        return self.host.refresh_cards(addresses)

    def _known_root(self, consumer: str) -> providers.ProviderRoot:
        if self.root is None:
            raise errors.ClaimError(
                consumer, "this compute node has not registered itself yet"
            )
        return self.root
