# SPDX-License-Identifier: Apache-2.0
"""Root ports of guests with UEFI: their windows, and BARs attached to them.

OVMF gives each port windows by itself. In a guest with several ports these
take the place of BARs that exist at the start.
"""

import pathlib

import libvirt

from nova_accel.geometry import address_space
from tests.functional.guests.booted import test_mirrored_guests as mirrored
from tests.functional.guests.booted import test_port_windows
from tests.lab.guests import boot_files, live_guest
from virt_hooks.guest.topology import picture, port_windows

MIB = 1 << 20
# Ports of bus 0, as a mirrored guest has them at least.
ROOT_PORTS = 8
BITS = 42
UEFI = address_space.AddressSpace(memory=320 * MIB, has_uefi=True, bits=BITS)
SMALL = port_windows.Windows(prefetchable=address_space.SMALL_WINDOW)
LARGE = port_windows.Windows(
    memory=port_windows.parse_resource(
        test_port_windows.FUNCTIONS, UEFI.firmware
    ).memory,
    prefetchable=port_windows.parse_resource(
        test_port_windows.MEMORY, UEFI.firmware
    ).prefetchable,
)


def build(
    files: boot_files.BootFiles,
    firmware: pathlib.Path,
    place: pathlib.Path,
    drawn: picture.Picture,
) -> str:
    """Return a guest with UEFI, with a BAR of 16 MiB in each place."""
    devices = [
        *live_guest.build_controllers(drawn, ROOT_PORTS),
        *(live_guest.build_memory(16, at) for at in drawn.places.values()),
    ]
    text = live_guest.build_domain(files, place / "console", devices, "watch")
    return live_guest.boot_with_uefi(text, firmware, place).replace(
        "<numa>", f"{test_port_windows.ADDRESS_BITS}<numa>"
    )


def draw(spare_ports: int) -> picture.Picture:
    return picture.mirror(
        mirrored.HOST, live_guest.CELLS, spare_ports, ROOT_PORTS + 1
    )


def list_large_bars(
    report: live_guest.Report, drawn: picture.Picture
) -> list[int]:
    """Return the MiB of BAR 2 of the devices of a start."""
    functions = map(mirrored.spell, drawn.places.values())
    return [report.functions[each].bars.get(2, 0) // MIB for each in functions]


def test_reserved_ports_have_room_and_devices_keep_their_bars(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    firmware: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    """As ``SparePorts`` reserves them: all ports, without I/O ports."""
    drawn = draw(2)
    first, second, other, _ = drawn.spare_ports
    text = build(files, firmware, tmp_path, drawn)
    ports = {*range(1, ROOT_PORTS + 1), *picture.parse(text).list_root_ports()}
    windows = dict.fromkeys(ports, SMALL)
    windows |= {first: LARGE, second: LARGE}
    text = port_windows.reserve(text, windows, address_space.OVMF)
    console = tmp_path / "console"
    with live_guest.start(qemu, text, console) as guest:
        report = guest.await_report()
        assert set(list_large_bars(report, drawn)) == {16}
        sizes = []
        for number, bus in enumerate((first, other)):
            memory = live_guest.build_memory(1024, mirrored.build_place(bus))
            guest.domain.attachDevice(memory)
            report = guest.await_report(number + 2)
            sizes += test_port_windows.list_sizes(report, bus)
        assert sizes == [(0, 1024), (0, 0)]
        test_port_windows.attach_functions(guest, second, 4)
        report = guest.await_report(4)
        assigned = test_port_windows.list_sizes(report, second)
        assert sum(size for _, size in assigned) == 4


def test_an_empty_port_has_the_windows_of_the_firmware(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    firmware: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    """As ``AddressSpace.find_large_window`` says, on bus 0."""
    devices = live_guest.build_controllers(picture.Picture(), 4)
    text = live_guest.build_domain(
        files, tmp_path / "console", devices, "watch"
    )
    text = live_guest.boot_with_uefi(text, firmware, tmp_path).replace(
        "<numa>", f"{test_port_windows.ADDRESS_BITS}<numa>"
    )
    with live_guest.start(qemu, text, tmp_path / "console") as guest:
        report = guest.await_report()
        ports = [f for f in report.functions.values() if f.is_bridge]
        assert {port.memory for port in ports} == {address_space.SMALL_WINDOW}
        assert {port.prefetchable for port in ports} == {
            UEFI.find_large_window()
        }
        memory = live_guest.build_memory(1024, mirrored.build_place(3))
        guest.domain.attachDevice(memory)
        sizes = test_port_windows.list_sizes(guest.await_report(2), 3)
    assert sizes == [(0, 1024)]


def test_io_ports_of_the_firmware_run_out(
    embedded_qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    firmware: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    """OVMF 2022.11 gives the devices of a start no BARs then.

    So ``SparePorts`` reserves no I/O ports on any root port.
    """
    drawn = draw(2)
    text = build(files, firmware, tmp_path, drawn)
    with live_guest.start(embedded_qemu, text, tmp_path / "console") as guest:
        report = guest.await_report()
    assert set(list_large_bars(report, drawn)) == {0}
