# SPDX-License-Identifier: Apache-2.0
"""Cards of a host: the functions that a driver has to see together.

They are the functions of one PCI slot with their VFs, and the cards that
share an IOMMU group, as a group goes to one guest. A VF whose PF is not on
the bus is in the card of its slot; an mdev parent on another bus is a card
of its own.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping

from nova_accel.model import pci


def group(
    functions: Iterable[pci.PciFunction],
    parents: Mapping[str, str | None],
    unknown: Iterable[str],
) -> Mapping[str, tuple[str, ...]]:
    """Return the names of each card's functions and parents, by each name.

    They are in the order of the functions.

    :param parents: PF of each mdev parent, None without one.
    :param unknown: names of functions and parents that can't be read.
    """
    leaders: dict[str, str] = {}

    def find(key: str) -> str:
        while (leader := leaders.setdefault(key, key)) != key:
            leaders[key] = leaders[leader]
            key = leader
        return key

    names: dict[str, None] = {}
    for name, others in _list_links(functions, parents, unknown):
        names[name] = None
        for other in others:
            leaders[find(other)] = find(name)
    cards: dict[str, list[str]] = collections.defaultdict(list)
    for name in names:
        cards[find(name)].append(name)
    return {
        name: tuple(members) for members in cards.values() for name in members
    }


def _list_links(
    functions: Iterable[pci.PciFunction],
    parents: Mapping[str, str | None],
    unknown: Iterable[str],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each name with what else is of its card.

    Slots and IOMMU groups have names that no function has.
    """
    for function in functions:
        name = str(function.address)
        yield (
            name,
            (
                str(function.physfn) if function.physfn else _get_slot(name),
                *map(str, function.virtual_functions),
                *(
                    ()
                    if function.iommu_group is None
                    else (f"group {function.iommu_group}",)
                ),
            ),
        )
    for name, physfn in parents.items():
        yield name, (physfn,) if physfn else ()
    for name in sorted(unknown):
        yield name, (_get_slot(name),) if pci.is_address(name) else ()


def _get_slot(address: str) -> str:
    return address.rpartition(".")[0]
