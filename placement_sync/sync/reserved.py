# SPDX-License-Identifier: Apache-2.0
"""Merge of the operator's ``reserved`` with ours.

Both write the one field ``reserved``. What an operator has set is the
least that stays reserved; what a device needs counts where it is more.
Which is which must be told after any restart and by every writer, so it
stands in Placement: a record tells how much of it we have reserved
(``Inventory.own``), and where that hides what the operator had set, or a
total that has shrunk leaves no room for it, a trait of the provider
remembers it.
"""

import re
from collections.abc import Iterable, Mapping

from nova_accel.model import names, providers

Inventories = Mapping[str, providers.Inventory]

_TRAIT = re.compile(
    re.escape(names.RESERVED_PREFIX) + r"(?P<name>.+)_(?P<amount>[0-9]+)"
)


def join(
    before: Inventories, traits: Iterable[str], desired: Inventories
) -> tuple[dict[str, providers.Inventory], frozenset[str]]:
    """Return records as they are to be written, and what to remember.

    What an operator has set survives: ``allocation_ratio``, and
    ``reserved`` as the least of it.

    :param before: a provider's records as they are, and its traits.
    :param desired: its records as the device asks for them.
    :returns: the records, and the traits that remember what they hide.
    """
    hidden = _remembered(traits)
    found: dict[str, providers.Inventory] = {}
    memory: set[str] = set()
    for name, wanted in desired.items():
        remembered = hidden.get(_suffix(name), 0)
        # A record may have been wiped: what is remembered was not.
        old = before.get(name, wanted)
        theirs = operators(old, remembered) if name in before else remembered
        found[name] = _joined(old, wanted, theirs)
        there = found[name].reserved
        if theirs > there or (theirs and there == found[name].own):
            memory.add(_trait(name, theirs))
    return found, frozenset(memory)


def operators(record: providers.Inventory, hidden: int = 0) -> int:
    """Return how much of a record's ``reserved`` an operator has set.

    That may be more than there is now: the total was larger then, and may
    be again.

    :param hidden: what a trait remembers.
    """
    if record.reserved == record.total < hidden:
        return hidden
    if record.reserved == record.own:
        return min(hidden, record.own)
    return record.reserved


def _joined(
    old: providers.Inventory, wanted: providers.Inventory, theirs: int
) -> providers.Inventory:
    return providers.Inventory(
        total=wanted.total,
        reserved=min(wanted.total, max(wanted.reserved, theirs)),
        min_unit=wanted.min_unit,
        max_unit=wanted.max_unit,
        step_size=wanted.step_size,
        allocation_ratio=old.allocation_ratio,
    )


def _trait(name: str, amount: int) -> str:
    return f"{names.RESERVED_PREFIX}{_suffix(name)}_{amount}"


def _suffix(name: str) -> str:
    """Return how a resource class is called in a trait's name."""
    return name.removeprefix(names.CUSTOM)


def _remembered(traits: Iterable[str]) -> dict[str, int]:
    """Return what traits remember, by class; the most of several."""
    found: dict[str, int] = {}
    for trait in traits:
        said = _TRAIT.fullmatch(trait)
        if said is not None:
            amount = int(said["amount"])
            found[said["name"]] = max(amount, found.get(said["name"], 0))
    return found
