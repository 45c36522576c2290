# SPDX-License-Identifier: Apache-2.0
"""Domain of a small guest, and what the guest prints of itself.

Devices are emulated: each function is shared memory (ivshmem) of a chosen
size. BARs, buses and NUMA nodes are real, VFIO is not.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import libvirt

from tests.lab.guests import boot_files
from virt_hooks.guest import guest_pci
from virt_hooks.guest.topology import picture

#: NUMA nodes of the guest, by those of the host.
CELLS = {0: 0, 1: 1}
# An emulated processor is slow, and shares this computer with other tests.
_TIMEOUT_S = 180
_WORDS = (
    "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off no_timer_check"
    " random.trust_cpu=on cryptomgr.notests tsc=reliable"
)
_REPORT = re.compile(r"^BEGIN ([\d.]+)$(.*?)^END$", re.MULTILINE | re.DOTALL)
_DISTANCES = re.compile(r"^N (\d+) ([\d ]+)$", re.MULTILINE)
_NAMES = itertools.count()

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class GuestFunction:
    """A PCI function, as the guest's sysfs has it.

    ``bridges`` are its root complex and the bridges above it. ``bars`` has
    the size of each BAR with an address, in bytes; ``unassigned`` are the
    numbers of the others. ``memory`` and ``prefetchable`` are the sizes of a
    bridge's windows.
    """

    address: str
    bridges: tuple[str, ...]
    class_code: str
    node: int
    link: tuple[str, str]
    bars: dict[int, int]
    unassigned: tuple[int, ...]
    memory: int
    prefetchable: int

    @property
    def is_bridge(self) -> bool:
        return self.class_code.startswith("0x0604")


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """All functions of a guest by address, and its uptime in seconds.

    ``distances`` has those of each NUMA node to all.
    """

    uptime: float
    functions: dict[str, GuestFunction]
    distances: dict[int, list[int]]


def parse_reports(text: str) -> list[Report]:
    """Return the complete reports of a guest's console."""
    return [
        Report(
            float(uptime),
            {
                function.address: function
                for function in map(_parse, body.split("\n"))
                if function is not None
            },
            {
                int(node): list(map(int, row.split()))
                for node, row in _DISTANCES.findall(body)
            },
        )
        for uptime, body in _REPORT.findall(text.replace("\r", ""))
    ]


def _parse(line: str) -> GuestFunction | None:
    if not line.startswith("F "):
        return None
    path, class_code, node, speed, width, *bars = line.split(" ")[1:]
    *bridges, address = path.split("/")
    sizes, unassigned = {}, []
    windows = {"m": 0, "p": 0, "i": 0}
    for bar in bars:
        name, *ends = bar.split(":")
        start, end = (int(text, 0) for text in ends)
        if name in windows:
            windows[name] = end - start + 1 if start else 0
        elif start:
            sizes[int(name)] = end - start + 1
        else:
            unassigned.append(int(name))
    return GuestFunction(
        address,
        tuple(bridges),
        class_code,
        int(node),
        (speed, width),
        sizes,
        tuple(unassigned),
        windows["m"],
        windows["p"],
    )


def build_memory(
    size_mib: int, place: guest_pci.GuestPciAddress | None = None
) -> str:
    """Return a device with a BAR 2 of a size.

    :param place: None to let libvirt choose.
    """
    name = f"nova-accel-guest-{os.getpid()}-{next(_NAMES)}"
    address = ""
    if place is not None:
        multi = ' multifunction="on"' if place.is_first else ""
        address = (
            f'<address type="pci" bus="{place.bus}" slot="{place.slot}"'
            f' function="{place.function}"{multi}/>'
        )
    return (
        f'<shmem name="{name}"><model type="ivshmem-plain"/>'
        f'<size unit="M">{size_mib}</size>{address}</shmem>'
    )


def build_controllers(drawn: picture.Picture, root_ports: int) -> list[str]:
    """Return the controllers of a mirror, with root ports of bus 0."""
    return [
        '<controller type="pci" index="0" model="pcie-root"/>',
        *(
            f'<controller type="pci" index="{n + 1}" model="pcie-root-port"/>'
            for n in range(root_ports)
        ),
        *drawn.to_xml(),
    ]


