# SPDX-License-Identifier: Apache-2.0
"""Partitions that the simulated kernel could make, without the library.

Nothing here knows of the library's geometry: the kernel's own books
answer (tests/lab/fakehost/technologies), and its lists of functions.
"""

from __future__ import annotations

from collections.abc import Collection

from tests.lab import fakehost

BRANDS = ("NVIDIA ", "GRID ")
VFIO = "vfio-pci"


class Judge:
    """Knows a kernel's cards and asks it about one of them."""

    def __init__(
        self, kernel: fakehost.Controller, dynamic: Collection[str]
    ) -> None:
        self._kernel = kernel
        self._dynamic = frozenset(dynamic)

    def creatable(self, address: str, technology: str) -> frozenset[str]:
        """Return the profiles of which a card would make one more now.

        Of technologies whose partitions have no names of their own, "*"
        stands for any.
        """
        gpus = self._kernel.gpus()
        if address in gpus and technology != "passthrough":
            card = gpus[address]
            if address in self._dynamic:
                return frozenset(map(_short, card["could_make"]))
            return frozenset(
                _short(name) for name, left in card["left"].items() if left
            )
        if technology == "mdev":
            kinds = self._kernel.creatable()[address]
            return frozenset(kind for kind, left in kinds.items() if left)
        return frozenset("*") if self._has_free(address) else frozenset()

    def _has_free(self, address: str) -> bool:
        """Return whether a function, or a VF of it, is in no guest."""
        functions = self._kernel.functions()
        own = functions[address]
        vfs = own["vfs"]
        if not vfs:
            return not own["in_use"]
        return any(not functions[vf]["in_use"] for vf in own["vf_addresses"])

    def made(self, address: str, technology: str) -> dict[str, str]:
        """Return what is made on a card: handle -> profile."""
        gpus = self._kernel.gpus()
        if address in gpus and technology != "passthrough":
            return {
                key: _short(vgpu["type"])
                for key, vgpu in gpus[address]["vgpus"].items()
            }
        if technology == "mdev":
            return {
                uuid: mdev["type"]
                for uuid, mdev in self._kernel.mdevs().items()
                if mdev["parent"] == address
            }
        functions = self._kernel.functions()
        mine = functions[address]["vf_addresses"] or [address]
        return {name: "*" for name in mine if functions[name]["in_use"]}

    def left(self, address: str) -> list[str]:
        """Return what is on a card that nothing runs on.

        GPU instances too, where the library has made them itself.
        """
        card = self._kernel.gpus().get(address)
        if card is None or address not in self._dynamic:
            return []
        return [
            f"GPU instance {kind}" for kind, _ in card["instances"].values()
        ]


def _short(name: str) -> str:
    for brand in BRANDS:
        name = name.removeprefix(brand)
    return name
