# SPDX-License-Identifier: Apache-2.0
"""Places of claimed devices are read from the kernel's files."""

import dataclasses
from pathlib import Path

import pytest

from nova_accel import model
from tests.unit.virt_hooks.guest.test_hostdev import CARD, MDEV, VF, WHOLE
from virt_hooks.guest.topology import device_reader, host_tree, picture

BUS = "sys/bus/pci/devices"
PORT = "pci0000:64/0000:64:01.0"


def add(
    root: Path, path: str, numa_node: str = "1\n", resource: str = ""
) -> None:
    """Add a function of the kernel at a path below ``devices``."""
    directory = root / "sys/devices" / path
    directory.mkdir(parents=True)
    (directory / "numa_node").write_text(numa_node)
    (directory / "resource").write_text(resource)
    bus = root / BUS
    bus.mkdir(parents=True, exist_ok=True)
    (bus / directory.name).symlink_to(f"../../../devices/{path}")


def read(root: Path, *claims: model.Claim) -> tuple[host_tree.HostDevice, ...]:
    return device_reader.DeviceReader(str(root)).read(claims)


def test_functions_of_one_slot_are_one_device(tmp_path: Path) -> None:
    for function in range(4):
        add(tmp_path, f"{PORT}/0000:65:00.{function}")
    assert read(tmp_path, CARD) == (
        host_tree.HostDevice(
            ("pci0000:64", "0000:64:01.0"),
            "0000:65:00.0",
            "0000:65:00.0",
            ("0000:65:00.1", "0000:65:00.2", "0000:65:00.3"),
            1,
        ),
    )


def test_a_member_elsewhere_is_a_device_of_its_own(tmp_path: Path) -> None:
    add(tmp_path, f"{PORT}/0000:65:00.0")
    add(tmp_path, "pci0000:64/0000:64:02.0/0000:66:00.0", "-1\n")
    claim = dataclasses.replace(WHOLE, members=("0000:66:00.0",))
    assert [(d.handles, d.numa_node) for d in read(tmp_path, claim)] == [
        (("0000:65:00.0",), 1),
        (("0000:66:00.0",), None),
    ]


def test_functions_of_two_claims_are_two_devices(tmp_path: Path) -> None:
    for address in ("0000:65:00.0", "0000:65:00.1"):
        add(tmp_path, f"{PORT}/{address}")
    other = dataclasses.replace(VF, handle="0000:65:00.1")
    assert len(read(tmp_path, WHOLE, other)) == 2


def test_an_mdev_is_where_its_parent_is(tmp_path: Path) -> None:
    add(tmp_path, "pci0000:3a/0000:3a:00.0/0000:3b:00.0")
    (device,) = read(tmp_path, MDEV)
    assert device.bridges == ("pci0000:3a", "0000:3a:00.0")
    assert device.handles == (MDEV.handle,)


def test_an_mdev_off_the_pci_bus_has_no_place(tmp_path: Path) -> None:
    assert read(tmp_path, dataclasses.replace(MDEV, parent="mtty")) == ()


def test_a_device_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(picture.PictureError, match=r"above 0000:65:00.0 can"):
        read(tmp_path, WHOLE)


def test_a_device_below_no_root_complex_is_named(tmp_path: Path) -> None:
    add(tmp_path, "virtual/0000:65:00.0")
    with pytest.raises(picture.PictureError, match="no bridges are above"):
        read(tmp_path, WHOLE)


def test_an_unreadable_node_is_unknown(tmp_path: Path) -> None:
    add(tmp_path, f"{PORT}/0000:65:00.0", "?")
    (device,) = read(tmp_path, WHOLE)
    assert device.numa_node is None


def test_cards_are_devices_without_partitions(tmp_path: Path) -> None:
    add(tmp_path, f"{PORT}/0000:65:00.0")
    reader = device_reader.DeviceReader(str(tmp_path))
    assert reader.read_cards(["0000:65:00.0", "mtty"]) == (
        host_tree.HostDevice(
            ("pci0000:64", "0000:64:01.0"),
            "0000:65:00.0",
            "0000:65:00.0",
            (),
            1,
        ),
    )
