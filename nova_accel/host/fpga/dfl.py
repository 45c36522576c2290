# SPDX-License-Identifier: Apache-2.0
"""Intel's FPGA cards in sysfs: static part and ports.

Two drivers have shown them, each in directories of its own below the PCI
function::

    fpga_region/region0/dfl-fme.0/dfl-fme-region.1/fpga_region/region1
    fpga_region/region0/dfl-port.0              (dfl-pci, in the kernel)
    fpga/intel-fpga-dev.0/intel-fpga-fme.0/pr
    fpga/intel-fpga-dev.0/intel-fpga-port.0     (intel-fpga-pci, older)

The FME is the static part's management, on the PF; behind a port is a
region's function, on the PF or, once released to it, on a VF. The numbers
in these names are the host's own and change with each boot; a port's
``id`` does not (Documentation/fpga/dfl.rst,
ABI/testing/sysfs-platform-dfl-fme and sysfs-platform-dfl-port).
"""

import dataclasses
import errno
import re
from collections.abc import Iterator

from nova_accel import errors
from nova_accel.host.sysfs import fs
from nova_accel.model import names

_FUNCTIONS = "/sys/bus/pci/devices"
_DRIVERS = "/sys/bus/pci/drivers"
_UUID = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"[0-9]{1,4}")
# What hardware that answers nothing reads as, and what nobody has set.
_DEAD, _BLANK = "f" * 32, "0" * 32
# The same of a port's number (PORT_CAP_PORT_NUM, drivers/fpga/dfl.h).
_DEAD_PORT = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _DriverNames:
    """What one driver calls things; numbers stand in the first group."""

    top: str
    container: re.Pattern[str]
    fme: re.Pattern[str]
    port: re.Pattern[str]


