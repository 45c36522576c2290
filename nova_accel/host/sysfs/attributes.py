# SPDX-License-Identifier: Apache-2.0
"""Optional attributes of devices and of mdev types in sysfs."""

import dataclasses
import errno
import re
from collections.abc import Callable, Iterator

from nova_accel import errors
from nova_accel.host.sysfs import fs
from nova_accel.model import pci


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MdevType:
    """One type directory of an mdev parent.

    ``label`` is the content of its ``name`` file, None without one;
    ``available`` is how many the parent can make now, None when it does
    not say. Missing texts are empty.
    """

    type_id: str
    label: str | None
    description: str
    device_api: str
    available: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MdevParent:
    """A device that makes mediated devices.

    ``name`` is its directory's name: ``0000:3b:00.0``, ``mtty``,
    ``matrix``, ``0.0.0052``. ``function`` is None off the PCI bus, and for
    a function whose ids can't be read; ``physfn`` is the PF's address when
    this is a VF.
    """

    name: str
    function: pci.PciFunction | None
    driver: str | None
    physfn: str | None
    types: tuple[MdevType, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mdev:
    """A mediated device that exists; ``type_id`` is empty if unknown."""

    uuid: str
    parent: str
    type_id: str


# drivers/pci/iov.c, VIRTFN_ID_LEN: "virtfn%u" on the PF for each VF.
_VIRTFN = re.compile(r"virtfn(\d+)")
# The largest number of SR-IOV counts, a u16 (drivers/pci/iov.c), and of ids.
_MAX_NUMBER = 0xFFFF
# A u64 has at most 20 digits. Longer texts are no numbers: int() raises
# ValueError for those of more than 4300 digits.
_NUMBER = re.compile(r"[0-9]{1,20}")
# Consequence of an attribute that exists and can't be read.
_CONSEQUENCES = {
    "available_instances": "taken for 0",
    "boot_vga": "taken for the host's boot display",
    "driver": "taken for bound by the host",
    "iommu_group": "taken for in no IOMMU group",
    "numa_node": "taken for without a NUMA node",
}


def parse_number(text: str) -> int | None:
    """Return a number from 0 in an attribute's text, None for other texts."""
    return int(text) if _NUMBER.fullmatch(text) else None


@dataclasses.dataclass(slots=True)
class DeviceAttributes:
    """Optional attributes of one device; read errors go to ``noter``."""

    files: fs.Files
    directory: str
    entries: frozenset[str]
    noter: Callable[[str, str], None]

    def note(self, reason: str) -> None:
        """Report that an attribute of this device can't be read."""
        self.noter(self.directory.rpartition("/")[2], reason)

    def text(self, name: str) -> str | None:
        """Return an attribute's text, None if it is missing or unreadable."""
        if name not in self.entries:
            return None
        try:
            return self.files.text(f"{self.directory}/{name}").strip()
        except errors.UnreadableError as error:
            self.note(_unreadable(name, error))
            return None

    def number(self, name: str, base: int = 10) -> int:
        """Return a number from 0; 0 if it is missing or unreadable."""
        text = self.text(name)
        if text is None:
            return 0
        try:
            number = int(text, base)
        except ValueError:
            number = -1
        if not 0 <= number <= _MAX_NUMBER:
            self.note(
                f"{name} is no number from 0 to {_MAX_NUMBER}: {text[:40]!r}"
            )
            return 0
        return number

    def identity(self, name: str) -> str:
        """Return four hex digits, empty if missing or unreadable."""
        text = self.text(name)
        return f"{self.number(name, 16):04x}" if text else ""

    def numa_node(self) -> int | None:
        """Return the NUMA node; None for -1, the kernel's "unknown"."""
        text = self.text("numa_node")
        if text is None or text == "-1":
            return None
        node = parse_number(text)
        if node is None:
            self.note(f"numa_node is no number: {text[:40]!r}")
        return node

    def driver(self) -> str | None:
        """Return the bound driver, None for none.

        A link that can't be read gives ``unknown``: the device may be in
        use.
        """
        return self.link("driver") or (
            "unknown" if "driver" in self.entries else None
        )

    def is_boot_vga(self) -> bool:
        """Return whether this is, or may be, the host's boot display."""
        if "boot_vga" not in self.entries:
            return False
        return self.text("boot_vga") != "0"

    def link(self, name: str) -> str | None:
        """Return the last part of a link's target, None without a link."""
        if name not in self.entries:
            return None
        try:
            return self.files.link(f"{self.directory}/{name}")
        except errors.UnreadableError as error:
            self.note(_unreadable(name, error))
            return None

    def address(self, name: str) -> pci.PciAddress | None:
        """Return the PCI address that a link points to, None without one."""
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
        """Yield the VFs of a PF in the order of their numbers."""
        matches = [m for m in map(_VIRTFN.fullmatch, self.entries) if m]
        for match in sorted(matches, key=lambda m: int(m[1])):
            address = self.address(match[0])
            if address is None:
                continue
            if str(address) not in present:
                self.note(f"{match[0]} leads to {address}, which is gone")
                continue
            yield address


@dataclasses.dataclass(slots=True)
class MdevTypeAttributes:
    """Files of one type directory; each of them is optional.

    ``missing`` is True once a file did not exist; ``reasons`` are the
    read errors.
    """

    files: fs.Files
    place: str
    missing: bool = False
    reasons: list[str] = dataclasses.field(default_factory=list)

    def text(self, name: str) -> str | None:
        """Return a file's text, None if it is missing or unreadable."""
        try:
            return self.files.text(f"{self.place}/{name}").strip()
        except errors.UnreadableError as error:
            if error.number == errno.ENOENT:
                self.missing = True
            else:
                self.reasons.append(_unreadable(name, error))
            return None

    def available(self) -> int | None:
        """Return how many mdevs can be made now, None if unknown."""
        text = self.text("available_instances")
        number = None if text is None else parse_number(text)
        if number is not None:
            return number
        if text is not None:
            self.reasons.append(
                f"available_instances is no number, taken for 0: {text[:40]!r}"
            )
        elif not self.reasons:
            self.reasons.append("available_instances is missing, taken for 0")
        return None


def _unreadable(name: str, error: errors.UnreadableError) -> str:
    consequence = _CONSEQUENCES.get(name)
    suffix = f", {consequence}" if consequence else ""
    return f"{name} can't be read{suffix}: {error}"
