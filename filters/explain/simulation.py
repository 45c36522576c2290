# SPDX-License-Identifier: Apache-2.0
"""Simulation of a scheduling request for a flavor, card by card."""

import collections
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from filters import provider_facts, request
from filters.explain import no_candidates
from filters.fit import candidate_fit, fact_reader, vgpu_geometry
from filters.placement import queries
from nova_accel.model import flavors
from placement_sync.flavors import offered_devices

# Nova's own default ([scheduler] max_placement_results).
MOST_CANDIDATES = 1000
# Why a card is refused, of many pairs of cards the first ones.
_MAX_REASONS = 3
# What keeps a host away from every server (Nova's compute_status_filter).
DISABLED_TRAIT = "COMPUTE_STATUS_DISABLED"

FIRST = "first"
FITS = "fits"
REFUSED = "refused"
LEFT_OUT = "left out"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """What a server of a flavor needs.

    ``needs`` is what the flavor takes of a host by itself, by resource
    class; ``specs`` are its extra specs.
    """

    specs: Mapping[str, str]
    needs: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def wanted(self) -> request.AcceleratorRequest:
        """Return what is asked of accelerators.

        :raises MalformedError: an extra spec can't be used.
        """
        return request.parse_request(self.specs)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardVerdict:
    """What becomes of a device, and why.

    ``verdict`` is FIRST where Nova would take it, FITS where it is in
    another choice that fits, REFUSED where the filter refuses all it is
    in, LEFT_OUT where Placement offers none with it.
    """

    name: str
    uuid: str
    verdict: str
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostVerdict:
    """What becomes of a host's devices.

    ``fits`` and ``refused`` are how many choices of devices there are.
    """

    name: str
    uuid: str
    fits: int
    refused: int
    cards: tuple[CardVerdict, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The answer for all hosts, and what limits it."""

    hosts: tuple[HostVerdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Return whether a host could serve."""
        return any(host.fits for host in self.hosts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulationContext:
    """What is known of all hosts asked about.

    ``disabled`` are the uuids of those whose service is disabled.
    """

    cloud: offered_devices.Cloud
    disabled: Collection[str] = ()


def replay(
    get: fact_reader.Get,
    question: SimulatedRequest,
    site: SimulationContext,
    known: vgpu_geometry.VgpuGeometry,
    tree: str = "",
) -> SimulationResult:
    """Return what nova-scheduler would find, host by host.

    :param tree: uuid of the compute node to ask about alone.
    :raises FactsError: Placement can't be asked, or does not take the
        flavor's groups.
    :raises MalformedError: an extra spec can't be used.
    """
    wanted = question.wanted
    by_host, is_cut, problems = _candidates(get, question, site, tree)
    look = fact_reader.FactReader(get).look_twice(
        fact_reader.RequestMemory(wanted=wanted),
        "",
        list(by_host.values()),
        known,
    )
    view = candidate_fit.HostFacts(facts=look.facts, cards=known)
    hosts = []
    for uuid, devices in _devices(wanted, site.cloud).items():
        mine = by_host.get(uuid, [])
        fits, lacks = candidate_fit.fitting(wanted, mine, view)
        told = _CardReasons(
            wanted=wanted,
            out=_out(question, site, uuid),
            offered=provider_facts.named(wanted.classes, mine),
            fitting=provider_facts.named(wanted.classes, fits),
            first=provider_facts.named(wanted.classes, fits[:1]),
            lacks=lacks,
        )
        hosts.append(
            HostVerdict(
                name=devices[0].host,
                uuid=uuid,
                fits=len(fits),
                refused=len(mine) - len(fits),
                cards=tuple(told.judge(device) for device in devices),
            )
        )
    notes = [*_notes(wanted, is_cut), *problems]
    notes += [f"not known: {problem}" for problem in look.problems]
    return SimulationResult(hosts=tuple(hosts), notes=tuple(notes))


def candidates_path(question: SimulatedRequest, tree: str = "") -> str:
    """Return Nova's own question to Placement for a server.

    As nova/scheduler/utils.py (ResourceRequest) has it in releases 32 to
    34, without what images, ports and hints add.

    :param tree: uuid of the only compute node to look at.
    """
    groups = {g.suffix: g for g in flavors.parse_groups(question.specs)}
    own = groups.pop("", flavors.RequestGroup(suffix="", resources={}))
    own = dataclasses.replace(
        own, resources={**question.needs, **own.resources}
    )
    query = {
        "limit": str(MOST_CANDIDATES),
        "root_required": f"!{DISABLED_TRAIT}",
    }
    for group in (own, *groups.values()):
        asked = queries.group_query(group)
        query |= asked
        if asked and tree:
            query[f"in_tree{group.suffix}"] = tree
    if "group_policy" in question.specs:
        query["group_policy"] = question.specs["group_policy"]
    return queries.with_query("/allocation_candidates", query)


_ByHost = dict[str, list[provider_facts.Candidate]]


def _candidates(
    get: fact_reader.Get,
    question: SimulatedRequest,
    site: SimulationContext,
    tree: str,
) -> tuple[_ByHost, bool, tuple[str, ...]]:
    """Return candidates by host, whether there may be more, and problems.

    :raises FactsError: Placement can't be asked, or refuses the groups.
    """
    path = candidates_path(question, tree)
    homes = {d.uuid: d.root for d in site.cloud.devices}
    try:
        found = queries.read(get, path, lambda a: a["allocation_requests"])
    except fact_reader.QueryError as error:
        unheard = queries.UNHEARD_OF.search(error.reason)
        if unheard is None:
            raise
        return {}, False, (f"nobody ever offered {unheard[1]}",)
    by_host: _ByHost = collections.defaultdict(list)
    for candidate in found:
        roots = {homes[u] for u in candidate["allocations"] if u in homes}
        for root in roots:
            by_host[root].append(candidate)
    return by_host, len(found) >= MOST_CANDIDATES, ()


def _devices(
    wanted: request.AcceleratorRequest, cloud: offered_devices.Cloud
) -> dict[str, list[offered_devices.OfferedDevice]]:
    """Return the devices that have what is asked for, by compute node."""
    found = collections.defaultdict(list)
    for device in sorted(cloud.devices, key=lambda d: (d.host, d.name)):
        if not wanted.classes.isdisjoint(device.stock):
            found[device.root].append(device)
    return found


def _out(
    question: SimulatedRequest, site: SimulationContext, host: str
) -> str:
    """Return why Placement leaves out a host, whatever its devices."""
    if host in site.disabled:
        return "the host's compute service is disabled"
    stock = site.cloud.hosts.get(host, {})
    short = [
        f"{name} {stock[name].left} left, {amount} needed"
        for name, amount in question.needs.items()
        if name in stock and amount > stock[name].left
    ]
    return f"the host: {', '.join(short)}" if short else ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _CardReasons:
    """What is known of a host's cards: uuids, and words by uuid."""

    wanted: request.AcceleratorRequest
    out: str
    offered: Collection[str]
    fitting: Collection[str]
    first: Collection[str]
    lacks: candidate_fit.Lacks

    def judge(self, device: offered_devices.OfferedDevice) -> CardVerdict:
        """Return what becomes of a device."""
        verdict, why = LEFT_OUT, ""
        if device.uuid in self.first:
            verdict = FIRST
        elif device.uuid in self.fitting:
            verdict = FITS
        elif device.uuid in self.offered:
            verdict, why = REFUSED, self._refusal(device)
        else:
            why = self._absence(device)
        return CardVerdict(
            name=device.name, uuid=device.uuid, verdict=verdict, why=why
        )

    def _refusal(self, device: offered_devices.OfferedDevice) -> str:
        """Return the filter's words: of the device, else of its host."""
        own = [
            words.removeprefix(f"{device.name}: ")
            for (who, _), words in self.lacks.items()
            if who == device.uuid
        ]
        shared = [
            words
            for (who, _), words in self.lacks.items()
            if device.name in words and who != device.uuid
        ]
        found = own or shared or self.lacks.values()
        return "; ".join(no_candidates.first(found, _MAX_REASONS))

    def _absence(self, device: offered_devices.OfferedDevice) -> str:
        """Return why Placement offers nothing with a device."""
        ill = [
            w
            for trait, w in candidate_fit.ILL.items()
            if trait in device.traits
        ]
        if ill:
            return ", ".join(ill)
        groups = self.wanted.groups
        missing = [
            lacks
            for group in groups
            if group.resources.keys() & device.stock.keys()
            and (
                lacks := no_candidates.lacking(
                    group, device.traits, device.stock
                )
            )
        ]
        if len(missing) == len(groups):
            return "; ".join(dict.fromkeys(missing))
        if self.out:
            return self.out
        if len(groups) > 1:
            return "the host does not have all groups together"
        return (
            "has room; the host lacks something else that the flavor asks"
            " for, or see max_unit, min_unit and step_size of the inventories"
        )


def _notes(wanted: request.AcceleratorRequest, is_cut: bool) -> list[str]:
    """Return what a reader should know about the answer."""
    found = []
    if wanted.placing.numa is not flavors.NumaPolicy.NONE:
        found.append(
            "which NUMA cells of a host have room is known to nova-scheduler"
            f" only: numa_policy={wanted.placing.numa.value} is not judged"
        )
    if any(group.bitstream for group in wanted.groups):
        found.append(
            "what the bitstream's image says is not read: regions that hold"
            " its function already are not put first"
        )
    if is_cut:
        found.append(
            f"Placement was asked for {MOST_CANDIDATES} candidates, as Nova"
            " does ([scheduler] max_placement_results): there may be more;"
            " ask about one host with --host"
        )
    found.append("Nova's other filters and its weighers are not replayed")
    return found


def as_dict(found: SimulationResult) -> dict[str, Any]:
    """Return all of it for JSON."""
    return {
        "is_possible": found.is_possible,
        "hosts": [dataclasses.asdict(host) for host in found.hosts],
        "notes": list(found.notes),
    }
