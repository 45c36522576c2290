# SPDX-License-Identifier: Apache-2.0
"""The guest's PCIe tree has the form of the host's."""

import collections
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel.geometry import topology
from nova_accel.model import flavors
from tests.support import examples
from tests.unit.virt_hooks.guest.topology import host_trees
from virt_hooks.guest.topology import guest_buses, host_tree, picture

CELLS = {0: 0, 1: 1}
LAW = settings(deadline=None, max_examples=examples.examples(1000))


def device(
    *bridges: str, at: str, members: tuple[str, ...] = (), node: int = 0
) -> host_tree.HostDevice:
    return host_tree.HostDevice(bridges, at, at, members, node)


def mirror(
    *devices: host_tree.HostDevice,
    spare: int = 1,
    first: int = 5,
    peers: host_tree.Peers = host_tree.NO_PEERS,
) -> picture.Picture:
    return picture.mirror(devices, CELLS, spare, first, peers=peers)


@st.composite
def guests(draw: st.DrawFn) -> tuple[host_tree.HostDevice, ...]:
    """Draw some of the devices of a host."""
    host = draw(host_trees.hosts())
    return tuple(
        draw(st.lists(st.sampled_from(host), min_size=1, unique=True))
    )


Linked = tuple[tuple[host_tree.HostDevice, ...], host_tree.Peers]


@st.composite
def linked_guests(
    draw: st.DrawFn,
) -> Linked:
    """Draw some of the devices of a host, and NVLinks between them."""
    devices = draw(guests())
    return devices, draw(host_trees.peers(devices))


# -- laws ------------------------------------------------------------------


@pytest.mark.slow
@given(linked=linked_guests(), spare=st.integers(0, 2))
@LAW
def test_the_trees_have_the_same_form(linked: Linked, spare: int) -> None:
    devices, peers = linked
    drawn = mirror(*devices, spare=spare, peers=peers)
    assert host_trees.list_guest_clusters(
        drawn
    ) == host_trees.list_host_clusters(devices, peers)


@pytest.mark.slow
@given(linked=linked_guests(), seed=st.integers())
@LAW
def test_the_order_of_the_devices_has_no_effect(
    linked: Linked, seed: int
) -> None:
    devices, peers = linked
    shuffled = list(devices)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - no secret
    assert mirror(*shuffled, peers=peers) == mirror(*devices, peers=peers)


@pytest.mark.slow
@given(linked=linked_guests(), spare=st.integers(0, 2))
@LAW
def test_no_controller_is_superfluous(linked: Linked, spare: int) -> None:
    devices, peers = linked
    drawn = mirror(*devices, spare=spare, peers=peers)
    children = collections.Counter(c.bus for c in drawn.controllers)
    of = picture.Model
    for controller in drawn.controllers:
        if controller.model is of.UPSTREAM:
            assert children[controller.index] > 1
    used = {place.bus for place in drawn.places.values()}
    ports = {
        c.index
        for c in drawn.controllers
        if c.model in (of.ROOT_PORT, of.DOWNSTREAM)
    }
    empty = {index for index in ports - used if not children[index]}
    assert empty == set(drawn.spare_ports)
    assert len(empty) == spare * len(drawn.expanders)


@pytest.mark.slow
@given(linked=linked_guests(), first=st.integers(1, 17))
@LAW
def test_indexes_have_no_gap_and_are_the_buses(
    linked: Linked, first: int
) -> None:
    drawn = mirror(*linked[0], first=first, peers=linked[1])
    indexes = [controller.index for controller in drawn.controllers]
    assert indexes == [*range(first, first + len(indexes))]
    text = as_defined(drawn, first - 1)
    assert guest_buses.predict(text) == {
        index: index for index in range(first + len(indexes))
    }
    guest_buses.check(text)


@pytest.mark.slow
@given(devices=guests())
@LAW
def test_each_function_has_a_place_of_its_own(
    devices: tuple[host_tree.HostDevice, ...],
) -> None:
    drawn = mirror(*devices)
    handles = [handle for each in devices for handle in each.handles]
    assert drawn.places.keys() == set(handles)
    places = {(p.bus, p.slot, p.function) for p in drawn.places.values()}
    assert len(places) == len(handles)
    # A guest scans no slot without function 0.
    assert all((bus, slot, 0) in places for bus, slot, _ in places)


@given(devices=guests())
@LAW
def test_by_numa_nodes_there_are_no_switches(
    devices: tuple[host_tree.HostDevice, ...],
) -> None:
    drawn = picture.mirror(devices, CELLS, 1, 5, flavors.GuestTopology.NUMA)
    assert len(drawn.expanders) == len({d.numa_node for d in devices})
    models = {controller.model for controller in drawn.controllers}
    assert models == {picture.Model.EXPANDER, picture.Model.ROOT_PORT}
    assert drawn.places.keys() == {h for d in devices for h in d.handles}


def as_defined(drawn: picture.Picture, root_ports: int) -> str:
    """Return a domain with a picture, with the addresses of libvirt."""
    ports = "".join(
        f'<controller type="pci" index="{n}" model="pcie-root-port">'
        f'<address type="pci" bus="0x00" slot="0x{1 + n // 8:02x}"'
        f' function="0x{n % 8}"/></controller>'
        for n in range(1, root_ports + 1)
    )
    root = '<controller type="pci" index="0" model="pcie-root"/>'
    devices = "".join((root, ports, *drawn.to_xml()))
    return f"<domain><devices>{devices}</devices></domain>"


