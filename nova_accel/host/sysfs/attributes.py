# SPDX-License-Identifier: Apache-2.0
"""Optional attributes of devices in sysfs."""

import dataclasses
import errno
import re
from collections.abc import Callable, Iterator

from nova_accel import errors
from nova_accel.host.sysfs import fs
from nova_accel.model import pci

# drivers/pci/iov.c, VIRTFN_ID_LEN: "virtfn%u" on the PF for each VF.
_VIRTFN = re.compile(r"virtfn(\d+)")
# The largest numbers the kernel prints there: a u16 in each SR-IOV count
# (drivers/pci/iov.c), and a class of 24 bits.
_MOST = 0xFFFF
_MOST_OF = {"class": 0xFFFFFF}
# What an attribute is taken for that is there and can't be read.
_THEN = {
    "available_instances": "taken for 0",
    "boot_vga": "taken for the host's boot display",
    "class": "treated as of no class",
    "driver": "taken for bound by the host",
    "iommu_group": "taken for in no IOMMU group",
    "numa_node": "taken for without a NUMA node",
}


@dataclasses.dataclass(slots=True)
class DeviceAttributes:
    """Optional attributes of one device; what can't be read is noted."""

    files: fs.Files
    directory: str
    entries: frozenset[str]
    noter: Callable[[str, str], None]

    def note(self, reason: str) -> None:
        """Note what can't be read of this device."""
        self.noter(self.directory.rpartition("/")[2], reason)

    def text(self, name: str) -> str | None:
        """Return an attribute's text, None if there is none to be had."""
        if name not in self.entries:
            return None
        try:
            return self.files.text(f"{self.directory}/{name}").strip()
        except errors.UnreadableError as error:
            self.note(_unreadable(name, error))
            return None

    def number(self, name: str, base: int = 10) -> int:
        """Return a number from 0; 0 if there is none to be had."""
        text = self.text(name)
        if text is None:
            if name == "class" and name not in self.entries:
                self.note("class is missing; treated as of no class")
            return 0
        try:
            found = int(text, base)
        except ValueError:
            found = -1
        most = _MOST_OF.get(name, _MOST)
        if not 0 <= found <= most:
            self.note(f"{name} is no number from 0 to {most}: {text[:40]!r}")
            return 0
        return found

    def identity(self, name: str) -> str:
        """Return four hex digits, empty if there are none to be had."""
        text = self.text(name)
        return f"{self.number(name, 16):04x}" if text else ""

    def numa_node(self) -> int | None:
        """Return the NUMA node; None for -1, "no node is known"."""
        return None if self.text("numa_node") == "-1" else self._node()

    def _node(self) -> int | None:
        text = self.text("numa_node")
        if text is None:
            return None
        if not text.isdecimal():
            self.note(f"numa_node is no number: {text[:40]!r}")
            return None
        return int(text)

    def driver(self) -> str | None:
        """Return the bound driver: None for none, ``unknown`` for any.

        What may be bound must not be taken for free.
        """
        return self.link("driver") or (
            "unknown" if "driver" in self.entries else None
        )

    def is_boot_vga(self) -> bool:
        """Return whether the host boots on this display, or may do so."""
        if "boot_vga" not in self.entries:
            return False
        return self.text("boot_vga") != "0"

    def link(self, name: str) -> str | None:
        """Return the last part of a link, None if there is none."""
        if name not in self.entries:
            return None
        try:
            return self.files.link(f"{self.directory}/{name}")
        except errors.UnreadableError as error:
            self.note(_unreadable(name, error))
            return None

    def address(self, name: str) -> pci.PciAddress | None:
        """Return the PCI address a link leads to, None without one."""
        target = self.link(name)
        if target is None:
            return None
        if not pci.is_address(target):
            self.note(f"{name} leads to {target!r}, which is no PCI address")
            return None
        return pci.parse_address(target)

    def virtual_functions(
        self, present: frozenset[str]
    ) -> Iterator[pci.PciAddress]:
        """Yield the VFs of a PF, in their own order."""
        found = [m for m in map(_VIRTFN.fullmatch, self.entries) if m]
        for match in sorted(found, key=lambda m: int(m[1])):
            address = self.address(match[0])
            if address is None:
                continue
            if str(address) not in present:
                self.note(f"{match[0]} leads to {address}, which is gone")
                continue
            yield address


@dataclasses.dataclass(slots=True)
class MdevTypeAttributes:
    """The files of one type directory; none of them is sure to be there."""

    files: fs.Files
    place: str
    missing: bool = False
    reasons: list[str] = dataclasses.field(default_factory=list)

    def text(self, name: str) -> str | None:
        """Return a file's text, None if there is none to be had."""
        try:
            return self.files.text(f"{self.place}/{name}").strip()
        except errors.UnreadableError as error:
            if error.number == errno.ENOENT:
                self.missing = True
            else:
                self.reasons.append(_unreadable(name, error))
            return None

    def available(self) -> int | None:
        """Return how many can be made now, None if it does not say."""
        text = self.text("available_instances")
        if text is not None and text.isdecimal():
            return int(text)
        if text is not None:
            self.reasons.append(
                f"available_instances is no number, taken for 0: {text[:40]!r}"
            )
        elif not self.reasons:
            self.reasons.append("available_instances is missing, taken for 0")
        return None


def _unreadable(name: str, error: errors.UnreadableError) -> str:
    """Return that an attribute can't be read, and what follows."""
    then = f", {_THEN[name]}" if name in _THEN else ""
    return f"{name} can't be read{then}: {error}"
