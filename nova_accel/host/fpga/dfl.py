# SPDX-License-Identifier: Apache-2.0
"""Intel's FPGA cards in sysfs: static part and ports.

Two drivers show them, in different directories below the PCI function::

    fpga_region/region0/dfl-fme.0/dfl-fme-region.1/fpga_region/region1
    fpga_region/region0/dfl-port.0              (dfl-pci, in the kernel)
    fpga/intel-fpga-dev.0/intel-fpga-fme.0/pr
    fpga/intel-fpga-dev.0/intel-fpga-port.0     (intel-fpga-pci, older)

The FME manages the static part, on the PF. A port leads to a region's
function, on the PF or, after its release, on a VF. The numbers in these
names change with each boot; a port's ``id`` does not
(Documentation/fpga/dfl.rst, ABI/testing/sysfs-platform-dfl-fme and
sysfs-platform-dfl-port).
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
# Ids read from hardware that does not answer, and ids that are not set.
_DEAD, _BLANK = "f" * 32, "0" * 32
# Port number read from hardware that does not answer (PORT_CAP_PORT_NUM,
# drivers/fpga/dfl.h).
_DEAD_PORT = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _DriverNames:
    """Names of a driver's directories; group 1 is the number."""

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
    """A port and the function behind it.

    ``number`` is its id on the card, None if unknown. ``function`` is as
    in ``model.Region``, ``reason`` why it is None. ``is_shown`` is False
    if the kernel has no ``afu_id`` for the port: the function is then on a
    VF, or there is none.
    """

    number: int | None
    function: str | None = None
    reason: str = ""
    is_shown: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DflLayout:
    """FME and ports of a card, as a PCI function shows them.

    ``driver`` is the driver with these directories, empty without one.
    ``node`` is the name of the FME's device, None without FME.
    ``interfaces`` are the interface ids of the reconfigurable regions, in
    the order of ports, empty where unknown; None if the regions can't be
    listed. ``static`` is the id of the static part. ``reasons`` are the
    read errors.
    """

    driver: str = ""
    node: str | None = None
    static: str = ""
    interfaces: tuple[str, ...] | None = ()
    ports: tuple[DflPort, ...] = ()
    reasons: tuple[str, ...] = ()

    def port(self, number: int) -> DflPort | None:
        """Return the port with a number, None if it is not here.

        With the older driver the only port of a card may lack a number.
        """
        port = next((p for p in self.ports if p.number == number), None)
        is_only = self.interfaces is not None and len(self.interfaces) <= 1
        if port is None and len(self.ports) == 1 and is_only:
            return self.ports[0] if self.ports[0].number is None else None
        return port


def read(files: fs.Files, function: str) -> DflLayout:
    """Return the layout of a PCI function; read errors are in it."""
    return _DflReader(files, f"{_FUNCTIONS}/{function}").layout()


def read_loaded(
    files: fs.Files, card: str, number: int, slot: str
) -> str | None:
    """Return the id of a region's present function.

    The port is on the PF, or on the VF that is assigned to guests.

    :param card: address of the PF.
    :param number: the port's id.
    :param slot: address of the function that is assigned to guests.
    :returns: empty for no function, None if unknown.
    """
    port = read(files, card).port(number)
    if (port is None or not port.is_shown) and slot != card:
        port = read(files, slot).port(number)
    return port.function if port else None


def default_driver(files: fs.Files) -> str:
    """Return the driver of this host for such cards.

    It is the kernel's own, unless only the older one is loaded.
    """
    try:
        drivers = files.names(_DRIVERS)
    except errors.UnreadableError:
        return IN_KERNEL
    is_older = OLDER in drivers and IN_KERNEL not in drivers
    return OLDER if is_older else IN_KERNEL


