# SPDX-License-Identifier: Apache-2.0
"""A server's accelerators: made before its guest, unmade after it."""

import contextlib
import dataclasses
import logging
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping

from nova_accel import (
    actions,
    claims,
    errors,
    flavors,
    inventory,
    model,
    names,
    plugin,
    policy,
    providers,
)
from nova_accel.host import execute
from virt_hooks import book, connection, recover, snapshot

LOG = logging.getLogger(__name__)


# What a compute node itself gives (nova/virt/libvirt/driver.py,
# update_provider_tree): a group of these only is no accelerator's.
_HOST_CLASSES = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})


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
    ) -> None:
        """Use these drivers, rules, and this host."""
        self.host = host
        self.root: providers.ProviderRoot | None = None
        #: What the host's domains hold now; libvirt is asked.
        self.read_use: Callable[[], connection.HostdevUse] = (
            connection.HostdevUse
        )
        self._use = connection.HostdevUse()
        self._drivers = drivers
        self._rules = rules
        self._executor = executor
        self._book = book.Book()
        self._cards: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

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
        check_booked(consumer, groups, slots, self.host.state)
        if not slots:
            return ()
        root = self._known_root(consumer)
        with self._cards_of(slots):
            host = self.host.refresh()
            before = self.claims_of(consumer)
            found = _unless_held(
                before,
                claims.plan(consumer, groups, slots, root, host, booked),
            )
            self._book.evict(consumer, slots)
            self._check_leftovers(found, host)
            self._book.write_down(consumer, found)
            if all(c.state is model.ClaimState.MADE for c in found):
                return found
            with contextlib.ExitStack() as failure:
                failure.callback(self.host.refresh)
                failure.callback(self._book.write_down, consumer, before)
                self._executor.apply_all(self._prepare(found, host))
                failure.pop_all()
            made = tuple(
                dataclasses.replace(claim, state=model.ClaimState.MADE)
                for claim in found
            )
            self._book.write_down(consumer, made)
            self.host.refresh()
        return made

    def recall(
        self, consumer: str, slots: Iterable[model.Slot]
    ) -> tuple[model.Claim, ...]:
        """Write down what a server already holds, and return it.

        For the start of the service: nothing is made.
        """
        root = self._known_root(consumer)
        found = claims.find(consumer, slots, root, self.host.state)
        self._book.write_down(consumer, found)
        return found

    def release(
        self,
        consumer: str,
        slots: Iterable[model.Slot],
        in_use: Callable[[model.Claim], bool],
    ) -> None:
        """Unmake what a server's slots stand for, and verify it.

        A partition that can't be unmade stays reserved; the next tidying
        tries again.

        :param in_use: tells whether the server's guest still runs with
            what a claim stands for; then nothing is unmade.
        """
        wanted = tuple(slots)
        if not wanted or self.root is None:
            return
        with self._cards_of(wanted):
            host = self.host.refresh()
            found = self._book.own(
                consumer, claims.find(consumer, wanted, self.root, host)
            )
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
            self.host.refresh()

    def tidy(self, use: connection.HostdevUse) -> None:
        """Remove partitions that are provably ours and unused.

        The host is read again if there were any.

        :param use: what the host's domains hold; whole functions among it
            are reserved from now on unless a claim of ours stands for them.
        """
        self._use = use
        if self.root is None:
            return
        found = False
        for device in self.host.state.devices:
            provider = names.provider_uuid(self.root.uuid, device.address)
            with self._card(provider):
                orphans = recover.find_orphans(
                    self.root,
                    model.HostState(devices=(device,)),
                    self.claims(),
                    use,
                )
                for partition in orphans:
                    found = True
                    self._remove_orphan(device, partition)
        if found:
            self.host.refresh()

    def _remove_orphan(
        self, device: model.Device, partition: model.Partition
    ) -> None:
        LOG.warning(
            "%s %s on %s belongs to no server: removing it",
            partition.profile,
            partition.handle,
            partition.parent,
        )
        self._unmake(claims.of_partition(device, partition))

    def _prepare(
        self, found: Iterable[model.Claim], host: model.HostState
    ) -> Iterator[actions.Action]:
        for claim in found:
            if claim.state is model.ClaimState.MADE:
                continue
            driver = self._drivers[claim.plugin]
            stale = _stale(claim, host)
            if stale is not None:
                yield from driver.plan_release(stale)
            yield from driver.plan_prepare(claim)

    def _check_leftovers(
        self, found: Iterable[model.Claim], host: model.HostState
    ) -> None:
        """Check that no guest runs with what stands in a claim's slot.

        Removing it would block, and take the device from that guest.
        """
        left = [
            claim
            for claim in found
            if claim.state is model.ClaimState.PLANNED
            and _stale(claim, host) is not None
        ]
        use = self.read_use() if left else connection.HostdevUse()
        for claim in left:
            if use.holds(claim.handle):
                raise errors.ClaimError(
                    claim.consumer,
                    f"slot {claim.slot} of {claim.device} still holds"
                    f" {claim.handle}, and a guest has it; see"
                    " `virsh list` and the XML of its domains",
                )

    def _unmake(self, claim: model.Claim) -> None:
        try:
            self._executor.apply_all(
                self._drivers[claim.plugin].plan_release(claim)
            )
        except errors.ActionError as error:
            LOG.error("%s; it stays reserved and is tried again", error)

    def _known_root(self, consumer: str) -> providers.ProviderRoot:
        if self.root is None:
            raise errors.ClaimError(
                consumer, "this compute node has not registered itself yet"
            )
        return self.root

    def _card(self, provider: str) -> threading.Lock:
        with self._guard:
            return self._cards.setdefault(provider, threading.Lock())

    @contextlib.contextmanager
    def _cards_of(self, slots: Iterable[model.Slot]) -> Iterator[None]:
        """Hold the cards of some slots, always taken in the same order."""
        with contextlib.ExitStack() as stack:
            for provider in sorted({slot.provider for slot in slots}):
                stack.enter_context(self._card(provider))
            yield


