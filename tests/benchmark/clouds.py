# SPDX-License-Identifier: Apache-2.0
"""A real Placement with many hosts full of GPUs.

Eight A40s a host, in one of two forms: one resource provider per card (this
library's), or one per virtual function (Nova's). Placement's API would need
an hour, so the rows are written into its database with its own models; names
of classes and traits go through the API, which caches them.
"""

import dataclasses
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy
from placement.db.sqlalchemy import models

from nova_accel.geometry import occupancy
from nova_accel.model import names
from tests.functional.sync.support import servers

# vGPU types of an empty A40 of 48 GB, by GB (NVIDIA's Virtual GPU Software
# User Guide).
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
MEMORY_MB = 48 * 1024
SLOTS = 32
PROFILE_TRAIT = "CUSTOM_VGPU_NVIDIA_A40_8Q"
# Place of one such vGPU on a card, as its host publishes it.
PLACE_TRAIT = (
    f"{occupancy.PLACE_PREFIX}0_1_{PROFILE_TRAIT.removeprefix(names.CUSTOM)}"
)
# Trait of the hosts for requests of two devices.
SAMPLE = "CUSTOM_SAMPLE"
_HOST = {"VCPU": 128, "MEMORY_MB": 1 << 20, "DISK_GB": 1 << 12}
# Number of hosts whose rows are written at once.
_BATCH = 20

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provider:
    """A resource provider below the root provider of a host."""

    name: str
    inventories: Mapping[str, int]
    traits: frozenset[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Form of a host's cards in Placement: a provider per card or per VF."""

    name: str
    cards: int
    vfs: int = 0
    card_layout: str = "mixed"

    def providers(self, host: str) -> Iterator[Provider]:
        """Yield the providers below the root provider of a host."""
        for card in range(self.cards):
            address = f"0000:{0x10 + card:02x}:00.0"
            if not self.vfs:
                yield _card(host, address, card, self.cards, self.card_layout)
            for vf in range(self.vfs):
                place = f"0000_{0x10 + card:02x}_{vf // 8:02x}_{vf % 8}"
                yield Provider(
                    name=f"{host}_pci_{place}",
                    inventories={names.GPU_CLASS: 1},
                    traits=frozenset({PROFILE_TRAIT}),
                )


def progress(words: str) -> None:
    """Print the progress on one line of the terminal."""
    print(f"\r{words:50}\r", end="", file=sys.stderr, flush=True)


def accel_layout(cards: int, card_layout: str = "mixed") -> Layout:
    """Return this library's form: a provider per card.

    :param card_layout: ``mixed``, or ``equal`` sizes.
    """
    return Layout(name="nova-accel", cards=cards, card_layout=card_layout)


def nova_layout(cards: int, vfs: int) -> Layout:
    """Return Nova's form: a provider per VF, with its type as a trait."""
    return Layout(name="Nova", cards=cards, vfs=vfs)


def _card(
    host: str, address: str, number: int, cards: int, card_layout: str
) -> Provider:
    return Provider(
        name=names.provider_name(host, address),
        inventories={
            names.GPU_CLASS: SLOTS,
            names.GPU_MEMORY_CLASS: MEMORY_MB,
        },
        traits=frozenset(
            trait
            for trait in {
                names.OWNER_TRAIT,
                names.NOVA_OWNER_TRAIT,
                names.model_trait("10de", "A40"),
                names.layout_trait(card_layout),
                names.pcie_trait(f"0000:{number // 2:02x}:01.0"),
                *names.identity_traits("10de", "2235", 2 * number // cards),
                *(f"CUSTOM_VGPU_NVIDIA_A40_{size}Q" for size in SIZES),
            }
            if not trait.startswith(names.IMPLIED_PREFIXES)
        ),
    )


class Cloud:
    """Hosts of one layout in a running Placement's database.

    ``hosts`` are the compute nodes' names by uuid, ``providers`` is the number
    of all resource providers.
    """

    def __init__(self, server: servers.Server, layout: Layout) -> None:
        self.server = server
        self.layout = layout
        self.hosts: dict[str, str] = {}
        self.providers = 0
        self._database = sqlalchemy.create_engine(server.database)
        self._ids: dict[str, int] = {}
        self._devices: list[int] = []
        self._next = 1

    def fill(self, hosts: int, sampled: int = 0) -> Iterator[int]:
        """Add hosts, and yield their number after each batch.

        :param sampled: number of hosts whose devices have SAMPLE.
        """
        self._create_names()
        try:
            for first in range(0, hosts, _BATCH):
                numbers = range(first, min(first + _BATCH, hosts))
                self._write([self._host(n, n < sampled) for n in numbers])
                yield numbers.stop
        finally:
            self._database.dispose()

    def allocate(
        self, every: int, units: Mapping[str, int], trait: str = ""
    ) -> int:
        """Allocate every n-th device to a server; return the number.

        :param units: resources of each server, by class.
        :param trait: one of each of these devices, for its partition.
        """
        used = self._devices[::every]
        if trait:
            self._add_trait(used, trait)
        servers_of = {
            provider_id: str(uuid.uuid5(uuid.NAMESPACE_URL, str(provider_id)))
            for provider_id in used
        }
        with self._database.begin() as connection:
            for kind in (models.Project, models.User):
                connection.execute(
                    sqlalchemy.insert(kind), [{"id": 1, "external_id": "x"}]
                )
            connection.execute(
                sqlalchemy.insert(models.Consumer),
                [
                    {"uuid": server, "project_id": 1, "user_id": 1}
                    for server in servers_of.values()
                ],
            )
            connection.execute(
                sqlalchemy.insert(models.Allocation),
                [
                    {
                        "resource_provider_id": device,
                        "consumer_id": server,
                        "resource_class_id": self._ids[name],
                        "used": amount,
                    }
                    for device, server in servers_of.items()
                    for name, amount in units.items()
                ],
            )
        self._database.dispose()
        return len(used)

    def _add_trait(self, devices: Sequence[int], trait: str) -> None:
        self.server.call("PUT", f"/traits/{trait}")
        with self._database.begin() as connection:
            (number,) = connection.execute(
                sqlalchemy.select(models.Trait.id).where(
                    models.Trait.name == trait
                )
            ).one()
            connection.execute(
                sqlalchemy.insert(models.ResourceProviderTrait),
                [
                    {"resource_provider_id": device, "trait_id": number}
                    for device in devices
                ],
            )

    def _create_names(self) -> None:
        everything = list(self.layout.providers("x"))
        for trait in {SAMPLE}.union(*(p.traits for p in everything)):
            if trait.startswith(names.CUSTOM):
                self.server.call("PUT", f"/traits/{trait}")
        for resource_class in {c for p in everything for c in p.inventories}:
            if resource_class.startswith(names.CUSTOM):
                self.server.call("PUT", f"/resource_classes/{resource_class}")
        with self._database.connect() as connection:
            for kind in (models.ResourceClass, models.Trait):
                rows = connection.execute(
                    sqlalchemy.select(kind.name, kind.id)
                )
                self._ids.update(
                    (name, provider_id) for name, provider_id in rows
                )

    def _host(self, number: int, is_sampled: bool) -> list[Provider]:
        name = f"host-{number:04d}"
        extra = {SAMPLE} if is_sampled else set()
        return [
            Provider(name=name, inventories=_HOST, traits=frozenset()),
            *(
                dataclasses.replace(p, traits=p.traits | extra)
                for p in self.layout.providers(name)
            ),
        ]

    def _write(self, hosts: Sequence[Sequence[Provider]]) -> None:
        providers: list[Row] = []
        inventories: list[Row] = []
        traits: list[Row] = []
        for host in hosts:
            root = self._next
            for provider in host:
                providers.append(self._row(provider, root))
                provider_id = providers[-1]["id"]
                inventories += self._inventories(provider_id, provider)
                traits += (
                    {
                        "resource_provider_id": provider_id,
                        "trait_id": self._ids[t],
                    }
                    for t in provider.traits
                )
            self.hosts[providers[-len(host)]["uuid"]] = host[0].name
        self.providers += len(providers)
        with self._database.begin() as connection:
            for kind, rows in (
                (models.ResourceProvider, providers),
                (models.Inventory, inventories),
                (models.ResourceProviderTrait, traits),
            ):
                connection.execute(sqlalchemy.insert(kind), rows)

    def _row(self, provider: Provider, root: int) -> Row:
        provider_id, self._next = self._next, self._next + 1
        if provider_id != root:
            self._devices.append(provider_id)
        return {
            "id": provider_id,
            "uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, provider.name)),
            "name": provider.name,
            "generation": 1,
            "root_provider_id": root,
            "parent_provider_id": None if provider_id == root else root,
        }

    def _inventories(
        self, provider_id: int, provider: Provider
    ) -> Iterator[Row]:
        for name, total in provider.inventories.items():
            yield {
                "resource_provider_id": provider_id,
                "resource_class_id": self._ids[name],
                "total": total,
                "reserved": 0,
                "min_unit": 1,
                "max_unit": total,
                "step_size": 1,
                "allocation_ratio": 1.0,
            }
