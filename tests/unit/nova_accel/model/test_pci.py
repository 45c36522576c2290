# SPDX-License-Identifier: Apache-2.0
"""PCI addresses are parsed, printed and sorted as the kernel does it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.model import pci

addresses = st.builds(
    pci.PciAddress,
    domain=st.integers(0, 0xFFFFFFFF),
    bus=st.integers(0, 0xFF),
    slot=st.integers(0, 0x1F),
    function=st.integers(0, 7),
)


@given(addresses)
def test_an_address_survives_the_round_trip(
    address: pci.PciAddress,
) -> None:
    assert pci.parse_address(str(address)) == address
    assert pci.is_address(str(address))


@given(st.text(max_size=16))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        parsed = pci.parse_address(text)
    except errors.MalformedError as error:
        assert (repr(text) if text else "is empty") in str(error)
    else:
        assert pci.is_address(str(parsed))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "41:00.0",
        "0000:41:00.8",
        "0000:41:20.0",
        "0000:41:00.0/../..",
        "0000:4g:00.0",
        "0000_41_00_0",
    ],
)
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(errors.MalformedError):
        pci.parse_address(text)


def test_a_domain_behind_vmd_has_five_digits() -> None:
    address = pci.parse_address("10000:e1:00.0")
    assert address.domain == 0x10000
    assert str(address) == "10000:e1:00.0"


def test_addresses_are_sorted_by_number() -> None:
    texts = ["10000:01:00.0", "0000:a1:00.0", "0000:0a:00.0", "0000:0a:00.1"]
    ordered = sorted(map(pci.parse_address, texts))
    assert [str(a) for a in ordered] == [
        "0000:0a:00.0",
        "0000:0a:00.1",
        "0000:a1:00.0",
        "10000:01:00.0",
    ]


@pytest.mark.parametrize(
    ("driver", "bound"),
    [
        (None, False),
        ("nvidia", False),
        ("vfio-pci", True),
        ("pci-stub", True),
        ("qat_vfio_pci", True),
    ],
)
def test_vfio_drivers_are_recognized(driver: str | None, bound: bool) -> None:
    function = pci.PciFunction(
        address=pci.parse_address("0000:01:00.0"),
        vendor="10de",
        product="1eb8",
        class_code=0x030200,
        driver=driver,
    )
    assert function.is_vfio_bound is bound
    assert function.is_display
    assert not function.is_bridge
