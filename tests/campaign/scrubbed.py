# SPDX-License-Identifier: Apache-2.0
"""Functions that guests have used and that are not scrubbed yet."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

Key = tuple[str, str]


class Ledger:
    """Last user of each function, and users that got it unscrubbed."""

    def __init__(self) -> None:
        """Start with clean functions."""
        #: Last holder of each function that was not scrubbed since.
        self.dirty: dict[Key, str] = {}
        #: Functions that were assigned unscrubbed, in words.
        self.violations: list[str] = []
        #: Whether policy says that functions keep what they hold.
        self.is_kept = False
        #: Whether VFs hold vGPUs, which are made empty.
        self.is_vgpu = False
        #: The function that is loaded when a server is gone, "" for none.
        self.blank = ""
        #: Programmings that were noted, by host.
        self._programmed: dict[str, int] = {}

    def take(self, root: str, name: str, guest: str) -> None:
        """Note that a guest runs with a function."""
        key = (root, name)
        before = self.dirty.get(key, guest)
        if before != guest and not self.is_kept:
            self.violations.append(
                f"unscrubbed: {name} of server {before} was handed to"
                f" server {guest}"
            )
        self.dirty[key] = guest

    def write(self, root: str, path: Path, text: str) -> None:
        """Note a write that the kernel has carried out."""
        name = path.name
        if name in ("reset", "remove"):
            self.dirty.pop((root, path.parent.name), None)
        elif name == "reset_subordinate":
            for function in path.parent.iterdir():
                self.dirty.pop((root, function.name), None)
        elif name == "current_vgpu_type" and text.strip() == "0":
            self.dirty.pop((root, path.parent.parent.name), None)

    def note_programmings(
        self, root: str, programmings: Sequence[Mapping[str, Any]]
    ) -> None:
        """Note the images loaded into regions since the last call.

        None may be loaded while a guest has the region. The blank removes
        what a guest left; every other bitstream is for a server.
        """
        for each in programmings[self._programmed.get(root, 0) :]:
            if each["is_group_open"] or each["driver"] == "vfio-pci":
                self.violations.append(f"programmed under a guest: {each}")
            if each["function"] == self.blank:
                self.dirty.pop((root, each["slot"]), None)
        self._programmed[root] = len(programmings)

    def lose_vgpus(self, root: str, card: str, mdevs: Collection[str]) -> None:
        """Note that a card was taken out: its vGPUs are gone with it.

        A whole function, which may be a disk, comes back as it was.
        """
        self.lose(root, mdevs)
        if self.is_vgpu:
            names = [key[1] for key in self.dirty if key[0] == root]
            self.lose(root, [n for n in names if n.startswith(card[:-1])])

    def lose(self, root: str, names: Collection[str]) -> None:
        """Note that vGPUs of a host are gone."""
        for name in names:
            self.dirty.pop((root, name), None)

    def clean_all(self, root: str) -> None:
        """Note that a host was switched off."""
        for key in [key for key in self.dirty if key[0] == root]:
            del self.dirty[key]
