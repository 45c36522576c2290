# SPDX-License-Identifier: Apache-2.0
"""Proves how Intel FPGA cards and their regions are described."""

import pathlib
from collections.abc import Iterable

import pytest

from nova_accel import model
from nova_accel.model import names
from tests.hosts import build, look

NLB = "d8424dc4a4a3c413f89e433683f9040b"
NLB3 = "f7df405cbd7acf7222f144b0b93acd18"
A10 = "f64e598bea11517fa28e7bc65d885104"
N6001 = "0000:b1:00.0"


def region(state: model.HostState, card: str, number: int = 0) -> model.Device:
    return look.device(state, names.region_address(card, number))


def region_state(
    device: model.Device,
) -> tuple[str | None, tuple[str, ...], str]:
    assert device.region is not None
    return device.region.function, device.region.interfaces, device.slots[0]


def read(
    name: str, root: pathlib.Path, rules: Iterable[str] = ()
) -> model.HostState:
    return look.read(look.make(name, root), rules)


@pytest.fixture
def pac(tmp_path: pathlib.Path) -> model.HostState:
    return read("dfl-pac", tmp_path)


@pytest.fixture
def n6000(tmp_path: pathlib.Path) -> model.HostState:
    return read("dfl-n6000", tmp_path)


def test_a_card_and_its_region(pac: model.HostState) -> None:
    card = look.device(pac, "0000:05:00.0")
    assert (card.model, card.technology, card.vendor) == (
        "Arria 10 PAC",
        "fpga",
        "intel",
    )
    assert (card.counters, card.slots, card.profiles) == ({}, (), ())
    assert card.region is None
    assert card.traits >= {
        "CUSTOM_ACCELERATOR_MODEL_INTEL_ARRIA_10_PAC",
        "CUSTOM_FPGA_STATIC_113000200000177",
        "CUSTOM_ACCELERATOR_VENDOR_INTEL",
        "CUSTOM_ACCELERATOR_NUMA_0",
    }
    device = region(pac, card.address)
    assert device.parent == card.address
    assert device.region == model.Region(
        card=card.address,
        number=0,
        function=NLB,
        interfaces=(A10,),
        is_programmable=True,
        driver="dfl-pci",
    )
    assert (device.counters, device.slots) == ({"FPGA": 1}, (card.address,))
    assert device.traits >= {
        f"CUSTOM_FPGA_FUNCTION_{NLB.upper()}",
        f"CUSTOM_FPGA_INTERFACE_{A10.upper()}",
        "CUSTOM_FPGA_PROGRAMMABLE",
        "CUSTOM_ACCELERATOR_DEVICE_8086_09C4",
    }
    (profile,) = device.profiles
    assert (profile.name, profile.trait, profile.available) == (
        "region",
        names.REGION_TRAIT,
        1,
    )
    assert not look.reasons(pac, device.address)


def test_the_function_that_a_region_is_behind(pac: model.HostState) -> None:
    behind = region(pac, "0000:15:00.0")
    assert region_state(behind) == (NLB, (A10,), "0000:15:00.1")
    assert look.device(pac, "0000:15:00.0").members == ("0000:15:00.1",)
    assert pac.device("0000:15:00.1") is None
    # The function is unknown while a guest has, or may have, the region.
    in_guest = region(pac, "0000:25:00.0")
    assert region_state(in_guest) == (None, (A10,), "0000:25:00.1")
    assert in_guest.counters == {"FPGA": 1}
    assert not look.reasons(pac, in_guest.address)
    whole = region(pac, "0000:55:00.0")
    assert region_state(whole) == (None, (), "0000:55:00.0")
    assert whole.counters == {"FPGA": 1}
    assert whole.region is not None
    assert not whole.region.is_programmable
    assert not look.reasons(pac, whole.address)


@pytest.mark.parametrize("path", ["region119/dfl-port.12/id", "region119"])
def test_a_vf_whose_port_cant_be_read_belongs_to_no_region(
    tmp_path: pathlib.Path, path: str
) -> None:
    root, card = look.make("dfl-pac", tmp_path), "0001:b5:00.0"
    assert region(look.read(root), card, 1).slots == ("0001:b5:00.1",)
    place = f"bus/pci/devices/0001:b5:00.1/fpga_region/{path}"
    build.break_path(root, place, {"fault": "EIO"})
    state = look.read(root)
    assert not [d for d in state.devices if "0001:b5:00.1" in d.slots]
    assert "port is behind is unknown" in look.reasons(
        state, names.region_address(card, 1)
    )


