# SPDX-License-Identifier: Apache-2.0
"""AcceleratorWeigher: weigher of nova-scheduler for hosts.

In nova.conf of nova-scheduler::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers
    weight_classes = filters.accelerator_weigher.AcceleratorWeigher

The multipliers of its preferences are options of ``[nova_accel]``.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import nova.conf
from nova import weights
from nova.scheduler import utils
from nova.scheduler import weights as host_weights
from oslo_log import log as logging

from filters import attached_profiles, candidate_capture
from filters.accelerator_filter import parse_spec
from filters.fit import (
    preferred_traits,
    provider_facts,
    request_mix,
    request_state,
    scores,
)
from filters.placement import summaries
from filters.request import NO_ACCELERATORS, AcceleratorRequest
from nova_accel.catalog import loader
from nova_accel.config import conf
from nova_accel.geometry.scheduling import vgpu_geometry
from nova_accel.model import providers

LOG = logging.getLogger(__name__)
_FREE = "accelerator_free_weight_multiplier"
_FUNCTION = "accelerator_function_weight_multiplier"
_PACKING = "accelerator_packing_weight_multiplier"

# Weight of a host with room for all that was attached to an evacuated server.
# More than all other preferences, and less than Nova's malus for hosts whose
# builds failed ([filter_scheduler] build_failure_weight_multiplier).
_ROOM = 1000.0
# Malus of a host on which no card is sure to have room; of the same size.
_DOUBT = -1000.0

_Weights = Sequence[float]
# Candidates and accelerators of a host.
_HostRecord = tuple[
    Sequence[provider_facts.Candidate], Sequence[providers.Provider]
]


class AcceleratorWeigher(host_weights.BaseHostWeigher):
    """Prefers hosts whose accelerators suit a server.

    For servers without accelerators: hosts without accelerators, and of
    others those whose accelerators lose least. For servers with
    accelerators: hosts with a free FPGA region that holds their function,
    and hosts that lose least, or whose accelerators are fuller, or emptier.
    For servers that are evacuated: hosts with room for their attached
    profiles. Without data all hosts weigh the same.

    Each of the three preferences is normalized to 0..1 over the hosts and
    multiplied for each host, as Nova does it for a weigher; the weight is
    the sum. ``minval`` and ``maxval`` keep Nova from normalizing the sum,
    which would make the three multipliers meaningless: (w - 0) / (1 - 0).

    The data are Nova's own allocation candidates: see candidate_capture.
    """

    minval = 0.0
    maxval = 1.0

    def __init__(self) -> None:
        super().__init__()
        self._settings = conf.read_weigher_settings(nova.conf.CONF)
        self._states = request_state.shared()
        self._geometry = vgpu_geometry.VgpuGeometry(loader.load())
        preferred_traits.load()
        candidate_capture.install()

    def weigh_objects(
        self, weighed_obj_list: Sequence[Any], weight_properties: Any
    ) -> _Weights:
        """Return each host's weight, already multiplied.

        :param weighed_obj_list: Nova's WeighedHost objects.
        :param weight_properties: the nova.objects.RequestSpec.
        """
        hosts = [weighed.obj for weighed in weighed_obj_list]
        # Hosts are objects of Nova; an error here must not fail the
        # scheduling request for the sake of a preference.
        try:
            return self._weigh(hosts, weight_properties)
        except Exception:
            LOG.exception("Weighing failed; all hosts get the same weight")
            return [0.0] * len(hosts)

    def _weigh_object(self, obj: Any, weight_properties: Any) -> float:
        """Return 0: weigh_objects weighs all hosts together."""
        return 0.0

    def _weigh(self, hosts: Sequence[Any], spec: Any) -> _Weights:
        return _add(
            self._weigh_request(hosts, spec),
            self._weigh_evacuated(hosts, spec),
        )

    def _weigh_evacuated(self, hosts: Sequence[Any], spec: Any) -> _Weights:
        """Prefer hosts with room for what an evacuated server had attached.

        The request has no groups of it, so that it excludes no host.
        """
        groups = attached_profiles.read_evacuated_groups(spec)
        if not groups:
            return [0.0] * len(hosts)
        state = self._states.recall(spec, parse_spec(spec))
        return [
            _ROOM
            * float(
                scores.room_share(
                    groups, state.list_cards(host.uuid), self._geometry
                )
            )
            for host in hosts
        ]

    def _weigh_request(self, hosts: Sequence[Any], spec: Any) -> _Weights:
        request = parse_spec(spec)
        if not request.groups:
            return self._weigh_without_accelerators(hosts, spec)
        state = self._states.recall(spec, request)
        by_function = _multipliers(hosts, _FUNCTION, self._settings.function)
        by_fullness = _multipliers(hosts, _PACKING, self._settings.packing)
        traits: frozenset[str] = frozenset()
        if any(by_function):
            by_group = preferred_traits.read(spec._context, request)
            traits = frozenset(by_group.values())
        weights: _Weights = [0.0] * len(hosts)
        if state.doubtful:
            weights = [
                _DOUBT * (host.uuid in state.doubtful) for host in hosts
            ]
        if traits:
            functions = [
                float(scores.trait_share(request, candidates, cards, traits))
                for candidates, cards in _list_records(hosts, state)
            ]
            weights = _add(weights, _multiply(functions, by_function))
        if not any(by_fullness):
            return weights
        if request.policy.packing.is_by_loss and min(by_fullness) >= 0:
            state.losses = state.losses or _measure_losses(request)
            values = _score_losses(
                state.losses, spec, hosts, state.list_shapes
            )
        else:
            values = _score_fullness(request, _list_records(hosts, state))
        return _add(weights, _multiply(values, by_fullness))

    def _weigh_without_accelerators(
        self, hosts: Sequence[Any], spec: Any
    ) -> _Weights:
        multipliers = _multipliers(hosts, _FREE, self._settings.free)
        captured = candidate_capture.find_summaries(spec)
        if not captured or not any(multipliers):
            return [0.0] * len(hosts)
        nodes = summaries.ProviderSummaries(captured).list_accelerators()
        values = [float(host.uuid not in nodes) for host in hosts]
        by_packing = _multipliers(hosts, _PACKING, self._settings.packing)
        if not any(values) and min(by_packing, default=0) > 0:
            values = _score_losses(
                _measure_losses(NO_ACCELERATORS),
                spec,
                hosts,
                lambda host, _: tuple(nodes[host].values()),
            )
        return _multiply(values, multipliers)


def _list_records(
    hosts: Iterable[Any], state: request_state.RequestState
) -> list[_HostRecord]:
    return [
        (host.allocation_candidates or (), state.list_cards(host.uuid))
        for host in hosts
    ]


def _measure_losses(request: AcceleratorRequest) -> scores.RequestLosses:
    return scores.RequestLosses(request, request_mix.shared_shares().measure())


def _score_losses(
    losses: scores.RequestLosses,
    spec: Any,
    hosts: Iterable[Any],
    list_cards: scores.ListCards,
) -> list[float]:
    """Return a score for what each host would lose with a server."""
    size = scores.read_size(spec)
    return scores.rank(
        [losses.compute(host, size, list_cards) for host in hosts]
    )


def _score_fullness(
    request: AcceleratorRequest, hosts: Iterable[_HostRecord]
) -> list[float]:
    """Return each host's fullness, the middle for unknown ones.

    Hosts with cards of equal states have one. Equal sets of traits and of
    capacities are one object.
    """
    by_state: dict[tuple[object, ...], Fraction | None] = {}
    shares = []
    for candidates, cards in hosts:
        uuids = frozenset(
            provider_facts.list_providers(request.classes, candidates)
        )
        key = tuple(
            (
                id(card.traits),
                id(card.capacities),
                card.uuid in uuids,
                bool(card.siblings),
            )
            for card in cards
        )
        if key not in by_state:
            by_state[key] = scores.fullness(request, cards, uuids)
        shares.append(by_state[key])
    known_shares = [float(share) for share in shares if share is not None]
    middle = (
        (min(known_shares) + max(known_shares)) / 2 if known_shares else 0.0
    )
    return [middle if share is None else float(share) for share in shares]


def _multipliers(
    hosts: Iterable[Any], name: str, default: float
) -> list[float]:
    """Return each host's multiplier: its aggregates', or the default."""
    return [
        utils.get_weight_multiplier(host, name, default)
        if host.aggregates
        else default
        for host in hosts
    ]


def _add(first: _Weights, second: _Weights) -> _Weights:
    return [a + b for a, b in zip(first, second, strict=True)]


def _multiply(
    values: Sequence[float], multipliers: Sequence[float]
) -> _Weights:
    """Return the values normalized to 0..1, times the multipliers."""
    return [
        multiplier * value
        for multiplier, value in zip(
            multipliers, weights.normalize(values), strict=True
        )
    ]
