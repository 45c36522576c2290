# SPDX-License-Identifier: Apache-2.0
"""Allocations of servers that are being rebuilt.

A failed rebuild may remove a server's allocations from Placement. These
notes are the only copy to restore them from.
"""

import json
import logging
from collections.abc import Mapping

from nova_accel.config import logs
from nova_accel.host.state import notes
from nova_accel.model import json_codec

LOG = logging.getLogger(__name__)

Amounts = Mapping[str, Mapping[str, int]]


class RebuildAllocations:
    """Allocations of servers under rebuild on a host. Thread-safe."""

    def __init__(self, state_dir: str) -> None:
        """Use a directory below ``state_dir``; the first write creates it."""
        self._notes = notes.NoteStore(state_dir, notes.BOOKED)
        self.path = self._notes.path

    def read(self) -> dict[str, Amounts]:
        """Return amounts by server, provider's uuid and resource class.

        Unreadable notes are logged; they stay on disk.
        """
        by_server = self._notes.read_last(
            "allocations of servers under rebuild may get lost"
        )
        return {
            server: amounts
            for server, note in by_server.items()
            if (amounts := self._parse(note)) is not None
        }

    def put(self, server: str, amounts: Amounts) -> None:
        self._notes.write_or_retain(
            notes.RebuiltServer(
                address=server,
                reason="these allocations are restored if Nova removes them",
                when=notes.now(),
                amounts=json.dumps({p: dict(a) for p, a in amounts.items()}),
            )
        )

    def remove(self, server: str) -> None:
        self._notes.remove_or_ignore(server)

    def _parse(self, note: notes.RebuiltServer) -> Amounts | None:
        """Return the amounts of a note, None if they can't be parsed."""
        try:
            content = json_codec.loads(note.amounts or "")
            amounts: Amounts = json_codec.decode(Amounts, content, "it")
            return amounts
        except ValueError as error:
            logs.error(
                LOG,
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
