# SPDX-License-Identifier: Apache-2.0
"""Profiles that a cloud offers, and how many are free."""

import dataclasses
import re
from collections.abc import Iterable, Sequence

from nova_accel.model import names
from placement_sync.flavors import offered_devices


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListedProfile:
    """One thing that the cloud has on offer.

    ``hosts`` have cards for it, ``models`` are those cards'. ``cards`` is
    how many of ``cards_in_all`` can make one now, ``free`` how many the
    counters allow at this moment, at most, and ``most`` how many an empty
    card holds, before the limits of device_spec. ``is_offered`` is false if
    no card can make one now.
    """

    terms: offered_devices.ProfileTerms
    models: tuple[str, ...]
    hosts: tuple[str, ...]
    cards: int
    cards_in_all: int
    free: int
    most: int
    is_offered: bool


def list_offers(
    devices: Iterable[offered_devices.OfferedDevice],
    types: offered_devices.VgpuTypes,
) -> tuple[ListedProfile, ...]:
    """Return what devices offer, one of each kind of terms.

    Devices that are drained, at fault or missing count for nothing.
    """
    rows: dict[
        tuple[str, str, frozenset[str]],
        list[
            tuple[
                offered_devices.ProfileTerms,
                offered_devices.OfferedDevice,
                bool,
            ]
        ],
    ] = {}
    for provider in devices:
        if provider.is_out:
            continue
        for terms, is_now in offered_devices.terms_of(provider, types):
            key = terms.kind, terms.name, terms.required
            rows.setdefault(key, []).append((terms, provider, is_now))
    return tuple(_offer(rows[key]) for key in sorted(rows, key=_order))


def _order(key: tuple[str, str, frozenset[str]]) -> tuple[object, ...]:
    """Sort by kind, then by name, numbers in it as numbers."""
    kind, name, required = key
    parts = re.split(r"(\d+)", name)
    words = [(int(p), "") if p.isdecimal() else (-1, p) for p in parts]
    return kind, words, sorted(required)


def _offer(
    rows: Sequence[
        tuple[
            offered_devices.ProfileTerms, offered_devices.OfferedDevice, bool
        ]
    ],
) -> ListedProfile:
    free = {
        provider.uuid: free_units(provider, terms) if is_now else 0
        for terms, provider, is_now in rows
    }
    return ListedProfile(
        terms=rows[0][0],
        models=tuple(
            sorted({offered_devices.spoken_model(p.model) for _, p, _ in rows})
        ),
        hosts=tuple(sorted({p.host for _, p, _ in rows})),
        cards=sum(bool(n) for n in free.values()),
        cards_in_all=len(free),
        free=sum(free.values()),
        most=max(_most(p, t) for t, p, _ in rows),
        is_offered=any(is_now for _, _, is_now in rows),
    )


def free_units(
    provider: offered_devices.OfferedDevice,
    terms: offered_devices.ProfileTerms,
) -> int:
    """Return how many more the counters of a device allow, at most.

    Only in equal-size mode what stands there counts against the limit of
    a type: elsewhere others may stand where none of it would.
    """
    found = [
        provider.stock[name].left // amount
        for name, amount in terms.charges.items()
        if name in provider.stock
    ]
    most = offered_devices.limit(provider, terms.facts)
    if most is not None:
        is_equal = names.layout_trait("equal") in provider.traits
        held = provider.stock.get(names.GPU_CLASS) if is_equal else None
        found.append(most - (held.used if held else 0))
    return max(0, min(found, default=0))


def _most(
    provider: offered_devices.OfferedDevice,
    terms: offered_devices.ProfileTerms,
) -> int:
    """Return how many an empty card holds, at most.

    Of types in the catalogue that is known, but for max_slots: the total
    of a card in equal-size mode is how many it holds of the size that is
    there. Of others the counters tell, less what is reserved: bulk answers
    of Placement leave that out.
    """
    most = offered_devices.limit(provider, terms.facts)
    if most is not None:
        return most
    found = [
        provider.stock[name].total // amount
        for name, amount in terms.charges.items()
        if name in provider.stock
    ]
    return min(found, default=0)
