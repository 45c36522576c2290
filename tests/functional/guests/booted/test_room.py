# SPDX-License-Identifier: Apache-2.0
"""BARs of devices have room with the address bits that a guest gets."""

import pathlib
from collections.abc import Sequence

import libvirt
import pytest

from nova_accel.geometry import address_space
from tests.lab.guests import boot_files, live_guest

MEMORY = 320 << 20
# In GiB: more than their sum is lost in gaps.
SIZES = (16, 128, 64)
_GIB = 1 << 30


def need(sizes: Sequence[int]) -> address_space.Demand:
    """Return what prefetchable BARs need, by their sizes in GiB."""
    flags = "0x000000000014220c"
    return address_space.sum_functions(
        f"{n << 50:#x} {(n << 50) + size * _GIB - 1:#x} {flags}"
        for n, size in enumerate(sizes, 1)
    )


def boot(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    place: pathlib.Path,
    sizes: Sequence[int],
    processor: str,
    firmware: pathlib.Path | None = None,
) -> list[int]:
    """Boot a guest; return the GiB of its BARs that have an address.

    :param processor: XML elements.
    :param firmware: directory of OVMF, None for SeaBIOS.
    """
    console = place / "console"
    devices = [live_guest.build_memory(size << 10) for size in sizes]
    text = live_guest.build_domain(files, console, devices)
    text = text.replace('<cpu mode="maximum">', processor)
    if firmware is not None:
        text = live_guest.boot_with_uefi(text, firmware, place)
    with live_guest.start(qemu, text, console) as guest:
        functions = guest.await_report().functions.values()
    return sorted(
        function.bars.get(2, 0) >> 30
        for function in functions
        if function.class_code == "0x050000"
    )


def describe(bits: int) -> str:
    return f'<cpu mode="maximum"><maxphysaddr mode="emulate" bits="{bits}"/>'


@pytest.mark.parametrize("is_uefi", [True, False], ids=["UEFI", "BIOS"])
def test_enough_bits_are_enough_and_fewer_than_the_least_too_few(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    firmware: pathlib.Path,
    tmp_path: pathlib.Path,
    is_uefi: bool,
) -> None:
    used = firmware if is_uefi else None
    space = address_space.AddressSpace(memory=MEMORY, has_uefi=is_uefi)
    enough = describe(space.choose_bits(need(SIZES)))
    assert boot(qemu, files, tmp_path, SIZES, enough, used) == sorted(SIZES)
    few = describe(space.find_least_bits(need(SIZES)) - 1)
    assert boot(qemu, files, tmp_path, SIZES, few, used) != sorted(SIZES)


def test_uefi_does_not_believe_the_default_of_an_intel_processor(
    qemu: libvirt.virConnect,
    files: boot_files.BootFiles,
    firmware: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    """It has no room for 64 GiB then, and some with more bits."""
    space = address_space.AddressSpace(memory=MEMORY, has_uefi=True)
    bits = space.choose_bits(need([64]))
    assert bits > address_space.DEFAULT_BITS
    model = (
        '<cpu mode="custom" match="exact" check="none"><model>Nehalem</model>'
    )
    assert boot(qemu, files, tmp_path, [64], model, firmware) == [0]
    model += f'<maxphysaddr mode="emulate" bits="{bits}"/>'
    assert boot(qemu, files, tmp_path, [64], model, firmware) == [64]
