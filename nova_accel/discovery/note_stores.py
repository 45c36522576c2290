# SPDX-License-Identifier: Apache-2.0
"""Notes on devices below ``state_dir``: faults, drains, assigned functions."""

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar

from nova_accel import errors, model
from nova_accel.host.state import device_notes
from nova_accel.inventory import conditions

LOG = logging.getLogger(__name__)

Note_co = TypeVar("Note_co", covariant=True)


class NoteReader(Protocol[Note_co]):
    """Reader of the notes on devices."""

    def read(self) -> Mapping[str, Note_co]:
        """Return the notes by address, or raise UnreadableError."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNotes:
    """Content of the note stores at one time.

    ``faulted`` and ``drained`` are None if they were never read with
    success. ``assigned`` are the functions that servers have. ``error`` is
    why they can't be read now, and ``write_error`` why none can be written;
    empty if they can.
    """

    faulted: conditions.Faults | None = None
    drained: conditions.Drains | None = None
    baseline: Mapping[str, int] = dataclasses.field(default_factory=dict)
    assigned: frozenset[str] = frozenset()
    error: str = ""
    write_error: str = ""

    def has_same_marks(self, other: "DeviceNotes") -> bool:
        """Return whether only the functions that servers have may differ."""
        return dataclasses.replace(self, assigned=other.assigned) == other

    def mark(
        self,
        state: model.HostState,
        read_faults: conditions.Faults,
        addresses: Collection[str] | None = None,
    ) -> tuple[model.HostState, frozenset[str]]:
        """Return a host with marked devices, and the healed ones.

        :param read_faults: faults that the host shows now.
        :param addresses: devices that were just read; None for all.
        """
        state, healed = conditions.mark_faults(
            conditions.mark_unhealthy(state, read_faults),
            self.faulted or {},
            addresses,
        )
        state = conditions.mark_unnoted(state, self.write_error)
        state = conditions.mark_drains(state, self.drained or {})
        if self.error:
            is_first = self.faulted is None or self.drained is None
            state = conditions.mark_unknown(state, self.error, is_first)
        return state, healed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoteStores:
    """Stores of the notes that a reading applies; None for no store.

    ``faulted`` has the devices at fault, ``drained`` the devices that the
    operator drains, ``baseline`` the error counts that the operator
    acknowledged.
    """

    faulted: device_notes.FaultNotes | None = None
    drained: device_notes.DrainNotes | None = None
    baseline: device_notes.ErrorBaseline | None = None

    def check(self) -> None:
        """Check that the notes on devices can be read.

        :raises UnreadableError: a store can't be read.
        """
        for store in (self.faulted, self.drained):
            if store is not None:
                store.read()

    def try_write(self) -> None:
        """Find out whether notes can be written; ``read`` has the result."""
        if self.faulted is not None:
            self.faulted.try_write()

    def read(self, last: DeviceNotes) -> DeviceNotes:
        """Return the notes; the last ones where they can't be read."""
        faulted, faulted_error = _read_store(self.faulted, last.faulted)
        drained, drained_error = _read_store(self.drained, last.drained)
        return DeviceNotes(
            faulted=faulted,
            drained=drained,
            baseline=self.baseline.read() if self.baseline else {},
            assigned=_read_assigned(self.faulted, last.assigned),
            error=faulted_error or drained_error,
            write_error=self.faulted.write_error if self.faulted else "",
        )

    def remove_faults(self, addresses: Collection[str]) -> None:
        """Remove the notes on healed devices."""
        if self.faulted is None or not addresses:
            return
        # The next reading tries again after a failure.
        with contextlib.suppress(OSError, errors.UnreadableError):
            self.faulted.heal(addresses)
            LOG.info("healed: %s", ", ".join(sorted(addresses)))


def _read_store(
    store: NoteReader[Note_co] | None, last: Mapping[str, Note_co] | None
) -> tuple[Mapping[str, Note_co] | None, str]:
    """Return notes and no error, or the last notes and the error."""
    if store is None:
        return {}, ""
    try:
        return store.read(), ""
    except errors.UnreadableError as error:
        return last, str(error)


def _read_assigned(
    store: device_notes.FaultNotes | None, last: frozenset[str]
) -> frozenset[str]:
    """Return the functions that servers have; the last ones on an error."""
    if store is None:
        return frozenset()
    try:
        return frozenset(store.read_unreleased())
    except errors.UnreadableError:
        return last
