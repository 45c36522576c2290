# SPDX-License-Identifier: Apache-2.0
"""Order of PCI address changes in which no two devices collide."""

import itertools
from collections.abc import Collection, Iterator, Mapping

# Names no host has are wanted for the time between two steps: the last
# slots of the last bus of the last domain that four hexadecimal digits
# name. Real ones count from 0000, and VMD's from 10000.
_LAST_DOMAIN, _LAST_BUS = 0xFFFF, 0xFF
_SLOTS, _FUNCTIONS = 32, 8


def plan_steps(pairs: Mapping[str, str]) -> Mapping[str, str]:
    """Return steps that, taken in their order, change all as ``pairs``.

    Nova replaces addresses in a guest's XML one pair after another, each
    time the first that matches (nova/virt/libvirt/migration.py,
    ``_update_pci_dev_xml``): of A to B and B to C, taken in this order,
    both end as C, or as none. Here nothing gets an address that another
    one still has; where they go round in a circle, one of them waits under
    an address that no host has.

    :param pairs: new PCI addresses by old ones; no two get the same.
    :raises ValueError: two do.
    """
    if len(set(pairs.values())) < len(pairs):
        raise ValueError(f"two devices can't get one address: {pairs}")
    left = {old: new for old, new in pairs.items() if old != new}
    spare = _spare({*pairs, *pairs.values()})
    steps: dict[str, str] = {}
    while left:
        begin = next(iter(left))
        chain = _chain(begin, left)
        if left[chain[-1]] != begin:
            steps |= {old: left.pop(old) for old in reversed(chain)}
            continue
        steps[begin] = aside = next(spare)
        steps |= {old: left.pop(old) for old in reversed(chain[1:])}
        steps[aside] = left.pop(begin)
    return steps


def _chain(begin: str, pairs: Mapping[str, str]) -> list[str]:
    """Return addresses of which each one's new one is the next."""
    found = [begin]
    while (after := pairs[found[-1]]) in pairs and after != begin:
        found.append(after)
    return found


def _spare(taken: Collection[str]) -> Iterator[str]:
    for slot, function in itertools.product(
        reversed(range(_SLOTS)), reversed(range(_FUNCTIONS))
    ):
        address = f"{_LAST_DOMAIN:04x}:{_LAST_BUS:02x}:{slot:02x}.{function:x}"
        if address not in taken:
            yield address
