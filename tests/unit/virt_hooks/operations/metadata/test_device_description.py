# SPDX-License-Identifier: Apache-2.0
"""Descriptions of accelerators for their guests."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virt_hooks.operations.metadata import device_description, host_links
from virt_hooks.operations.metadata.device_description import GuestDevice

SERVER = "6a0a5f6e-0000-4000-8000-00000000000a"
OTHER = "6a0a5f6e-0000-4000-8000-00000000000b"
UPLINK = host_links.Link(speed="16.0 GT/s PCIe", width=8)
ROOT = (
    host_links.Bridge(name="pci0000:16"),
    host_links.Bridge(name="0000:16:01.0"),
)
SWITCH = (*ROOT, host_links.Bridge(name="0000:17:00.0", link=UPLINK))


def build_place(
    *bridges: host_links.Bridge | str, link: host_links.Link = UPLINK
) -> host_links.HostPlace:
    return host_links.HostPlace(
        bridges=tuple(
            host_links.Bridge(name=bridge)
            if isinstance(bridge, str)
            else bridge
            for bridge in bridges
        ),
        link=link,
    )


#: Two GPUs and a NIC: a GPU and the NIC are below one switch.
DEVICES = (
    GuestDevice(
        profile="A100-40C",
        address="0000:08:00.0",
        card="0000:19:00.0",
        model="A100",
        vendor_id="10de",
        numa_node=1,
        cell=0,
        place=build_place(
            *SWITCH,
            "0000:18:00.0",
            link=host_links.Link(speed="32.0 GT/s PCIe", width=16),
        ),
        peers=frozenset({"0000:5a:00.0"}),
        driver_version="550.90.05",
    ),
    GuestDevice(
        profile="whole",
        address="0000:09:00.0",
        card="0000:1a:00.0",
        numa_node=1,
        place=build_place(*SWITCH, "0000:18:04.0"),
    ),
    GuestDevice(
        profile="A100-40C",
        address="0000:0d:00.0",
        card="0000:5a:00.0",
        vendor_id="10de",
        numa_node=3,
        place=build_place("pci0000:58", "0000:58:01.0"),
        peers=frozenset({"0000:19:00.0"}),
    ),
)


def describe(
    *devices: GuestDevice, server: str = SERVER
) -> tuple[dict[str, Any], ...]:
    return tuple(
        json.loads(text)
        for text in device_description.describe(server, devices)
    )


def test_all_of_a_device() -> None:
    gpu, _, other = describe(*DEVICES)
    ids = [gpu.pop(key) for key in ("root", "node", "link_domain")]
    assert ids[2] == other["link_domain"]
    (switch,) = gpu.pop("bridges")
    assert switch.pop("id") not in ids
    assert switch == {"link_speed": "16.0 GT/s PCIe", "link_width": 8}
    assert gpu == {
        "version": 1,
        "profile": "A100-40C",
        "model": "A100",
        "cell": 0,
        "link_speed": "32.0 GT/s PCIe",
        "link_width": 16,
        "nvlinks": ["0000:0d:00.0"],
        "driver_branch": "550",
        "license": "vCS",
    }


def test_devices_below_one_switch_have_its_id() -> None:
    gpu, nic, other = describe(*DEVICES)
    assert gpu["root"] == nic["root"] != other["root"]
    assert gpu["bridges"] == nic["bridges"]
    assert gpu["node"] == nic["node"] != other["node"]
    assert other["bridges"] == []


def test_unknown_values_are_left_out() -> None:
    (device,) = describe(
        GuestDevice(profile="mtty-1", address="", card="mtty")
    )
    assert device == {"version": 1, "profile": "mtty-1"}


def test_no_nvlink_is_not_an_unknown_one() -> None:
    (device,) = describe(
        dataclasses.replace(DEVICES[1], peers=frozenset()),
    )
    assert device["nvlinks"] == []
    assert "link_domain" not in device


def test_a_whole_card_needs_no_branch_and_no_license() -> None:
    device = dataclasses.replace(DEVICES[0], profile="A100", peers=None)
    (described,) = describe(device)
    assert not {"driver_branch", "license"} & described.keys()


@pytest.mark.parametrize(
    ("series", "name"), device_description.LICENSES.items()
)
def test_license_of_each_series(series: str, name: str) -> None:
    device = dataclasses.replace(DEVICES[0], profile=f"A40-8{series}")
    (described,) = describe(dataclasses.replace(device, peers=None))
    assert described["license"] == name


def test_switches_behind_a_switch() -> None:
    """Each bridge is listed that separates some of the devices."""
    first = build_place(*SWITCH, "a", "b")
    second = build_place(*SWITCH, "a", "c")
    third = build_place(*SWITCH, "d")
    devices = describe(
        *(
            GuestDevice(profile="p", address=str(n), card=str(n), place=place)
            for n, place in enumerate((first, second, third))
        )
    )
    names = [[b["id"] for b in device["bridges"]] for device in devices]
    assert names[0] == names[1]
    assert names[2] == names[0][:1]
    assert len(names[0]) == 2


def test_functions_of_one_slot_share_the_port() -> None:
    place = build_place(*ROOT)
    first, second = describe(
        *(
            GuestDevice(profile="p", address=card, card=card, place=place)
            for card in ("0000:17:00.0", "0000:17:00.1")
        )
    )
    assert first["bridges"] == second["bridges"]
    assert len(first["bridges"]) == 1


def list_ids(descriptions: tuple[dict[str, Any], ...]) -> set[str]:
    return {
        value
        for device in descriptions
        for value in (
            device["root"],
            device["node"],
            *(bridge["id"] for bridge in device["bridges"]),
        )
    }


def test_ids_of_two_servers_have_nothing_in_common() -> None:
    assert not list_ids(describe(*DEVICES)) & list_ids(
        describe(*DEVICES, server=OTHER)
    )


def test_ids_are_the_same_on_a_host_of_the_same_shape() -> None:
    """A live migration leaves the guest's metadata as it is."""

    def rename(device: GuestDevice) -> GuestDevice:
        place = dataclasses.replace(
            device.place,
            bridges=tuple(
                dataclasses.replace(bridge, name=f"{bridge.name}b")
                for bridge in device.place.bridges
            ),
        )
        return dataclasses.replace(
            device, place=place, numa_node=(device.numa_node or 0) + 4
        )

    assert describe(*DEVICES) == describe(*map(rename, DEVICES))


