# SPDX-License-Identifier: Apache-2.0
"""AMD's Alveo cards in the sysfs files of XRT's drivers.

``xclmgmt`` is the driver of a card's first function, the management
function; ``xocl`` that of the second, the user function, which may be
assigned to a guest. Attributes and their forms are those of XRT's
``mgmt-sysfs.c`` and ``xocl_sysfs.c``.
"""

import contextlib
import dataclasses
import errno
import re
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.catalog.fpga import xclbin
from nova_accel.host.sysfs import fs
from nova_accel.model import names

MANAGEMENT_DRIVER = "xclmgmt"
USER_DRIVER = "xocl"
# xrt-smi loads through xocl, which then shows the uuid of the function.
# xbmgmt bypasses xocl: its load can't be read back.
TOOL = "xrt-smi"

_FUNCTIONS = "/sys/bus/pci/devices"
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
# Errors of attributes that a card does not have: xclmgmt returns EINVAL for
# the interfaces of shells without metadata, which are known by name.
_UNSUPPORTED = (*_ABSENT, errno.EINVAL)
_ROM = re.compile(r"rom\.[mu]\.\d+")
_UUID = re.compile(r"[0-9a-f]{32}")
_NOTHING = "0" * 32
_TRUE = ("1", "0x1")
# Name of factory images; their shells take no xclbin.
_GOLDEN = "golden"
_FLASH = (
    "flash a platform with `xbmgmt program --base` and switch the host off"
    " and on again"
)
FACTORY = f"it runs its factory image, which takes no function; {_FLASH}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class XrtShell:
    """The static part of a card, as its functions show it.

    ``name`` is its VBNV and ``board`` the board's name, empty if unknown;
    ``interfaces`` are spelled as ``names.normalize_fpga_id`` returns them.
    ``fault`` is why the card does not work, ``golden`` why its shell takes
    no function at all, ``blocker`` why none can be loaded now; each is
    empty otherwise. ``unread`` are the read errors.
    """

    name: str = ""
    board: str = ""
    interfaces: tuple[str, ...] = ()
    fault: str = ""
    golden: str = ""
    blocker: str = ""
    unread: tuple[str, ...] = ()


def read_loaded(
    files: fs.Files, card: str, number: int, slot: str
) -> str | None:
    """Return the present function of a card.

    :param card: the management function; it does not show the function.
    :param number: 0, the only region of a card.
    :param slot: PCI address of the user function.
    :returns: empty for no function, None if unknown, such as while the
        user function is not bound to xocl.
    """
    with contextlib.suppress(errors.AcceleratorError):
        return read_function(files, slot)
    return None


def read_function(files: fs.Files, slot: str) -> str:
    """Return the loaded function of a user function, empty for none.

    ``xclbinuuid`` has a line for each slot of the shell; the first slot
    with a function counts.

    :raises UnreadableError: with the errno of the failed read.
    :raises MalformedError: a line is no uuid.
    """
    text = files.text(f"{_FUNCTIONS}/{slot}/xclbinuuid")
    for line in text.split():
        function = names.normalize_fpga_id(line)
        if not _UUID.fullmatch(function):
            raise errors.MalformedError("xclbinuuid", line[:40], "a uuid")
        if function != _NOTHING:
            return function
    return ""


def read_shell(files: fs.Files, card: str, slot: str) -> XrtShell:
    """Return the shell of a card; never raises.

    :param card: the management function, empty if not bound to xclmgmt.
    :param slot: the user function, empty if not bound to xocl.
    """
    management = _XrtReader(files, card)
    user = _XrtReader(files, slot)
    name = management.shell_name() or user.shell_name()
    golden = _golden(management, name)
    return XrtShell(
        name=name,
        board=management.text("board_name") or user.text("board_name"),
        interfaces=() if golden else _interfaces(management, user, name),
        fault=_fault(management, user),
        golden=golden,
        blocker=_blocker(management, user),
        unread=tuple(dict.fromkeys((*management.reasons, *user.reasons))),
    )


class _XrtReader:
    """Attributes of one function; all are empty without an address."""

    def __init__(self, files: fs.Files, address: str) -> None:
        self.address = address
        self.reasons: list[str] = []
        self._files = files
        self._place = f"{_FUNCTIONS}/{address}"

    def text(self, name: str) -> str:
        """Return an attribute, empty if it is missing or unreadable."""
        if not self.address:
            return ""
        try:
            return self._files.text(f"{self._place}/{name}").strip()
        except errors.UnreadableError as error:
            if error.number not in _UNSUPPORTED:
                self.reasons.append(
                    f"{name} of {self.address} can't be read: {error}"
                )
            return ""

    def shell_name(self) -> str:
        """Return the VBNV: vendor, board, name and version."""
        for entry in self._entries():
            if _ROM.fullmatch(entry):
                name = xclbin.shell_name(self.text(f"{entry}/VBNV"))
                if name:
                    return name
        return ""

    def interfaces(self) -> Iterator[str]:
        """Yield the interface uuids, the base's before the shell's."""
        for line in self.text("interface_uuids").split():
            interface = names.normalize_fpga_id(line)
            if _UUID.fullmatch(interface):
                yield interface
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
    management: _XrtReader, user: _XrtReader, name: str
) -> tuple[str, ...]:
    """Return the interfaces of xclbins; for old shells the shell's name."""
    interfaces = tuple(dict.fromkeys(management.interfaces()))
    interfaces = interfaces or tuple(dict.fromkeys(user.interfaces()))
    if interfaces or any("interface_uuids" in r for r in management.reasons):
        return interfaces
    return (names.normalize_fpga_id(name),) if name else ()


def _fault(management: _XrtReader, user: _XrtReader) -> str:
    for function in (management, user):
        if function.text("dev_offline") in _TRUE:
            return (
                f"{function.address} is offline (dev_offline): it is being"
                " reset, or did not come back from a reset; if that stays"
                " so, `xbmgmt reset` or switch the host off and on again"
            )
    if management.text("ready") == "0":
        return (
            "its management driver failed to start it (ready 0); see the"
            " kernel's log for messages of xclmgmt"
        )
    return ""


def _golden(management: _XrtReader, name: str) -> str:
    if _GOLDEN in name.lower() or management.text("mfg") in _TRUE:
        return FACTORY
    if management.text("recovery") in _TRUE:
        return f"it runs its recovery image, which takes no function; {_FLASH}"
    return ""


def _blocker(management: _XrtReader, user: _XrtReader) -> str:
    """Return why the bound drivers can't load a function, or empty."""
    if management.address and management.text("ready") != "1":
        return "its management driver does not say that it is ready"
    if user.address and user.text("ready") not in _TRUE:
        # xocl can't send messages to xclmgmt until then.
        return (
            f"{user.address} is not ready: it does not reach the management"
            " function; load xclmgmt and xocl again, or see the kernel's log"
        )
    return ""
