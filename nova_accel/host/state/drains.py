# SPDX-License-Identifier: Apache-2.0
"""Devices that the operator drains: they take no new server."""

import dataclasses
import logging
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.host.state import notes

LOG = logging.getLogger(__name__)

# Reason of the devices of a host that nova-accel is removed from.
LEAVING = "nova-accel is removed from this host"


class DrainNotes:
    """Drain marks of one host's devices. Thread-safe.

    Root writes them (``nova-accel drain``), nova-compute's user reads
    them.
    """

    def __init__(self, state_dir: str) -> None:
        """Use ``drained`` below a directory; the first write creates it."""
        self._notes = notes.NoteStore(state_dir, notes.DRAINED)
        self.path = self._notes.path

    def read(self) -> Mapping[str, model.Drain]:
        """Return the drains by address, unreadable notes included.

        :raises UnreadableError: the directory can't be listed.
        """
        return {
            address: dataclasses.replace(
                drain, author=notes.single_line(drain.author)
            )
            for address, drain in self._notes.read().items()
        }

    def put(self, address: str, reason: str, author: str = "") -> None:
        """Drain a device: it takes no new server from now on.

        :param address: see ``conditions.resolve_address``; a card's also
            drains its regions.
        :param reason: text for the operator; stored as one line.
        :param author: name of the operator, "" if it is not known.
        :raises OSError: the note can't be written.
        """
        line = notes.single_line(reason)
        self._notes.write(
            model.Drain(
                address=address,
                reason=line,
                when=notes.now(),
                author=notes.single_line(author),
            )
        )
        LOG.info("%s is drained: %s", address, line)

    def remove(self, addresses: Iterable[str]) -> frozenset[str]:
        """End the drain of some devices; return those that were drained.

        :raises OSError: a note can't be removed.
        :raises UnreadableError: the directory can't be listed.
        """
        removed = frozenset(a for a in addresses if self._notes.remove(a))
        for address in sorted(removed):
            LOG.info("%s is no longer drained", address)
        return removed
