# SPDX-License-Identifier: Apache-2.0
"""Merge of the operator's ``reserved`` with the device's.

Both are written to the one field ``reserved``: the operator's value is the
minimum, and the value that the device needs counts where it is larger.
Each writer must be able to separate them after a restart, so Placement
stores both: ``Inventory.own_reserved`` is the device's share, and a trait
of the provider stores the operator's value where the device's hides it or
where a smaller total leaves no room for it.
"""

import re
from collections.abc import Iterable, Mapping

from nova_accel.model import names, providers

Inventories = Mapping[str, providers.Inventory]

_TRAIT = re.compile(
    re.escape(names.RESERVED_PREFIX) + r"(?P<name>.+)_(?P<amount>[0-9]+)"
)


def merge(
    before: Inventories, traits: Iterable[str], desired: Inventories
) -> tuple[dict[str, providers.Inventory], frozenset[str]]:
    """Return the inventories to write, and the traits to set.

    The operator's ``allocation_ratio`` is retained, and the operator's
    ``reserved`` as the minimum.

    :param before: a provider's present inventories, and its traits.
    :param desired: its inventories as the device needs them.
    :returns: the inventories, and the traits that store the operator's
        hidden values.
    """
    hidden = _parse_traits(traits)
    merged: dict[str, providers.Inventory] = {}
    memory: set[str] = set()
    for name, inventory in desired.items():
        stored = hidden.get(_trait_suffix(name), 0)
        # An inventory may have been deleted; the trait was not.
        old = before.get(name, inventory)
        amount = operator_amount(old, stored) if name in before else stored
        new = merged[name] = _merge_inventory(old, inventory, amount)
        if amount > new.reserved or (
            amount and new.reserved == new.own_reserved
        ):
            memory.add(_build_trait(name, amount))
    return merged, frozenset(memory)


def operator_amount(record: providers.Inventory, hidden: int = 0) -> int:
    """Return the operator's share of an inventory's ``reserved``, in units.

    It may exceed the present total, which was larger and may grow again.

    :param hidden: the operator's value that a trait stores.
    """
    if record.reserved == record.total < hidden:
        return hidden
    if record.reserved == record.own_reserved:
        return min(hidden, record.own_reserved)
    return record.reserved


def _merge_inventory(
    old: providers.Inventory, desired: providers.Inventory, amount: int
) -> providers.Inventory:
    return providers.Inventory(
        total=desired.total,
        reserved=min(desired.total, max(desired.reserved, amount)),
        min_unit=desired.min_unit,
        max_unit=desired.max_unit,
        step_size=desired.step_size,
        allocation_ratio=old.allocation_ratio,
    )


def _build_trait(name: str, amount: int) -> str:
    return f"{names.RESERVED_PREFIX}{_trait_suffix(name)}_{amount}"


def _trait_suffix(name: str) -> str:
    """Return the part of a trait's name for a resource class."""
    return name.removeprefix(names.CUSTOM)


def _parse_traits(traits: Iterable[str]) -> dict[str, int]:
    """Return stored amounts by class suffix; the maximum of several."""
    amounts: dict[str, int] = {}
    for trait in traits:
        match = _TRAIT.fullmatch(trait)
        if match is not None:
            name, amount = match["name"], int(match["amount"])
            amounts[name] = max(amount, amounts.get(name, 0))
    return amounts
