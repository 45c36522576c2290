# SPDX-License-Identifier: Apache-2.0
"""Sizes of BARs are read from the kernel's resource files."""

import dataclasses
from pathlib import Path

import pytest

from nova_accel.geometry import address_space
from tests.support.hosts import measured
from tests.unit.nova_accel.geometry.test_address_space import H100, PORTS
from tests.unit.virt_hooks.guest.test_hostdev import MDEV, WHOLE
from tests.unit.virt_hooks.guest.topology.test_device_reader import PORT, add
from tests.unit.virt_hooks.guest.topology.test_nvlinks import CARD as LINKED
from virt_hooks.guest.topology import device_reader, port_windows
from virt_hooks.guest.topology.port_windows import Windows

BIOS, UEFI = address_space.SEABIOS, address_space.OVMF
WINDOWS = Windows(memory=32 << 20, prefetchable=(256 << 30) + (32 << 20))


def test_a_window_has_room_for_the_largest_bar_twice() -> None:
    """An H100's BAR 0 is not prefetchable."""
    assert port_windows.parse_resource(H100, BIOS) == WINDOWS


def test_uefi_aligns_a_window_to_its_size() -> None:
    """Measured: a BAR of 1 GiB has room in a window of 1 GiB."""
    assert port_windows.parse_resource(H100, UEFI) == Windows(
        memory=16 << 20, prefetchable=256 << 30
    )


def test_small_bars_need_no_window_of_their_own() -> None:
    bar = "0x100000 0x{:x} 0x14220c\n"
    two, three = (bar.format((n << 20) + 0xFFFFF) for n in (2, 3))
    assert port_windows.parse_resource(two, BIOS) == Windows()
    assert port_windows.parse_resource(three, BIOS) == Windows(
        prefetchable=6 << 20
    )
    assert (
        port_windows.parse_resource(PORTS, BIOS)
        == port_windows.parse_resource("", BIOS)
        == (Windows())
    )


def test_both_windows_must_hold_a_device() -> None:
    half = dataclasses.replace(WINDOWS, memory=0)
    assert WINDOWS.holds(half)
    assert not half.holds(WINDOWS)
    assert not Windows(memory=1 << 40).holds(half)


def space(bits: int, has_uefi: bool = False) -> address_space.AddressSpace:
    return address_space.AddressSpace(
        memory=64 << 30, bits=bits, has_uefi=has_uefi
    )


def test_the_largest_windows_that_have_room_are_chosen() -> None:
    small = Windows(memory=64 << 20, prefetchable=64 << 30)
    cards = [Windows(), WINDOWS, small]
    large = dataclasses.replace(WINDOWS, memory=64 << 20)
    # Eight H100, and 512 GiB for each empty port.
    demand = address_space.sum_functions([H100] * 8)
    chosen = [
        port_windows.choose(space(bits, has_uefi), demand, cards, 4)
        for has_uefi, bits in (
            *((False, 44), (False, 45)),
            *((True, 45), (True, 46)),
        )
    ]
    assert chosen == [small, large, Windows(), large]


def test_the_range_of_hypertransport_has_no_windows() -> None:
    """QEMU reserves it at the end of 40 bits, where SeaBIOS has them."""
    card, none = (
        Windows(prefetchable=6 << 20),
        address_space.Demand(),
    )
    assert port_windows.choose(space(40), none, [card], 1) == Windows()
    assert port_windows.choose(space(41), none, [card], 1) == card


def test_uefi_has_32_gib_without_bits_of_its_own() -> None:
    """Measured with the 40 bits of an old Intel processor."""
    card, none = Windows(prefetchable=8 << 30), address_space.Demand()
    choose = port_windows.choose
    assert choose(space(40, True), none, [card], 2) == card
    assert choose(space(40, True), none, [card], 3) == Windows()
    assert choose(space(41, True), none, [card], 3) == card


@pytest.mark.parametrize(
    ("bits", "has_uefi", "size"),
    [
        (40, True, 0),
        (41, True, 1 << 30),
        (42, True, 2 << 30),
        (52, True, 32 << 30),
        (52, False, 0),
    ],
)
def test_uefi_gives_an_empty_port_a_part_of_its_range(
    bits: int, has_uefi: bool, size: int
) -> None:
    assert space(bits, has_uefi).find_large_window() == size


def test_windows_below_4_gib_need_no_address_bits() -> None:
    below = Windows(memory=64 << 20)
    cards, none = [WINDOWS, below], address_space.Demand()
    assert port_windows.choose(space(36), none, cards, 4) == below
    assert port_windows.choose(space(36), none, cards, 5) == Windows()


def test_the_windows_of_a_devices_function(tmp_path: Path) -> None:
    add(tmp_path, f"{PORT}/0000:65:00.0", resource=H100)
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.read_windows(WHOLE, BIOS) == WINDOWS
    assert reader.read_windows(MDEV, BIOS) == Windows()
    handles = ["0000:65:00.0", MDEV.handle]
    assert reader.sum_functions(handles) == address_space.sum_functions([H100])


def test_one_file_of_each_device_that_can_be_attached_is_read(
    tmp_path: Path,
) -> None:
    """A PF's VFs are equal; the host has 200 further functions."""
    for number in range(200):
        add(tmp_path, f"{PORT}/0000:70:{number // 8:02x}.{number % 8}")
    add(tmp_path, f"{PORT}/0000:65:00.0", resource=H100)
    vfs = [f"0000:66:00.{function}" for function in range(1, 8)]
    for vf in vfs:
        add(tmp_path, f"{PORT}/{vf}", resource=PORTS)
    whole = dataclasses.replace(LINKED, technology="passthrough")
    devices = [
        dataclasses.replace(whole, slots=("0000:65:00.0",)),
        dataclasses.replace(whole, technology="vf", slots=(*vfs,)),
        dataclasses.replace(whole, technology="vf", slots=()),
        dataclasses.replace(whole, technology="mdev", slots=("1", "2")),
        dataclasses.replace(whole, technology="vendor-vfio", slots=(*vfs,)),
        dataclasses.replace(whole, members=("0000:65:00.1",)),
    ]
    reader = device_reader.DeviceReader(str(tmp_path))
    with measured.count_operations(tmp_path) as operations:
        assert reader.list_windows(devices, BIOS) == {WINDOWS, Windows()}
    assert operations["open"] == 2


def test_a_vgpu_has_the_bars_of_its_driver(tmp_path: Path) -> None:
    """Those of its VF are not what the guest sees."""
    add(tmp_path, f"{PORT}/0000:65:00.4", resource=H100)
    vf = dataclasses.replace(WHOLE, handle="0000:65:00.4", members=())
    vgpu = dataclasses.replace(vf, type_id="1155")
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.read_windows(vf, BIOS) == WINDOWS
    assert reader.read_windows(vgpu, BIOS) == Windows()
    assert reader.sum_bars([vgpu]).total == 0
    assert reader.sum_bars([vf]).total == (128 << 30) + (32 << 20)


def test_a_function_without_a_file_has_unknown_windows(
    tmp_path: Path,
) -> None:
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.read_windows(WHOLE, BIOS) == Windows()