IN_KERNEL, OLDER = "dfl-pci", "intel-fpga-pci"
_NAMES = {
    IN_KERNEL: _DriverNames(
        top="fpga_region",
        container=re.compile(r"region(\d+)"),
        fme=re.compile(r"dfl-fme\.(\d+)"),
        port=re.compile(r"dfl-port\.(\d+)"),
    ),
    OLDER: _DriverNames(
        top="fpga",
        container=re.compile(r"intel-fpga-dev\.(\d+)"),
        fme=re.compile(r"intel-fpga-fme\.(\d+)"),
        port=re.compile(r"intel-fpga-port\.(\d+)"),
    ),
}
# Made for each port by the FME (drivers/fpga/dfl-fme-pr.c).
_PART = re.compile(r"dfl-fme-region\.(\d+)(?:\.auto)?")
_INNER = re.compile(r"region(\d+)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DflPort:
    """A port, and what is behind it.

    ``number`` is its id on the card, None where that can't be told.
    ``function`` is as in ``model.Region``, ``reason`` why it is None.
    ``is_shown`` is False where the kernel has no ``afu_id`` for it: then
    the function is not behind this port, but behind VFs, or nowhere.
    """

    number: int | None
    function: str | None = None
    reason: str = ""
    is_shown: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DflLayout:
    """What a PCI function shows of a card.

    ``driver`` is the one whose directories these are, empty without any.
    ``node`` is the name of the FME, None on a function without one.
    ``interfaces`` has for each part that can be reconfigured, in the order
    of ports, what it takes: empty where that is not told; None stands for
    an FME whose parts can't be listed. ``static`` is the static part's
    own id. ``reasons`` tell what can't be read.
    """

    driver: str = ""
    node: str | None = None
    static: str = ""
    interfaces: tuple[str, ...] | None = ()
    ports: tuple[DflPort, ...] = ()
    reasons: tuple[str, ...] = ()

    def port(self, number: int) -> DflPort | None:
        """Return the port of that number, if it is behind this function.

        The older driver may give no number to the only port there is.
        """
        found = next((p for p in self.ports if p.number == number), None)
        is_only = self.interfaces is not None and len(self.interfaces) <= 1
        if found is None and len(self.ports) == 1 and is_only:
            return self.ports[0] if self.ports[0].number is None else None
        return found


def read(files: fs.Files, function: str) -> DflLayout:
    """Return what a PCI function shows; what can't be read is told."""
    return _DflReader(files, f"{_FUNCTIONS}/{function}").layout()


def loaded(files: fs.Files, card: str, number: int, slot: str) -> str | None:
    """Return the id of the function that a region holds now.

    It is read where the port is: on the PF, or behind the VF that goes to
    guests.

    :param card: address of the PF, ``slot`` that of the guest's function.
    :returns: empty for nothing, None where it can't be told.
    """
    port = read(files, card).port(number)
    if (port is None or not port.is_shown) and slot != card:
        port = read(files, slot).port(number)
    return port.function if port else None


def node(files: fs.Files, card: str) -> str | None:
    """Return the name of the FME's character device, None without FME."""
    return read(files, card).node


def usual_driver(files: fs.Files) -> str:
    """Return the driver that this host has for such cards.

    The kernel's own, unless only the older one is loaded.
    """
    try:
        drivers = files.names(_DRIVERS)
    except errors.UnreadableError:
        return IN_KERNEL
    is_older = OLDER in drivers and IN_KERNEL not in drivers
    return OLDER if is_older else IN_KERNEL


class _DflReader:
    """Reads one function's directories."""

    def __init__(self, files: fs.Files, place: str) -> None:
        self._files = files
        self._place = place
        self._reasons: list[str] = []

    def layout(self) -> DflLayout:
        """Return what is there."""
        shown = self._names(self._place)
        driver = next((d for d, n in _NAMES.items() if n.top in shown), "")
        if not driver:
            return DflLayout(reasons=tuple(self._reasons))
        words = _NAMES[driver]
        top = f"{self._place}/{words.top}"
        inside = [
            f"{top}/{name}"
            for name in _numbered(words.container, self._names(top))
        ]
        fmes = [p for c in inside for p in self._below(c, words.fme)]
        ports = [p for c in inside for p in self._below(c, words.port)]
        fme = fmes[0] if fmes else None
        return DflLayout(
            driver=driver,
            node=fme.rpartition("/")[2] if fme else None,
            static=self._static(fme) if fme else "",
            interfaces=self._interfaces(fme, driver) if fme else (),
            ports=tuple(self._port(place) for place in ports),
            reasons=tuple(self._reasons),
        )

    def _below(self, place: str, form: re.Pattern[str]) -> Iterator[str]:
        for name in _numbered(form, self._names(place)):
            yield f"{place}/{name}"

    def _names(self, place: str) -> tuple[str, ...]:
        try:
            return self._files.names(place)
        except errors.UnreadableError as error:
            self._reasons.append(f"can't be listed: {error}")
            return ()

    def _word(self, path: str) -> str | None:
        """Return what a file says, None where there is no such file.

        Recorded files may go on with zeros behind the end of the line.

        :raises UnreadableError: it is there, and can't be read.
        """
        try:
            text = self._files.text(path)
        except errors.UnreadableError as error:
            if error.number == errno.ENOENT:
                return None
            raise
        return text.partition("\0")[0].strip()

    def _told(self, path: str) -> str | None:
        """Return what a file says; if it can't be read, that is told."""
        try:
            return self._word(path)
        except errors.UnreadableError as error:
            self._reasons.append(f"can't be read: {error}")
            return None

    def _static(self, fme: str) -> str:
        """Return the static part's id, a number in hexadecimal."""
        word = (self._told(f"{fme}/bitstream_id") or "").lower()
        found = re.fullmatch(r"0x([0-9a-f]{1,16})", word)
        return found[1] if found and found[1].strip("f") else ""

    def _interfaces(self, fme: str, driver: str) -> tuple[str, ...] | None:
        before = len(self._reasons)
        shown = self._names(fme)
        if len(self._reasons) > before:
            return None
        if driver == OLDER:
            if "pr" not in shown:
                return ()
            interface = self._interface(f"{fme}/pr/interface_id")
            return (interface,) * self._count(fme)
        return tuple(
            self._of_part(f"{fme}/{name}/fpga_region")
            for name in _numbered(_PART, shown)
        )

    def _count(self, fme: str) -> int:
        """Return how many ports a card has, or one where it can't tell."""
        word = self._told(f"{fme}/ports_num") or ""
        return max(int(word), 1) if re.fullmatch(r"[0-9]", word) else 1

    def _of_part(self, place: str) -> str:
        found = (
            self._interface(f"{inner}/compat_id")
            for inner in self._below(place, _INNER)
        )
        return next((one for one in found if one), "")

    def _interface(self, path: str) -> str:
        word = self._told(path)
        if not word:
            return ""
        interface = names.fpga_id(word)
        if _UUID.fullmatch(interface) and interface not in (_DEAD, _BLANK):
            return interface
        self._reasons.append(f"{path} is no interface id: {word[:40]!r}")
        return ""

    def _port(self, place: str) -> DflPort:
        word = self._told(f"{place}/id") or ""
        number = int(word) if _NUMBER.fullmatch(word) else None
        path = f"{place}/afu_id"
        try:
            word_or_none = self._word(path)
        except errors.UnreadableError as error:
            return DflPort(number=number, reason=f"can't be read: {error}")
        if word_or_none is None:
            return DflPort(
                number=number, reason="is not shown", is_shown=False
            )
        function = names.fpga_id(word_or_none)
        if function in ("", _BLANK):
            return DflPort(number=number, function="")
        if _UUID.fullmatch(function) and function != _DEAD:
            return DflPort(number=number, function=function)
        is_dead = function == _DEAD and number == _DEAD_PORT
        return DflPort(
            number=None if is_dead else number,
            reason=f"is no id: {path}: {word_or_none[:40]!r}",
        )


def _numbered(form: re.Pattern[str], found: tuple[str, ...]) -> Iterator[str]:
    """Yield the names of a form in the order of their numbers."""
    matches = [m for m in map(form.fullmatch, found) if m]
    for match in sorted(matches, key=lambda m: int(m[1])):
        yield match[0]
