# SPDX-License-Identifier: Apache-2.0
"""Sizes of BARs are read from the kernel's resource files."""

import dataclasses
from pathlib import Path

import pytest

from tests.unit.virt_hooks.guest.test_hostdev import CARD, MDEV, WHOLE
from tests.unit.virt_hooks.guest.topology.test_device_reader import PORT, add
from virt_hooks.guest.topology import bars, device_reader

# Of an H100: BAR 0 of 16 MiB, BAR 2 of 128 GiB, BAR 4 of 32 MiB.
H100 = """\
0x00000000a2000000 0x00000000a2ffffff 0x0000000000140204
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000220000000000 0x0000221fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000222000000000 0x0000222001ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x00000000a3000000 0x000000bfffffffff 0x0000000000046200
"""
PORTS = "0x0000000000003000 0x000000000000307f 0x0000000000040101\n"


@pytest.mark.parametrize(
    ("text", "size"),
    [(H100, 128 << 30), (PORTS, 0), ("", 0), ("x y z\n1 2\n", 0)],
)
def test_the_largest_memory_bar(text: str, size: int) -> None:
    assert max(bars.parse_sizes(text), default=0) == size


GUEST = (
    "<domain><memory>{}</memory><os>{}</os>"
    '<cpu><maxphysaddr mode="emulate" bits="{}"/></cpu></domain>'
)
UEFI = '<loader type="pflash">x</loader>'


def space(gib: int, bits: int, firmware: str = "") -> bars.AddressSpace:
    return bars.parse_space(GUEST.format(gib << 20, firmware, bits))


def test_memory_and_bars_have_room_in_the_address_space() -> None:
    assert space(64, 40).find_shortage(960 << 30) == ""
    assert space(64, 40).find_shortage(961 << 30) == (
        "its memory of 64 GiB and the BARs of its devices, 961 GiB, need more"
        " than 40 address bits: set hw:maxphysaddr_bits of the flavor to 41"
        " or more"
    )


def test_unknown_bits_are_no_shortage() -> None:
    unknown = bars.parse_space("<domain><memory>1</memory></domain>")
    assert unknown.find_shortage(1 << 60) == ""
    assert not unknown.is_doubtful(1 << 60)


def test_the_top_eighth_is_for_bars_with_uefi() -> None:
    """Measured: 192 GiB get no BAR with 40 bits, and all with 42."""
    assert space(1, 40, UEFI).is_doubtful(192 << 30)
    assert not space(1, 42, UEFI).is_doubtful(192 << 30)
    assert not space(1, 40).is_doubtful(192 << 30)


def test_a_size_in_words() -> None:
    assert bars.format_size(128 << 30) == "128 GiB"
    assert bars.format_size(256 << 20) == "0.25 GiB"


def test_the_function_with_the_largest_bar(tmp_path: Path) -> None:
    for function in range(4):
        add(tmp_path, f"{PORT}/0000:65:00.{function}")
    path = tmp_path / "sys/bus/pci/devices/0000:65:00.1/resource"
    path.write_text(H100)
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.find_largest_bar(CARD) == ("0000:65:00.1", 128 << 30)
    assert reader.find_largest_bar(MDEV) == (MDEV.handle, 0)


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
    assert reader.sum_bars([vgpu]) == 0 < reader.sum_bars([vf])


def test_a_function_without_a_file_has_an_unknown_size(
    tmp_path: Path,
) -> None:
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.find_largest_bar(WHOLE) == (WHOLE.handle, 0)
