# SPDX-License-Identifier: Apache-2.0
"""PCIe tree of a host, restricted to the devices of one guest.

A root complex is named as its directory in sysfs (``pci0000:16``), a bridge
by its PCI address.

The tree has one place that the host's has not: the root ports above NVLink
peers are below one bridge. Peers of two root complexes stay apart, as each is
on a NUMA node.
"""

import dataclasses
import types
from collections.abc import Collection, Iterable, Iterator, Mapping

#: Handles of the NVLink peers of a handle; each is a peer of its peers.
Peers = Mapping[str, Collection[str]]
NO_PEERS: Peers = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class HostDevice:
    """Functions that share a slot of the guest, or an mdev.

    ``bridges`` lead to it: its root complex, the root port, and each port of
    a switch. ``address`` is its PCI address, of an mdev that of its parent.
    ``handle`` is the address of its first function, or the uuid of the mdev;
    ``members`` are the other functions of its slot. ``numa_node`` is None if
    it is unknown.
    """

    bridges: tuple[str, ...]
    address: str
    handle: str
    members: tuple[str, ...] = ()
    numa_node: int | None = None

    @property
    def root_complex(self) -> str:
        """Return the name of its root complex."""
        return self.bridges[0]

    @property
    def handles(self) -> tuple[str, ...]:
        """Return the handles of all its functions."""
        return (self.handle, *self.members)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A device, or a bridge that two or more branches share.

    A root complex may have one branch only. Branches are sorted by path.
    """

    branches: tuple["Branch", ...] = ()
    device: HostDevice | None = None

    def list_devices(self) -> Iterator[HostDevice]:
        """Yield the devices of this branch, in the order of their paths."""
        if self.device is not None:
            yield self.device
        for branch in self.branches:
            yield from branch.list_devices()


def build_trees(
    devices: Iterable[HostDevice], peers: Peers = NO_PEERS
) -> Mapping[str, Branch]:
    """Return the tree of each root complex, by name.

    The order of the devices has no effect. A bridge above one branch is left
    out: it is no place that two devices share.
    """
    by_complex: dict[str, list[HostDevice]] = {}
    for device in sorted(devices):
        by_complex.setdefault(device.root_complex, []).append(device)
    return {
        name: Branch(
            branches=_join_peers(tuple(_list_branches(members, 1)), peers)
        )
        for name, members in by_complex.items()
    }


def group_by_node(devices: Iterable[HostDevice]) -> Mapping[str, Branch]:
    """Return a tree of each NUMA node, with its devices side by side."""
    by_node: dict[int, list[Branch]] = {}
    for device in sorted(devices):
        node = -1 if device.numa_node is None else device.numa_node
        by_node.setdefault(node, []).append(Branch(device=device))
    return {
        f"node{node:+d}": Branch(branches=tuple(branches))
        for node, branches in sorted(by_node.items())
    }


def has_root_ports(devices: Iterable[HostDevice]) -> bool:
    """Return whether two devices are below two root ports of one complex."""
    return any(
        len(tree.branches) > 1 for tree in build_trees(devices).values()
    )


def _join_peers(
    branches: tuple[Branch, ...], peers: Peers
) -> tuple[Branch, ...]:
    """Return branches with those that have NVLink peers in one, in order."""
    groups: list[list[Branch]] = []
    for branch in branches:
        reachable = {
            peer
            for handle in _list_handles([branch])
            for peer in peers.get(handle, ())
        }
        linked = [g for g in groups if reachable & _list_handles(g)]
        if not linked:
            groups.append([branch])
            continue
        for other in linked[1:]:
            linked[0] += other
            groups.remove(other)
        linked[0].append(branch)
    return tuple(
        Branch(branches=tuple(sorted(group, key=branches.index)))
        if len(group) > 1
        else group[0]
        for group in groups
    )


def _list_handles(branches: Iterable[Branch]) -> set[str]:
    return {
        handle
        for branch in branches
        for device in branch.list_devices()
        for handle in device.handles
    }


def _list_branches(
    devices: Iterable[HostDevice], depth: int
) -> Iterator[Branch]:
    """Yield the branches below a bridge.

    :param devices: sorted, and all below this bridge.
    :param depth: number of bridges above the branches.
    """
    by_bridge: dict[str, list[HostDevice]] = {}
    for device in devices:
        if len(device.bridges) > depth:
            by_bridge.setdefault(device.bridges[depth], []).append(device)
        else:
            by_bridge[device.handle] = [device]
    for members in by_bridge.values():
        if len(members) == 1:
            yield Branch(device=members[0])
            continue
        branches = tuple(_list_branches(members, depth + 1))
        yield branches[0] if len(branches) == 1 else Branch(branches=branches)