# -- cases -----------------------------------------------------------------

ROOT, PORT = "pci0000:16", "0000:16:01.0"
SWITCH = (ROOT, PORT, "0000:17:00.0")
GPU = device(*SWITCH, "0000:18:00.0", at="0000:19:00.0")
NIC = device(
    *SWITCH, "0000:18:04.0", at="0000:1a:00.0", members=("0000:1a:00.1",)
)
ALONE = device("pci0000:96", "0000:96:01.0", at="0000:97:00.0", node=1)


def test_a_switch_that_two_devices_share() -> None:
    drawn = mirror(GPU, NIC, ALONE)
    of = picture.Model
    assert [(c.index, c.model, c.bus, c.cell) for c in drawn.controllers] == [
        (5, of.EXPANDER, 0, 0),
        (6, of.ROOT_PORT, 5, None),
        (7, of.UPSTREAM, 6, None),
        (8, of.DOWNSTREAM, 7, None),
        (9, of.DOWNSTREAM, 7, None),
        (10, of.ROOT_PORT, 5, None),
        (11, of.EXPANDER, 0, 1),
        (12, of.ROOT_PORT, 11, None),
        (13, of.ROOT_PORT, 11, None),
    ]
    assert {
        handle: (place.bus, place.function, place.is_first)
        for handle, place in drawn.places.items()
    } == {
        "0000:19:00.0": (8, 0, False),
        "0000:1a:00.0": (9, 0, True),
        "0000:1a:00.1": (9, 1, False),
        "0000:97:00.0": (12, 0, False),
    }
    assert drawn.expanders == {"pci0000:16": 5, "pci0000:96": 11}
    assert drawn.spare_ports == (10, 13)


def test_a_switch_of_one_device_is_left_out() -> None:
    assert len(mirror(GPU).controllers) == 3


def test_nvlink_peers_of_one_root_complex_are_below_one_switch() -> None:
    """A card without NVLink is beside it, and one elsewhere stays there."""
    beside = device(ROOT, "0000:16:03.0", at="0000:2a:00.0")
    alone = device(ROOT, "0000:16:05.0", at="0000:3a:00.0")
    cards = {GPU.handle, beside.handle, ALONE.handle}
    drawn = mirror(
        *(GPU, NIC, beside, alone, ALONE),
        peers={card: cards - {card} for card in cards},
    )
    of = picture.Model
    assert [(c.index, c.model, c.bus) for c in drawn.controllers] == [
        (5, of.EXPANDER, 0),
        (6, of.ROOT_PORT, 5),
        (7, of.UPSTREAM, 6),
        (8, of.DOWNSTREAM, 7),
        (9, of.UPSTREAM, 8),
        (10, of.DOWNSTREAM, 9),
        (11, of.DOWNSTREAM, 9),
        (12, of.DOWNSTREAM, 7),
        (13, of.ROOT_PORT, 5),
        (14, of.ROOT_PORT, 5),
        (15, of.EXPANDER, 0),
        (16, of.ROOT_PORT, 15),
        (17, of.ROOT_PORT, 15),
    ]
    assert {h: place.bus for h, place in drawn.places.items()} == {
        **{GPU.handle: 10, NIC.handle: 11, NIC.members[0]: 11},
        **{beside.handle: 12, alone.handle: 13, ALONE.handle: 16},
    }


def test_nvlink_peers_below_one_bridge_need_no_other() -> None:
    peers = {GPU.handle: {NIC.handle}, NIC.handle: {GPU.handle}}
    assert mirror(GPU, NIC, peers=peers) == mirror(GPU, NIC)


def test_an_expander_of_an_unknown_node_has_none() -> None:
    unknown = device(*SWITCH, at="0000:19:00.0", node=7)
    (expander, *_) = mirror(unknown).controllers
    assert expander.cell is None
    assert "node" not in mirror(unknown).to_xml()[0]


@pytest.mark.parametrize(
    ("path", "bridges"),
    [
        (
            "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0",
            ("pci0000:16", "0000:16:01.0"),
        ),
        ("/sys/devices/pci0000:00/0000:00:05.0", ("pci0000:00",)),
        (
            "/sys/devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:00:01.0"
            "/10000:01:00.0",
            ("pci10000:00", "10000:00:01.0"),
        ),
        ("/sys/devices/pci0000:16", ()),
        ("/sys/devices/virtual/mtty/mtty", ()),
        ("/sys/devices/pci0000:16/x/0000:17:00.0", ()),
        ("", ()),
    ],
)
def test_the_bridges_of_a_path(path: str, bridges: tuple[str, ...]) -> None:
    assert topology.parse_bridges(path) == bridges


def test_too_many_buses_are_refused() -> None:
    devices = [
        device(f"pci0000:{n:02x}", at=f"0000:{n:02x}:00.0") for n in range(84)
    ]
    with pytest.raises(picture.PictureError, match="more than 256 buses"):
        mirror(*devices)


def test_too_many_ports_are_refused() -> None:
    below = [
        device(*SWITCH, at=f"0000:18:{n // 8:02x}.{n % 8}") for n in range(33)
    ]
    with pytest.raises(picture.PictureError, match="33 devices below one"):
        mirror(*below)
    beside = [
        device(ROOT, f"0000:16:{n:02x}.0", at=f"0000:{n + 32:02x}:00.0")
        for n in range(32)
    ]
    with pytest.raises(picture.PictureError, match="33 root ports below pci"):
        mirror(*beside)
