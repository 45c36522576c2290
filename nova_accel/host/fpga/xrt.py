# SPDX-License-Identifier: Apache-2.0
"""AMD's Alveo cards in the sysfs files of XRT's drivers.

``xclmgmt`` manages a card by its first function; ``xocl`` works with what
is loaded by its second one, which may go to a guest. Attributes and their
forms are those of XRT's ``mgmt-sysfs.c`` and ``xocl_sysfs.c``.
"""

import contextlib
import dataclasses
import errno
import re
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.fpga import xclbin
from nova_accel.host.sysfs import fs
from nova_accel.model import names

MANAGEMENT_DRIVER = "xclmgmt"
USER_DRIVER = "xocl"
# Of XRT's tools the one after which the loaded function can be read back:
# it loads through xocl, which remembers the uuid. What xbmgmt loads past
# it, xocl never hears of.
TOOL = "xrt-smi"

_FUNCTIONS = "/sys/bus/pci/devices"
_DRIVERS = "/sys/bus/pci/drivers"
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
# What the driver has no answer to: xclmgmt says EINVAL for interfaces on
# shells without metadata, which go by their name.
_UNTOLD = (*_ABSENT, errno.EINVAL)
_ROM = re.compile(r"rom\.[mu]\.\d+")
_UUID = re.compile(r"[0-9a-f]{32}")
_NOTHING = "0" * 32
_TRUE = ("1", "0x1")
# Images that only bring a card to life: no shell of theirs takes xclbins.
_GOLDEN = "golden"
_FLASH = (
    "flash a platform with `xbmgmt program --base` and switch the host off"
    " and on again"
)
FACTORY = f"it runs its factory image, which takes no function; {_FLASH}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class XrtShell:
    """The static part of a card, as far as its functions tell.

    ``name`` is its VBNV and ``board`` the board's name, empty if unknown;
    ``interfaces`` are spelled as ``names.fpga_id`` does. ``fault`` tells
    why the card does not work now, ``golden`` why it can hold no function
    at all, ``blocker`` why none can be loaded; empty if nothing is wrong.
    ``unread`` has what could not be read, one reason each.
    """

    name: str = ""
    board: str = ""
    interfaces: tuple[str, ...] = ()
    fault: str = ""
    golden: str = ""
    blocker: str = ""
    unread: tuple[str, ...] = ()


def loaded(files: fs.Files, card: str, number: int, slot: str) -> str | None:
    """Return the function that a card holds.

    :param card: the management function, which has no word on it.
    :param number: 0, a card has no other region.
    :param slot: the user function, as a PCI address.
    :returns: empty for nothing, None where it can't be told: while the
        user function is not bound to xocl, for example.
    """
    with contextlib.suppress(errors.AcceleratorError):
        return read_function(files, slot)
    return None


def read_function(files: fs.Files, slot: str) -> str:
    """Return the function that a user function shows, empty for none.

    There is one line for each slot of the shell; the first that holds
    anything counts.

    :raises UnreadableError: with the errno of the failed read.
    :raises MalformedError: what stands there is no uuid.
    """
    text = files.text(f"{_FUNCTIONS}/{slot}/xclbinuuid")
    for line in text.split():
        found = names.fpga_id(line)
        if not _UUID.fullmatch(found):
            raise errors.MalformedError("xclbinuuid", line[:40], "a uuid")
        if found != _NOTHING:
            return found
    return ""


def has_driver(files: fs.Files, name: str) -> bool:
    """Return whether the kernel has loaded a driver of PCI functions."""
    try:
        return name in files.names(_DRIVERS)
    except errors.UnreadableError:
        return False


def read_shell(files: fs.Files, card: str, slot: str) -> XrtShell:
    """Return what a card's functions tell of its shell; never raises.

    :param card: the management function, empty if xclmgmt is not on it.
    :param slot: the user function, empty if xocl is not on it.
    """
    above = _XrtReader(files, card)
    below = _XrtReader(files, slot)
    name = above.shell_name() or below.shell_name()
    golden = _golden(above, name)
    return XrtShell(
        name=name,
        board=above.text("board_name") or below.text("board_name"),
        interfaces=() if golden else _interfaces(above, below, name),
        fault=_fault(above, below),
        golden=golden,
        blocker=_blocker(above, below),
        unread=tuple(dict.fromkeys((*above.reasons, *below.reasons))),
    )


class _XrtReader:
    """Attributes of one function; without an address there are none."""

    def __init__(self, files: fs.Files, address: str) -> None:
        self.address = address
        self.reasons: list[str] = []
        self._files = files
        self._place = f"{_FUNCTIONS}/{address}"

    def text(self, name: str) -> str:
        """Return an attribute, empty if there is none to be had."""
        if not self.address:
            return ""
        try:
            return self._files.text(f"{self._place}/{name}").strip()
        except errors.UnreadableError as error:
            if error.number not in _UNTOLD:
                self.reasons.append(
                    f"{name} of {self.address} can't be read: {error}"
                )
            return ""

    def shell_name(self) -> str:
        """Return the VBNV: vendor, board, name and version."""
        for entry in self._entries():
            if _ROM.fullmatch(entry):
                found = xclbin.shell_name(self.text(f"{entry}/VBNV"))
                if found:
                    return found
        return ""

    def interfaces(self) -> Iterator[str]:
        """Yield the interface uuids, the base's before the shell's."""
        for line in self.text("interface_uuids").split():
            found = names.fpga_id(line)
            if _UUID.fullmatch(found):
                yield found
            else:
                self.reasons.append(
                    f"interface_uuids of {self.address} has {line[:40]!r},"
                    " which is no uuid"
                )

    def _entries(self) -> tuple[str, ...]:
        if not self.address:
            return ()
        try:
            return self._files.names(self._place)
        except errors.UnreadableError as error:
            self.reasons.append(f"{self.address} can't be listed: {error}")
            return ()


def _interfaces(
    above: _XrtReader, below: _XrtReader, name: str
) -> tuple[str, ...]:
    """Return what an xclbin must be made for; shells of old go by name."""
    told = tuple(dict.fromkeys(above.interfaces()))
    told = told or tuple(dict.fromkeys(below.interfaces()))
    if told or any("interface_uuids" in r for r in above.reasons):
        return told
    return (names.fpga_id(name),) if name else ()


def _fault(above: _XrtReader, below: _XrtReader) -> str:
    for one in (above, below):
        if one.text("dev_offline") in _TRUE:
            return (
                f"{one.address} is offline (dev_offline): it is being reset,"
                " or did not come back from a reset; if that stays so,"
                " `xbmgmt reset` or switch the host off and on again"
            )
    if above.text("ready") == "0":
        return (
            "its management driver could not bring it up (ready 0); see the"
            " kernel's log for what xclmgmt says"
        )
    return ""


def _golden(above: _XrtReader, name: str) -> str:
    if _GOLDEN in name.lower() or above.text("mfg") in _TRUE:
        return FACTORY
    if above.text("recovery") in _TRUE:
        return f"it runs its recovery image, which takes no function; {_FLASH}"
    return ""


def _blocker(above: _XrtReader, below: _XrtReader) -> str:
    """Return why nothing can be loaded by drivers that are there."""
    if above.address and above.text("ready") != "1":
        return "its management driver does not say that it is ready"
    if below.address and below.text("ready") not in _TRUE:
        # Until then no message gets from xocl to xclmgmt.
        return (
            f"{below.address} is not ready: it does not reach the management"
            " function; load xclmgmt and xocl again, or see the kernel's log"
        )
    return ""