def check_booked(
    consumer: str,
    groups: Iterable[flavors.RequestGroup],
    slots: Iterable[model.Slot],
    host: model.HostState,
) -> None:
    """Check that a flavor that names a profile was given a slot.

    Only what a device of this host makes counts as a profile: operators
    mark hosts and Nova's own vGPUs with traits as they like.

    :raises ClaimError: it was not; the server would start without its
        device.
    """
    ours = {p.trait for device in host.devices for p in device.profiles}
    named = sorted(
        trait
        for group in groups
        if group.resources.keys() - _HOST_CLASSES
        for trait in group.required & ours
    )
    if named and not tuple(slots):
        raise errors.ClaimError(
            consumer,
            f"the flavor asks for {', '.join(named)}, but Nova claimed no"
            " slot on this host: its view of the provider tree is old; the"
            " next periodic update mends it",
        )


def _unless_held(
    before: Iterable[model.Claim], found: Iterable[model.Claim]
) -> tuple[model.Claim, ...]:
    """Return claims, made only where the consumer held the partition.

    What stands in a slot otherwise was left by the slot's last holder: a
    removal that failed. Its state is not for the next one to see.
    """
    held = {claim.handle for claim in before}
    return tuple(
        claim
        if claim.handle in held
        else dataclasses.replace(claim, state=model.ClaimState.PLANNED)
        for claim in found
    )


def _stale(
    claim: model.Claim, host: model.HostState
) -> model.Claim | None:
    """Return what an earlier life left under a claim's own handle.

    The slot is this consumer's now, so nobody else can hold it.
    """
    device = host.device(claim.device)
    if device is None:
        return None
    return next(
        (
            claims.of_partition(
                device, p, claim.consumer, claim.provider, claim.slot
            )
            for p in device.partitions
            if p.handle == claim.handle
        ),
        None,
    )
