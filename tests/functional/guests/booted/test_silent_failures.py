# SPDX-License-Identifier: Apache-2.0
"""Topologies that start without an error, and lose devices in the guest.

Each is recognized in the XML that libvirt has defined, before the start.
"""

import pathlib
from collections.abc import Iterable
from xml.etree import ElementTree

import libvirt
import pytest

from tests.functional.guests.booted import test_mirrored_guests as mirrored
from tests.lab.guests import boot_files, live_guest
from virt_hooks.guest.topology import guest_buses, picture

NIC = (
    '<interface type="user"><model type="virtio"/><rom enabled="no"/>'
    "</interface>"
)


def list_slots(text: str) -> set[tuple[int, int]]:
    """Return libvirt's bus and slot of each shared memory of a domain."""
    return {
        (int(address.get("bus", ""), 0), int(address.get("slot", ""), 0))
        for address in ElementTree.fromstring(text).iterfind(
            "./devices/shmem/address"
        )
    }


def predict(text: str) -> set[str]:
    """Return the slots at which a guest will see its shared memories."""
    buses = guest_buses.predict(text)
    return {
        f"0000:{buses[bus]:02x}:{slot:02x}" for bus, slot in list_slots(text)
    }


def list_memories(report: live_guest.Report) -> set[str]:
    return {
        function.address.rpartition(".")[0]
        for function in report.functions.values()
        if function.class_code == "0x050000"
    }


def move_expander(devices: Iterable[str], index: int, bus: int) -> list[str]:
    """Return the devices with another busNr of one expander."""
    return [
        element.replace(f'busNr="{index}"', f'busNr="{bus}"')
        for element in devices
    ]


def test_overlapping_buses(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    drawn = mirrored.mirror(mirrored.HOST)
    first, second = sorted(drawn.expanders.values())
    devices = move_expander(mirrored.build_devices(drawn), second, first + 3)
    with live_guest.boot(qemu, files, tmp_path, devices) as guest:
        present = list_memories(guest.await_report())
        assert len(present) < len(list_slots(guest.xml))
        with pytest.raises(picture.PictureError, match="is in use"):
            guest_buses.predict(guest.xml)


def test_buses_with_other_numbers_than_their_controllers(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    """libvirt's bus is the index of a controller: not what a guest sees."""
    drawn = mirrored.mirror(mirrored.HOST)
    _, second = sorted(drawn.expanders.values())
    devices = move_expander(mirrored.build_devices(drawn), second, 0xA0)
    with live_guest.boot(qemu, files, tmp_path, devices) as guest:
        report = guest.await_report()
        assert list_memories(report) == predict(guest.xml)
        assert "0000:a1:00" in list_memories(report)
        with pytest.raises(picture.PictureError, match="addresses of its"):
            guest_buses.check(guest.xml)


def test_a_bus_that_libvirt_chooses(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    """It leaves one bus for an expander, whatever is below it."""
    drawn = mirrored.mirror(mirrored.HOST)
    _, second = sorted(drawn.expanders.values())
    devices = [
        element.replace(f' busNr="{second}"', "")
        for element in mirrored.build_devices(drawn)
    ]
    with live_guest.boot(qemu, files, tmp_path, devices) as guest:
        present = list_memories(guest.await_report())
    assert len(present) < len(list_slots(guest.xml))
    with pytest.raises(picture.PictureError, match="is in use"):
        guest_buses.check(guest.xml)
    guest_buses.check(guest_buses.renumber(guest.xml))


def test_a_port_that_libvirt_adds(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    """One interface more than root ports; renumbered, all devices exist."""
    drawn = mirrored.mirror(mirrored.HOST)
    spare = len(drawn.spare_ports)
    nics = [NIC] * (mirrored.ROOT_PORTS + spare + 1)
    devices = [*mirrored.build_devices(drawn), *nics]
    with live_guest.boot(qemu, files, tmp_path, devices) as guest:
        text = guest.xml
        present = list_memories(guest.await_report())
        assert len(present) < len(list_slots(text))
        with pytest.raises(picture.PictureError, match="is in use"):
            guest_buses.predict(text)
    renumbered = guest_buses.renumber(text)
    guest_buses.check(renumbered)
    console = tmp_path / "console"
    with live_guest.start(qemu, renumbered, console) as guest:
        report = guest.await_report()
    assert list_memories(report) == predict(renumbered)
    assert len(list_memories(report)) == len(list_slots(text))


def test_a_gap_of_indexes(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    """libvirt fills it with root ports, whose buses are an expander's."""
    drawn = mirrored.mirror(mirrored.HOST)
    gap = f'index="{mirrored.ROOT_PORTS}"'
    devices = [
        element
        for element in mirrored.build_devices(drawn)
        if gap not in element
    ]
    devices.append(
        '<controller type="pci" index="30" model="pcie-root-port"/>'
    )
    with live_guest.boot(qemu, files, tmp_path, devices) as guest:
        present = list_memories(guest.await_report())
    assert len(present) < len(list_slots(guest.xml))
    with pytest.raises(picture.PictureError, match="is in use"):
        guest_buses.check(guest.xml)
    guest_buses.check(guest_buses.renumber(guest.xml))


def test_ports_of_a_switch_have_a_slow_link(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    """NCCL would believe it without its topology file."""
    devices = mirrored.build_devices(mirrored.mirror(mirrored.HOST))
    with live_guest.boot(qemu, files, tmp_path, devices) as guest:
        functions = guest.await_report().functions.values()
    links = {function.link for function in functions if function.is_bridge}
    assert ("2.5", "1") in links
