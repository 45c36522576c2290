# SPDX-License-Identifier: Apache-2.0
"""Partitions that the simulated kernel could make, without the library.

Independent of the library's geometry: read from the simulated kernel's
state (tests/lab/fakehost/technologies) and its lists of functions.
"""

from __future__ import annotations

from collections.abc import Collection

from tests.lab import fakehost

BRANDS = ("NVIDIA ", "GRID ")
VFIO = "vfio-pci"


class Judge:
    """Reads the partitions of a card from the simulated kernel."""

    def __init__(
        self, kernel: fakehost.Controller, dynamic: Collection[str]
    ) -> None:
        self._kernel = kernel
        self._dynamic = frozenset(dynamic)

    def creatable(self, address: str, technology: str) -> frozenset[str]:
        """Return the profiles of which a card can make another partition.

        If the technology does not name its partitions, "*" means any.
        """
        gpus = self._kernel.gpus()
        if address in gpus and technology != "passthrough":
            card = gpus[address]
            if address in self._dynamic:
                return frozenset(map(_short, card["could_make"]))
            return frozenset(
                _short(name)
                for name, count in card["remaining"].items()
                if count
            )
        if technology == "mdev":
            kinds = self._kernel.creatable()[address]
            return frozenset(kind for kind, count in kinds.items() if count)
        return frozenset("*") if self._has_free(address) else frozenset()

    def _has_free(self, address: str) -> bool:
        """Return whether a function, or a VF of it, is in no guest."""
        functions = self._kernel.functions()
        function = functions[address]
        vfs = function["vfs"]
        if not vfs:
            return not function["in_use"]
        return any(
            not functions[vf]["in_use"] for vf in function["vf_addresses"]
        )

    def partitions(self, address: str, technology: str) -> dict[str, str]:
        """Return the partitions of a card: handle -> profile."""
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
        names = functions[address]["vf_addresses"] or [address]
        return {name: "*" for name in names if functions[name]["in_use"]}

    def list_leftovers(self, address: str) -> list[str]:
        """Return the GPU instances of a dynamic card without servers."""
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
