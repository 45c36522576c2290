# SPDX-License-Identifier: Apache-2.0
"""Random clouds of vGPUs, written into the tables of a real Placement.

A cloud takes some milliseconds: through Placement's API it would take a
hundred requests. Servers are scheduled through the API.
"""

import dataclasses
import itertools
import random
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy
from placement import db_api
from placement.db.sqlalchemy import models

from nova_accel import model
from nova_accel.geometry import occupancy
from nova_accel.model import names
from tests.functional.scheduler import scheduling
from tests.support.scheduler import scheduled

#: Types of the servers that run, by model.
LOADS = {
    "L40S": ("L40S-48Q", "L40S-24Q", "L40S-8Q"),
    "A40": ("A40-48Q", "A40-16Q", "A40-8Q"),
}
_LAYOUTS = (model.Layout.MIXED, model.Layout.EQUAL)
_HOST = {"VCPU": 64, "MEMORY_MB": 65536}
# Parents first.
_TABLES = tuple(
    kind.__table__
    for kind in (
        models.ResourceProvider,
        models.ResourceProviderTrait,
        models.Inventory,
        models.Consumer,
        models.Allocation,
    )
)


@dataclasses.dataclass(kw_only=True)
class Card:
    """A card; ``loads`` are start and type of its vGPUs.

    Its host has published the places of them if ``is_published``, and has
    withdrawn the types that have no place any more.
    """

    gpu: str
    layout: model.Layout
    is_drained: bool
    is_published: bool
    loads: list[tuple[int, str]]

    def list_starts(self, name: str) -> list[int]:
        """Return the free starts of a type under mixed sizes."""
        span = scheduled.kind(name).span
        return [
            start
            for start in scheduled.kind(name).starts_mixed
            if all(
                start + span <= other
                or other + scheduled.kind(load).span <= start
                for other, load in self.loads
            )
        ]

    def can_make(self, name: str) -> bool:
        """Return whether the card's host offers one more of a type."""
        if self.layout is model.Layout.MIXED:
            return bool(self.list_starts(name))
        return {name} >= {load for _, load in self.loads}

    def list_traits(self) -> Iterator[str]:
        """Yield the traits of the card's provider."""
        yield names.OWNER_TRAIT
        yield names.layout_trait(self.layout.value)
        for kind in scheduled.CATALOG.profiles_of(self.gpu):
            if not self.is_published or self.can_make(kind.name):
                yield scheduled.trait(kind.name)
        if self.is_published and self.layout is model.Layout.MIXED:
            yield from itertools.starmap(_place_trait, self.loads)


def draw_card(chooser: random.Random) -> Card:
    """Return a card whose host can have made its vGPUs."""
    gpu = chooser.choice(tuple(LOADS))
    card = Card(
        gpu=gpu,
        layout=chooser.choices(_LAYOUTS, (3, 1))[0],
        is_drained=chooser.random() < 0.1,
        is_published=chooser.random() < 0.5,
        loads=[],
    )
    if card.layout is model.Layout.EQUAL:
        load = chooser.choice(LOADS[gpu])
        count = chooser.randrange(scheduled.kind(load).limit + 1)
        card.loads = [(number, load) for number in range(count)]
        return card
    for _ in range(chooser.randrange(5)):
        load = chooser.choice(LOADS[gpu])
        if starts := card.list_starts(load):
            card.loads.append((chooser.choice(starts), load))
    return card


