# SPDX-License-Identifier: Apache-2.0
"""Selection and order of the allocation candidates that fit."""

import collections
import dataclasses
import enum
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from filters.fit import candidate_locality, numa, provider_facts
from filters.fit.rejection import Rejection
from filters.request import AcceleratorRequest
from nova_accel import model
from nova_accel.geometry.scheduling import (
    card_state,
    usable_share,
    vgpu_geometry,
)
from nova_accel.inventory import health
from nova_accel.model import flavors, names, providers

# Rejections by subject (a provider's uuid, or the text if it is about
# several providers) and aspect (a resource class, or one of those below).
Rejections = Mapping[tuple[str, str], Rejection]
# Returns the guest's NUMA cells with a candidate.
CellsOf = Callable[[provider_facts.Candidate], numa.Cells]

# Layouts in which used units do not determine the sizes of partitions.
_UNEVEN = frozenset({model.Layout.MIXED, model.Layout.MIG})
_HEALTH = "health"
_GEOMETRY = "geometry"
_NUMA = "NUMA"
_EXCLUSIVE = flavors.Packing.EXCLUSIVE
_HEALTH_CAUSES = {
    names.DRAINED_TRAIT: "drained by its operator",
    names.MISSING_TRAIT: "missing on its host",
    names.UNKNOWN_TRAIT: "its host can't read its fault and drain marks",
    names.FAULTED_TRAIT: "at fault",
}


class _Prospect(enum.IntEnum):
    """Chance that the cards of a candidate have room."""

    LIKELY = 0
    AMBIGUOUS = 1
    UNKNOWN = 2