class _DflReader:
    """Reader of one function's directories."""

    def __init__(self, files: fs.Files, place: str) -> None:
        self._files = files
        self._place = place
        self._reasons: list[str] = []

    def layout(self) -> DflLayout:
        entries = self._names(self._place)
        driver = next((d for d, n in _NAMES.items() if n.top in entries), "")
        if not driver:
            return DflLayout(reasons=tuple(self._reasons))
        forms = _NAMES[driver]
        top = f"{self._place}/{forms.top}"
        containers = [
            f"{top}/{name}"
            for name in _numbered(forms.container, self._names(top))
        ]
        fmes = [p for c in containers for p in self._below(c, forms.fme)]
        ports = [p for c in containers for p in self._below(c, forms.port)]
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

    def _text(self, path: str) -> str | None:
        """Return a file's text, None if it does not exist.

        Recorded files may have zero bytes after the end of the line.

        :raises UnreadableError: it exists and can't be read.
        """
        try:
            text = self._files.text(path)
        except errors.UnreadableError as error:
            if error.number == errno.ENOENT:
                return None
            raise
        return text.partition("\0")[0].strip()

    def _optional_text(self, path: str) -> str | None:
        """Return a file's text, None if missing; note a read error."""
        try:
            return self._text(path)
        except errors.UnreadableError as error:
            self._reasons.append(f"can't be read: {error}")
            return None

    def _static(self, fme: str) -> str:
        """Return the static part's id, a number in hexadecimal."""
        text = (self._optional_text(f"{fme}/bitstream_id") or "").lower()
        match = re.fullmatch(r"0x([0-9a-f]{1,16})", text)
        return match[1] if match and match[1].strip("f") else ""

    def _interfaces(self, fme: str, driver: str) -> tuple[str, ...] | None:
        before = len(self._reasons)
        entries = self._names(fme)
        if len(self._reasons) > before:
            return None
        if driver == OLDER:
            if "pr" not in entries:
                return ()
            interface = self._interface(f"{fme}/pr/interface_id")
            return (interface,) * self._port_count(fme)
        return tuple(
            self._region_interface(f"{fme}/{name}/fpga_region")
            for name in _numbered(_PART, entries)
        )

    def _port_count(self, fme: str) -> int:
        """Return the number of ports of a card, 1 if unknown."""
        text = self._optional_text(f"{fme}/ports_num") or ""
        return max(int(text), 1) if re.fullmatch(r"[0-9]", text) else 1

    def _region_interface(self, place: str) -> str:
        interfaces = (
            self._interface(f"{inner}/compat_id")
            for inner in self._below(place, _INNER)
        )
        return next(filter(None, interfaces), "")

    def _interface(self, path: str) -> str:
        text = self._optional_text(path)
        if not text:
            return ""
        interface = names.normalize_fpga_id(text)
        if _UUID.fullmatch(interface) and interface not in (_DEAD, _BLANK):
            return interface
        self._reasons.append(f"{path} is no interface id: {text[:40]!r}")
        return ""

    def _port(self, place: str) -> DflPort:
        port_id = self._optional_text(f"{place}/id") or ""
        number = int(port_id) if _NUMBER.fullmatch(port_id) else None
        path = f"{place}/afu_id"
        try:
            afu_id = self._text(path)
        except errors.UnreadableError as error:
            return DflPort(number=number, reason=f"can't be read: {error}")
        if afu_id is None:
            return DflPort(
                number=number, reason="is not shown", is_shown=False
            )
        function = names.normalize_fpga_id(afu_id)
        if function in ("", _BLANK):
            return DflPort(number=number, function="")
        if _UUID.fullmatch(function) and function != _DEAD:
            return DflPort(number=number, function=function)
        is_dead = function == _DEAD and number == _DEAD_PORT
        return DflPort(
            number=None if is_dead else number,
            reason=f"is no id: {path}: {afu_id[:40]!r}",
        )


def _numbered(
    form: re.Pattern[str], entries: tuple[str, ...]
) -> Iterator[str]:
    """Yield the names of a form in the order of their numbers."""
    matches = [m for m in map(form.fullmatch, entries) if m]
    for match in sorted(matches, key=lambda m: int(m[1])):
        yield match[0]
