# SPDX-License-Identifier: Apache-2.0
"""Technologies of the servers while nova-compute is killed."""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nova_accel import model
from nova_accel.model import flavors, names, providers
from tests.lab import fakehost
from tests.support.fpga import simulated
from tests.support.hosts.simulated import ROOT

_NO_BITSTREAMS: Mapping[str, model.Bitstream] = {}
_IMAGE = "image"
#: Of each FPGA card.
REGIONS = 2


@dataclasses.dataclass(frozen=True)
class Technology(abc.ABC):
    """Cards, and the request of each server.

    ``is_named``: a partition's id is computed from its slot.
    """

    name: str
    drivers: str
    cards: tuple[fakehost.NvidiaGpu, ...] | tuple[fakehost.DflCard, ...]
    resource_class: str
    trait: str
    is_named: bool

    @property
    @abc.abstractmethod
    def devices(self) -> tuple[str, ...]:
        """Return the addresses of the devices that have slots."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """Return the devices' providers."""
        return tuple(names.provider_uuid(ROOT.uuid, a) for a in self.devices)

    @property
    def group(self) -> flavors.RequestGroup:
        """Return the request group of the flavor."""
        return flavors.RequestGroup(
            suffix="_G",
            resources={self.resource_class: 1},
            required=frozenset({self.trait}),
        )

    def device_spec(self, place: Path) -> list[str]:
        """Return the operator's rules, and write their files."""
        del place
        return []

    def bitstreams(self, place: Path) -> Mapping[str, model.Bitstream]:
        """Return the bitstreams of this host that the flavor names."""
        del place
        return _NO_BITSTREAMS

    def slots(
        self, nodes: Iterable[providers.ProviderNode]
    ) -> list[model.Slot]:
        """Return all slots, in the order of their names."""
        return [
            model.Slot(
                provider=node.uuid,
                resource_class=self.resource_class,
                identifier=name,
            )
            for node in nodes
            for name in sorted(node.slots[self.resource_class])
        ]

    def handle(self, slot: model.Slot) -> str:
        """Return the id of the partition of a slot."""
        if self.is_named:
            return names.mdev_uuid(slot.provider, slot.identifier)
        return slot.identifier

    @abc.abstractmethod
    def list_partitions(self, kernel: fakehost.Controller) -> frozenset[str]:
        """Return the partitions that the kernel has."""

    @abc.abstractmethod
    def count_free(self, kernel: fakehost.Controller) -> int:
        """Return how many more partitions the kernel would create."""

    def miscounted(
        self,
        nodes: Iterable[providers.ProviderNode],
        kernel: fakehost.Controller,
    ) -> Iterator[str]:
        """Compare the inventories with the limits of the kernel."""
        used, free, offered = (
            len(self.list_partitions(kernel)),
            self.count_free(kernel),
            0,
        )
        for node in nodes:
            inventory = node.inventories[self.resource_class]
            offered += inventory.total - inventory.reserved
            if self.trait not in node.traits and free:
                yield f"{free} are free, but {self.trait} is withheld"
        if offered != free + used:
            yield f"{offered} offered, but {used} are used and {free} free"


@dataclasses.dataclass(frozen=True)
class Vgpus(Technology):
    """One NVIDIA card, cut into vGPUs of one type.

    ``kind`` is the type's name in the kernel.
    """

    kind: str

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the card."""
        return tuple(card.address for card in self.cards)

    def list_partitions(self, kernel: fakehost.Controller) -> frozenset[str]:
        """Return the vGPUs: mdevs, or VFs that have a type."""
        gpus = kernel.gpus()
        return frozenset(v for a in self.devices for v in gpus[a]["vgpus"])

    def count_free(self, kernel: fakehost.Controller) -> int:
        """Return how many more vGPUs of the type fit."""
        (gpu,) = (kernel.gpus()[address] for address in self.devices)
        (count,) = (
            number
            for name, number in gpu["remaining"].items()
            if name.endswith(f" {self.kind}")
        )
        return int(count)


@dataclasses.dataclass(frozen=True)
class Regions(Technology):
    """FPGA cards, each region of which is behind a VF.

    Servers get function ``C``. The operator has named a blank, NLB0. A region
    that holds another function counts as a partition.
    """

    def device_spec(self, place: Path) -> list[str]:
        """Return the rule that names the blank, and write its file."""
        blank = simulated.bitstream(place, simulated.NLB0)
        return [json.dumps({"blank": blank.path})]

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the regions."""
        return tuple(
            names.region_address(card.address, number)
            for card in self.cards
            for number in range(REGIONS)
        )

    @property
    def group(self) -> flavors.RequestGroup:
        """Return the request group, with an image's bitstream."""
        return dataclasses.replace(super().group, bitstream=_IMAGE)

    def bitstreams(self, place: Path) -> Mapping[str, model.Bitstream]:
        """Return the image's bitstream."""
        return {_IMAGE: simulated.bitstream(place, simulated.C)}

    def list_partitions(self, kernel: fakehost.Controller) -> frozenset[str]:
        """Return the VFs whose regions do not hold the blank."""
        return frozenset(
            part["slot"]
            for part in self._parts(kernel)
            if part["function"] != simulated.NLB0
        )

    def count_free(self, kernel: fakehost.Controller) -> int:
        """Return the number of regions that hold the blank."""
        return len(self._parts(kernel)) - len(self.list_partitions(kernel))

    def _parts(self, kernel: fakehost.Controller) -> list[dict[str, Any]]:
        fpgas = kernel.fpgas()
        return [p for card in self.cards for p in fpgas[card.address]["parts"]]


ALL = (
    Vgpus(
        name="mdev",
        cards=(fakehost.NvidiaGpu(address="0000:3b:00.0", model="T4"),),
        trait="CUSTOM_VGPU_NVIDIA_T4_4Q",
        kind="T4-4Q",
        drivers="nvidia_mdev",
        resource_class="VGPU",
        is_named=True,
    ),
    Vgpus(
        name="typed VF",
        cards=(
            fakehost.NvidiaGpu(
                address="0000:3d:00.0",
                model="L40S",
                interface="vfio",
                total_vfs=6,
                enabled_vfs=6,
            ),
        ),
        trait="CUSTOM_VGPU_NVIDIA_L40S_8Q",
        kind="L40S-8Q",
        drivers="nvidia_vfio",
        resource_class="VGPU",
        is_named=False,
    ),
    Regions(
        name="FPGA region",
        cards=tuple(
            fakehost.DflCard(
                address=address,
                functions=(simulated.NLB0,) * REGIONS,
                released=REGIONS,
            )
            for address in (simulated.SPLIT, simulated.BARE)
        ),
        trait=names.REGION_TRAIT,
        drivers="dfl",
        resource_class=names.FPGA_CLASS,
        is_named=False,
    ),
)
