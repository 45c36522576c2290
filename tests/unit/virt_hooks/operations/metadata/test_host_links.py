# SPDX-License-Identifier: Apache-2.0
"""Links of cards, read from a tree of files."""

import pathlib

import pytest

from nova_accel.host.sysfs import host_reader
from virt_hooks.operations.metadata import host_links

ROOT_PORT = "pci0000:16/0000:16:01.0"
CARD, VF = "0000:17:00.0", "0000:17:00.4"


def add(
    root: pathlib.Path, path: str, speed: str = "", width: str = ""
) -> pathlib.Path:
    """Add a function with the path below /sys/devices."""
    place = root / "sys/devices" / path
    place.mkdir(parents=True, exist_ok=True)
    if speed:
        (place / "max_link_speed").write_text(f"{speed}\n")
        (place / "max_link_width").write_text(f"{width}\n")
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / place.name).symlink_to(f"../../../devices/{path}")
    return place


def read(root: pathlib.Path, card: str) -> host_links.HostPlace:
    return host_links.read(host_reader.HostReader(root), card)


@pytest.mark.parametrize(
    ("port", "card", "expected"),
    [
        (("32.0 GT/s PCIe", "16"), ("16.0 GT/s PCIe", "16"), 16.0),
        (("8.0 GT/s PCIe", "8"), ("16.0 GT/s PCIe", "16"), 8.0),
    ],
)
def test_the_slower_end_counts(
    tmp_path: pathlib.Path,
    port: tuple[str, str],
    card: tuple[str, str],
    expected: float,
) -> None:
    add(tmp_path, ROOT_PORT, *port)
    add(tmp_path, f"{ROOT_PORT}/{CARD}", *card)
    place = read(tmp_path, CARD)
    assert place.link == host_links.Link(
        speed=f"{expected} GT/s PCIe", width=min(int(port[1]), int(card[1]))
    )
    names = [bridge.name for bridge in place.bridges]
    assert names == ["pci0000:16", "0000:16:01.0"]


def test_the_uplink_of_a_switch(tmp_path: pathlib.Path) -> None:
    """The root port's own values are those of the link below it."""
    upstream, downstream = "0000:17:00.0", "0000:18:04.0"
    path = ROOT_PORT
    for name, speed, width in (
        ("", "32.0 GT/s PCIe", "16"),
        (upstream, "16.0 GT/s PCIe", "8"),
        (downstream, "16.0 GT/s PCIe", "4"),
        ("0000:19:00.0", "32.0 GT/s PCIe", "16"),
    ):
        path = f"{path}/{name}" if name else path
        add(tmp_path, path, speed, width)
    place = read(tmp_path, "0000:19:00.0")
    fast, slow = (
        host_links.Link(speed="16.0 GT/s PCIe", width=width)
        for width in (8, 4)
    )
    assert place.link == slow
    assert [bridge.link for bridge in place.bridges] == [
        host_links.UNKNOWN,
        host_links.UNKNOWN,
        fast,
        slow,
    ]


def test_a_vf_has_the_link_of_its_pf(tmp_path: pathlib.Path) -> None:
    add(tmp_path, ROOT_PORT, "32.0 GT/s PCIe", "16")
    add(tmp_path, f"{ROOT_PORT}/{CARD}", "16.0 GT/s PCIe", "8")
    vf = add(tmp_path, f"{ROOT_PORT}/{VF}", "Unknown", "0")
    (vf / "physfn").symlink_to(f"../{CARD}")
    assert read(tmp_path, VF) == read(tmp_path, CARD)


@pytest.mark.parametrize(
    ("speed", "width"), [("Unknown", "255"), ("Unknown", "0"), ("", "")]
)
def test_one_unknown_end_makes_the_link_unknown(
    tmp_path: pathlib.Path, speed: str, width: str
) -> None:
    add(tmp_path, ROOT_PORT, speed, width)
    add(tmp_path, f"{ROOT_PORT}/{CARD}", "16.0 GT/s PCIe", "16")
    place = read(tmp_path, CARD)
    assert place.link == host_links.UNKNOWN
    assert place.bridges


def test_a_card_on_the_root_bus(tmp_path: pathlib.Path) -> None:
    add(tmp_path, "pci0000:00/0000:00:02.0", "16.0 GT/s PCIe", "4")
    place = read(tmp_path, "0000:00:02.0")
    assert [bridge.name for bridge in place.bridges] == ["pci0000:00"]
    assert place.link == host_links.Link(speed="16.0 GT/s PCIe", width=4)


@pytest.mark.parametrize("name", ["mtty", "0000:ff:00.0"])
def test_a_device_that_is_no_function(
    tmp_path: pathlib.Path, name: str
) -> None:
    assert read(tmp_path, name) == host_links.NOWHERE
