# SPDX-License-Identifier: Apache-2.0
"""Devices that their operator drains."""

import logging
import os
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.host.state import notes

LOG = logging.getLogger(__name__)


class DrainNotes:
    """What the operator has said of one host's devices. Thread-safe.

    Root says it on the command line, and nova-compute, which is not root,
    reads it.
    """

    def __init__(self, state_dir: str) -> None:
        """Keep notes in ``drained`` below a directory; none is made yet."""
        self.place = os.path.join(state_dir, "drained")
        self._notes = notes.NoteDirectory(self.place, model.Drain)

    def read(self) -> Mapping[str, model.Drain]:
        """Return the drains by address; one that can't be read counts too.

        :raises UnreadableError: the directory can't be listed.
        """
        return self._notes.read()

    def put(self, address: str, reason: str) -> None:
        """Drain a device: it takes no new server from now on.

        :param address: as ``faults.address_of`` tells it; of a card it
            counts for its parts too.
        :param reason: for people, of one line.
        :raises OSError: it can't be written down.
        """
        line = notes.line_of(reason)
        self._notes.write(
            model.Drain(address=address, reason=line, when=notes.now())
        )
        LOG.info("%s is drained: %s", address, line)

    def remove(self, addresses: Iterable[str]) -> frozenset[str]:
        """Offer some devices again; return which were drained.

        :raises OSError: a note can't be removed.
        :raises UnreadableError: the directory can't be listed.
        """
        found = frozenset(a for a in addresses if self._notes.remove(a))
        for address in sorted(found):
            LOG.info("%s is drained no more", address)
        return found
