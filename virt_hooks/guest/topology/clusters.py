# SPDX-License-Identifier: Apache-2.0
"""Devices of a guest that share a root complex or a switch.

Two trees without switches of one device have the same form if, and only if,
their clusters are equal. A live migration keeps the tree and the NUMA nodes
that the guest sees, and neither libvirt nor QEMU compares them with the
devices of the destination.
"""

import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nova_accel.model import flavors, json_codec
from virt_hooks.guest.topology import picture

# More than the buses of a guest, and than the characters of a handle.
_LIMITS = json_codec.Limits(text=64, items=256, rows=8192)


class ClusterKind(enum.Enum):
    """Object of PCIe that devices share."""

    ROOT_COMPLEX = "root complex"
    SWITCH = "switch"


_KINDS = {
    picture.Model.EXPANDER: ClusterKind.ROOT_COMPLEX,
    picture.Model.UPSTREAM: ClusterKind.SWITCH,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Handles below one root complex, or below one switch.

    ``cell`` is the NUMA node of the guest that a root complex is on, None for
    none and for a switch.
    """

    kind: ClusterKind
    handles: frozenset[str]
    cell: int | None = None

    def __str__(self) -> str:
        """Return the cluster in words: ``A and B below one switch``."""
        node = "" if self.cell is None else f" on node {self.cell}"
        handles = " and ".join(sorted(self.handles))
        return f"{handles} below one {self.kind.value}{node}"


Clusters = frozenset[Cluster]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GuestTree:
    """Clusters of a guest, and the topology from which they come."""

    topology: flavors.GuestTopology
    clusters: tuple[Cluster, ...]

    @property
    def handles(self) -> frozenset[str]:
        """Return the handles of all devices below root complexes."""
        return frozenset().union(*(c.handles for c in self.clusters))


_FORMAT = json_codec.Format(kind=GuestTree, limits=_LIMITS)


def to_text(topology: flavors.GuestTopology, clusters: Clusters) -> str:
    """Return a tree as one line of JSON."""
    ordered = tuple(sorted(clusters, key=str))
    return _FORMAT.encode(GuestTree(topology=topology, clusters=ordered))


def parse_text(text: str) -> GuestTree:
    """Return the tree that another host has sent.

    :raises ValueError: the text has another format.
    """
    try:
        tree = _FORMAT.decode(text)
        if not all(cluster.handles for cluster in tree.clusters):
            raise ValueError("a cluster has no devices")
        return tree
    except ValueError as error:
        raise ValueError(
            f"unknown format of the source ({error}): run one nova-accel on"
            " both"
        ) from error


def rename(
    clusters: Iterable[Cluster], handles: Mapping[str, str]
) -> Clusters:
    """Return clusters with other handles, by those of now."""
    return frozenset(
        dataclasses.replace(
            cluster, handles=frozenset(handles[h] for h in cluster.handles)
        )
        for cluster in clusters
    )


def list_clusters(
    drawn: picture.Picture, handles: Collection[str]
) -> Clusters:
    """Return the clusters of some devices of a picture."""
    tops = {c.index: c for c in drawn.controllers if c.model in _KINDS}
    below: dict[int, set[str]] = {}
    for handle in drawn.places.keys() & set(handles):
        for bus in drawn.list_above(drawn.places[handle].bus):
            below.setdefault(bus, set()).add(handle)
    return frozenset(
        Cluster(
            kind=_KINDS[top.model],
            handles=frozenset(below[index]),
            cell=top.cell,
        )
        for index, top in tops.items()
        if len(below.get(index, ())) > (top.model is picture.Model.UPSTREAM)
    )


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
    remaining = sorted(clusters, key=lambda c: (-len(c.handles), c.kind.value))

    def build(
        handles: frozenset[str],
        inner: list[Cluster],
        kind: str = "",
        cell: int | None = None,
    ) -> _SortedTree:
        branches: list[_SortedTree] = []
        rest = set(handles)
        for number, cluster in enumerate(inner, 1):
            if not cluster.handles <= rest:
                continue
            rest -= cluster.handles
            below = [c for c in inner[number:] if c.handles <= cluster.handles]
            branches.append(
                build(cluster.handles, below, cluster.kind.value, cluster.cell)
            )
        branches += (
            _SortedTree(form=("", -1, kinds[h], ()), handles=(h,))
            for h in rest
        )
        branches.sort(
            key=lambda b: (b.form, min(map(order.__getitem__, b.handles)))
        )
        return _SortedTree(
            form=(
                kind,
                -1 if cell is None else cell,
                "",
                tuple(b.form for b in branches),
            ),
            handles=tuple(h for b in branches for h in b.handles),
        )

    return build(frozenset(kinds), remaining)


def explain(guest: Clusters, here: Clusters) -> tuple[str, ...]:
    """Return how the clusters of a guest differ from those of a host."""
    return (
        *(f"the guest sees {c}" for c in sorted(map(str, guest - here))),
        *(f"here are {c}" for c in sorted(map(str, here - guest))),
    )
