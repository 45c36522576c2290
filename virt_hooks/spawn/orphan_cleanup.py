# SPDX-License-Identifier: Apache-2.0
"""Orphan cleanup: partitions and unclean functions that no server has."""

import logging
import time
from collections.abc import Callable

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.config import logs
from nova_accel.host.state import notes
from nova_accel.inventory import tree_builder
from nova_accel.model import providers
from virt_hooks.guest import connection
from virt_hooks.spawn import (
    claim_store,
    function_notes,
    host_access,
    ownership,
    release,
)

LOG = logging.getLogger(__name__)

# Seconds of a pass after which it cleans no further function: an operator's
# scrub command may take minutes for each. The next pass cleans the others,
# and each function is cleaned before its next server.
CLEAN_S = 60.0


class OrphanCleanup:
    """Removes unused partitions that this library provably made.

    Functions that no server has are scrubbed or blanked, unless they were
    seen clean since their last server.
    """

    def __init__(
        self,
        store: claim_store.ClaimStore,
        locks: host_access.DeviceLocks,
        release: release.PartitionRelease,
        domains: connection.HostdevReader,
    ) -> None:
        """Clean up nothing yet.

        :param domains: read again before anything is removed or cleaned.
        """
        self._store = store
        self._locks = locks
        self._release = release
        self._domains = domains
        #: Unowned partitions that were logged.
        self._unowned: set[str] = set()
        self._clean_until = 0.0

    def run(
        self,
        root: providers.ProviderRoot,
        read_host: Callable[[], model.HostState],
        use: connection.HostdevUse,
        is_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        """Clean up all cards.

        A card whose lock is held is skipped until the next pass.

        :param read_host: returns the last reading; no I/O.
        :param use: the host devices of the host's domains, in a pass.
        :param is_alone: returns whether no other nova-compute runs. One
            may start meanwhile, and this process does not have its claims.
        """
        notes = self._release.notes.read_if_possible()
        self._clean_until = time.monotonic() + CLEAN_S
        for address, card in [
            (device.address, device.parent or device.address)
            for device in read_host().devices
        ]:
            # A spawn on another part of the card has the card's lock.
            keys = (ownership.provider_of(root, a) for a in (address, card))
            with self._locks.try_hold(*keys) as is_locked:
                device = read_host().device(address)
                if not is_alone():
                    break
                if is_locked and device is not None:
                    self._clean_card(root, device, use, notes)

    def _clean_card(
        self,
        root: providers.ProviderRoot,
        device: model.Device,
        use: connection.HostdevUse,
        notes: function_notes.Notes | None,
    ) -> None:
        """Remove the orphans of a card, and clean its functions."""
        host = model.HostState(devices=(device,))
        if notes is not None:
            notes = self._release.notes.adapt(device, notes)
        if device.technology in ownership.NAMELESS:
            self._note_typed(device, notes)
            self._forget_removed(device, notes or {})
        elif device.technology == "mdev":
            self._forget_absent(device)
        made = self._release.made(host, notes or {})
        claims = self._store.claims()
        orphans = ownership.find_orphans(root, host, claims, use, made)
        if orphans:
            orphans = ownership.find_orphans(
                root, host, claims, self._domains.read_use(), made
            )
        for partition in orphans:
            LOG.warning(
                "%s %s on %s belongs to no server: removing it",
                partition.profile,
                partition.handle,
                partition.parent,
            )
        if orphans:
            self._release.retire(
                [ownership.orphan_claim(device, p, made) for p in orphans],
                host,
            )
        self._log_unowned(ownership.find_unowned(device, claims, made))
        if device.technology in model.UNDIVIDED and notes is not None:
            self._clean_functions(root, device, use, notes)

    def _log_unowned(self, partitions: tuple[model.Partition, ...]) -> None:
        for partition in partitions:
            if partition.handle not in self._unowned:
                self._unowned.add(partition.handle)
                LOG.warning(
                    "%s on %s was made by no server that this service"
                    " knows: it stays reserved; if nothing needs it, clear"
                    " it by hand",
                    partition.profile,
                    partition.handle,
                )

    def _forget_absent(self, device: model.Device) -> None:
        """Forget mdevs that were removed while the card did not answer."""
        handles = {claim.handle for claim in self._store.claims()}
        handles |= {partition.handle for partition in device.partitions}
        self._release.forget_removed(
            claim
            for handle, claim in self._store.made().items()
            if claim.device == device.address and handle not in handles
        )

    def _forget_removed(
        self, device: model.Device, notes: function_notes.Notes
    ) -> None:
        """Forget typed functions that another program cleared or typed."""
        claimed = {claim.handle for claim in self._store.claims()}
        profiles = {p.handle: p.profile for p in device.partitions}
        nameless = {p.handle for p in device.partitions if p.is_nameless}
        made = self._store.made()
        self._release.forget_removed(
            claim
            for handle, claim in made.items()
            if claim.device == device.address
            and handle not in claimed | nameless
            and profiles.get(handle) != claim.profile
        )
        for address, note in notes.items():
            if (
                note.device == device.address
                and address not in claimed | nameless
                and profiles.get(address) != note.profile
            ):
                self._release.notes.note_clean(address)

    def _note_typed(
        self, device: model.Device, notes: function_notes.Notes | None
    ) -> None:
        """Note the typed functions of servers that have no note yet.

        A release without notes assigned them.
        """
        for claim in self._store.claims():
            if (
                notes is not None
                and claim.device == device.address
                and _is_missing(notes.get(claim.slot))
                and claim.state is model.ClaimState.MADE
            ):
                self._note(claim)

    def _clean_functions(
        self,
        root: providers.ProviderRoot,
        device: model.Device,
        use: connection.HostdevUse,
        notes: function_notes.Notes,
    ) -> None:
        """Clean the functions of a device that no server has any more.

        A function of a server or a guest gets a note if it has none: the
        note survives the service.
        """
        consumers = {
            claim.slot: claim.consumer
            for claim in self._store.claims()
            if claim.device == device.address
        }
        in_guests = tree_builder.find_assigned_slots(device, use.functions)
        made = {
            claim.slot for claim in claim_store.made_only(self._store.claims())
        }
        host = model.HostState(devices=(device,))
        for slot in device.slots:
            if slot not in notes and slot not in (*consumers, *in_guests):
                continue
            for claim in claim_plan.find_existing(
                consumers.get(slot, ""),
                (_slot(root, device, slot),),
                root,
                host,
            ):
                if slot in consumers or slot in in_guests:
                    if slot not in notes or (
                        slot in made and _is_missing(notes[slot])
                    ):
                        self._note(claim)
                elif not device.fault and time.monotonic() < self._clean_until:
                    self._retire_unused(device, claim)

    def _retire_unused(self, device: model.Device, claim: model.Claim) -> None:
        """Clean a function unless a guest has it by now."""
        functions = self._domains.read_use().functions
        if claim.slot not in tree_builder.find_assigned_slots(
            device, functions
        ):
            host = model.HostState(devices=(device,))
            self._release.retire((claim,), host)

    def _note(self, claim: model.Claim) -> None:
        try:
            self._release.notes.note_assigned((claim,))
        except errors.ClaimError as error:
            logs.error(LOG, "%s", error)


def _is_missing(note: notes.Unreleased | None) -> bool:
    return note is None or note.consumer is None


def _slot(
    root: providers.ProviderRoot, device: model.Device, identifier: str
) -> model.Slot:
    return model.Slot(
        provider=ownership.provider_of(root, device.address),
        resource_class=device.resource_class,
        identifier=identifier,
    )
