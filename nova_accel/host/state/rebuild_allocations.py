# SPDX-License-Identifier: Apache-2.0
"""Allocations of servers that are being rebuilt.

Where Nova gives up what it should keep, nobody else remembers it.
"""

import dataclasses
import json
import logging
import os
import threading
from collections.abc import Mapping

from nova_accel import errors
from nova_accel.host.state import notes
from nova_accel.model import strict_json

LOG = logging.getLogger(__name__)

Amounts = Mapping[str, Mapping[str, int]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ServerAllocations:
    """A server, by its uuid, and JSON of what is booked for it."""

    address: str
    reason: str = ""
    when: str = ""
    amounts: str | None = None


class RebuildAllocations:
    """What is booked for some servers of a host. Thread-safe.

    What can't be written down counts all the same, until the service ends.
    """

    def __init__(self, state_dir: str) -> None:
        """Keep notes in ``booked`` below a directory; it is not made yet."""
        self.place = os.path.join(state_dir, "booked")
        self._notes = notes.NoteDirectory(self.place, _ServerAllocations)
        self._unwritten: dict[str, Amounts] = {}
        self._guard = threading.Lock()

    def read(self) -> dict[str, Amounts]:
        """Return amounts by server, provider's uuid and resource class.

        Notes that can't be read are told in the log, and stay.
        """
        with self._guard:
            found = dict(self._unwritten)
        try:
            for note in self._notes.read().values():
                amounts = self._parse(note)
                if amounts is not None:
                    found.setdefault(note.address, amounts)
        except errors.UnreadableError as error:
            LOG.warning("what is booked for servers is not known: %s", error)
        return found

    def put(self, server: str, amounts: Amounts) -> None:
        """Note what is booked for a server."""
        note = _ServerAllocations(
            address=server,
            reason="it is booked again once Nova has given it up",
            when=notes.now(),
            amounts=json.dumps({p: dict(a) for p, a in amounts.items()}),
        )
        with self._guard:
            self._unwritten.pop(server, None)
            try:
                self._notes.write(note)
            except OSError as error:
                self._unwritten[server] = amounts
                LOG.error(
                    "what is booked for server %s can't be written down (%s):"
                    " it is forgotten when this service ends; mend"
                    " [nova_accel] state_dir",
                    server,
                    error,
                )

    def remove(self, server: str) -> None:
        """Forget what was booked for a server."""
        with self._guard:
            self._unwritten.pop(server, None)
            try:
                self._notes.remove(server)
            except (OSError, errors.UnreadableError) as error:
                LOG.error("the note on server %s stays: %s", server, error)

    def _parse(self, note: _ServerAllocations) -> Amounts | None:
        """Return the amounts of a note, None if it does not tell them."""
        try:
            return {
                str(provider): {str(n): int(a) for n, a in amounts.items()}
                for provider, amounts in strict_json.loads(
                    note.amounts or ""
                ).items()
            }
        except (AttributeError, TypeError, ValueError) as error:
            LOG.error(
                "what was booked for server %s is not known any more: %s"
                " (%s); compare `openstack resource provider allocation show"
                " %s` with its flavor, then remove its note from %s",
                note.address,
                note.reason,
                error,
                note.address,
                self.place,
            )
            return None
