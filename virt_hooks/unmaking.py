# SPDX-License-Identifier: Apache-2.0
"""Partitions unmade: given back, left over, or in the next one's way."""

import logging
import time
from collections.abc import Iterable, Mapping

from nova_accel import (
    claims,
    errors,
    faults,
    matching,
    model,
    plugin,
    policy,
    providers,
    scrub,
)
from nova_accel.host import execute
from virt_hooks import (
    book,
    checks,
    connection,
    programming,
    recover,
    scrubbing,
    snapshot,
)

LOG = logging.getLogger(__name__)

# Seconds that a host's driver gets to take back a function: dfl-pci needs
# one of an emulated processor's.
_BIND_S, _BIND_STEP_S = 5.0, 0.25
_UNSCRUBBED = "could not be scrubbed after its last server"


class Unmaking:
    """Takes partitions from cards; whoever calls holds the cards."""

    def __init__(
        self,
        drivers: Mapping[str, plugin.Driver],
        executor: execute.Executor,
        notes: book.Book,
        host: snapshot.Snapshot,
        programs: programming.Programming,
        rules: policy.Policy,
    ) -> None:
        """Use these; what is unmade is forgotten in ``notes``."""
        self._drivers = drivers
        self._executor = executor
        self._book = notes
        self._host = host
        self._programs = programs
        self._scrubbing = scrubbing.Scrubbing(executor, rules, host, programs)

    def clear(
        self,
        consumer: str,
        root: providers.ProviderRoot,
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
        host = self._host.state
        known = self._book.made()
        left = [
            recover.as_made(claim, known)
            for claim in claims.find(consumer, slots, root, host)
            if claim.handle not in {held.handle for held in before}
            and self._drivers[claim.plugin].plan_release(claim)
        ]
        use = self._programs.uses(False) if left else connection.HostdevUse()
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

    def unmake(self, claim: model.Claim) -> None:
        """Unmake what a claim stands for; what can't be is kept.

        It stays reserved, or is set aside, and the log says so.
        """
        try:
            self._executor.apply_all(
                self._drivers[claim.plugin].plan_release(claim)
            )
        except errors.ActionError as error:
            if not self._programs.note_kept(claim, error, self._host.state):
                LOG.error("%s; it stays reserved and is tried again", error)
        except Exception as error:  # a vendor's own code, or the daemon
            LOG.exception("%s stays", claim.handle)
            self._programs.note_kept(claim, error, self._host.state)

    def scrub(self, found: Iterable[model.Claim]) -> None:
        """Scrub functions that are given as they are.

        A device of which one can't be scrubbed is set aside, and that is
        known before this returns. It is for whoever still has the claims
        in the book: nobody is offered the functions meanwhile.
        """
        for claim in filter(scrub.addresses, found):
            if self._programs.faulted is not None:
                self._programs.faulted.begin(claim.slot, claim.device)
            try:
                self._scrubbing.scrub(claim)
            except errors.ActionError as error:
                self._set_aside(claim.device, f"{_UNSCRUBBED}: {error}")
            except Exception as error:  # the daemon, or libvirt
                LOG.exception("%s can't be scrubbed", claim.handle)
                self._set_aside(claim.device, f"{_UNSCRUBBED}: {error!r}")
            if self._programs.faulted is not None:
                self._programs.faulted.end(claim.slot)

    def note_cut_off(self, held: Iterable[model.Claim]) -> None:
        """Set aside what a service was scrubbing when it ended.

        For the start, and not of servers that still hold theirs: what took
        it from them goes on, or is done again, and scrubs it then.

        :param held: the claims of all servers of this host.
        """
        if self._programs.faulted is None:
            return
        slots = {claim.slot for claim in held}
        try:
            left = self._programs.faulted.begun()
        except errors.UnreadableError as error:
            LOG.error("what was being scrubbed is not known: %s", error)
            return
        for begun in left:
            if begun.address in slots:
                continue
            device = faults.device_of(self._host.state, begun.address)
            self._set_aside(
                device.address if device else begun.device or begun.address,
                f"the scrub of {begun.address} after its last server was cut"
                f" off; it began {begun.when or 'some time ago'}",
            )
            self._programs.faulted.end(begun.address)

    def _set_aside(self, address: str, reason: str) -> None:
        """Set a device aside, and know that before this returns."""
        self._programs.set_aside(address, reason, self._host.state)
        self._host.refresh_cards({address})

    def await_drivers(
        self, found: Iterable[model.Claim], host: model.HostState
    ) -> model.HostState:
        """Return the host once its drivers have back what guests had.

        libvirt answers while the kernel is still binding them: a device
        read just then has nothing to offer, is not to be seen, or does not
        tell its function.
        """
        whole = {
            claim.device
            for claim in found
            if claim.technology in matching.WHOLE
        }
        until = time.monotonic() + _BIND_S
        while time.monotonic() < until:
            bare = {
                address
                for address in whole
                if _is_bare(host.device(address))
            }
            if not bare:
                break
            time.sleep(_BIND_STEP_S)
            host = self._host.refresh_cards(bare)
        return host

    def check(
        self, found: Iterable[model.Claim], is_late: bool = False
    ) -> None:
        """Read the host, and forget what is not there any more.

        What is there still stays ours, and the next tidying tries again.

        :param is_late: the kernel may be at it yet: nothing is forgotten.
        """
        told = tuple(found)
        host = self._host.refresh_cards({claim.device for claim in told})
        if is_late:
            return
        host = self.await_drivers(told, host)
        self._book.unmade(
            claim.handle
            for claim in told
            if (device := host.device(claim.device)) is not None
            and claim.handle not in {p.handle for p in device.partitions}
        )


def _is_bare(device: model.Device | None) -> bool:
    """Return whether a device's driver on the host is not done with it."""
    if device is None or not device.counters:
        return True
    region = device.region
    if region is None or device.fault:
        return False
    return bool(region.driver) and region.function is None
