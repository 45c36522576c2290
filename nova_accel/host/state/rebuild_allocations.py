# SPDX-License-Identifier: Apache-2.0
"""Allocations of servers that are being rebuilt.

A failed rebuild may remove a server's allocations from Placement. These
notes are the only copy to restore them from.
"""

import dataclasses
import json
import logging
import os
import threading
from collections.abc import Mapping

from nova_accel import errors, model
from nova_accel.host.state import notes
from nova_accel.model import json_codec, strict_json

LOG = logging.getLogger(__name__)

Amounts = Mapping[str, Mapping[str, int]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ServerAllocations(model.Note):
    """Allocations of a server, whose uuid is ``address``, as JSON."""

    amounts: str | None = None


class RebuildAllocations:
    """Allocations of servers under rebuild on a host. Thread-safe.

    A note that can't be written is kept in memory until the service ends.
    """

    def __init__(self, state_dir: str) -> None:
        """Use a directory below ``state_dir``; the first write creates it."""
        self.path = os.path.join(state_dir, "booked")
        self._notes = notes.NoteDirectory(self.path, _ServerAllocations)
        self._unwritten: dict[str, Amounts] = {}
        self._lock = threading.Lock()

    def read(self) -> dict[str, Amounts]:
        """Return amounts by server, provider's uuid and resource class.

        Unreadable notes are logged; they stay on disk.
        """
        with self._lock:
            by_server = dict(self._unwritten)
        try:
            for note in self._notes.read().values():
                amounts = self._parse(note)
                if amounts is not None:
                    by_server.setdefault(note.address, amounts)
        except errors.UnreadableError as error:
            LOG.warning(
                "Allocations of servers under rebuild can't be read: %s", error
            )
        return by_server

    def put(self, server: str, amounts: Amounts) -> None:
        """Store the allocations of a server."""
        note = _ServerAllocations(
            address=server,
            reason="these allocations are restored if Nova removes them",
            when=notes.now(),
            amounts=json.dumps({p: dict(a) for p, a in amounts.items()}),
        )
        with self._lock:
            self._unwritten.pop(server, None)
            try:
                self._notes.write(note)
            except OSError as error:
                self._unwritten[server] = amounts
                LOG.error(
                    "The allocations of server %s can't be stored (%s): they"
                    " are lost when this service ends; make [nova_accel]"
                    " state_dir writable",
                    server,
                    error,
                )

    def remove(self, server: str) -> None:
        """Remove the stored allocations of a server."""
        with self._lock:
            self._unwritten.pop(server, None)
            try:
                self._notes.remove(server)
            except (OSError, errors.UnreadableError) as error:
                LOG.error(
                    "The note on server %s can't be removed: %s", server, error
                )

    def _parse(self, note: _ServerAllocations) -> Amounts | None:
        """Return the amounts of a note, None if they can't be parsed."""
        try:
            content = strict_json.loads(note.amounts or "")
            amounts: Amounts = json_codec.decode(Amounts, content, "it")
            return amounts
        except ValueError as error:
            LOG.error(
                "The stored allocations of server %s can't be read: %s"
                " (%s); compare `openstack resource provider allocation show"
                " %s` with its flavor, then remove its note from %s",
                note.address,
                note.reason,
                error,
                note.address,
                self.path,
            )
            return None
