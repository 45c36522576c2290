# SPDX-License-Identifier: Apache-2.0
"""Expected state of Placement after a pass, computed independently.

It is read from Placement's own tables, not through the code under test.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import sqlalchemy

from nova_accel.model import names, providers
from tests.functional.sync.support import trees

_PROVIDERS = """
SELECT p.uuid, p.name, p.generation, a.uuid FROM resource_providers p
JOIN resource_providers r ON r.id = p.root_provider_id
LEFT JOIN resource_providers a ON a.id = p.parent_provider_id
WHERE r.uuid IN :roots"""
_INVENTORIES = """
SELECT p.uuid, c.name, i.total, i.reserved, i.min_unit, i.max_unit,
       i.step_size, i.allocation_ratio FROM inventories i
JOIN resource_providers p ON p.id = i.resource_provider_id
JOIN resource_providers r ON r.id = p.root_provider_id
JOIN resource_classes c ON c.id = i.resource_class_id
WHERE r.uuid IN :roots"""
_TRAITS = """
SELECT p.uuid, t.name FROM resource_provider_traits x
JOIN resource_providers p ON p.id = x.resource_provider_id
JOIN resource_providers r ON r.id = p.root_provider_id
JOIN traits t ON t.id = x.trait_id
WHERE r.uuid IN :roots"""
_ALLOCATIONS = """
SELECT p.uuid, x.consumer_id, c.name, x.used FROM allocations x
LEFT JOIN resource_providers p ON p.id = x.resource_provider_id
LEFT JOIN resource_providers r ON r.id = p.root_provider_id
JOIN resource_classes c ON c.id = x.resource_class_id
WHERE r.uuid IN :roots OR p.id IS NULL"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A provider in Placement's tables."""

    uuid: str
    name: str
    generation: int
    parent: str | None
    inventories: Mapping[str, providers.Inventory]
    traits: frozenset[str]
    # Consumer and class -> amount.
    allocations: Mapping[tuple[str, str], int]


Rows = dict[str, Row]


class Tables:
    """Placement's tables."""

    def __init__(self, database: str) -> None:
        self._engine = sqlalchemy.create_engine(
            database, poolclass=sqlalchemy.pool.NullPool
        )

    def generation(self, uuid: str) -> int:
        """Return a provider's generation."""
        query = "SELECT generation FROM resource_providers WHERE uuid = :u"
        with self._engine.connect() as connection:
            result = connection.execute(sqlalchemy.text(query), {"u": uuid})
            return int(result.scalar_one())

    def read(self, *roots: providers.ProviderRoot) -> Rows:
        """Return all providers below some compute nodes, by uuid."""
        uuids = [root.uuid for root in roots]
        with self._engine.connect() as connection:
            rows, inventories, traits, used = (
                connection.execute(
                    sqlalchemy.text(query).bindparams(
                        sqlalchemy.bindparam("roots", expanding=True)
                    ),
                    {"roots": uuids},
                ).all()
                for query in (_PROVIDERS, _INVENTORIES, _TRAITS, _ALLOCATIONS)
            )
        assert all(row[0] for row in used), "allocations without a provider"
        return {
            uuid: Row(
                uuid=uuid,
                name=name,
                generation=generation,
                parent=parent,
                inventories={
                    row[1]: _inventory(row)
                    for row in inventories
                    if row[0] == uuid
                },
                traits=frozenset(row[1] for row in traits if row[0] == uuid),
                allocations={
                    (row[1], row[2]): row[3] for row in used if row[0] == uuid
                },
            )
            for uuid, name, generation, parent in rows
        }


def _inventory(row: sqlalchemy.Row[tuple[str, ...]]) -> providers.Inventory:
    return providers.Inventory(
        total=int(row[2]),
        reserved=int(row[3]),
        min_unit=int(row[4]),
        max_unit=int(row[5]),
        step_size=int(row[6]),
        allocation_ratio=float(row[7]),
    )


