# SPDX-License-Identifier: Apache-2.0
"""Simulation of a scheduling request for a flavor, card by card."""

import collections
import dataclasses
import datetime
import http
import itertools
from collections.abc import Collection, Mapping, Sequence

from filters.fit import candidate_fit, no_candidates, provider_facts
from filters.placement import queries
from filters.request import AcceleratorRequest, parse_request
from nova_accel import errors
from nova_accel.inventory import wording
from nova_accel.model import flavors, names, providers
from placement_sync.client import provider_records
from placement_sync.fleet.devices import host_reports
from placement_sync.fleet.explain import card_explainer
from placement_sync.fleet.flavors import flavor_specs, offered_devices

_POLICIES = (flavor_specs.NO_POLICY, flavor_specs.ISOLATE)
# Nova's own default ([scheduler] max_placement_results).
MAX_CANDIDATES = 1000
# Reasons printed for a rejected card; pairs of cards may give many.
_MAX_REASONS = 3
# Cards whose allocations are read, in one query each.
_MAX_ALLOCATIONS = 32

NO_CARD = "No host has an accelerator of the classes asked for."

FIRST = "first"
FITS = "fits"
REFUSED = "refused"
LEFT_OUT = "left out"


class RejectedError(errors.AcceleratorError):
    """Placement rejects the groups of a flavor."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """Request for one server of a flavor.

    ``specs`` are the flavor's extra specs; ``needs`` are its CPUs, memory
    and disk, by resource class.
    """

    specs: Mapping[str, str]
    needs: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def accelerators(self) -> AcceleratorRequest:
        """Return the accelerator groups.

        :raises MalformedError: an extra spec has a value that is not
            allowed.
        """
        return parse_request(self.specs)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardVerdict:
    """Result for a device, with the reason.

    ``verdict`` is FIRST if Nova would allocate it, FITS if another fitting
    candidate has it, REFUSED if the filter rejects all candidates with it,
    LEFT_OUT if Placement returns no candidate with it. ``model`` is the
    model of its card.
    """

    name: str
    uuid: str
    verdict: str
    why: str = ""
    model: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostVerdict:
    """Results for a host's devices.

    ``fits`` and ``refused`` are numbers of candidates.
    """

    name: str
    uuid: str
    fits: int
    refused: int
    cards: tuple[CardVerdict, ...]


def _name_card(host: HostVerdict, card: CardVerdict) -> str:
    """Return ``HOST/ADDRESS``, of a bare-metal node its name."""
    address = names.provider_address(host.name, card.name)
    return host.name if card.name == host.name else f"{host.name}/{address}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Results for all hosts; ``notes`` are limits of the simulation."""

    hosts: tuple[HostVerdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Return whether a host could serve the request."""
        return any(host.fits for host in self.hosts)

    @property
    def refusal(self) -> str:
        """Return why no host can serve the request, empty if one can.

        It follows "no host can serve it now: ".
        """
        if self.is_possible:
            return ""
        causes = [
            f"{_name_card(host, card)}: {card.why}"
            for host in self.hosts
            for card in host.cards
            if card.why != card_explainer.OTHER_MODEL
        ]
        lines = no_candidates.limit_lines(causes, _MAX_REASONS)
        if not causes and (others := self.describe_others()):
            lines = [others]
        return "; ".join(lines) or (
            "none has an accelerator of the classes asked for"
        )

    def describe_others(self) -> str:
        """Return the cards of other models in words, empty without any."""
        counts = collections.Counter(
            card.model
            for host in self.hosts
            for card in host.cards
            if card.why == card_explainer.OTHER_MODEL
        )
        models = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
        cards = wording.count_of(counts.total(), "card")
        return f"{cards} of other models: {models}" if counts else ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulationContext:
    """Hosts of the simulation, from Placement.

    ``disabled`` are the uuids of hosts whose service is disabled.
    ``excluded`` are the reasons why other hosts can't get the server, by
    uuid; ``drains`` those of drained devices, as far as they are known.
    """

    cloud: offered_devices.Cloud
    disabled: Collection[str] = ()
    excluded: Mapping[str, str] = dataclasses.field(default_factory=dict)
    drains: Mapping[str, str] = dataclasses.field(default_factory=dict)


def simulate(
    get: provider_records.Get,
    simulated: SimulatedRequest,
    context: SimulationContext,
    types: offered_devices.VgpuTypes,
    tree: str = "",
) -> SimulationResult:
    """Return the candidates of nova-scheduler, host by host.

    :param tree: uuid of the only compute node to simulate.
    :raises ServiceError: Placement can't be queried.
    :raises RejectedError: Placement rejects the flavor's groups.
    :raises MalformedError: an extra spec has a value that is not allowed.
    """
    request = simulated.accelerators
    by_host, is_limited, problems = _fetch_candidates(
        get, simulated, context, tree
    )
    answer = CandidateAnswer(
        by_host=by_host,
        facts=_collect_facts(get, request, by_host, context, types),
        is_limited=is_limited,
    )
    notes = [
        *list_limits(request, is_limited),
        "Nova's other filters and its weighers are not replayed",
        *problems,
    ]
    return SimulationResult(
        hosts=judge_hosts(simulated, context, answer, types),
        notes=tuple(notes),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CandidateAnswer:
    """Allocation candidates of a request, by the uuid of their host.

    ``facts`` are the providers of the candidates. ``is_limited`` is true if
    there may be more candidates.
    """

    by_host: Mapping[str, Sequence[provider_facts.Candidate]]
    facts: provider_facts.Facts
    is_limited: bool = False


def judge_hosts(
    simulated: SimulatedRequest,
    context: SimulationContext,
    answer: CandidateAnswer,
    types: offered_devices.VgpuTypes,
) -> tuple[HostVerdict, ...]:
    """Return the verdict of the filter on each host with requested classes.

    :raises MalformedError: an extra spec has a value that is not allowed.
    """
    request = simulated.accelerators
    host_facts = candidate_fit.HostFacts(
        facts=answer.facts, geometry=types.geometry
    )
    hosts = []
    context = _exclude_stale(context)
    for uuid, devices in _group_devices(request, context.cloud).items():
        is_excluded = uuid in context.excluded
        candidates = () if is_excluded else answer.by_host.get(uuid, ())
        fitting, rejections = candidate_fit.select(
            request, candidates, host_facts
        )
        reasons = _CardReasons(
            request=request,
            host_reason=_describe_host(simulated, context, uuid),
            offered=candidates,
            fitting=fitting,
            rejections=rejections,
            explainer=card_explainer.CardExplainer(types=types),
            drains=context.drains,
            is_limited=answer.is_limited,
        )
        hosts.append(_judge_host(uuid, devices, reasons))
    return tuple(hosts)


def _candidates_path(simulated: SimulatedRequest, tree: str = "") -> str:
    """Return the path of Nova's query for a server's candidates.

    As in nova/scheduler/utils.py (ResourceRequest) of releases 31 to 34,
    without additions by images, ports and hints.

    :param tree: uuid of the only compute node to query.
    :raises RejectedError: Placement would reject the request.
    """
    groups = {g.suffix: g for g in flavors.parse_groups(simulated.specs)}
    unsuffixed = groups.pop("", flavors.RequestGroup(suffix="", resources={}))
    unsuffixed = dataclasses.replace(
        unsuffixed, resources={**simulated.needs, **unsuffixed.resources}
    )
    query = {
        "limit": str(MAX_CANDIDATES),
        "root_required": f"!{names.DISABLED_TRAIT}",
    }
    for group in (unsuffixed, *groups.values()):
        params = provider_records.group_query(group)
        query |= params
        if params and tree:
            query[f"in_tree{group.suffix}"] = tree
    if policy := read_group_policy(simulated):
        query[flavor_specs.POLICY] = policy
    return provider_records.build_path("/allocation_candidates", query)


def read_group_policy(simulated: SimulatedRequest) -> str:
    """Return the policy of a request's groups, empty for none.

    :raises RejectedError: Placement requires one.
    """
    policy = simulated.specs.get(flavor_specs.POLICY)
    if policy in _POLICIES:
        return policy
    # Placement would refuse the query. Nova ignores another value.
    count = sum(
        bool(group.suffix) and any(group.resources.values())
        for group in flavors.parse_groups(simulated.specs)
    )
    if count > 1:
        raise RejectedError(
            f"the flavor has {count} request groups and no group_policy, which"
            " Placement requires; set group_policy=none, so that groups may"
            " share a card, or group_policy=isolate"
        )
    return ""


def fetch_candidates(
    get: provider_records.Get, simulated: SimulatedRequest, tree: str = ""
) -> tuple[Sequence[provider_facts.Candidate], str]:
    """Return a server's candidates, and names that Placement never stored.

    :raises ServiceError: Placement can't be queried.
    :raises RejectedError: Placement rejects the request.
    """
    path = _candidates_path(simulated, tree)
    try:
        return provider_records.read(
            get, path, lambda body: (body["allocation_requests"], "")
        )
    except errors.ServiceError as error:
        if unknown := provider_records.unknown_names(error):
            return (), unknown
        if error.status == http.HTTPStatus.BAD_REQUEST:
            raise RejectedError(str(error)) from error
        raise


_ByHost = dict[str, list[provider_facts.Candidate]]


def _fetch_candidates(
    get: provider_records.Get,
    simulated: SimulatedRequest,
    context: SimulationContext,
    tree: str,
) -> tuple[_ByHost, bool, tuple[str, ...]]:
    """Return candidates by host, whether there may be more, and problems."""
    hosts = {device.uuid: device.root for device in context.cloud.devices}
    candidates, unknown = fetch_candidates(get, simulated, tree)
    if unknown:
        return {}, False, (f"no accelerator ever offered {unknown}",)
    by_host: _ByHost = collections.defaultdict(list)
    for candidate in candidates:
        roots = {hosts[u] for u in candidate["allocations"] if u in hosts}
        for root in roots:
            by_host[root].append(candidate)
    return by_host, len(candidates) >= MAX_CANDIDATES, ()


def _collect_facts(
    get: provider_records.Get,
    request: AcceleratorRequest,
    by_host: _ByHost,
    context: SimulationContext,
    types: offered_devices.VgpuTypes,
) -> provider_facts.Facts:
    """Return the providers of the candidates, with allocations of some.

    :raises ServiceError: Placement can't be queried.
    """
    devices = {device.uuid: device for device in context.cloud.devices}
    facts: dict[str, providers.Provider] = {
        uuid: devices[uuid]
        for uuid in provider_facts.list_providers(
            request.classes, itertools.chain.from_iterable(by_host.values())
        )
        if uuid in devices
    }
    ambiguous = candidate_fit.find_ambiguous(
        request, facts.values(), types.geometry.states
    )
    unread = [uuid for uuid in facts if uuid in ambiguous]
    for uuid in unread[:_MAX_ALLOCATIONS]:
        facts[uuid] = queries.fetch_allocations(get, facts[uuid])
    return facts


def _group_devices(
    request: AcceleratorRequest, cloud: offered_devices.Cloud
) -> dict[str, list[offered_devices.OfferedDevice]]:
    """Return the devices with requested classes, by compute node."""
    by_host = collections.defaultdict(list)
    for device in sorted(cloud.devices, key=lambda d: (d.host, d.name)):
        if not request.classes.isdisjoint(device.capacities):
            by_host[device.root].append(device)
    return by_host


def _exclude_stale(context: SimulationContext) -> SimulationContext:
    """Return a context without the hosts whose nova-compute is down."""
    now = datetime.datetime.now(datetime.UTC)
    stale = {
        device.root: host_reports.explain_stale(device.service, now)
        for device in context.cloud.devices
        if device.is_stale and device.service is not None
    }
    return dataclasses.replace(context, excluded={**context.excluded, **stale})


def _describe_host(
    simulated: SimulatedRequest, context: SimulationContext, host: str
) -> str:
    """Return why a host has no candidate at all, empty if it may have."""
    if host in context.excluded:
        return context.excluded[host]
    if host in context.disabled:
        return "the host's compute service is disabled"
    capacities = context.cloud.hosts.get(host, {})
    shortages = [
        f"{name} {capacities[name].free} left, {amount} needed"
        for name, amount in simulated.needs.items()
        if name in capacities and amount > capacities[name].free
    ]
    return f"the host: {', '.join(shortages)}" if shortages else ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _CardReasons:
    """Verdicts and reasons for the cards of a host.

    ``offered`` are all candidates of the host, ``fitting`` those that pass
    the filter, in order.
    """

    request: AcceleratorRequest
    host_reason: str
    offered: Sequence[provider_facts.Candidate]
    fitting: Sequence[provider_facts.Candidate]
    rejections: candidate_fit.Rejections
    explainer: card_explainer.CardExplainer
    drains: Mapping[str, str]
    is_limited: bool

    def judge(self, device: offered_devices.OfferedDevice) -> CardVerdict:
        """Return the verdict for a device, with the reason."""
        verdict, why = LEFT_OUT, ""
        if self._has_device(self.fitting[:1], device):
            verdict = FIRST
        elif self._has_device(self.fitting, device):
            verdict = FITS
        elif self._has_device(self.offered, device):
            verdict, why = REFUSED, self._describe_rejections(device)
        else:
            why = self._describe_absence(device)
        return CardVerdict(
            name=device.name,
            uuid=device.uuid,
            verdict=verdict,
            why=why,
            model=offered_devices.model_name(device.model)
            if device.model
            else offered_devices.find_ids(device) or "-",
        )

    def _has_device(
        self,
        candidates: Sequence[provider_facts.Candidate],
        device: offered_devices.OfferedDevice,
    ) -> bool:
        return device.uuid in provider_facts.list_providers(
            self.request.classes, candidates
        )

    def _describe_rejections(
        self, device: offered_devices.OfferedDevice
    ) -> str:
        """Return the filter's reasons: of the device, else of its host."""
        own = [
            rejection.cause
            for (subject, _), rejection in self.rejections.items()
            if subject == device.uuid
        ]
        shared = [
            str(rejection)
            for (subject, _), rejection in self.rejections.items()
            if rejection.is_about(device.uuid) and subject != device.uuid
        ]
        reasons = own or shared or map(str, self.rejections.values())
        return "; ".join(no_candidates.limit_lines(reasons, _MAX_REASONS))

    def _describe_absence(self, device: offered_devices.OfferedDevice) -> str:
        """Return why Placement has no candidate with a device."""
        groups = self.request.groups
        causes = [
            cause
            for group in groups
            if group.resources.keys() & device.capacities.keys()
            and (cause := self._explain_group(group, device))
        ]
        is_other = {*causes} == {card_explainer.OTHER_MODEL}
        if is_other and len(causes) == len(groups):
            return card_explainer.OTHER_MODEL
        # Of a host that is down the last report is old.
        is_known = not (device.is_stale and self.host_reason)
        own = ""
        if health := candidate_fit.describe_health(device):
            drain = self.drains.get(device.uuid)
            own = f"{health}: {drain}" if drain else health
        elif is_known and len(causes) == len(groups):
            own = "; ".join(dict.fromkeys(causes))
        if own or self.host_reason:
            return "; ".join(filter(None, (own, self.host_reason)))
        if len(groups) > 1:
            return "the host does not have all groups together"
        return (
            f"not among the {MAX_CANDIDATES} candidates of all hosts; ask"
            " about its host with --host"
            if self.is_limited
            else "has room; the host lacks something else that the flavor asks"
            " for, or see max_unit, min_unit and step_size of the inventories"
        )

    def _explain_group(
        self,
        group: flavors.RequestGroup,
        device: offered_devices.OfferedDevice,
    ) -> str:
        """Return what a device lacks for a group: a model, units, a place."""
        own = self.explainer.explain(group, device)
        if own and own != card_explainer.OTHER_MODEL:
            # A profile has no place on a full card, either.
            plain = dataclasses.replace(group, required=frozenset())
            units = no_candidates.describe_missing(
                plain, device.traits, device.capacities
            )
            return units or own
        return own or no_candidates.describe_missing(
            group, device.traits, device.capacities
        )


def _judge_host(
    uuid: str,
    devices: Sequence[offered_devices.OfferedDevice],
    reasons: _CardReasons,
) -> HostVerdict:
    return HostVerdict(
        name=devices[0].host,
        uuid=uuid,
        fits=len(reasons.fitting),
        refused=len(reasons.offered) - len(reasons.fitting),
        cards=tuple(reasons.judge(device) for device in devices),
    )


def list_limits(request: AcceleratorRequest, is_limited: bool) -> list[str]:
    """Return what the judgement of a request does not consider."""
    notes = []
    if request.policy.numa is not flavors.NumaPolicy.NONE:
        notes.append(
            "which NUMA cells of a host have room is known to nova-scheduler"
            f" only: numa_policy={request.policy.numa.value} is not judged"
        )
    if any(group.bitstream for group in request.groups):
        notes.append(
            "what the bitstream's image says is not read: regions that hold"
            " its function already are not put first"
        )
    if is_limited:
        notes.append(
            f"Placement was asked for {MAX_CANDIDATES} candidates, as Nova"
            " does ([scheduler] max_placement_results), and may have more"
        )
    return notes
