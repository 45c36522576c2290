# SPDX-License-Identifier: Apache-2.0
"""Cards with places, by the rules of the catalog alone.

A second, short account of the geometry, independent of the library's: the
policies of papers choose by it, and it judges each placement.
"""

import dataclasses
import functools
from collections.abc import Iterable

from nova_accel import model
from nova_accel.catalog import vgpu_types
from nova_accel.geometry import device_capacity, occupancy
from nova_accel.model import names, providers
from tests.support.scheduler import scheduled

EQUAL, MIXED, MIG = (
    model.Layout.EQUAL,
    model.Layout.MIXED,
    model.Layout.MIG,
)
# Partitions of a card, sorted: profile and first unit.
State = tuple[tuple[str, int], ...]
EMPTY: State = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profile: units and starts in the card's region, slices, limit.

    ``share`` is its part of the card's memory, ``least`` the smaller of this
    and its part of the slices.
    """

    name: str
    share: float
    least: float
    size: int
    starts: tuple[int, ...]
    slices: int
    limit: int


class CardModel:
    """Cards of one model in one layout.

    :param profiles: names of the profiles that are requested.
    """

    def __init__(
        self, key: str, layout: model.Layout, profiles: Iterable[str] = ()
    ) -> None:
        gpu = scheduled.CATALOG.gpu(key)
        assert gpu is not None, key
        self.key, self.layout = key, layout
        self.region = gpu.mig_region if layout is MIG else gpu.region
        self.slices = gpu.mig_slices
        types = list(map(scheduled.kind, profiles)) or _list_sizes(gpu, layout)
        self.profiles = {
            each.name: _build_profile(gpu, each, layout) for each in types
        }
        self.list_starts = functools.lru_cache(1 << 18)(self._list_starts)
        self.build_facts = functools.lru_cache(1 << 16)(self._build_facts)
        self.choose_start = functools.lru_cache(1 << 18)(self._choose_start)

    def round_up(self, share: float) -> str:
        """Return the smallest profile with a share of memory and slices."""
        return next(
            (p.name for p in self.profiles.values() if p.least >= share),
            list(self.profiles)[-1],
        )

    def is_whole(self, name: str) -> bool:
        """Return whether a profile leaves no place for another."""
        state = ((name, self.list_starts(EMPTY, name)[0]),)
        return not any(self.list_starts(state, p) for p in self.profiles)

    def sum_shares(self, state: State) -> float:
        """Return the used share of a card, equal for equal sums."""
        return round(sum(self.profiles[name].share for name, _ in state), 6)

    def _list_starts(self, state: State, name: str) -> tuple[int, ...]:
        """Return the places of one more partition."""
        profile = self.profiles[name]
        present = [self.profiles[other] for other, _ in state]
        if self.layout is EQUAL:
            has_room = len(state) < profile.limit and {*present} <= {profile}
            return (0,) if has_room else ()
        if present.count(profile) >= profile.limit or (
            self.layout is MIG
            and sum(p.slices for p in present) + profile.slices > self.slices
        ):
            return ()
        taken = self.list_taken(state)
        return tuple(
            start
            for start in profile.starts
            if taken.isdisjoint(range(start, start + profile.size))
        )

    def list_taken(self, state: State) -> frozenset[int]:
        """Return the units that partitions take."""
        return frozenset(
            unit
            for name, start in state
            for unit in range(start, start + self.profiles[name].size)
        )

    def is_valid(self, state: State) -> bool:
        """Return whether a card can have these partitions."""
        before = EMPTY
        for name, start in state:
            if start not in self.list_starts(before, name):
                return False
            before = (*before, (name, start))
        return True

    # -- the library's account ----------------------------------------------

    def _build_facts(self, state: State) -> providers.Provider:
        """Return the provider of a card, as Placement's candidates have it.

        It has the traits of the profiles that the host can make now.
        """
        places = [
            f"{occupancy.PLACE_PREFIX}{start}_1_"
            f"{scheduled.trait(name).removeprefix(names.CUSTOM)}"
            for name, start in state
            if self.layout is not EQUAL
        ]
        card = scheduled.card(
            "card",
            *(name for name, _ in state),
            gpu=self.key,
            layout=self.layout,
            traits=[*places, names.model_trait("10de", self.key)],
        )
        full = {
            _get_size(name)
            for name in self.profiles
            if not self.list_starts(state, name)
        }
        traits = card.traits - frozenset(
            each.trait
            for each in scheduled.CATALOG.profiles_of(self.key)
            if _get_size(each.name) in full
        )
        return dataclasses.replace(card, traits=traits, allocations=None)

    def _choose_start(self, state: State, name: str) -> int | None:
        """Return the place that the host chooses, None without room."""
        states = scheduled.GEOMETRY.states
        card = states.build(self.build_facts(state), self.key)
        assert card is not None, state
        device = scheduled.GEOMETRY.restore_card(card)
        assert device is not None, state
        # The card has one profile for all types of a size.
        own = next(
            p.name
            for p in device.profiles
            if _get_size(p.name) == _get_size(name)
        )
        place = device_capacity.choose_place(device, own)
        if place is None:
            return None
        starts = (place.start, place.instance_start, 0)
        return next(start for start in starts if start is not None)


@functools.cache
def _get_size(name: str) -> tuple[int, str]:
    """Return memory and GPU instance of a type: series of a size are equal."""
    each = scheduled.kind(name)
    return each.framebuffer_mb, each.instance


def _list_sizes(
    gpu: vgpu_types.CatalogGpu, layout: model.Layout
) -> list[vgpu_types.CatalogVgpuType]:
    """Return a type of each size, the smallest first.

    GPU instances are not shared, and without media extensions.
    """
    sizes: dict[tuple[int, str], vgpu_types.CatalogVgpuType] = {}
    for each in scheduled.CATALOG.profiles_of(gpu.key):
        if bool(each.instance) != (layout is MIG) or each.per_instance != 1:
            continue
        if layout is MIXED and not each.starts_mixed:
            continue
        if "+" not in each.instance and "-" not in each.instance:
            sizes.setdefault((each.framebuffer_mb, each.instance), each)
    slices = {kind.name: kind.slices for kind in gpu.kinds}
    return sorted(
        sizes.values(),
        key=lambda t: (t.framebuffer_mb, slices.get(t.instance, 0)),
    )


def _build_profile(
    gpu: vgpu_types.CatalogGpu,
    each: vgpu_types.CatalogVgpuType,
    layout: model.Layout,
) -> Profile:
    kind = next((k for k in gpu.kinds if k.name == each.instance), None)
    if layout is MIG:
        assert kind is not None, each
        size, starts, limit = kind.size, kind.starts, kind.limit or 0
    elif layout is MIXED:
        size, starts = each.span, each.starts_mixed
        limit = each.limit_mixed or 0
    else:
        size, starts, limit = 0, (0,), each.limit
    share = each.framebuffer_mb / gpu.memory_mb
    slices = kind.slices if kind else 0
    return Profile(
        name=each.name,
        share=share,
        least=min(share, slices / gpu.mig_slices) if kind else share,
        size=size,
        starts=tuple(starts),
        slices=slices,
        limit=limit,
    )
