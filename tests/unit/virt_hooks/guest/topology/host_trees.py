# SPDX-License-Identifier: Apache-2.0
"""PCIe trees of random hosts, and the sets of devices that share a bridge.

A cluster is a kind (``complex`` or ``bridge``) and the handles below it. Two
trees without bridges above one branch have the same form if, and only if,
their clusters are equal. The root ports above NVLink peers of one complex
count as if they were below a bridge.
"""

import itertools
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree

from hypothesis import strategies as st

from virt_hooks.guest.topology import host_tree, picture

Cluster = tuple[str, frozenset[str]]
_MDEV = "00000000-0000-4000-8000-{:012d}"


@st.composite
def hosts(draw: st.DrawFn) -> tuple[host_tree.HostDevice, ...]:
    """Draw the devices of a host with one to four root complexes.

    Root ports have devices or switches, which may have switches. A slot has
    one function, several, virtual functions alone, or an mdev.
    """
    buses, serials = itertools.count(0x50), itertools.count()

    def below(
        bridges: tuple[str, ...], node: int | None, depth: int
    ) -> Iterator[host_tree.HostDevice]:
        bus = next(buses)
        if depth < 2 and draw(st.sampled_from([True, False, False])):
            inner = next(buses)
            upstream = f"0000:{bus:02x}:00.0"
            for slot in range(draw(st.integers(1, 3))):
                port = f"0000:{inner:02x}:{slot:02x}.0"
                yield from below((*bridges, upstream, port), node, depth + 1)
            return
        device = f"0000:{bus:02x}:00"
        kind = draw(st.sampled_from(["one", "one", "card", "vfs", "mdev"]))
        if kind == "mdev":
            handle = _MDEV.format(next(serials))
            yield host_tree.HostDevice(
                bridges, f"{device}.0", handle, numa_node=node
            )
        elif kind == "vfs":
            for function in (4, 5, 6):
                handle = f"{device}.{function}"
                yield host_tree.HostDevice(
                    bridges, handle, handle, numa_node=node
                )
        else:
            members = (f"{device}.1", f"{device}.2") if kind == "card" else ()
            yield host_tree.HostDevice(
                bridges, f"{device}.0", f"{device}.0", members, node
            )

    devices: list[host_tree.HostDevice] = []
    for number in range(draw(st.integers(1, 4))):
        bus = 0x10 * (number + 1)
        node = draw(st.sampled_from([None, 0, 1]))
        for slot in range(draw(st.integers(1, 2))):
            port = f"0000:{bus:02x}:{slot:02x}.0"
            devices += below((f"pci0000:{bus:02x}", port), node, 0)
    return tuple(devices)


@st.composite
def peers(
    draw: st.DrawFn, devices: tuple[host_tree.HostDevice, ...]
) -> dict[str, set[str]]:
    """Draw NVLinks between devices, of any root complexes."""
    linked: dict[str, set[str]] = {}
    pairs = st.tuples(st.sampled_from(devices), st.sampled_from(devices))
    for first, second in draw(st.lists(pairs, max_size=4)):
        linked.setdefault(first.handle, set()).add(second.handle)
        linked.setdefault(second.handle, set()).add(first.handle)
    return linked


def list_host_clusters(
    devices: Iterable[host_tree.HostDevice],
    linked: host_tree.Peers = host_tree.NO_PEERS,
) -> set[Cluster]:
    """Return the clusters of a host, restricted to some devices."""
    devices = tuple(devices)
    below: dict[str, set[host_tree.HostDevice]] = {}
    for device in devices:
        for bridge in device.bridges:
            below.setdefault(bridge, set()).add(device)
    return {
        (
            "complex" if bridge.startswith("pci") else "bridge",
            frozenset(handle for each in shared for handle in each.handles),
        )
        for bridge, shared in below.items()
        if bridge.startswith("pci") or len(shared) > 1
    } | {
        ("bridge", frozenset(h for each in joined for h in each.handles))
        for joined in _join_ports(devices, linked)
    }


def _join_ports(
    devices: tuple[host_tree.HostDevice, ...], linked: host_tree.Peers
) -> Iterator[set[host_tree.HostDevice]]:
    """Yield the devices below root ports that NVLinks join."""
    ports = {
        device: (*device.bridges, device.address)[:2] for device in devices
    }
    seen: set[host_tree.HostDevice] = set()
    for device in devices:
        joined = set() if device in seen else {device}
        while reached := {
            other
            for other in devices
            if other not in joined
            and any(
                ports[other] == ports[each]
                or (
                    other.handle in linked.get(each.handle, ())
                    and other.root_complex == each.root_complex
                )
                for each in joined
            )
        }:
            joined |= reached
        seen |= joined
        if len({ports[each] for each in joined}) > 1:
            yield joined


def list_guest_clusters(drawn: picture.Picture) -> set[Cluster]:
    """Return the clusters of a guest, from the XML of its controllers."""
    above: dict[int, int] = {}
    kinds: dict[int, str] = {}
    for text in drawn.to_xml():
        controller = ElementTree.fromstring(text)
        index = int(controller.get("index", ""))
        address = controller.find("address")
        if address is not None:
            above[index] = int(address.get("bus", ""), 16)
        kinds[index] = {
            "pcie-expander-bus": "complex",
            "pcie-switch-upstream-port": "bridge",
        }.get(controller.get("model", ""), "")
    below: dict[int, set[str]] = {}
    for handle, place in drawn.places.items():
        bus: int | None = place.bus
        while bus is not None:
            below.setdefault(bus, set()).add(handle)
            bus = above.get(bus)
    return {
        (kinds[index], frozenset(handles))
        for index, handles in below.items()
        if kinds[index]
    }
