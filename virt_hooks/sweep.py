# SPDX-License-Identifier: Apache-2.0
"""What is left on cards although no server has it."""

import logging
from collections.abc import Callable, Iterator

from nova_accel import model, providers
from virt_hooks import book, cards, connection, recover

LOG = logging.getLogger(__name__)


class Sweeper:
    """Removes partitions that are provably ours and unused."""

    def __init__(
        self,
        notes: book.Book,
        locks: cards.Cards,
        unmake: Callable[[model.Claim], None],
    ) -> None:
        """Use these; ``unmake`` removes what a claim stands for."""
        self._book = notes
        self._cards = locks
        self._unmake = unmake
        self._strangers: set[str] = set()

    def sweep(
        self,
        root: providers.ProviderRoot,
        read_host: Callable[[], model.HostState],
        use: connection.HostdevUse,
    ) -> tuple[model.Claim, ...]:
        """Return the claims that what was removed had stood for.

        A card on which somebody works is left to the next pass.

        :param read_host: returns the last reading; no I/O.
        :param use: what the host's domains hold.
        """
        found: list[model.Claim] = []
        for address in [device.address for device in read_host().devices]:
            provider = recover.provider_of(root, address)
            with self._cards.try_hold(provider) as got:
                device = read_host().device(address)
                if got and device is not None:
                    found += self._sweep_card(root, device, use)
        return tuple(found)

    def _sweep_card(
        self,
        root: providers.ProviderRoot,
        device: model.Device,
        use: connection.HostdevUse,
    ) -> Iterator[model.Claim]:
        """Unmake the orphans of a card; yield what they stood for."""
        known, held = self._book.made(), self._book.claims()
        host = model.HostState(devices=(device,))
        for partition in recover.find_orphans(root, host, held, use, known):
            LOG.warning(
                "%s %s on %s belongs to no server: removing it",
                partition.profile,
                partition.handle,
                partition.parent,
            )
            claim = recover.orphan_claim(device, partition, known)
            self._unmake(claim)
            yield claim
        for partition in recover.find_strangers(root, device, held, known):
            if partition.handle not in self._strangers:
                self._strangers.add(partition.handle)
                LOG.warning(
                    "%s on %s was made by no server that this service"
                    " knows: it stays reserved; if nothing needs it, clear"
                    " it by hand",
                    partition.profile,
                    partition.handle,
                )
