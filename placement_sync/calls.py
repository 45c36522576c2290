# SPDX-License-Identifier: Apache-2.0
"""Changes to a provider tree as values: printable, comparable."""

import dataclasses
from collections.abc import Mapping

from nova_accel import providers


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
class AddTraits:
    """Add traits to a provider; the others stay."""

    uuid: str
    name: str
    traits: frozenset[str]

    def __str__(self) -> str:
        """Return the change in one line."""
        return f"add traits to {self.name}: {', '.join(sorted(self.traits))}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTraits:
    """Take traits from a provider; the others stay."""

    uuid: str
    name: str
    traits: frozenset[str]

    def __str__(self) -> str:
        """Return the change in one line."""
        return (
            f"remove traits from {self.name}:"
            f" {', '.join(sorted(self.traits))}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteProvider:
    """Delete a provider that nothing is allocated from."""

    uuid: str
    name: str

    def __str__(self) -> str:
        """Return the change in one line."""
        return f"delete provider {self.name} ({self.uuid})"


Call = (
    CreateProvider | SetInventories | AddTraits | RemoveTraits | DeleteProvider
)
