# SPDX-License-Identifier: Apache-2.0
"""AcceleratorWeigher, as nova-scheduler loads it.

In nova.conf of nova-scheduler::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers
    weight_classes = filters.accelerator_weigher.AcceleratorWeigher

What it prefers, and how much, is in ``[nova_accel]``.
"""

import dataclasses
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import nova.conf
from nova import weights
from nova.scheduler import utils
from nova.scheduler import weights as host_weights
from oslo_log import log as logging

from filters import glance_images, provider_facts, request, scores
from filters.accelerator_filter import wanted_by
from filters.fit import fact_reader
from filters.placement import host_usage
from filters.placement.report_client import placement_getter
from nova_accel.config import conf

LOG = logging.getLogger(__name__)
_FREE = "accelerator_free_weight_multiplier"
_FUNCTION = "accelerator_function_weight_multiplier"
_PACKING = "accelerator_packing_weight_multiplier"

_Weights = Sequence[float]


class AcceleratorWeigher(host_weights.BaseHostWeigher):
    """Prefers the hosts whose accelerators suit a server.

    Servers that need none: hosts without. Servers that need some: hosts
    with a free FPGA region that holds their function; then the hosts whose
    accelerators are fuller, or emptier. Where nothing is known, all hosts
    weigh the same.

    Each of the three is brought to 0..1 over the hosts and multiplied for
    each host, as Nova does it for a weigher; what is returned is the sum.
    ``minval`` and ``maxval`` keep Nova from bringing that to 0..1 again,
    which would make the three multipliers mean nothing: (w - 0) / (1 - 0).

    :param get: how to ask Placement, by default through Nova's client.
    :param functions: what tells an image's function.
    """

    minval = 0.0
    maxval = 1.0

    def __init__(
        self,
        get: fact_reader.Get | None = None,
        functions: glance_images.ImageFunctions | None = None,
    ) -> None:
        super().__init__()
        self._settings = conf.read_weigher_settings(nova.conf.CONF)
        self._census = host_usage.HostUsage(
            get or placement_getter(), self._settings.cache_seconds
        )
        self._functions = functions or glance_images.shared()
        self._newcomers = _NewServers()

    def weigh_objects(
        self, weighed_obj_list: Sequence[Any], weight_properties: Any
    ) -> _Weights:
        """Return each host's weight, already multiplied.

        :param weighed_obj_list: Nova's WeighedHost objects.
        :param weight_properties: the nova.objects.RequestSpec.
        """
        hosts = [weighed.obj for weighed in weighed_obj_list]
        # A seam: hosts are objects of Nova, and no order of them is worth
        # a server that is not started at all.
        try:
            return self._weigh(hosts, weight_properties)
        except Exception:
            LOG.exception("AcceleratorWeigher does without a preference")
            return [0.0] * len(hosts)

    def _weigh_object(self, obj: Any, weight_properties: Any) -> float:
        """Return nothing of a host alone: they are weighed together."""
        return 0.0

    def _weigh(self, hosts: Sequence[Any], spec: Any) -> _Weights:
        wanted = wanted_by(spec)
        if not wanted.groups:
            return self._for_others(hosts)
        by_function = _factors(hosts, _FUNCTION, self._settings.function)
        by_fullness = _factors(hosts, _PACKING, self._settings.packing)
        traits: frozenset[str] = frozenset()
        if any(by_function):
            traits = self._functions.of(spec._context, wanted)
        cards = self._census.cards() if traits or any(by_fullness) else None
        if not cards:
            return [0.0] * len(hosts)
        more = self._newcomers.count(cards, hosts)
        seen = [
            _HostRecord(
                candidates=host.allocation_candidates or (),
                cards=cards.get(host.uuid, ()),
                more=count,
            )
            for host, count in zip(hosts, more, strict=True)
        ]
        return [
            a + b
            for a, b in zip(
                _product(_holding(wanted, seen, traits), by_function),
                _product(_fullness(wanted, seen), by_fullness),
                strict=True,
            )
        ]

    def _for_others(self, hosts: Sequence[Any]) -> _Weights:
        """Weigh for a server that needs no accelerator."""
        factors = _factors(hosts, _FREE, self._settings.free)
        homes = self._census.homes() if any(factors) else None
        if homes is None or not homes.nodes:
            return [0.0] * len(hosts)
        return _product(
            [float(host.uuid not in homes.nodes) for host in hosts], factors
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _HostRecord:
    """What is known of a host.

    ``more`` is how many servers it got that its ``cards`` do not show yet.
    """

    candidates: Sequence[provider_facts.Candidate]
    cards: Sequence[provider_facts.ProviderFacts]
    more: int


def _holding(
    wanted: request.AcceleratorRequest,
    hosts: Iterable[_HostRecord],
    traits: frozenset[str],
) -> list[float]:
    """Return what part of the functions each host holds where it fits."""
    return [
        float(scores.held(wanted, seen.candidates, seen.cards, traits))
        for seen in hosts
    ]


def _fullness(
    wanted: request.AcceleratorRequest, hosts: Iterable[_HostRecord]
) -> list[float]:
    """Return how full each host is; the middle for those not known."""
    found = [
        scores.fullness(
            wanted,
            seen.cards,
            provider_facts.named(wanted.classes, seen.candidates),
            seen.more,
        )
        for seen in hosts
    ]
    known = [float(one) for one in found if one is not None]
    middle = (min(known) + max(known)) / 2 if known else 0.0
    return [middle if one is None else float(one) for one in found]


class _NewServers:
    """How many servers each host got after its cards were read.

    Nova counts a server into the host's state as soon as it has placed it,
    and compute nodes tell theirs. Whether such a server took of a card is
    not known; it is taken for one like that which is placed now. That
    holds until the cards are read again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cards: host_usage.Cards = {}
        self._counts: dict[str, int] = {}

    def count(
        self, cards: host_usage.Cards, hosts: Iterable[Any]
    ) -> list[int]:
        """Return, for each host, how many came after it was first weighed.

        :param cards: what was read.
        """
        with self._lock:
            if self._cards is not cards:
                self._cards, self._counts = cards, {}
            first = self._counts
            return [
                max(0, n - first.setdefault(host.uuid, n))
                for host in hosts
                for n in (host.num_instances,)
            ]


def _factors(hosts: Iterable[Any], name: str, usual: float) -> list[float]:
    """Return each host's multiplier: its aggregates', or the usual one."""
    return [utils.get_weight_multiplier(host, name, usual) for host in hosts]


def _product(values: Sequence[float], factors: Sequence[float]) -> _Weights:
    """Return values brought to 0..1, each times its factor."""
    return [
        factor * value
        for factor, value in zip(
            factors, weights.normalize(values), strict=True
        )
    ]