class DrawnCloud:
    """A cloud that is drawn again and again.

    ``cards`` are those of the last draw, by provider.
    """

    def __init__(self, cloud: scheduling.Cloud) -> None:
        """Create the traits and resource classes of all draws."""
        self._cloud = cloud
        self.cards: dict[str, Card] = {}
        cloud.call("PUT", f"/resource_classes/{names.GPU_MEMORY_CLASS}")
        for trait in _list_all_traits():
            cloud.call("PUT", f"/traits/{trait}")
        self._ids: dict[str, int] = {}
        with db_api.get_placement_engine().begin() as database:
            for kind in (models.Trait, models.ResourceClass):
                table = kind.__table__
                rows = database.execute(table.select()).all()
                self._ids |= {row.name: row.id for row in rows}

    def draw(self, chooser: random.Random) -> None:
        """Replace the cloud by one of one to four other hosts."""
        self.cards.clear()
        self._cloud.hosts.clear()
        rows: dict[str, list[dict[str, Any]]] = {t.name: [] for t in _TABLES}
        for _ in range(chooser.randrange(1, 5)):
            root = self._add(rows, None, _HOST)
            self._cloud.hosts[root["uuid"]] = root["name"]
            for _ in range(chooser.randrange(1, 4)):
                self._add_card(rows, root["id"], draw_card(chooser))
        with db_api.get_placement_engine().begin() as database:
            for table in reversed(_TABLES):
                database.execute(table.delete())
            for table in _TABLES:
                if rows[table.name]:
                    database.execute(table.insert(), rows[table.name])

    def _add(
        self,
        rows: Mapping[str, list[dict[str, Any]]],
        root: int | None,
        totals: Mapping[str, int],
        *,
        is_drained: bool = False,
    ) -> dict[str, Any]:
        providers = rows["resource_providers"]
        row = {
            "id": len(providers) + 1,
            "uuid": str(uuid.uuid4()),
            "name": f"provider{len(providers)}",
            "generation": 0,
            "root_provider_id": root or len(providers) + 1,
            "parent_provider_id": root,
        }
        providers.append(row)
        rows["inventories"].extend(
            {
                "resource_provider_id": row["id"],
                "resource_class_id": self._ids[name],
                "total": total,
                "reserved": total if is_drained else 0,
                "min_unit": 1,
                "max_unit": total,
                "step_size": 1,
                "allocation_ratio": 1.0,
            }
            for name, total in totals.items()
        )
        return row

    def _add_card(
        self, rows: Mapping[str, list[dict[str, Any]]], root: int, card: Card
    ) -> None:
        totals = scheduled.capacity(card.gpu, card.layout)
        row = self._add(rows, root, totals, is_drained=card.is_drained)
        self.cards[row["uuid"]] = card
        rows["resource_provider_traits"].extend(
            {"resource_provider_id": row["id"], "trait_id": self._ids[trait]}
            for trait in set(card.list_traits())
        )
        for _, load in card.loads:
            server = str(uuid.uuid4())
            rows["consumers"].append(
                {"uuid": server, "project_id": 1, "user_id": 1}
            )
            rows["allocations"].extend(
                {
                    "resource_provider_id": row["id"],
                    "consumer_id": server,
                    "resource_class_id": self._ids[name],
                    "used": amount,
                }
                for name, amount in scheduled.charges(load).items()
            )


def read_card(server: str) -> tuple[dict[str, int], set[str]]:
    """Return the units by class of a server's card, and the card's traits."""
    units = (
        sqlalchemy.select(
            models.Allocation.resource_provider_id,
            models.ResourceClass.name,
            models.Allocation.used,
        )
        .join(
            models.ResourceClass,
            models.ResourceClass.id == models.Allocation.resource_class_id,
        )
        .where(
            models.Allocation.consumer_id == server,
            models.ResourceClass.name.not_in(_HOST),
        )
    )
    with db_api.get_placement_engine().connect() as database:
        rows = database.execute(units).all()
        (card,) = {row.resource_provider_id for row in rows}
        traits = (
            sqlalchemy.select(models.Trait.name)
            .join(models.ResourceProviderTrait)
            .where(models.ResourceProviderTrait.resource_provider_id == card)
        )
        return (
            {row.name: row.used for row in rows},
            set(database.scalars(traits)),
        )


def delete(server: str) -> None:
    """Delete a server's allocations."""
    with db_api.get_placement_engine().begin() as database:
        for kind, column in (
            (models.Allocation, models.Allocation.consumer_id),
            (models.Consumer, models.Consumer.uuid),
        ):
            database.execute(sqlalchemy.delete(kind).where(column == server))


def _list_all_traits() -> set[str]:
    """Return the traits of all cards that can be drawn."""
    return {
        names.OWNER_TRAIT,
        *(names.layout_trait(layout.value) for layout in _LAYOUTS),
        *(
            trait
            for gpu, layout in itertools.product(LOADS, _LAYOUTS)
            for trait in scheduled.offers(gpu, layout)
        ),
        *(
            _place_trait(start, load)
            for load in itertools.chain(*LOADS.values())
            for start in scheduled.kind(load).starts_mixed
        ),
    }


def _place_trait(start: int, load: str) -> str:
    profile = scheduled.trait(load).removeprefix(names.CUSTOM)
    return f"{occupancy.PLACE_PREFIX}{start}_1_{profile}"
