# SPDX-License-Identifier: Apache-2.0
"""Mdev parents of a physical device: the device itself, or its VFs."""

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping

from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci

Parents = tuple[host_reader.MdevParent, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParentGroup:
    """Parents of one physical device, VFs first, and their mdevs."""

    parents: Parents
    mdevs: tuple[host_reader.Mdev, ...]

    @functools.cached_property
    def on_vfs(self) -> bool:
        return any(p.physfn for p in self.parents)

    @property
    def occupied(self) -> frozenset[str]:
        """Return the names of the functions with mdevs."""
        return frozenset(mdev.parent for mdev in self.mdevs)

    def usable_parents(self) -> Parents:
        """Return the parents that can create mdevs, or have one.

        A function that is bound to a VFIO driver creates none, and a PF
        offers no types while its VFs are enabled.
        """
        occupied = self.occupied
        return tuple(
            p
            for p in self.parents
            if (p.physfn or not self.on_vfs)
            and (p.name in occupied or not is_vfio_bound(p.function))
        )


def group_by_device(
    parents: Iterable[host_reader.MdevParent],
) -> Mapping[str, Parents]:
    """Return parents, VFs first, by the address of their physical device."""
    groups: dict[str, list[host_reader.MdevParent]] = collections.defaultdict(
        list
    )
    for parent in parents:
        groups[parent.physfn or parent.name].append(parent)
    return {
        address: tuple(sorted(members, key=lambda p: p.physfn is None))
        for address, members in sorted(groups.items())
    }


def find_device_api(types: Iterable[host_reader.MdevType]) -> str:
    """Return the device API of a type on any of its parents, or ""."""
    for mdev_type in types:
        if mdev_type.device_api:
            return mdev_type.device_api
    return ""


def is_vfio_bound(function: pci.PciFunction | None) -> bool:
    return function is not None and function.is_vfio_bound


def max_or_none(values: Iterable[int | None]) -> int | None:
    return max([v for v in values if v is not None], default=None)
