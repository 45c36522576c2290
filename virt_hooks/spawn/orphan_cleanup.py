# SPDX-License-Identifier: Apache-2.0
"""Orphan cleanup: partitions and unclean functions that no server has."""

import logging
import time
from collections.abc import Callable, Iterator

from nova_accel import errors, model
from nova_accel.claims import claim_plan as found_claims
from nova_accel.inventory import tree_builder
from nova_accel.model import providers
from virt_hooks.guest import connection
from virt_hooks.spawn import claim_store, device_locks, ownership, release

LOG = logging.getLogger(__name__)

# Seconds of a pass after which it cleans no further function: a command of the
# operator may take minutes for each. The next pass cleans the others, and so
# does the next server of each.
CLEAN_S = 60.0


class OrphanCleanup:
    """Removes unused partitions that this library provably made.

    Functions that no server has are scrubbed or blanked, unless they were
    seen clean since the last one had them.
    """

    def __init__(
        self,
        notes: claim_store.ClaimStore,
        locks: device_locks.DeviceLocks,
        release: release.PartitionRelease,
    ) -> None:
        """Use these; ``release`` removes what a claim stands for."""
        self._book = notes
        self._cards = locks
        self._release = release
        self._strangers: set[str] = set()
        self._is_unknown = False
        self._clean_until = 0.0

    def sweep(
        self,
        root: providers.ProviderRoot,
        read_host: Callable[[], model.HostState],
        use: connection.HostdevUse,
        is_alone: Callable[[], bool] = lambda: True,
    ) -> tuple[model.Claim, ...]:
        """Return the claims that what was removed had stood for.

        A card on which somebody works is left to the next pass.

        :param read_host: returns the last reading; no I/O.
        :param use: what the host's domains hold.
        :param is_alone: tells whether no other nova-compute runs: one may
            start while this sweeps, and makes what nobody here knows.
        """
        found: list[model.Claim] = []
        notes = self._read_notes()
        self._clean_until = time.monotonic() + CLEAN_S
        for address in [device.address for device in read_host().devices]:
            provider = ownership.provider_of(root, address)
            with self._cards.try_hold(provider) as got:
                device = read_host().device(address)
                if not is_alone():
                    break
                if got and device is not None:
                    found += self._sweep_card(root, device, use, notes)
        return tuple(found)

    def _sweep_card(
        self,
        root: providers.ProviderRoot,
        device: model.Device,
        use: connection.HostdevUse,
        notes: release.Notes | None,
    ) -> Iterator[model.Claim]:
        """Unmake the orphans of a card; yield what they stood for."""
        host = model.HostState(devices=(device,))
        if notes is not None:
            notes = self._release.adapt_notes(device, notes)
        if device.technology in ownership.NAMELESS:
            self._note_typed(device, notes)
            self._forget_unmade(device, notes or {})
        known = self._release.made(host, notes or {})
        held = self._book.claims()
        for partition in ownership.find_orphans(root, host, held, use, known):
            LOG.warning(
                "%s %s on %s belongs to no server: removing it",
                partition.profile,
                partition.handle,
                partition.parent,
            )
            claim = ownership.orphan_claim(device, partition, known)
            self._release.unmake(claim)
            yield claim
        for partition in ownership.find_strangers(root, device, held, known):
            if partition.handle not in self._strangers:
                self._strangers.add(partition.handle)
                LOG.warning(
                    "%s on %s was made by no server that this service"
                    " knows: it stays reserved; if nothing needs it, clear"
                    " it by hand",
                    partition.profile,
                    partition.handle,
                )
        if device.technology in model.UNDIVIDED and notes is not None:
            self._clean_functions(root, device, use, notes)

    def _read_notes(self) -> release.Notes | None:
        """Return the notes on unclean functions, None if unknown."""
        try:
            notes = self._release.notes()
        except errors.UnreadableError as error:
            if not self._is_unknown:
                LOG.warning("unclean functions are not cleaned: %s", error)
            self._is_unknown = True
            return None
        self._is_unknown = False
        return notes

    def _forget_unmade(
        self, device: model.Device, notes: release.Notes
    ) -> None:
        """Forget typed functions that were cleared or typed by other means."""
        claimed = {claim.handle for claim in self._book.claims()}
        profiles = {p.handle: p.profile for p in device.partitions}
        nameless = {p.handle for p in device.partitions if p.is_nameless}
        made = self._book.made()
        self._release.forget(
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
                self._release.note_clean(address)

    def _note_typed(
        self, device: model.Device, notes: release.Notes | None
    ) -> None:
        """Note the typed functions of servers that have no note yet.

        They were assigned before there were notes.
        """
        for claim in self._book.claims():
            if (
                notes is not None
                and claim.device == device.address
                and claim.slot not in notes
                and claim.state is model.ClaimState.MADE
            ):
                self._note(claim)

    def _clean_functions(
        self,
        root: providers.ProviderRoot,
        device: model.Device,
        use: connection.HostdevUse,
        notes: release.Notes,
    ) -> None:
        """Clean the functions of a device that no server has any more.

        One that a server or a guest has is noted first, where that is
        missing: the note outlives the service.
        """
        consumers = {
            claim.slot: claim.consumer
            for claim in self._book.claims()
            if claim.device == device.address
        }
        in_guests = tree_builder.given_away(device, use.functions)
        host = model.HostState(devices=(device,))
        for slot in device.slots:
            if slot not in notes and slot not in (*consumers, *in_guests):
                continue
            for claim in found_claims.find(
                consumers.get(slot, ""),
                (_slot(root, device, slot),),
                root,
                host,
            ):
                if slot in consumers or slot in in_guests:
                    if slot not in notes:
                        self._note(claim)
                elif not device.fault and time.monotonic() < self._clean_until:
                    self._release.clean(claim, host)

    def _note(self, claim: model.Claim) -> None:
        try:
            self._release.note_assigned((claim,))
        except errors.ClaimError as error:
            LOG.error("%s", error)


def _slot(
    root: providers.ProviderRoot, device: model.Device, identifier: str
) -> model.Slot:
    return model.Slot(
        provider=ownership.provider_of(root, device.address),
        resource_class=device.resource_class,
        identifier=identifier,
    )