def test_a_released_port_without_a_vf_is_not_offered(
    pac: model.HostState,
) -> None:
    device = region(pac, "0000:35:00.0")
    assert (device.counters, device.slots) == ({}, ())
    assert device.profiles[0].available == 0
    assert "num_vfs" in look.reasons(pac, device.address)


def test_a_region_is_not_offered_if_the_host_uses_its_group(
    pac: model.HostState,
) -> None:
    device = region(pac, "0000:65:00.0")
    assert region_state(device)[:2] == (NLB, (A10,))
    assert device.counters == {}
    assert "0000:66:00.0" in look.reasons(pac, device.address)


@pytest.mark.parametrize(
    ("card", "product", "function", "interface"),
    [
        (
            "0000:85:00.0",
            "D5005",
            NLB3,
            "9346116da52d5ca8b06aa9a389ef7c8d",
        ),
        (
            "0000:95:00.0",
            "N3000",
            "9aeffe5f84570612c000c9660d824272",
            "a5d72a3cc8b04939912cf715e5dc10ca",
        ),
        (
            "0001:a5:00.0",
            "1c2c:1000",
            "",
            "0123456789abcdef0123456789abcdef",
        ),
    ],
)
def test_cards_of_other_kinds(
    pac: model.HostState,
    card: str,
    product: str,
    function: str,
    interface: str,
) -> None:
    assert look.device(pac, card).model == product
    device = region(pac, card)
    assert region_state(device) == (function, (interface,), card)
    function_traits = {
        t for t in device.traits if t.startswith(names.FUNCTION_PREFIX)
    }
    assert function_traits == (
        {names.fpga_function_trait(function)} if function else set()
    )


def test_two_regions_of_one_card(pac: model.HostState) -> None:
    card = "0001:b5:00.0"
    first, second = region(pac, card), region(pac, card, 1)
    assert region_state(first)[0] == NLB
    assert first.counters == {}
    assert "virtual functions are enabled" in look.reasons(pac, first.address)
    assert region_state(second)[::2] == (NLB3, "0001:b5:00.1")
    assert second.counters == {"FPGA": 1}
    # Both in the PF: one function can't go to two guests.
    for number in (0, 1):
        device = region(pac, "0001:c5:00.0", number)
        assert device.counters == {}
        assert "one guest" in look.reasons(pac, device.address)
    assert region_state(region(pac, "0001:c5:00.0", 1))[0] == NLB


def test_the_older_driver(tmp_path: pathlib.Path) -> None:
    state = read("dfl-older", tmp_path)
    device = region(state, "0000:05:00.0")
    assert region_state(device) == (NLB, (A10,), "0000:05:00.0")
    assert device.region is not None
    assert (device.region.tool, device.region.driver) == (
        "fpgaconf",
        "intel-fpga-pci",
    )
    without_interface = region(state, "0000:15:00.0")
    assert without_interface.region is not None
    assert not without_interface.region.is_programmable
    assert "interface id" in look.reasons(state, without_interface.address)
    behind = region(state, "0000:25:00.0")
    assert region_state(behind) == (NLB3, (A10,), "0000:25:00.1")


def test_the_functions_of_a_slot_are_one_card(n6000: model.HostState) -> None:
    cards = [d for d in n6000.devices if d.region is None]
    assert [(d.address, d.model) for d in cards] == [
        ("0000:01:00.0", "N6000"),
        ("0000:15:00.0", "C6100"),
        ("0000:25:00.0", "N6001"),
        ("0000:35:00.0", "N6000"),
        (N6001, "N6001"),
    ]
    assert look.device(n6000, N6001).members == tuple(
        f"0000:b1:00.{n}" for n in range(1, 8)
    )


def test_vfs_that_belong_to_no_port_go_together(
    n6000: model.HostState,
) -> None:
    device = region(n6000, N6001)
    assert region_state(device) == (
        None,
        ("ce3139c959cf528ca27751c50829797a",),
        "0000:b1:00.5",
    )
    assert device.members == ("0000:b1:00.6", "0000:b1:00.7")
    assert device.counters == {"FPGA": 1}
    assert device.region is not None
    # The host's network functions are in the same FPGA.
    assert device.region.dependents == ("0000:b1:00.3",)
    # What was loaded could not be checked.
    assert not device.region.is_programmable
    assert "afu_id" in look.reasons(n6000, device.address)


