# SPDX-License-Identifier: Apache-2.0
"""Sizes of BARs are read from the kernel's resource files."""

import dataclasses
from pathlib import Path

from nova_accel.geometry import address_space
from tests.unit.nova_accel.geometry.test_address_space import H100, PORTS
from tests.unit.virt_hooks.guest.test_hostdev import CARD, MDEV, WHOLE
from tests.unit.virt_hooks.guest.topology.test_device_reader import PORT, add
from virt_hooks.guest.topology import bars, device_reader

WINDOWS = bars.Windows(memory=32 << 20, prefetchable=(256 << 30) + (32 << 20))


def test_a_window_has_room_for_the_largest_bar_twice() -> None:
    """An H100's BAR 0 is not prefetchable."""
    assert bars.parse_windows(H100) == WINDOWS


def test_small_bars_need_no_window_of_their_own() -> None:
    bar = "0x100000 0x{:x} 0x14220c\n"
    two, three = (bar.format((n << 20) + 0xFFFFF) for n in (2, 3))
    assert bars.parse_windows(two) == bars.Windows()
    assert bars.parse_windows(three) == bars.Windows(prefetchable=6 << 20)
    assert (
        bars.parse_windows(PORTS) == bars.parse_windows("") == (bars.Windows())
    )


def test_both_windows_must_hold_a_device() -> None:
    half = dataclasses.replace(WINDOWS, memory=0)
    assert WINDOWS.holds(half)
    assert not half.holds(WINDOWS)
    assert not bars.Windows(memory=1 << 40).holds(half)


def space(bits: int, has_uefi: bool = False) -> address_space.AddressSpace:
    return address_space.AddressSpace(
        memory=64 << 30, bits=bits, has_uefi=has_uefi
    )


def test_the_largest_windows_that_have_room_are_chosen() -> None:
    small = bars.Windows(memory=64 << 20, prefetchable=64 << 30)
    cards = [bars.Windows(), WINDOWS, small]
    large = dataclasses.replace(WINDOWS, memory=64 << 20)
    # Eight H100, and 512 GiB for each empty port.
    demand = address_space.sum_functions([H100] * 8)
    chosen = [
        bars.choose_windows(space(bits, has_uefi), demand, cards, 4)
        for has_uefi, bits in (
            *((False, 44), (False, 45)),
            *((True, 46), (True, 47)),
        )
    ]
    assert chosen == [small, large, bars.Windows(), large]


def test_the_range_of_hypertransport_has_no_windows() -> None:
    """QEMU reserves it at the end of 40 bits, where SeaBIOS has them."""
    card, none = bars.Windows(prefetchable=6 << 20), address_space.Demand()
    assert bars.choose_windows(space(40), none, [card], 1) == bars.Windows()
    assert bars.choose_windows(space(41), none, [card], 1) == card


def test_windows_below_4_gib_need_no_address_bits() -> None:
    below = bars.Windows(memory=64 << 20)
    cards, none = [WINDOWS, below], address_space.Demand()
    assert bars.choose_windows(space(36), none, cards, 4) == below
    assert bars.choose_windows(space(36), none, cards, 5) == bars.Windows()


def test_the_function_with_the_largest_bar(tmp_path: Path) -> None:
    for function in range(4):
        add(tmp_path, f"{PORT}/0000:65:00.{function}")
    path = tmp_path / "sys/bus/pci/devices/0000:65:00.1/resource"
    path.write_text(H100)
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.find_largest_bar(CARD) == ("0000:65:00.1", 128 << 30)
    assert reader.find_largest_bar(MDEV) == (MDEV.handle, 0)


def test_windows_of_the_functions_of_a_host(tmp_path: Path) -> None:
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.list_windows() == set()
    for function, text in enumerate((H100, PORTS)):
        add(tmp_path, f"{PORT}/0000:65:00.{function}")
        path = tmp_path / f"sys/bus/pci/devices/0000:65:00.{function}"
        (path / "resource").write_text(text)
    assert reader.list_windows() == {WINDOWS, bars.Windows()}
    assert reader.read_windows(WHOLE) == WINDOWS
    assert reader.read_windows(MDEV) == bars.Windows()
    handles = ["0000:65:00.0", MDEV.handle]
    assert reader.sum_functions(handles) == address_space.sum_functions([H100])


def test_a_vgpu_has_the_bars_of_its_driver(tmp_path: Path) -> None:
    """Those of its VF are not what the guest sees."""
    add(tmp_path, f"{PORT}/0000:65:00.4")
    path = tmp_path / "sys/bus/pci/devices/0000:65:00.4/resource"
    path.write_text(H100)
    vf = dataclasses.replace(WHOLE, handle="0000:65:00.4", members=())
    vgpu = dataclasses.replace(vf, type_id="1155")
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.find_largest_bar(vf)[1] == 128 << 30
    assert reader.find_largest_bar(vgpu) == (vgpu.handle, 0)
    assert reader.sum_bars([vgpu]).total == 0
    assert reader.sum_bars([vf]).total == (128 << 30) + (32 << 20)


def test_a_function_without_a_file_has_an_unknown_size(
    tmp_path: Path,
) -> None:
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.find_largest_bar(WHOLE) == (WHOLE.handle, 0)
