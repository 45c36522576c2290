# SPDX-License-Identifier: Apache-2.0
"""Room of a provider: how many more of a request group fit on it.

The one answer for the weigher, for lists of devices and profiles, for the
capacity of flavors and for reports. Traits and units are compared as
Placement compares them, and vGPUs are placed as on the host.
"""

import dataclasses

from nova_accel.catalog import vgpu_types
from nova_accel.geometry.scheduling.vgpu_geometry import VgpuGeometry
from nova_accel.model import flavors, names, providers


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderRoom:
    """A provider, and groups that were added to its allocations."""

    geometry: VgpuGeometry
    provider: providers.Provider
    added: tuple[flavors.RequestGroup, ...] = ()

    def add(self, group: flavors.RequestGroup) -> "ProviderRoom":
        """Return the room that remains after one more group."""
        return dataclasses.replace(self, added=(*self.added, group))

    def count(
        self,
        group: flavors.RequestGroup,
        vgpu_type: vgpu_types.CatalogVgpuType | None = None,
    ) -> int:
        """Return how many more of a group fit, at most.

        Exact for one kind of group, unless the places of a card's
        partitions are not known.

        :param vgpu_type: the type of the group, where its traits alone do
            not name it.
        """
        traits = self.provider.traits
        if not group.required <= traits or not traits.isdisjoint(
            group.forbidden | names.UNAVAILABLE_TRAITS
        ):
            return 0
        limits = [
            self._count_free(name) // amount
            for name, amount in group.resources.items()
            if amount
        ]
        vgpus = group.resources.get(names.GPU_CLASS, 0)
        vgpu_type = vgpu_type or self.geometry.states.find_type(group)
        if vgpu_type is not None and vgpus and min(limits) > 0:
            limits.append(
                self.geometry.count_room(
                    self.provider, vgpu_type, self._list_types()
                )
                // vgpus
            )
        return max(0, min(limits, default=0))

    def _count_free(self, name: str) -> int:
        capacity = self.provider.capacities.get(name)
        free = capacity.free if capacity else 0
        return free - sum(g.resources.get(name, 0) for g in self.added)

    def _list_types(self) -> tuple[tuple[str, int], ...]:
        """Return the vGPU types of the added groups, with their numbers."""
        types = [(self.geometry.states.find_type(g), g) for g in self.added]
        return tuple(
            (vgpu_type.name, group.resources.get(names.GPU_CLASS, 0))
            for vgpu_type, group in types
            if vgpu_type is not None
        )
