# SPDX-License-Identifier: Apache-2.0
"""An attached device gets its BARs where the port has windows for them.

libvirt and QEMU report success in each case.
"""

import json
import pathlib

import libvirt
import libvirt_qemu

from nova_accel.geometry import address_space
from tests.functional.guests.booted import test_mirrored_guests as mirrored
from tests.lab.guests import boot_files, live_guest
from virt_hooks.guest.topology import picture, port_windows

MIB = 1 << 20
BIOS = address_space.SEABIOS
# With 40, SeaBIOS 1.16.3 has the windows where QEMU reserves memory for AMD.
ADDRESS_BITS = '<maxphysaddr mode="emulate" bits="42"/>'
# Resource files of 1 GiB, prefetchable, and of 4 MiB, as the guest shows them.
MEMORY = "0x40000000 0x7fffffff 0x14220c"
FUNCTIONS = "0x400000 0x7fffff 0x40200"
WINDOWS = port_windows.Windows(
    memory=port_windows.parse_resource(FUNCTIONS, BIOS).memory,
    prefetchable=port_windows.parse_resource(MEMORY, BIOS).prefetchable,
)


def attach_functions(
    guest: live_guest.LiveGuest, bus: int, count: int
) -> None:
    """Attach a device with functions that have a BAR 0 of 1 MiB each.

    They are not prefetchable. libvirt has no element for them.
    """
    for number in (*range(1, count), 0):
        words = {
            "driver": "edu",
            "id": f"edu{bus}-{number}",
            "bus": f"pci.{bus}",
            "addr": f"0.{number}",
            "multifunction": True,
        }
        answer = libvirt_qemu.qemuMonitorCommand(
            guest.domain,
            json.dumps({"execute": "device_add", "arguments": words}),
            libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_DEFAULT,
        )
        assert "error" not in json.loads(answer)


def list_sizes(report: live_guest.Report, bus: int) -> list[tuple[int, int]]:
    """Return number of function and MiB of the large BAR of a device."""
    return [
        (int(address[-1]), max(function.bars.values(), default=0) // MIB)
        for address, function in sorted(report.functions.items())
        if address.startswith(f"0000:{bus:02x}:")
    ]


def test_a_device_has_its_bars_in_reserved_windows_only(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    drawn = picture.mirror(
        mirrored.HOST, live_guest.CELLS, 2, mirrored.ROOT_PORTS + 1
    )
    first, second, *small = drawn.spare_ports
    text = live_guest.build_domain(
        files, tmp_path / "console", mirrored.build_devices(drawn), "watch"
    )
    text = port_windows.reserve(
        text, {first: WINDOWS, second: WINDOWS}
    ).replace("<numa>", f"{ADDRESS_BITS}<numa>")
    with live_guest.start(qemu, text, tmp_path / "console") as guest:
        report = guest.await_report()
        for function in report.functions.values():
            assert not function.unassigned
        sizes = []
        for number, bus in enumerate((first, small[0])):
            memory = live_guest.build_memory(1024, mirrored.build_place(bus))
            guest.domain.attachDevice(memory)
            sizes += list_sizes(guest.await_report(number + 2), bus)
        assert sizes == [(0, 1024), (0, 0)]
        assigned = []
        for number, bus in enumerate((second, small[1])):
            attach_functions(guest, bus, 4)
            functions = list_sizes(guest.await_report(number + 4), bus)
            assigned.append(sum(size for _, size in functions))
        assert assigned[0] == 4 > assigned[1]


def test_a_device_is_detached_and_attached_again(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    """It gets its BAR in the same window, and the mirror stays."""
    drawn = mirrored.mirror(mirrored.HOST)
    bus, *_ = drawn.spare_ports
    text = live_guest.build_domain(
        files, tmp_path / "console", mirrored.build_devices(drawn), "watch"
    )
    text = port_windows.reserve(text, {bus: WINDOWS}).replace(
        "<numa>", f"{ADDRESS_BITS}<numa>"
    )
    memory = live_guest.build_memory(1024, mirrored.build_place(bus))
    with live_guest.start(qemu, text, tmp_path / "console") as guest:
        guest.await_report()
        sizes = []
        for number in range(2, 5):
            if number % 2:
                guest.domain.detachDevice(memory)
            else:
                guest.domain.attachDevice(memory)
            report = guest.await_report(number)
            mirrored.check(report, mirrored.HOST, drawn)
            sizes.append(list_sizes(report, bus))
    assert sizes == [[(0, 1024)], [], [(0, 1024)]]


def test_a_port_of_bus_0_has_two_small_windows(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    tmp_path: pathlib.Path,
) -> None:
    """Also in a guest on one bus."""
    devices = live_guest.build_controllers(picture.Picture(), 4)
    with live_guest.boot(qemu, files, tmp_path, devices, "watch") as guest:
        guest.await_report()
        sizes = []
        for number, (bus, size) in enumerate(((2, 2), (3, 8), (4, 256))):
            place = mirrored.build_place(bus)
            guest.domain.attachDevice(live_guest.build_memory(size, place))
            sizes += list_sizes(guest.await_report(number + 2), bus)
    assert sizes == [(0, 2), (0, 0), (0, 0)]
    needs = [
        port_windows.parse_resource(f"0x0 {size * MIB - 1:#x} 0x14220c", BIOS)
        for size in (2, 8, 256)
    ]
    reserved = [port_windows.Windows().holds(need) for need in needs]
    assert reserved == [True, False, False]