def _whole(record: providers.Inventory) -> providers.Inventory:
    """Return a record that the library has reserved whole."""
    return dataclasses.replace(
        record, reserved=record.total, max_unit=2 * record.total
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Placement before a pass, the desired state, and reserved amounts."""

    before: Rows
    desired: trees.DesiredState
    floors: trees.Floors

    @property
    def root(self) -> providers.ProviderRoot:
        """Return the compute node."""
        return self.desired.tree.root

    def faults(self, after: Rows) -> list[str]:
        """Return the faults after a pass."""
        return [*self.lasting_faults(after), *self._differences(after)]

    def lasting_faults(self, after: Rows) -> Iterator[str]:
        """Yield faults that are not allowed at any time, even in a pass."""
        own = trees.own_uuids(self.root)
        for uuid, row in self.before.items():
            now = after.get(uuid)
            if uuid not in own and now != row:
                yield f"{row.name} is foreign: {row} became {now}"
            allocations = dict(now.allocations) if now else {}
            if allocations != dict(row.allocations):
                yield f"{row.name} had {row.allocations}, has {allocations}"
        for uuid in after.keys() - self.before.keys() - own.keys():
            yield f"{after[uuid]} is new and foreign"

    def _differences(self, after: Rows) -> Iterator[str]:
        own = trees.own_uuids(self.root)
        expected = {row.uuid: row for row in self._expected()}
        for uuid, address in own.items():
            desired_row, row = expected.get(uuid), after.get(uuid)
            if desired_row is None or row is None:
                if desired_row is not row:
                    yield f"{address}: {row}, expected {desired_row}"
                continue
            for field in ("name", "parent", "inventories", "traits"):
                actual = getattr(row, field)
                if actual != getattr(desired_row, field):
                    yield f"{address} {field}: {row}, expected {desired_row}"

    def _expected(self) -> Iterator[Row]:
        """Yield the expected providers of the library."""
        retained = self._find_retained()
        for uuid, address in trees.own_uuids(self.root).items():
            node, row = self.desired.tree.node(uuid), self.before.get(uuid)
            if node is not None:
                yield self._build_present(node, row)
            elif row is not None and not self.desired.host.complete:
                yield row
            elif row is not None and self._is_unreadable(address):
                yield self._build_unavailable(
                    row,
                    names.FAULTED_TRAIT,
                    f"{names.FAULT_PREFIX}NO_ANSWER",
                )
            elif row is not None and uuid in retained:
                yield self._build_unavailable(row, names.MISSING_TRAIT)

    def _is_unreadable(self, address: str) -> bool:
        whole = trees.PARTS.get(address, address)
        return bool({address, whole} & self.desired.host.unknown)

    def _find_retained(self) -> set[str]:
        """Return allocated and unreadable providers, and their parents."""
        retained = {
            uuid
            for uuid, address in trees.own_uuids(self.root).items()
            if (row := self.before.get(uuid))
            and (row.allocations or self._is_unreadable(address))
        }
        return retained | {str(self.before[u].parent) for u in retained}

    def _build_present(
        self, node: providers.ProviderNode, row: Row | None
    ) -> Row:
        """Return the row of a provider whose device is present."""
        old = row.inventories if row else {}
        records = {
            name: dataclasses.replace(
                record,
                reserved=max(
                    record.own_reserved, self._floor(node.uuid, name, old)
                ),
                allocation_ratio=(
                    old[name].allocation_ratio if name in old else 1.0
                ),
            )
            for name, record in node.inventories.items()
        }
        if row and row.allocations:
            for name in old.keys() - records.keys():
                records[name] = _whole(old[name])
        traits = {
            trait
            for trait in (row.traits if row else ())
            if not names.is_managed_trait(trait)
            or (node.unread_traits and trait.startswith(node.unread_traits))
        }
        return Row(
            uuid=node.uuid,
            name=node.name,
            generation=0,
            parent=node.parent,
            inventories=records,
            traits=node.traits
            | traits
            | self._memories(node.uuid, records, old),
            allocations={},
        )

    def _build_unavailable(self, row: Row, *labels: str) -> Row:
        """Return the row of a provider whose device is unavailable."""
        records = {k: _whole(v) for k, v in row.inventories.items()}
        is_missing = names.MISSING_TRAIT in labels
        traits = frozenset(
            trait
            for trait in row.traits
            if not trait.startswith(names.RESERVED_PREFIX)
            and not (is_missing and trait.startswith(names.PROFILE_PREFIXES))
        )
        return dataclasses.replace(
            row,
            inventories=records,
            traits=traits
            | {*labels, names.OWNER_TRAIT}
            | self._memories(row.uuid, records, row.inventories),
        )

    def _floor(
        self,
        uuid: str,
        name: str,
        old: Mapping[str, providers.Inventory],
    ) -> int:
        floor = self.floors.get((uuid, name), 0)
        row = self.before.get(uuid)
        if name in old or (row and trees.memory(name, floor) in row.traits):
            return floor
        return 0

    def _memories(
        self,
        uuid: str,
        records: Mapping[str, providers.Inventory],
        old: Mapping[str, providers.Inventory],
    ) -> frozenset[str]:
        return frozenset(
            trees.memory(name, floor)
            for name, record in records.items()
            if (floor := self._floor(uuid, name, old))
            and record.reserved == record.own_reserved
        )
