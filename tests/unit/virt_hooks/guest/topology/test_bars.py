# SPDX-License-Identifier: Apache-2.0
"""Sizes of BARs are read from the kernel's resource files."""

import dataclasses
from pathlib import Path

from tests.unit.virt_hooks.guest.test_hostdev import CARD, MDEV, WHOLE
from tests.unit.virt_hooks.guest.topology.test_device_reader import PORT, add
from virt_hooks.guest.topology import device_reader

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
    assert reader.sum_bars([vgpu]).total == 0
    assert reader.sum_bars([vf]).total == (128 << 30) + (32 << 20)


def test_a_function_without_a_file_has_an_unknown_size(
    tmp_path: Path,
) -> None:
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.find_largest_bar(WHOLE) == (WHOLE.handle, 0)
