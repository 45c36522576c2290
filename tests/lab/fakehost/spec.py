# SPDX-License-Identifier: Apache-2.0
"""HostSpec: which cards a simulated host has. It travels as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.fakehost.buses.pci_driver import PciDriver
from tests.lab.fakehost.kernel import Kernel
from tests.lab.fakehost.technologies import ALL, Card

KINDS = {technology.kind: technology for technology in ALL}


@dataclass(frozen=True, kw_only=True)
class HostSpec:
    """A host: its cards, in the order the kernel finds them."""

    cards: tuple[Card, ...] = ()
    iommu: bool = True

    def to_json(self) -> str:
        """Return the spec as text."""
        cards = []
        for card in self.cards:
            cards.append({"kind": card.kind, **dataclasses.asdict(card)})
        return json.dumps({"iommu": self.iommu, "cards": cards})

    @classmethod
    def from_json(cls, text: str) -> HostSpec:
        """Return the spec that to_json() wrote.

        Raises ValueError for an unknown kind or field.
        """
        data: dict[str, Any] = json.loads(text)
        cards: list[Card] = []
        for fields in data.get("cards", ()):
            kind = fields.pop("kind", None)
            if kind not in KINDS:
                kinds = ", ".join(sorted(KINDS))
                raise ValueError(f"no card of kind {kind!r}; known: {kinds}")
            try:
                cards.append(KINDS[kind](**fields))
            except TypeError as error:
                raise ValueError(f"a card of kind {kind}: {error}") from error
        return cls(cards=tuple(cards), iommu=data.get("iommu", True))

    def boot(self, vfio_dir: Path, *, netlink: bool = False) -> Kernel:
        """Return a kernel that has found these cards."""
        kernel = Kernel(vfio_dir=vfio_dir, netlink=netlink, iommu=self.iommu)
        for card in self.cards:
            card.build(kernel)
        # loaded by a vendor's tool, so it is asked after the card's driver
        kernel.pci.register(PciDriver("pci-pf-stub", sriov=True))
        return kernel

    def plug(self, kernel: Kernel) -> None:
        """Let a kernel find the cards again that have gone."""
        for card in self.cards:
            address = getattr(card, "address", "")
            if address and address not in kernel.pci.functions:
                card.build(kernel)