def test_nothing_names_the_host() -> None:
    texts = "".join(device_description.describe(SERVER, DEVICES))
    for name in ("0000:19", "0000:1a", "0000:5a", "pci0000", "0000:16"):
        assert name not in texts


_BRIDGES = st.lists(
    st.sampled_from([f"0000:{n:02x}:00.0" for n in range(4)]), max_size=12
)


@given(
    st.lists(
        st.builds(
            GuestDevice,
            profile=st.text(max_size=200),
            model=st.text(max_size=200),
            address=st.sampled_from(["", "0000:01:00.0", "0000:02:00.0"]),
            card=st.sampled_from(["0000:a1:00.0", "0000:a2:00.0"]),
            numa_node=st.none() | st.integers(0, 3),
            place=_BRIDGES.map(lambda names: build_place(*names)),
        ),
        max_size=150,
    )
)
def test_the_size_is_bounded(devices: list[GuestDevice]) -> None:
    """Nova's column is cut, or the statement fails, behind 65,535 bytes."""
    texts = device_description.describe(SERVER, devices)
    assert len(texts) == len(devices)
    assert sum(map(len, texts)) <= device_description.MAX_CHARACTERS
    assert all(text.isascii() for text in texts)


def test_a_usual_server_has_its_descriptions() -> None:
    eight = [
        dataclasses.replace(DEVICES[0], address=f"0000:{n:02x}:00.0")
        for n in range(32)
    ]
    alone = [dataclasses.replace(d, peers=frozenset()) for d in eight]
    assert all(device_description.describe(SERVER, alone))