def test_a_function_behind_vfs_needs_vfs(n6000: model.HostState) -> None:
    device = region(n6000, "0000:01:00.0")
    assert (device.counters, device.slots) == ({}, ())
    assert "num_vfs" in look.reasons(n6000, device.address)


def test_a_fixed_card_has_no_region(n6000: model.HostState) -> None:
    card = "0000:15:00.0"
    assert not [d for d in n6000.devices if d.parent == card]
    assert '"use": "passthrough"' in look.reasons(n6000, card)


def test_a_whole_card_includes_its_group(n6000: model.HostState) -> None:
    device = region(n6000, "0000:25:00.0")
    assert (device.slots, device.members) == (
        ("0000:25:00.0",),
        ("0000:25:00.1",),
    )


def test_unreadable_cards_are_described(
    tmp_path: pathlib.Path,
) -> None:
    state = read("dfl-broken", tmp_path)
    addresses = {d.address for d in state.devices}
    assert addresses == {
        f"0000:{bus}:00.0{tail}"
        for bus in (45, 46, 47, 48, 75, 76)
        for tail in ("", "/region-0")
    }
    for bus, word in (
        ("45", "EIO"),
        ("48", "FME"),
        ("75", "intel_iommu=on"),
        ("76", "driver unknown"),
    ):
        where = f"0000:{bus}:00.0/region-0"
        assert word in look.reasons(state, where), bus
    assert region_state(region(state, "0000:45:00.0")) == (
        None,
        (A10,),
        "0000:45:00.0",
    )
    assert "half removed" in look.reasons(state, "0001:d5:00.1")


@pytest.mark.parametrize(
    ("use", "technology"),
    [("off", None), ("passthrough", "passthrough"), ("fpga", "fpga")],
)
def test_a_card_with_another_use_is_left_alone(
    tmp_path: pathlib.Path, use: str, technology: str | None
) -> None:
    card = "0000:05:00.0"
    line = f'{{"address": "{card}", "use": "{use}"}}'
    state = read("dfl-pac", tmp_path, [line])
    device = state.device(card)
    assert (device.technology if device else None) == technology
    is_supported = use == "fpga"
    assert (state.device(f"{card}/region-0") is not None) is is_supported


def test_rules_apply_to_regions(tmp_path: pathlib.Path) -> None:
    lines = [
        '{"address": "0000:05:00.0", "use": "fpga", "blank": "/blank.gbs"}',
        '{"address": "0000:15:00.1", "use": "off"}',
    ]
    state = read("dfl-pac", tmp_path, lines)
    device = region(state, "0000:05:00.0")
    assert device.region is not None
    assert device.region.blank == "/blank.gbs"
    assert region(state, "0000:15:00.0").counters == {}
    assert "use off" in look.reasons(state, "0000:15:00.0/region-0")


def test_a_vf_bound_to_another_driver_is_not_offered(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("dfl-pac", tmp_path)
    driver = root / "sys/bus/pci/drivers/uio_pci_generic"
    driver.mkdir()
    link = root / "sys/bus/pci/devices/0000:15:00.1/driver"
    link.unlink()
    link.symlink_to(driver)
    state = look.read(root)
    device = region(state, "0000:15:00.0")
    assert device.counters == {}
    assert "uio_pci_generic" in look.reasons(state, device.address)
    # A card that is bound to such a driver is not described.
    build.break_path(
        root, "bus/pci/devices/0000:55:00.0/driver", {"fault": "missing"}
    )
    (root / "sys/bus/pci/devices/0000:55:00.0/driver").symlink_to(driver)
    assert look.read(root).device("0000:55:00.0") is None


def test_a_vf_that_does_not_show_its_port(tmp_path: pathlib.Path) -> None:
    root = look.make("dfl-pac", tmp_path)
    build.break_path(
        root, "bus/pci/devices/0000:15:00.1/fpga_region", {"fault": "missing"}
    )
    state = look.read(root)
    device = region(state, "0000:15:00.0")
    assert device.region is not None
    assert device.region.function is None
    assert device.counters == {"FPGA": 1}
    assert "not shown by 0000:15:00.1" in look.reasons(state, device.address)