# Prospect, is off the guest's cells, missing preferred traits, loss of usable
# share, loss of partitions, free units after the claim (negative for SPREAD).
# The lowest is best.
_StateRank = tuple[_Prospect, bool, int, float, vgpu_geometry.Loss, Fraction]
# The same, and uuids.
_Rank = tuple[
    _Prospect, bool, int, float, vgpu_geometry.Loss, Fraction, tuple[str, ...]
]
_StateKey = tuple[object, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Data that a host's candidates are checked against.

    ``cells`` are the host's NUMA cells, unless ``cells_of`` returns those
    of each candidate. ``ranks`` are those of candidates with equal cards,
    for all hosts of one server. ``shares`` are what usual requests could
    use, None if no requests are known.
    """

    facts: provider_facts.Facts
    geometry: vgpu_geometry.VgpuGeometry
    cells: numa.Cells = numa.UNKNOWN_CELLS
    cells_of: CellsOf | None = None
    shares: usable_share.UsableShares | None = None
    ranks: dict[_StateKey, _StateRank] = dataclasses.field(
        default_factory=dict
    )

    def find_cells(self, candidate: provider_facts.Candidate) -> numa.Cells:
        """Return the NUMA cells of a guest with a candidate."""
        return self.cells_of(candidate) if self.cells_of else self.cells


def find_ambiguous(
    request: AcceleratorRequest,
    cards: Iterable[providers.Provider],
    states: card_state.CardStates,
) -> frozenset[str]:
    """Return the uuids of cards whose partitions are not known.

    Their traits do not list all of them, and the used units do not
    determine their sizes; the allocations of the cards may.
    """
    if not any(map(states.find_type, request.groups)):
        return frozenset()
    return frozenset(
        card.uuid for card in cards if _is_ambiguous(request, card, states)
    )


def _is_ambiguous(
    request: AcceleratorRequest,
    card: providers.Provider,
    states: card_state.CardStates,
) -> bool:
    if card.allocations is not None:
        return False
    layout = card_state.parse_layout(card.traits)
    pending = states.list_pending(request.groups, card.siblings.values())
    return layout in _UNEVEN and not states.is_occupancy_known(card, pending)


def select(
    request: AcceleratorRequest,
    candidates: Iterable[provider_facts.Candidate],
    host_facts: HostFacts,
) -> tuple[list[provider_facts.Candidate], Rejections]:
    """Return the candidates that fit, in order, and all rejections.

    Only accelerators are checked. Missing data never reject a candidate.

    Devices on the guest's NUMA cells come first, then those with preferred
    traits; then the flavor's packing decides, then free units, then the
    providers' uuids. Candidates with cards whose partitions are not known
    follow, then those with unknown providers in their present order.
    """
    fitting: list[tuple[_Rank, provider_facts.Candidate]] = []
    rejections: dict[tuple[str, str], Rejection] = {}
    for candidate in candidates:
        checked = _CheckedCandidate(request, candidate, host_facts)
        key = _build_key(checked)
        rank = host_facts.ranks.get(key) if key else None
        if rank is None:
            of_candidate = _find_rejections(checked)
            rejections.update(of_candidate)
            if of_candidate:
                continue
            rank = _rank(checked)
            if key:
                host_facts.ranks[key] = rank
        fitting.append(((*rank, _list_uuids(checked)), candidate))
    fitting.sort(key=operator.itemgetter(0))
    return [candidate for _, candidate in fitting], rejections


# -- a candidate ------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _CardVgpus:
    """The vGPUs that a candidate needs from a card.

    ``state`` is None if the partitions on the card are not known.
    """

    facts: providers.Provider
    state: card_state.CardState | None
    types: card_state.VgpuCounts


class _CheckedCandidate:
    """A candidate with the facts of its accelerators.

    ``needed`` are its units by class of each accelerator, by uuid;
    ``allocated`` the same for accelerators with known facts; ``mappings``
    the providers of each group, by suffix.
    """

    def __init__(
        self,
        request: AcceleratorRequest,
        candidate: provider_facts.Candidate,
        host_facts: HostFacts,
    ) -> None:
        self.request = request
        self.candidate = candidate
        self.host_facts = host_facts
        self.mappings: Mapping[str, Sequence[str]] = candidate.get(
            "mappings", {}
        )
        self.needed = _select_classes(candidate, request.classes)
        self.allocated = [
            (host_facts.facts[uuid], units)
            for uuid, units in self.needed.items()
            if uuid in host_facts.facts
        ]

    @functools.cached_property
    def devices(self) -> tuple[candidate_locality.CandidateDevice, ...]:
        """Return the known accelerators with their number of partitions."""
        return tuple(
            candidate_locality.CandidateDevice(
                facts=facts,
                units=max(
                    (
                        amount
                        for name, amount in units.items()
                        if name not in names.MEASURES
                    ),
                    default=1,
                ),
            )
            for facts, units in self.allocated
        )

    @functools.cached_property
    def numa_rejection(self) -> Rejection | None:
        """Return why devices are not on the guest's cells, or None."""
        cells = self.host_facts.find_cells(self.candidate)
        return numa.find_rejection(cells, self.devices)

    @functools.cached_property
    def vgpus(self) -> list[_CardVgpus]:
        """Return the vGPUs needed from each known card."""
        facts = self.host_facts.facts
        states = self.host_facts.geometry.states
        return [
            _CardVgpus(
                facts=facts[uuid],
                state=states.build(
                    facts[uuid],
                    gpu,
                    states.list_pending(
                        self.request.groups, facts[uuid].siblings.values()
                    ),
                ),
                types=tuple(types),
            )
            for (uuid, gpu), types in self._list_types().items()
            if uuid in facts
        ]

    def _list_types(self) -> dict[tuple[str, str], list[tuple[str, int]]]:
        """Return vGPU types and counts, by provider and GPU model."""
        states = self.host_facts.geometry.states
        types: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for group in sorted(self.request.groups, key=lambda g: g.suffix):
            vgpu = states.find_type(group)
            uuids = self.mappings.get(group.suffix, ())
            count = group.resources.get(names.GPU_CLASS, 0)
            if vgpu is not None and len(uuids) == 1 and count:
                of_card = types.setdefault((uuids[0], vgpu.gpu), [])
                of_card.append((vgpu.name, count))
        return types


def _select_classes(
    candidate: provider_facts.Candidate, classes: frozenset[str]
) -> dict[str, dict[str, int]]:
    """Return a candidate's units of some classes, by provider."""
    return {
        uuid: {
            name: amount
            for name, amount in sorted(allocation["resources"].items())
            if name in classes
        }
        for uuid, allocation in candidate["allocations"].items()
        if not classes.isdisjoint(allocation["resources"])
    }


def _build_key(checked: _CheckedCandidate) -> _StateKey | None:
    """Return a key that candidates on cards of equal state have in common.

    Equal sets of traits and of capacities are one object in the facts. None
    if the verdict may depend on more than the states.
    """
    policy = checked.request.policy
    if (
        len(checked.allocated) != len(checked.needed)
        or policy.locality is not flavors.Locality.ANY
    ):
        return None
    is_near = policy.numa is not flavors.NumaPolicy.NONE
    key: list[object] = [
        checked.host_facts.find_cells(checked.candidate) if is_near else None
    ]
    for facts, units in checked.allocated:
        if facts.allocations or facts.siblings:
            return None
        key += (
            id(facts.traits),
            id(facts.capacities),
            facts.allocations is None,
            *units.items(),
            *(
                suffix
                for suffix, uuids in checked.mappings.items()
                if facts.uuid in uuids
            ),
        )
    return tuple(key)


# -- rejections -------------------------------------------------------------


def _find_rejections(checked: _CheckedCandidate) -> Rejections:
    return {
        **_find_shortages(checked),
        **_find_health_issues(checked),
        **_find_conflicts(checked),
        **_find_shared_devices(checked),
        **_find_affinity_violations(checked),
    }


def _find_shortages(checked: _CheckedCandidate) -> Rejections:
    return {
        (facts.uuid, name): Rejection(
            providers=(facts,),
            cause=f"{name} {capacity.free} left of {capacity.capacity},"
            f" {amount} needed{_describe_siblings(facts)}",
        )
        for facts, units in checked.allocated
        for name, amount in units.items()
        if (capacity := facts.capacities.get(name)) and amount > capacity.free
    }


def _describe_siblings(facts: providers.Provider) -> str:
    servers = ", ".join(facts.siblings)
    if not servers:
        return ""
    return f" (taken by server {servers} of the same request)"


def _find_health_issues(checked: _CheckedCandidate) -> Rejections:
    return {
        (facts.uuid, _HEALTH): Rejection(providers=(facts,), cause=cause)
        for facts, _ in checked.allocated
        if (cause := describe_health(facts))
    }


def describe_health(device: providers.Provider) -> str:
    """Return why a device takes no server at all, empty if it may take one."""
    causes = [
        text
        for trait, text in _HEALTH_CAUSES.items()
        if trait in device.traits
    ]
    if fault := health.describe_causes(device.traits):
        causes.append(fault)
    return ", ".join(causes)


def _find_conflicts(checked: _CheckedCandidate) -> Rejections:
    """Return vGPUs without a placement beside a card's partitions."""
    geometry = checked.host_facts.geometry
    return {
        (vgpus.facts.uuid, _GEOMETRY): Rejection(
            providers=(vgpus.facts,),
            cause=f"{_describe_types(vgpus.types)} has no place beside"
            f" {vgpus.state}{_describe_siblings(vgpus.facts)}",
        )
        for vgpus in checked.vgpus
        if vgpus.state is not None
        if not geometry.has_room(vgpus.state, vgpus.types)
    }


def _describe_types(types: card_state.VgpuCounts) -> str:
    counts: collections.Counter[str] = collections.Counter()
    for name, count in types:
        counts[name] += count
    return ", ".join(
        f"{count} {name}" for name, count in sorted(counts.items())
    )


def _find_shared_devices(checked: _CheckedCandidate) -> Rejections:
    """Return devices that a server does not have to itself.

    It has those of which it takes all: no other server is on them then, and
    Placement allocates none to another.
    """
    if checked.request.policy.packing is not _EXCLUSIVE:
        return {}
    return {
        (facts.uuid, _EXCLUSIVE.value): Rejection(
            providers=(facts,),
            cause=f"packing {_EXCLUSIVE.value} needs the whole device, and"
            f" the flavor takes {', '.join(parts)}; see `openstack accel"
            " flavor set --packing exclusive`",
        )
        for facts, units in checked.allocated
        if (parts := _list_parts(facts, units))
    }


def _list_parts(
    facts: providers.Provider, units: Mapping[str, int]
) -> list[str]:
    """Return the parts of a device that are taken, [] for all of a class.

    Each partition needs some of each class but slices: vGPUs that share a
    GPU instance take none.
    """
    shares = [
        (amount, capacity.capacity, name)
        for name, amount in units.items()
        if name != names.MIG_SLICE_CLASS
        and (capacity := facts.capacities.get(name))
    ]
    if any(amount == total for amount, total, _ in shares):
        return []
    return [f"{amount} of {total} {name}" for amount, total, name in shares]


def _find_affinity_violations(checked: _CheckedCandidate) -> Rejections:
    policy = checked.request.policy
    rejections = {
        policy.locality.value: candidate_locality.find_rejection(
            policy.locality, checked.devices
        )
    }
    if policy.numa is flavors.NumaPolicy.REQUIRED:
        rejections = {_NUMA: checked.numa_rejection, **rejections}
    return {
        (str(rejection), aspect): rejection
        for aspect, rejection in rejections.items()
        if rejection is not None
    }


# -- order ------------------------------------------------------------------


def _rank(checked: _CheckedCandidate) -> _StateRank:
    """Return the sort key of a candidate, without uuids.

    Nova claims the first candidate only, and gives up the host if that
    claim fails.
    """
    if not _is_known(checked):
        return _Prospect.UNKNOWN, True, 0, 0.0, (), Fraction(0)
    states = checked.host_facts.geometry.states
    is_ambiguous = any(
        _is_ambiguous(checked.request, vgpus.facts, states)
        for vgpus in checked.vgpus
    )
    policy = checked.request.policy
    is_best = policy.packing.is_by_loss
    free = sum(
        (_free_share(facts, units) for facts, units in checked.allocated),
        Fraction(0),
    )
    return (
        _Prospect.AMBIGUOUS if is_ambiguous else _Prospect.LIKELY,
        policy.numa is not flavors.NumaPolicy.NONE
        and checked.numa_rejection is not None,
        _count_missing_preferred(checked),
        _sum_usable_losses(checked) if is_best else 0.0,
        _sum_losses(checked) if is_best else (),
        -free if policy.packing is flavors.Packing.SPREAD else free,
    )


def _list_uuids(checked: _CheckedCandidate) -> tuple[str, ...]:
    """Return what orders candidates of one rank, empty for unknown ones."""
    if not _is_known(checked):
        return ()
    return (*sorted(checked.needed), *_list_mapped(checked))


def _is_known(checked: _CheckedCandidate) -> bool:
    return len(checked.allocated) == len(checked.needed) and all(
        units.keys() <= facts.capacities.keys()
        for facts, units in checked.allocated
    )


def _list_mapped(checked: _CheckedCandidate) -> Iterator[str]:
    """Yield the providers of each group.

    Candidates may differ only in which of two groups each provider serves.
    """
    for _, uuids in sorted(checked.mappings.items()):
        yield from sorted(uuids)


def _count_missing_preferred(checked: _CheckedCandidate) -> int:
    """Return the number of devices without their group's preferred trait."""
    facts = checked.host_facts.facts
    return sum(
        uuid not in facts or trait not in facts[uuid].traits
        for suffix, trait in checked.request.preferred_traits.items()
        for uuid in checked.mappings.get(suffix, ())
    )


def _sum_usable_losses(checked: _CheckedCandidate) -> float:
    """Return the usable share that the cards lose.

    0 for vGPUs: tests.benchmark.density measures that the loss of partitions
    alone, and then the free units, serve each model well.
    """
    shares, facts = checked.host_facts.shares, checked.host_facts.facts
    if shares is None or checked.vgpus:
        return 0.0
    added = provider_facts.list_added(
        checked.request.groups, checked.candidate
    )
    return sum(
        shares.compute_card_loss(facts[uuid], groups)
        for uuid, groups in added.items()
        if uuid in facts
    )


def _sum_losses(checked: _CheckedCandidate) -> vgpu_geometry.Loss:
    """Return the loss of all cards; cards with unknown loss count as 0."""
    total: collections.Counter[int] = collections.Counter()
    geometry = checked.host_facts.geometry
    for vgpus in checked.vgpus:
        if vgpus.state is not None:
            loss = geometry.compute_loss(vgpus.state, vgpus.types)
            total.update(dict(loss or ()))
    return tuple(sorted(total.items(), reverse=True))


def _free_share(
    facts: providers.Provider, units: Mapping[str, int]
) -> Fraction:
    """Return the share of the scarcest class that stays free."""
    return min(
        Fraction(
            facts.capacities[name].free - amount,
            max(1, facts.capacities[name].capacity),
        )
        for name, amount in units.items()
    )
