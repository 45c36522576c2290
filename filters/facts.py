# SPDX-License-Identifier: Apache-2.0
"""What Placement knows of providers, read through an injected getter."""

import dataclasses
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib import parse

from filters import fit, request
from nova_accel import errors, flavors, names

# The version Nova itself asks with in releases 32 to 34
# (SAME_SUBTREE_VERSION in nova/scheduler/client/report.py). From 1.29 the
# summaries hold every provider of a tree, full ones too; 1.36 allows
# groups without resources.
MICROVERSION = "1.36"
# How many providers' names are remembered: a name is about 100 bytes.
_MAX_NAMES = 10_000

# Takes a path with query, returns the decoded answer, raises FactsError.
Get = Callable[[str], Any]
T = TypeVar("T")


class FactsError(errors.AcceleratorError):
    """Placement did not answer, or not as its API says.

    :param path: what was asked.
    :param reason: what came instead.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"GET {path} of Placement: {reason}; scheduling goes on without"
            " it; see Placement's log and [placement] in nova.conf"
        )
        self.path = path
        self.reason = reason


def candidates_path(group: flavors.RequestGroup, **params: str) -> str:
    """Return the query for one group alone, as Nova would ask for it."""
    resources = ",".join(f"{n}:{a}" for n, a in group.resources.items())
    traits = sorted(group.required) + sorted(f"!{t}" for t in group.forbidden)
    query = {f"resources{group.suffix}": resources}
    if traits:
        query[f"required{group.suffix}"] = ",".join(traits)
    return _path("/allocation_candidates", query | params)


def fetch_any(get: Get, group: flavors.RequestGroup) -> bool:
    """Return whether any host has a candidate for this group alone.

    :raises FactsError: Placement did not answer.
    """
    path = candidates_path(group, limit="1")
    return _read(get, path, lambda a: bool(a["allocation_requests"]))


# Placement's HTTP 400 for a name that nobody ever reported; it refuses
# Nova's own query with the same words (placement/exception.py,
# TraitNotFound and ResourceClassNotFound).
UNHEARD_OF = re.compile(
    r"HTTP 400: .*No such (?:trait\(s\):|resource class) ([\w, ]*\w)", re.S
)


def fetch_offers(
    get: Get, group: flavors.RequestGroup
) -> dict[str, fit.ProviderFacts]:
    """Return the providers of every host where a device of ours fits.

    One call, whatever the number of hosts. Full providers are there too,
    as long as a neighbour in their tree has room.

    :raises FactsError: Placement did not answer.
    """
    path = candidates_path(
        dataclasses.replace(
            group,
            suffix="_ACCEL",
            required=group.required | {names.OWNER_TRAIT},
        )
    )
    try:
        return _read(get, path, _summaries)
    except FactsError as error:
        if UNHEARD_OF.search(error.reason):
            return {}  # no host of this cloud has reported one of ours yet
        raise


def fetch_everything(get: Get) -> dict[str, fit.ProviderFacts]:
    """Return all providers of every host that has a device of ours.

    One call. Hosts without one MB of memory left are not in it: nothing
    could be started there.

    :raises FactsError: Placement did not answer.
    """
    path = _path(
        "/allocation_candidates",
        {
            "resources_HOST": "MEMORY_MB:1",
            "required_ACCEL": names.OWNER_TRAIT,
            "same_subtree": "_HOST,_ACCEL",
            "group_policy": "none",
        },
    )
    return _read(get, path, _summaries)


def fetch_names(get: Get) -> dict[str, str]:
    """Return the names of this library's providers, by uuid.

    :raises FactsError: Placement did not answer.
    """
    path = _path("/resource_providers", {"required": names.OWNER_TRAIT})
    return _read(
        get,
        path,
        lambda a: {p["uuid"]: p["name"] for p in a["resource_providers"]},
    )


def fetch_taken(get: Get, consumer: str) -> dict[str, Mapping[str, int]]:
    """Return what a server holds: units by class, by provider's uuid.

    :raises FactsError: Placement did not answer.
    """
    path = f"/allocations/{parse.quote(consumer, safe='')}"
    return _read(
        get,
        path,
        lambda a: {u: x["resources"] for u, x in a["allocations"].items()},
    )


def fetch_stock(get: Get, uuid: str) -> tuple[dict[str, fit.Stock], bool]:
    """Return what a provider has at this moment, and if that is exact.

    It is not when the provider changed between the two reads.

    :raises FactsError: Placement did not answer.
    """
    path = f"/resource_providers/{parse.quote(uuid, safe='')}"
    capacity, before = _read(get, f"{path}/inventories", _capacities)
    used, after = _read(
        get,
        f"{path}/usages",
        lambda a: (dict(a["usages"]), a["resource_provider_generation"]),
    )
    stock = {
        name: fit.Stock(capacity=units, used=used.get(name, 0))
        for name, units in capacity.items()
    }
    return stock, before == after


def _read(get: Get, path: str, take: Callable[[Any], T]) -> T:
    answer = get(path)
    try:
        return take(answer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FactsError(
            path, f"not the answer its API promises ({error!r})"
        ) from error


def _path(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{parse.urlencode(query, safe=',:!')}"


def _capacities(answer: Any) -> tuple[dict[str, int], int]:
    """Return units by class as Placement computes them, and generation.

    The arithmetic is Inventory.capacity of placement/objects/inventory.py.
    """
    return {
        name: int((i["total"] - i["reserved"]) * i["allocation_ratio"])
        for name, i in answer["inventories"].items()
    }, answer["resource_provider_generation"]


def _summaries(answer: Any) -> dict[str, fit.ProviderFacts]:
    return {
        uuid: fit.ProviderFacts(
            uuid=uuid,
            stock={
                name: fit.Stock(capacity=s["capacity"], used=s["used"])
                for name, s in summary["resources"].items()
            },
            traits=frozenset(summary["traits"]),
        )
        for uuid, summary in answer["provider_summaries"].items()
    }


@dataclasses.dataclass(slots=True, kw_only=True)
class Memory:
    """What was learned while one request's servers were placed.

    ``seen`` are the servers for which hosts were filtered already, in
    order; ``taken`` tells which of them hold which provider; ``offers`` is
    the bulk answer, None until it was asked for. ``lacks`` is why each
    host, by uuid, lost candidates: they stay away for later servers.
    """

    wanted: request.AcceleratorRequest
    seen: list[str] = dataclasses.field(default_factory=list)
    read: set[str] = dataclasses.field(default_factory=set)
    taken: dict[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )
    offers: dict[str, fit.ProviderFacts] | None = None
    lacks: dict[str, dict[tuple[str, str], str]] = dataclasses.field(
        default_factory=dict
    )


class Memories:
    """One Memory for each request that is being scheduled.

    Nova passes one RequestSpec object for all servers of a request, so
    the object is the key, and what was learned goes when it goes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_spec: weakref.WeakKeyDictionary[object, Memory] = (
            weakref.WeakKeyDictionary()
        )

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_spec)

    def recall(
        self, spec: object, wanted: request.AcceleratorRequest
    ) -> Memory:
        """Return the memory of a request, a new one at its first server."""
        with self._lock:
            return self._by_spec.setdefault(spec, Memory(wanted=wanted))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Facts for one pass of the filter, and which reads failed.

    ``again`` tells that the server had its pass already: Nova looks for
    alternates of a request whose servers all have their hosts.
    """

    facts: fit.Facts
    again: bool = False
    problems: tuple[FactsError, ...] = ()


class Reader:
    """Reads facts for the filter; a failed read leaves them out.

    :param get: asks Placement with MICROVERSION.
    """

    def __init__(self, get: Get) -> None:
        self._get = get
        self._names: dict[str, str] = {}

    def look(
        self,
        memory: Memory,
        server: str,
        hosts: Sequence[Sequence[fit.Candidate]],
    ) -> Look:
        """Return what is known of the hosts' candidates for a server.

        Nothing is read for the only server of a request unless a host
        offers a choice; then one call serves all hosts. For later servers
        what earlier ones hold is read once, and the providers they hold
        are read anew, if any candidate still names them.

        :param hosts: the allocation candidates of each host.
        """
        candidates = [c for host in hosts for c in host]
        choice = any(len(host) > 1 for host in hosts)
        siblings = tuple(memory.seen)
        if server not in memory.seen:
            memory.seen.append(server)
        problems: list[FactsError] = []
        if choice and memory.offers is None:
            memory.offers = self._offers(memory, problems)
        self._remember(memory, siblings, problems)
        named = {u for c in candidates for u in c["allocations"]}
        found = dict(memory.offers or {})
        for uuid in sorted(named.intersection(memory.taken)):
            self._add_exact(uuid, memory.taken[uuid], found, problems)
        return Look(
            facts=found,
            again=server in siblings,
            problems=tuple(problems),
        )

    def _offers(
        self, memory: Memory, problems: list[FactsError]
    ) -> dict[str, fit.ProviderFacts]:
        try:
            return fetch_offers(self._get, memory.wanted.groups[0])
        except FactsError as error:
            problems.append(error)
            return {}

    def _remember(
        self,
        memory: Memory,
        siblings: Iterable[str],
        problems: list[FactsError],
    ) -> None:
        for sibling in siblings:
            if sibling in memory.read:
                continue
            try:
                taken = fetch_taken(self._get, sibling)
            except FactsError as error:
                problems.append(error)
                continue
            if taken:
                memory.read.add(sibling)
            for uuid, resources in taken.items():
                if memory.wanted.classes.intersection(resources):
                    before = memory.taken.get(uuid, ())
                    memory.taken[uuid] = (*before, sibling)

    def _add_exact(
        self,
        uuid: str,
        takers: tuple[str, ...],
        found: dict[str, fit.ProviderFacts],
        problems: list[FactsError],
    ) -> None:
        try:
            stock, exact = fetch_stock(self._get, uuid)
        except FactsError as error:
            problems.append(error)
            return
        found[uuid] = fit.ProviderFacts(
            uuid=uuid,
            name=self._name(uuid, problems),
            stock=stock,
            exact=exact,
            taken_by=takers,
        )

    def _name(self, uuid: str, problems: list[FactsError]) -> str:
        if uuid in self._names:
            return self._names[uuid]
        path = f"/resource_providers/{parse.quote(uuid, safe='')}"
        try:
            name = _read(self._get, path, lambda a: str(a["name"]))
        except FactsError as error:
            problems.append(error)
            return ""
        if len(self._names) >= _MAX_NAMES:
            self._names.clear()
        self._names[uuid] = name
        return name