class LiveGuest:
    """A guest of this process's libvirt.

    ``xml`` is that of its start: libvirt forgets a guest that has printed its
    last report and powered itself off.
    """

    def __init__(
        self, domain: libvirt.virDomain, console: pathlib.Path
    ) -> None:
        self.domain, self._console = domain, console
        self.xml: str = domain.XMLDesc(0)

    def read_console(self) -> str:
        try:
            return self._console.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def await_report(self, number: int = 1) -> Report:
        """Return a report of the guest, by number from 1."""

        def find() -> Report | None:
            reports = parse_reports(self.read_console())
            return reports[number - 1] if len(reports) >= number else None

        return self._await(find, f"report {number}")

    def await_line(self, start: str) -> str:
        """Return the first line with this beginning."""

        def find() -> str | None:
            lines = self.read_console().replace("\r", "").split("\n")[:-1]
            return next((x for x in lines if x.startswith(start)), None)

        return self._await(find, start)

    def _await(self, find: Callable[[], T | None], noun: str) -> T:
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            result = find()
            if result is not None:
                return result
            time.sleep(0.2)
        raise TimeoutError(f"no {noun} on the console:\n{self.read_console()}")


def build_domain(
    files: boot_files.BootFiles,
    console: pathlib.Path,
    devices: Iterable[str],
    words: str = "",
) -> str:
    """Return the XML of a guest with two NUMA nodes.

    :param words: added to the kernel's command line.
    """
    cells = "".join(
        f'<cell id="{n}" cpus="{n}" memory="160" unit="MiB"/>' for n in (0, 1)
    )
    return f"""
<domain type="qemu"><name>guest</name>
<memory unit="MiB">320</memory><vcpu>2</vcpu>
<os><type arch="x86_64" machine="q35">hvm</type><kernel>{files.kernel}</kernel>
<initrd>{files.initrd}</initrd><cmdline>{_WORDS} {words}</cmdline></os>
<features><acpi/><apic/></features>
<cpu mode="maximum"><numa>{cells}</numa></cpu>
<on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
{"".join(devices)}
<controller type="usb" model="none"/><memballoon model="none"/>
<serial type="file"><source path="{console}"/></serial>
</devices></domain>"""


def boot_with_uefi(
    text: str, firmware: pathlib.Path, place: pathlib.Path
) -> str:
    """Return a domain that boots with OVMF.

    :param firmware: directory of OVMF.
    :param place: a directory for the variables of the guest.
    """
    variables = place / "variables"
    shutil.copy(firmware / "OVMF_VARS_4M.fd", variables)
    return text.replace(
        "</type>",
        '</type><loader readonly="yes" type="pflash">'
        f"{firmware / 'OVMF_CODE_4M.fd'}</loader><nvram>{variables}</nvram>",
        1,
    )


@contextlib.contextmanager
def boot(
    connection: libvirt.virConnect,
    files: boot_files.BootFiles,
    place: pathlib.Path,
    devices: Iterable[str],
    words: str = "",
) -> Iterator[LiveGuest]:
    """Start a guest, and destroy it at the end.

    :param place: an empty directory.
    """
    console = place / "console"
    text = build_domain(files, console, devices, words)
    with start(connection, text, console) as guest:
        yield guest


@contextlib.contextmanager
def start(
    connection: libvirt.virConnect, text: str, console: pathlib.Path
) -> Iterator[LiveGuest]:
    """Start a guest from its XML, and destroy it at the end."""
    console.unlink(missing_ok=True)
    domain = connection.createXML(text)
    try:
        yield LiveGuest(domain, console)
    finally:
        with contextlib.suppress(libvirt.libvirtError):
            domain.destroy()
        pattern = f"nova-accel-guest-{os.getpid()}-*"
        for memory in pathlib.Path("/dev/shm").glob(pattern):  # noqa: S108
            memory.unlink()
