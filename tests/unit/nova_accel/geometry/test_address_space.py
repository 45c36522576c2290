# SPDX-License-Identifier: Apache-2.0
"""BARs of functions, and the address bits that a guest needs for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel.geometry import address_space

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
GIB = 1 << 30
GUEST = "<domain><memory>{}</memory><os>{}</os><cpu>{}</cpu></domain>"
UEFI = '<loader type="pflash">x</loader>'


def space(gib: int, firmware: str = "") -> address_space.AddressSpace:
    return address_space.parse_space(GUEST.format(gib << 20, firmware, ""))


def demand(*gib: int) -> address_space.Demand:
    sizes = [size * GIB for size in gib]
    return address_space.Demand(
        total=sum(sizes), windows=sum(sizes), largest=max(sizes)
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [(H100, 128 * GIB), (PORTS, 0), ("", 0), ("x y z\n1 2\n", 0)],
)
def test_the_largest_memory_bar(text: str, size: int) -> None:
    assert max(address_space.parse_bars(text), default=0) == size


def test_a_window_is_a_multiple_of_its_largest_bar() -> None:
    """BAR 0 is not prefetchable: bridges have it below 4 GiB."""
    assert address_space.sum_functions([H100, PORTS, "", H100]) == (
        address_space.Demand(
            total=2 * (128 * GIB + (32 << 20)),
            windows=2 * 256 * GIB,
            largest=128 * GIB,
        )
    )


def test_windows_of_two_sizes_have_gaps() -> None:
    """Measured: 16, 128 and 64 GiB don't fit into 256 GiB."""
    small = H100.replace("0x0000221fffffffff", "0x00002203ffffffff")
    need = address_space.sum_functions([small, H100])
    assert need.windows == 2 * (32 + 256) * GIB


def test_without_devices_nothing_is_needed() -> None:
    nothing = address_space.sum_functions([PORTS])
    assert nothing == address_space.Demand()
    assert space(64, UEFI).choose_bits(nothing) <= address_space.DEFAULT_BITS


@pytest.mark.parametrize(
    ("firmware", "count", "least", "enough"),
    [("", 1, 38, 39), ("", 8, 41, 42), (UEFI, 1, 41, 41), (UEFI, 8, 44, 44)],
)
def test_bits_of_guests_with_h100s(
    firmware: str, count: int, least: int, enough: int
) -> None:
    guest, cards = space(64, firmware), [H100] * count
    need = address_space.sum_functions(cards)
    assert guest.find_least_bits(need) == least
    assert guest.choose_bits(need) == enough


def test_memory_takes_bits_too() -> None:
    """OVMF does not use an eighth into which the memory reaches."""
    assert space(960).find_least_bits(demand(64)) == 40
    assert space(961).find_least_bits(demand(64)) == 41
    assert space(1800, UEFI).choose_bits(demand(64)) == 42
    assert space(700, UEFI).choose_bits(demand(64)) == 41


def test_uefi_has_32_gib_with_any_bits() -> None:
    assert space(1, UEFI).find_least_bits(demand(32)) == 36
    assert space(1, UEFI).choose_bits(demand(32)) == 36
    assert space(1, UEFI).find_least_bits(demand(33)) == 39
    assert space(1, UEFI).choose_bits(demand(33)) == 41


@given(
    memory=st.integers(1, 4096),
    sizes=st.lists(st.sampled_from([1, 16, 64, 128, 256]), min_size=1),
    firmware=st.sampled_from(["", UEFI]),
)
def test_enough_bits_are_no_less_than_the_least(
    memory: int, sizes: list[int], firmware: str
) -> None:
    guest, need = space(memory, firmware), demand(*sizes)
    assert guest.find_least_bits(need) <= guest.choose_bits(need)


@pytest.mark.parametrize(
    ("element", "bits", "is_host"),
    [
        ("", 0, False),
        ('<maxphysaddr mode="emulate" bits="42"/>', 42, False),
        ('<maxphysaddr mode="passthrough"/>', 0, True),
    ],
)
def test_the_address_space_of_a_guest(
    element: str, bits: int, is_host: bool
) -> None:
    assert address_space.parse_space(
        GUEST.format(2 << 20, UEFI, element)
    ) == address_space.AddressSpace(
        memory=2 * GIB, has_uefi=True, bits=bits, is_host=is_host
    )


def test_a_size_in_words() -> None:
    assert address_space.format_size(128 << 30) == "128 GiB"
    assert address_space.format_size(256 << 20) == "256 MiB"
