# SPDX-License-Identifier: Apache-2.0
"""Changes of a provider tree, as values."""

import dataclasses
from collections.abc import Mapping

from nova_accel.model import providers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateClass:
    """Make a custom resource class known to Placement."""

    name: str

    def __str__(self) -> str:
        """Return the change in one line."""
        return f"create resource class {self.name}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateTrait:
    """Make a custom trait known to Placement."""

    name: str

    def __str__(self) -> str:
        """Return the change in one line."""
        return f"create trait {self.name}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateProvider:
    """Create a resource provider below its parent."""

    uuid: str
    name: str
    parent: str

    def __str__(self) -> str:
        """Return the change in one line."""
        return f"create provider {self.name} ({self.uuid})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpdateProvider:
    """Give a resource provider its name and its parent again."""

    uuid: str
    name: str
    parent: str

    def __str__(self) -> str:
        """Return the change in one line."""
        return f"rename or move provider {self.uuid}: {self.name}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SetInventories:
    """Replace a provider's inventories with these."""

    uuid: str
    name: str
    inventories: Mapping[str, providers.Inventory]

    def __str__(self) -> str:
        """Return the change in one line."""
        records = ", ".join(
            f"{name} total={inventory.total} reserved={inventory.reserved}"
            for name, inventory in sorted(self.inventories.items())
        )
        return f"set inventories of {self.name}: {records or 'none'}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTraits:
    """Add some traits to a provider and take others; the rest stays."""

    uuid: str
    name: str
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Return the change in one line."""
        changes = [f"+{trait}" for trait in sorted(self.added)]
        changes += [f"-{trait}" for trait in sorted(self.removed)]
        return f"change traits of {self.name}: {', '.join(changes)}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteProvider:
    """Delete a provider that nothing is allocated from."""

    uuid: str
    name: str

    def __str__(self) -> str:
        """Return the change in one line."""
        return f"delete provider {self.name} ({self.uuid})"


# What is known cloud-wide, and what is one provider's.
Name = CreateClass | CreateTrait
ProviderCall = (
    CreateProvider
    | UpdateProvider
    | SetInventories
    | ChangeTraits
    | DeleteProvider
)
Call = Name | ProviderCall
