# SPDX-License-Identifier: Apache-2.0
"""Devices of a guest that share a root complex or a switch.

Two trees without switches of one device have the same form if, and only if,
their clusters are equal. A live migration keeps the tree and the NUMA nodes
that the guest sees, and neither libvirt nor QEMU compares them with the
devices of the destination.
"""

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from nova_accel.model import flavors, pci
from virt_hooks.guest.topology import picture

_KINDS = {
    picture.Model.EXPANDER.value: "root complex",
    picture.Model.UPSTREAM.value: "switch",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Handles below one root complex, or below one switch.

    ``cell`` is the NUMA node of the guest that a root complex is on, None for
    none and for a switch.
    """

    kind: str
    handles: frozenset[str]
    cell: int | None = None

    def __str__(self) -> str:
        """Return the cluster in words: ``A and B below one switch``."""
        node = "" if self.cell is None else f" on node {self.cell}"
        handles = " and ".join(sorted(self.handles))
        return f"{handles} below one {self.kind}{node}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GuestTree:
    """Clusters of a guest, and the topology from which they come."""

    topology: flavors.GuestTopology
    clusters: frozenset[Cluster]

    @property
    def handles(self) -> frozenset[str]:
        """Return the handles of all devices below root complexes."""
        return frozenset().union(*(c.handles for c in self.clusters))

    def renamed(self, handles: Mapping[str, str]) -> "GuestTree":
        """Return the tree with other handles, by those of now."""
        return dataclasses.replace(
            self,
            clusters=frozenset(
                dataclasses.replace(
                    cluster,
                    handles=frozenset(handles[h] for h in cluster.handles),
                )
                for cluster in self.clusters
            ),
        )


def to_text(tree: GuestTree) -> str:
    """Return a tree as one line of JSON."""
    rows = [
        (cluster.kind, cluster.cell, sorted(cluster.handles))
        for cluster in sorted(tree.clusters, key=str)
    ]
    return json.dumps({"topology": tree.topology.value, "clusters": rows})


def parse_text(text: str) -> GuestTree:
    """Return the tree that another host has sent.

    :raises ValueError: the text has another format.
    """
    try:
        record = json.loads(text)
        return GuestTree(
            topology=flavors.GuestTopology(record["topology"]),
            clusters=frozenset(
                Cluster(kind=kind, cell=cell, handles=frozenset(handles))
                for kind, cell, handles in record["clusters"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"unknown format of the source ({error}): run one nova-accel on"
            " both"
        ) from error


def list_clusters(
    drawn: picture.Picture, handles: Collection[str]
) -> frozenset[Cluster]:
    """Return the clusters of some devices of a picture."""
    return _group(
        {c.index: c.bus for c in drawn.controllers if c.slot is not None},
        {
            c.index: Cluster(kind=kind, handles=frozenset(), cell=c.cell)
            for c in drawn.controllers
            if (kind := _KINDS.get(c.model.value))
        },
        {
            handle: place.bus
            for handle, place in drawn.places.items()
            if handle in handles
        },
    )


def parse_clusters(text: str, handles: Collection[str]) -> frozenset[Cluster]:
    """Return the clusters of some devices of a defined domain."""
    root = ElementTree.fromstring(text)  # noqa: S314 - libvirtd's
    above: dict[int, int] = {}
    kinds: dict[int, Cluster] = {}
    for controller in root.iterfind("./devices/controller[@type='pci']"):
        index = int(controller.get("index") or "0")
        kind = _KINDS.get(controller.get("model") or "")
        if kind is not None:
            node = controller.findtext("./target/node")
            cell = None if node is None else int(node)
            kinds[index] = Cluster(kind=kind, handles=frozenset(), cell=cell)
        address = controller.find("address")
        if address is not None:
            above[index] = int(address.get("bus") or "0", 0)
    places = {
        handle: int(address.get("bus") or "0", 0)
        for hostdev in root.iterfind("./devices/hostdev")
        if (handle := parse_handle(hostdev)) in handles
        and (address := hostdev.find("./address[@type='pci']")) is not None
    }
    return _group(above, kinds, places)


def pair(
    guest: Iterable[Cluster],
    here: Iterable[Cluster],
    handles: Mapping[str, str],
    kinds: Mapping[str, str],
) -> Mapping[str, str]:
    """Return the new handles by the old ones, so that both trees are equal.

    Handles of one kind are interchangeable. The given pairs are returned if
    no others make the trees equal.

    :param guest: clusters of the old handles.
    :param here: clusters of the new ones.
    :param handles: new handles by old ones.
    :param kinds: kinds of the old handles.
    """
    new_kinds = {handles[old]: kind for old, kind in kinds.items()}
    old_tree = _sort(tuple(guest), kinds)
    new_tree = _sort(tuple(here), new_kinds)
    if old_tree.form != new_tree.form:
        return handles
    return dict(zip(old_tree.handles, new_tree.handles, strict=True))


# Kind, NUMA node, kind of a handle, and forms of the branches.
_Form = tuple[str, int, str, tuple[Any, ...]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _SortedTree:
    """Form of a cluster, and its handles in the order of its branches."""

    form: _Form
    handles: tuple[str, ...]


def _sort(
    clusters: tuple[Cluster, ...], kinds: Mapping[str, str]
) -> _SortedTree:
    """Return a tree in the order of its forms.

    :param kinds: kinds of all handles, in an order for equal forms.
    """
    order = {handle: number for number, handle in enumerate(kinds)}
    # A root complex comes before a switch of the same devices.
    remaining = sorted(clusters, key=lambda c: (-len(c.handles), c.kind))

    def build(top: Cluster, inner: list[Cluster]) -> _SortedTree:
        branches: list[_SortedTree] = []
        rest = set(top.handles)
        for cluster in inner:
            if not cluster.handles <= rest:
                continue
            rest -= cluster.handles
            below = [
                c
                for c in inner[inner.index(cluster) + 1 :]
                if c.handles <= cluster.handles
            ]
            branches.append(build(cluster, below))
        branches += (
            _SortedTree(form=("", -1, kinds[h], ()), handles=(h,))
            for h in rest
        )
        branches.sort(
            key=lambda b: (b.form, min(map(order.__getitem__, b.handles)))
        )
        return _SortedTree(
            form=(
                top.kind,
                -1 if top.cell is None else top.cell,
                "",
                tuple(b.form for b in branches),
            ),
            handles=tuple(h for b in branches for h in b.handles),
        )

    return build(Cluster(kind="", handles=frozenset(kinds)), remaining)


def explain(
    guest: Iterable[Cluster], here: Iterable[Cluster]
) -> tuple[str, ...]:
    """Return how the clusters of a guest differ from those of a host."""
    expected, actual = frozenset(guest), frozenset(here)
    return (
        *(f"the guest sees {c}" for c in sorted(map(str, expected - actual))),
        *(f"here are {c}" for c in sorted(map(str, actual - expected))),
    )


def _group(
    above: Mapping[int, int],
    kinds: Mapping[int, Cluster],
    places: Mapping[str, int],
) -> frozenset[Cluster]:
    """Return the clusters of devices.

    :param above: the bus that each controller is on.
    :param kinds: empty clusters, by the controller that is their top.
    :param places: the bus of each handle.
    """
    below: dict[int, set[str]] = {}
    for handle, place in places.items():
        bus: int | None = place
        while bus:
            if bus in kinds:
                below.setdefault(bus, set()).add(handle)
            bus = above.get(bus)
    return frozenset(
        dataclasses.replace(kinds[bus], handles=frozenset(members))
        for bus, members in below.items()
        if len(members) > 1 or kinds[bus].kind == "root complex"
    )


def parse_handle(hostdev: ElementTree.Element) -> str:
    """Return the uuid or the host's address of a hostdev, empty without."""
    address = hostdev.find("./source/address")
    if address is None:
        return ""
    if (uuid := address.get("uuid")) is not None:
        return uuid.lower()
    fields = ("domain", "bus", "slot", "function")
    numbers = {name: int(address.get(name) or "0", 0) for name in fields}
    return str(pci.PciAddress(**numbers))
