# SPDX-License-Identifier: Apache-2.0
"""Release of partitions: removed after a server, if orphaned, or for reuse.

``retire`` removes partitions, scrubs functions that are assigned unchanged,
and blanks regions. A partition that is not seen removed stays owned and
reserved, and a later clean-up tries again. The device of a function that is
not seen clean is set aside.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.config import logs
from nova_accel.discovery import plugin, snapshot
from nova_accel.inventory import conditions
from nova_accel.model import providers
from virt_hooks.spawn import (
    claim_store,
    function_notes,
    host_access,
    ownership,
    scrubbing,
)

LOG = logging.getLogger(__name__)

# Seconds during which the kernel may still make a partition whose write
# timed out: the write goes on in the driver, for minutes with a busy GPU.
_LATE_S = 600.0
_UNSCRUBBED = "could not be scrubbed after its last server"


class PartitionRelease:
    """Removes partitions from cards; callers hold the locks of the cards."""

    def __init__(
        self,
        drivers: Mapping[str, plugin.Driver],
        scrubber: scrubbing.Scrubber,
        store: claim_store.ClaimStore,
        host: snapshot.Snapshot,
        access: host_access.HostAccess,
    ) -> None:
        self._drivers = drivers
        self._executor = scrubber.executor
        self._store = store
        self._host = host
        self._programs = access.programs
        self.scrubber = scrubber
        self._domains = access.domains
        self._faults = access.faults
        self.notes = function_notes.FunctionNotes(
            store, host, access, scrubber.executor.root
        )
        #: Functions that this process is scrubbing now.
        self._scrubbed: set[str] = set()
        #: Until when the kernel may make partitions late, by handle.
        self._late: dict[str, float] = {}

    def clear_slots(
        self,
        consumer: str,
        root: providers.ProviderRoot,
        slots: tuple[model.Slot, ...],
        before: tuple[model.Claim, ...],
        is_new: bool,
    ) -> None:
        """Retire partitions that earlier consumers left in some slots.

        Their removal failed, and the next server must not see them. Nova
        has assigned the slots to this consumer, so no other consumer can
        have them.

        :param before: the claims that the consumer had.
        :param is_new: whether the consumer can't have had the slots before.
        :raises ClaimError: a partition is not owned, can't be removed now
            either, or a guest has it: its removal would block, and take the
            device from that guest. Or its scrub may erase what the consumer
            itself has stored.
        """
        host = self._host.state
        made = self.made(host)
        present = [
            ownership.recorded_claim(claim, made)
            for claim in ownership.exclude(
                claim_plan.find_existing(consumer, slots, root, host), before
            )
        ]
        leftovers = [
            claim
            for claim in present
            if claim.technology not in model.UNDIVIDED
            and self._drivers[claim.plugin].plan_release(claim)
        ]
        may_erase = (lambda _: False) if is_new else self.scrubber.runs_command
        unclean = self.notes.find_unclean(consumer, present, host, may_erase)
        if not leftovers and not unclean:
            return
        owned = {
            claim.handle
            for claim in leftovers
            if (device := host.device(claim.device)) is not None
            and claim.handle in ownership.owned_handles(root, device, made)
        } | self.notes.list_unread_handles(leftovers)
        self._check_removable(consumer, leftovers, owned, unclean)
        for claim in unclean:
            LOG.warning(
                "%s was not released cleanly by its last server: cleaning it"
                " before server %s gets it",
                claim.slot,
                consumer,
            )
        if reasons := self.retire((*leftovers, *unclean), host):
            raise errors.ClaimError(
                consumer,
                "; ".join(
                    f"{handle} could not be cleaned after its last server:"
                    f" {reason}"
                    for handle, reason in reasons.items()
                ),
            )

    def _check_removable(
        self,
        consumer: str,
        leftovers: Iterable[model.Claim],
        owned: Collection[str],
        unclean: Iterable[model.Claim],
    ) -> None:
        """Check that partitions and functions in some slots are unused.

        :param owned: the handles of owned partitions among the leftovers.
        :raises ClaimError: a guest has one, or a partition is not owned.
        """
        use = self._domains.read_use()
        for claim in leftovers:
            if use.holds(claim.handle) or claim.handle not in owned:
                raise errors.ClaimError(
                    consumer, ownership.explain_leftover(claim, use)
                )
        for claim in unclean:
            if use.functions.intersection((claim.slot, *claim.members)):
                raise errors.ClaimError(
                    consumer, ownership.explain_leftover(claim, use)
                )

    def made(
        self,
        host: model.HostState,
        notes: function_notes.Notes | None = None,
    ) -> Mapping[str, model.Claim]:
        """Return the claims whose partitions this library made, by handle.

        Partitions of earlier services are included if a note on the
        function has their profile.

        :param notes: the notes on functions; they are read if None.
            Without them, functions that an earlier service typed are
            missing.
        """
        made = dict(self._store.made())
        if not any(d.technology in ownership.NAMELESS for d in host.devices):
            return made
        if notes is None:
            notes = self.notes.read_if_possible() or {}
        for address, note in notes.items():
            device = host.device(note.device or "")
            if device is None or device.technology not in ownership.NAMELESS:
                continue
            for partition in device.partitions:
                if (partition.handle, partition.profile) == (
                    address,
                    note.profile,
                ):
                    made.setdefault(
                        address,
                        claim_plan.claim_from_partition(device, partition),
                    )
        return made

    def retire(
        self,
        claims: Iterable[model.Claim],
        host: model.HostState,
        absent: Iterable[model.Claim] = (),
        assigned: Collection[str] | None = None,
    ) -> Mapping[str, str]:
        """Scrub or blank, remove, verify and forget partitions. Idempotent.

        A failure is logged, and does not stop the other partitions. What
        could not be removed stays owned and reserved, and the device of a
        function that is not clean is set aside. The claims must still be
        in the store, so that no function is offered meanwhile.

        :param claims: the claims of partitions that exist.
        :param host: the last reading of their devices.
        :param absent: claims on functions that the host does not show; they
            are scrubbed only.
        :param assigned: the handles that a server got; None for all. Other
            regions are not blanked.
        :returns: the reasons, by handle, of the partitions that were not
            removed, and of the functions that were not seen clean.
        :raises libvirt.libvirtError: libvirt can't list the running
            guests; nothing was changed.
        """
        claims, absent = tuple(claims), tuple(absent)
        holders = ownership.exclude(self._store.claims(), (*claims, *absent))
        if assigned is None:
            assigned = {claim.handle for claim in claims}
        due = self._programs.plan_blanking(claims, assigned, host, holders)
        unclean = self._scrub_all((*claims, *absent))
        reasons = {
            claim.handle: reason
            for claim in due
            if (reason := self._remove(claim))
        }
        self.verify(claims)
        for claim in unclean:
            story = self._faults.read_story(claim.slot, claim.device)
            reasons.setdefault(claim.handle, story.explain_unclean())
        return reasons

    def _remove(self, claim: model.Claim) -> str:
        """Remove the partition of a claim, or blank its region.

        :returns: the reason if it is not removed, which is logged.
        """
        try:
            self._executor.apply_all(
                self._drivers[claim.plugin].plan_release(claim)
            )
        except errors.ActionError as error:
            if not self._programs.note_unblanked(
                claim, error, self._host.state
            ):
                logs.error(
                    LOG, "%s; it stays reserved and is tried again", error
                )
            return str(error)
        except Exception as error:  # a vendor's driver, or the daemon
            LOG.exception("can't remove %s; it stays reserved", claim.handle)
            self._programs.note_unblanked(claim, error, self._host.state)
            return repr(error)
        if claim.region is None:
            return ""
        story = self._faults.read_story(claim.slot, claim.device)
        device = self._host.state.device(claim.device)
        if story.fault is None and device is not None and not device.fault:
            self._faults.note_clean(claim.slot)
            return ""
        # A fault without a note ends by itself; the region is blanked before
        # the next server gets it.
        return story.explain_unclean()

    def _scrub_all(
        self, claims: Iterable[model.Claim]
    ) -> tuple[model.Claim, ...]:
        """Scrub functions that are assigned unchanged.

        A device with a function that can't be scrubbed is set aside, and
        the host is read again before this returns.

        :returns: the claims whose functions were not seen clean.
        """
        due = tuple(claim for claim in claims if claim.scrubbed)
        if not due:
            return ()
        running = self._domains.read_running()
        return tuple(c for c in due if not self._scrub(c, running.functions))

    def _scrub(self, claim: model.Claim, running: frozenset[str]) -> bool:
        """Scrub the functions of a claim; return whether they are clean.

        If a function is another device now, its device is set aside
        instead: the device may have data of another server.
        """
        if reason := self.notes.serials.describe_mismatch(claim.slot):
            self.notes.set_aside(claim.device, reason)
            return False
        is_clean = False
        self._scrubbed.add(claim.slot)
        self._faults.begin_scrub(claim.slot, claim.device)
        try:
            is_clean = self.scrubber.scrub(claim, running)
        except errors.ActionError as error:
            self.notes.set_aside(claim.device, f"{_UNSCRUBBED}: {error}")
        except Exception as error:  # the daemon
            LOG.exception("%s can't be scrubbed", claim.handle)
            self.notes.set_aside(claim.device, f"{_UNSCRUBBED}: {error!r}")
        self._faults.end_scrub(claim.slot, is_clean)
        self._scrubbed.discard(claim.slot)
        return is_clean

    def set_aside_interrupted(self, claims: Iterable[model.Claim]) -> bool:
        """Set devices aside whose scrub an earlier service did not end.

        For the start of the service. Functions with claims are skipped:
        their release continues, or is done again, and scrubs them then.

        :param claims: the claims of all servers of this host.
        :returns: whether the notes on scrubs could be read.
        """
        slots = {claim.slot for claim in claims}
        try:
            scrubs = self._faults.read_scrubs()
        except errors.UnreadableError as error:
            logs.warning(
                LOG, "can't read which scrubs were cut off: %s", error
            )
            return False
        for begun in scrubs:
            if begun.address in slots | self._scrubbed:
                continue
            device = conditions.find_device(self._host.state, begun.address)
            self.notes.set_aside(
                device.address if device else begun.device or begun.address,
                f"the scrub of {begun.address} after its last server was cut"
                f" off; it began {begun.when or 'some time ago'}",
            )
            self._faults.end_scrub(begun.address)
        return True

    def verify(
        self, claims: Iterable[model.Claim], is_late: bool = False
    ) -> None:
        """Read the host, and forget partitions that do not exist any more.

        A partition that still exists stays owned, and the next clean-up
        tries to remove it again.

        :param is_late: the kernel may still be making the partitions:
            none is forgotten.
        """
        claims = tuple(claims)
        host = self._host.refresh_cards(
            {claim.device for claim in claims},
            [claim.slot for claim in claims],
        )
        until = time.monotonic() + _LATE_S if is_late else 0.0
        self._late |= dict.fromkeys((claim.handle for claim in claims), until)
        if not is_late:
            host = self.scrubber.await_drivers(claims, host)
        self.forget_removed(
            claim
            for claim in claims
            if (device := host.device(claim.device)) is not None
            and claim.handle not in {p.handle for p in device.partitions}
        )

    def forget_removed(self, claims: Iterable[model.Claim]) -> None:
        """Forget claims whose partitions were seen not to exist any more.

        Except for those that the kernel may still be making.
        """
        now = time.monotonic()
        removed = tuple(
            claim
            for claim in claims
            if self._late.get(claim.handle, 0.0) <= now
        )
        for claim in removed:
            self._late.pop(claim.handle, None)
        self._store.forget_made(claim.handle for claim in removed)
        for claim in removed:
            if claim.technology in ownership.NAMELESS:
                self.notes.note_clean(claim.handle)
