# SPDX-License-Identifier: Apache-2.0
"""Order of PCI address changes of a guest, without collisions."""

import itertools
from collections.abc import Collection, Iterator, Mapping

# A cycle of changes needs a temporary address that no host has: the last
# slots of the last bus of domain ffff. Domains of hosts count from 0000, and
# those of VMD from 10000.
_LAST_DOMAIN, _LAST_BUS = 0xFFFF, 0xFF
_SLOTS, _FUNCTIONS = 32, 8


def plan_steps(pairs: Mapping[str, str]) -> Mapping[str, str]:
    """Return the steps, in order, that change all addresses in ``pairs``.

    Nova replaces addresses in a guest's XML one pair after another, each
    time the first match (nova/virt/libvirt/migration.py,
    ``_update_pci_dev_xml``): with A to B before B to C, both devices end
    up as C. In these steps no device gets an address that another one
    still has; in a cycle one of them gets a temporary address first.

    :param pairs: new PCI addresses by old ones, all different.
    :raises ValueError: two new addresses are equal.
    """
    if len(set(pairs.values())) < len(pairs):
        raise ValueError(f"two devices can't get one address: {pairs}")
    pending = {old: new for old, new in pairs.items() if old != new}
    unused = _unused_addresses({*pairs, *pairs.values()})
    steps: dict[str, str] = {}
    while pending:
        first = next(iter(pending))
        chain = _follow(first, pending)
        if pending[chain[-1]] != first:
            steps |= {old: pending.pop(old) for old in reversed(chain)}
            continue
        steps[first] = temporary = next(unused)
        steps |= {old: pending.pop(old) for old in reversed(chain[1:])}
        steps[temporary] = pending.pop(first)
    return steps


def _follow(first: str, pairs: Mapping[str, str]) -> list[str]:
    """Return a chain of addresses: the new one of each is the next."""
    chain = [first]
    while (new := pairs[chain[-1]]) in pairs and new != first:
        chain.append(new)
    return chain


def _unused_addresses(used: Collection[str]) -> Iterator[str]:
    for slot, function in itertools.product(
        reversed(range(_SLOTS)), reversed(range(_FUNCTIONS))
    ):
        address = f"{_LAST_DOMAIN:04x}:{_LAST_BUS:02x}:{slot:02x}.{function:x}"
        if address not in used:
            yield address
