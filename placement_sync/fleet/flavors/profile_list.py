# SPDX-License-Identifier: Apache-2.0
"""List of a cloud's profiles, with free and maximum numbers."""

import dataclasses
from collections.abc import Iterable, Sequence

from nova_accel.geometry.scheduling import provider_room
from nova_accel.inventory import wording
from nova_accel.model import flavors, names
from placement_sync.fleet.flavors import offered_devices


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListedProfile:
    """A profile of a cloud.

    ``hosts`` and ``models`` are those of the cards that support it.
    ``cards`` of ``cards_in_all`` can create one now. ``free`` is how many
    fit now, at most, ``most`` the maximum of an empty card, without the
    limits of device_spec. ``is_offered`` is false if no card can create one
    now.
    """

    terms: offered_devices.ProfileTerms
    models: tuple[str, ...]
    hosts: tuple[str, ...]
    cards: int
    cards_in_all: int
    free: int
    most: int
    is_offered: bool


def list_profiles(
    devices: Iterable[offered_devices.OfferedDevice],
    types: offered_devices.VgpuTypes,
) -> tuple[ListedProfile, ...]:
    """Return the profiles of devices, sorted by kind and name.

    Unavailable devices can create none; missing ones are left out.
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
        if names.MISSING_TRAIT in provider.traits:
            continue
        is_usable = not provider.is_unavailable
        for terms, is_offered in offered_devices.list_terms(provider, types):
            key = terms.kind, terms.name, terms.required
            row = terms, provider, is_offered and is_usable
            rows.setdefault(key, []).append(row)
    return tuple(
        _build_row(rows[key], types) for key in sorted(rows, key=_sort_key)
    )


def _sort_key(key: tuple[str, str, frozenset[str]]) -> tuple[object, ...]:
    kind, name, required = key
    return kind, wording.natural_key(name), sorted(required)


def _build_row(
    rows: Sequence[
        tuple[
            offered_devices.ProfileTerms, offered_devices.OfferedDevice, bool
        ]
    ],
    types: offered_devices.VgpuTypes,
) -> ListedProfile:
    free = {
        provider.uuid: (
            count_free(provider, terms, types) if is_available else 0
        )
        for terms, provider, is_available in rows
    }
    return ListedProfile(
        terms=rows[0][0],
        models=tuple(
            sorted({offered_devices.model_name(p.model) for _, p, _ in rows})
        ),
        hosts=tuple(sorted({p.host for _, p, _ in rows})),
        cards=sum(bool(n) for n in free.values()),
        cards_in_all=len(free),
        free=sum(free.values()),
        most=max(_compute_max(p, t, types) for t, p, _ in rows),
        is_offered=any(is_available for _, _, is_available in rows),
    )


def count_free(
    provider: offered_devices.OfferedDevice,
    terms: offered_devices.ProfileTerms,
    types: offered_devices.VgpuTypes,
) -> int:
    """Return how many more of a profile fit on a device, at most."""
    group = flavors.RequestGroup(
        suffix="",
        resources={
            name: amount
            for name, amount in terms.charges.items()
            if name in provider.capacities
        },
        required=terms.required,
    )
    room = provider_room.ProviderRoom(types.geometry, provider)
    return room.count(group, terms.vgpu_type)


def _compute_max(
    provider: offered_devices.OfferedDevice,
    terms: offered_devices.ProfileTerms,
    types: offered_devices.VgpuTypes,
) -> int:
    """Return the maximum of partitions of an empty card.

    For types in the catalog without max_slots: the total of a card in
    equal-size mode is the limit of its present size only. For others by the
    inventories, without reserved units, which bulk queries of Placement do
    not return.
    """
    if terms.vgpu_type is not None:
        return types.geometry.count_most(terms.vgpu_type, provider.traits)
    limits = [
        provider.capacities[name].total // amount
        for name, amount in terms.charges.items()
        if name in provider.capacities
    ]
    return min(limits, default=0)
