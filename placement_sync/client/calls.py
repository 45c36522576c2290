# SPDX-License-Identifier: Apache-2.0
"""Changes of a provider tree in Placement, as values.

``str()`` of a call is its log line and its line in the output of a pass.
"""

import dataclasses
from collections.abc import Mapping

from nova_accel.model import providers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateClass:
    """Create a custom resource class."""

    name: str

    def __str__(self) -> str:
        return f"create resource class {self.name}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateTrait:
    """Create a custom trait."""

    name: str

    def __str__(self) -> str:
        return f"create trait {self.name}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateProvider:
    """Create a resource provider below its parent."""

    uuid: str
    name: str
    parent: str

    def __str__(self) -> str:
        return f"create provider {self.name} ({self.uuid})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetInventories:
    """Replace all inventories of a provider."""

    uuid: str
    name: str
    inventories: Mapping[str, providers.Inventory]

    def __str__(self) -> str:
        records = ", ".join(
            f"{name} total={inventory.total} reserved={inventory.reserved}"
            for name, inventory in sorted(self.inventories.items())
        )
        return f"set inventories of {self.name}: {records or 'none'}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTraits:
    """Add traits to a provider and remove others; the rest stays."""

    uuid: str
    name: str
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()

    def __str__(self) -> str:
        changes = [f"+{trait}" for trait in sorted(self.added)]
        changes += [f"-{trait}" for trait in sorted(self.removed)]
        return f"change traits of {self.name}: {', '.join(changes)}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteProvider:
    """Delete a provider that has no allocations."""

    uuid: str
    name: str

    def __str__(self) -> str:
        return f"delete provider {self.name} ({self.uuid})"


# ``Name`` calls are cloud-wide, ``ProviderCall``s are about one provider.
Name = CreateClass | CreateTrait
ProviderCall = CreateProvider | SetInventories | ChangeTraits | DeleteProvider
Call = Name | ProviderCall
