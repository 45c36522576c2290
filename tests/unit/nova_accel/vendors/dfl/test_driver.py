# SPDX-License-Identifier: Apache-2.0
"""Proves how Intel FPGA cards and their regions are described."""

import pathlib
from collections.abc import Iterable

import pytest

from nova_accel import model
from nova_accel.model import names
from tests.hosts import build, look

N6001 = "0000:b1:00.0"


def region(state: model.HostState, card: str, number: int = 0) -> model.Device:
    return look.device(state, names.region_address(card, number))


def read(
    name: str, root: pathlib.Path, rules: Iterable[str] = ()
) -> model.HostState:
    return look.read(look.make(name, root), rules)


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


def test_functions_of_the_hosts_network_depend_on_the_region(
    tmp_path: pathlib.Path,
) -> None:
    device = region(read("dfl-n6000", tmp_path), N6001)
    assert device.region is not None
    assert device.region.dependents == ("0000:b1:00.3",)


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
