# SPDX-License-Identifier: Apache-2.0
"""A mirrored guest moves to another libvirt and back, on Debian 13."""

import contextlib
import pathlib
from collections.abc import Iterator

import libvirt
import pytest

from tests.functional.guests.booted import test_mirrored_guests as mirrored
from tests.lab.guests import boot_files, live_guest, private_libvirtd
from virt_hooks.guest import guest_pci
from virt_hooks.guest.topology import (
    guest_buses,
    picture,
    port_windows,
)

WINDOWS = port_windows.Windows(memory=4 << 20, prefetchable=128 << 20)
Hosts = tuple[libvirt.virConnect, libvirt.virConnect]


@pytest.fixture
def hosts(trixie: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Hosts]:
    """Return the connections of two hosts."""
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(
                private_libvirtd.serve(trixie, tmp_path / name, name)
            )
            for name in ("host1", "host2")
        )
        yield first, second


def build_interface(place: guest_pci.GuestPciAddress) -> str:
    """Return a device that can migrate; shared memory can't."""
    multi = ' multifunction="on"' if place.is_first else ""
    return (
        '<interface type="user"><model type="e1000e"/><rom enabled="no"/>'
        f'<address type="pci" bus="{place.bus}" slot="{place.slot}"'
        f' function="{place.function}"{multi}/></interface>'
    )


def list_places(report: live_guest.Report) -> dict[str, tuple[object, ...]]:
    """Return the bridges and the node of each function."""
    return {
        function.address: (
            function.bridges,
            function.class_code,
            function.node,
        )
        for function in report.functions.values()
    }


def migrate(
    domain: libvirt.virDomain, host: libvirt.virConnect, socket: pathlib.Path
) -> libvirt.virDomain:
    """Migrate a guest while it runs; return it on the other host."""
    return domain.migrate3(
        host,
        {libvirt.VIR_MIGRATE_PARAM_URI: f"unix://{socket}"},
        libvirt.VIR_MIGRATE_LIVE,
    )


def attach(
    guest: live_guest.LiveGuest, bus: int, number: int
) -> live_guest.Report:
    """Attach a device to a spare port; return the guest's next report."""
    place = mirrored.build_place(bus)
    guest.domain.attachDevice(build_interface(place))
    report = guest.await_report(number)
    assert mirrored.spell(place) in report.functions
    return report


def start(
    host: libvirt.virConnect,
    files: boot_files.BootFiles,
    console: pathlib.Path,
    drawn: picture.Picture,
) -> live_guest.LiveGuest:
    devices = [
        *live_guest.build_controllers(drawn, mirrored.ROOT_PORTS),
        *map(build_interface, drawn.places.values()),
    ]
    text = live_guest.build_domain(files, console, devices, "watch").replace(
        f'path="{console}"', f'path="{console}" append="on"'
    )
    text = port_windows.reserve(
        text, dict.fromkeys(drawn.spare_ports, WINDOWS)
    )
    return live_guest.LiveGuest(host.createXML(text), console)


def test_there_and_back(
    hosts: Hosts, files: boot_files.BootFiles, tmp_path: pathlib.Path
) -> None:
    """The tree stays; devices are attached on both hosts after a move."""
    first, second = hosts
    drawn = mirrored.mirror(mirrored.HOST)
    guest = start(first, files, tmp_path / "console", drawn)
    before = list_places(guest.await_report())
    guest.domain = migrate(guest.domain, second, tmp_path / "there")
    assert not first.listAllDomains()
    text = guest.domain.XMLDesc(0)
    guest_buses.check(text)
    reserved = dict.fromkeys(drawn.spare_ports, WINDOWS)
    assert port_windows.parse(text) == reserved
    there = list_places(attach(guest, drawn.spare_ports[0], 2))
    assert before.items() < there.items()
    guest.domain = migrate(guest.domain, first, tmp_path / "back")
    assert not second.listAllDomains()
    back = list_places(attach(guest, drawn.spare_ports[1], 3))
    assert there.items() < back.items()
    nodes = [back[f"0000:{bus:02x}:00.0"][2] for bus in drawn.spare_ports]
    assert nodes == [0, 1]
    assert port_windows.parse(guest.domain.XMLDesc(0)) == reserved
