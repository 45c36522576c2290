# SPDX-License-Identifier: Apache-2.0
"""Sizes of BARs are read from the kernel's resource files."""

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
    assert bars.parse_largest(text) == size


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


def test_a_function_without_a_file_has_an_unknown_size(
    tmp_path: Path,
) -> None:
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.find_largest_bar(WHOLE) == (WHOLE.handle, 0)
