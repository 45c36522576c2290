# SPDX-License-Identifier: Apache-2.0
"""Check of the filter's choices and refusals against simulated hosts.

The filter schedules random servers on random hosts, as Nova does: one list
of candidates for all servers of a request, each claimed from Placement at
once, while hosts report only afterwards. Each scheduled server is then
claimed on its host, and each refused host is tried with every candidate.
"""

import collections
import copy
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from nova import context, objects
from nova.scheduler import host_manager
from nova.virt import hardware

from filters import accelerator_filter, candidate_capture
from filters.fit import candidate_fit, numa_cells, provider_facts
from nova_accel import model
from nova_accel.model import flavors, names, providers
from tests.support.scheduler import scheduled
from tests.support.scheduler.judged_hosts import Host
from tests.support.scheduler.judged_placement import Placement, new_server

PACKING = f"{flavors.NAMESPACE}packing"
CELL_MB = 1024
GUEST_MB = 400
MOST_REQUESTS = 12
objects.register_all()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mistake:
    """A failed claim or a false refusal, with the seed to reproduce it."""

    seed: int
    kind: str
    server: int
    groups: int
    what: str


@dataclasses.dataclass(kw_only=True)
class Verdict:
    """Results of all servers.

    ``calls`` are numbers of requests by number of calls of Placement;
    ``conflicts`` counts first candidates without room while another
    candidate of the same host had room.
    """

    placed: int = 0
    refused_hosts: int = 0
    conflicts: int = 0
    failing: list[Mistake] = dataclasses.field(default_factory=list)
    false: list[Mistake] = dataclasses.field(default_factory=list)
    shared: list[Mistake] = dataclasses.field(default_factory=list)
    calls: collections.Counter[int] = dataclasses.field(
        default_factory=collections.Counter
    )

    @property
    def per_thousand(self) -> float:
        """Return the failing claims for each thousand servers placed."""
        return 1000 * len(self.failing) / max(1, self.placed)

    def __str__(self) -> str:
        """Return the counts, and the first mistakes."""
        lines = [
            f"{self.placed} placed, {len(self.failing)} failing claims"
            f" ({self.per_thousand:.1f} per 1,000),"
            f" {self.conflicts} conflicts; {self.refused_hosts} hosts"
            f" refused, {len(self.false)} falsely; most calls"
            f" {max(self.calls, default=0)}",
            *map(str, (self.shared + self.failing + self.false)[:20]),
        ]
        return "\n".join(lines)


class Cloud:
    """Hosts, their Placement, and the filter that schedules on them."""

    def __init__(
        self,
        seed: int,
        verdict: Verdict,
        late: float = 0.0,
        hosts: Iterable[Host] = (),
    ) -> None:
        self.seed = seed
        self.late = late
        self.verdict = verdict
        self.chance = Random(seed)  # noqa: S311
        self.placement = Placement()
        self.hosts = {
            host.root.uuid: host
            for host in hosts
            or [
                Host.random(f"host{n}", self.chance)
                for n in range(self.chance.randint(1, 3))
            ]
        }
        self.cells = {root: _topology(self.chance) for root in self.hosts}
        self.filter = accelerator_filter.AcceleratorFilter(self.placement.get)
        self.servers = 0
        self.exclusive: set[str] = set()
        for host in self.hosts.values():
            self.placement.publish(host.tree())

    def run(self) -> None:
        """Make a number of requests, with deletes in between."""
        for _ in range(MOST_REQUESTS):
            self._delete_some()
            self._request()

    def _report(self) -> None:
        """Let hosts report; late ones do so after the next request."""
        for host in self.hosts.values():
            if self.chance.random() >= self.late:
                self.placement.publish(host.tree())

    def _delete_some(self) -> None:
        for host in self.hosts.values():
            for server in list(host.claims):
                if self.chance.random() < 0.25:
                    host.stop(server)
                    self.placement.release(server)
        self._report()

    # -- a request ------------------------------------------------------------

    def _request(self) -> None:
        specs = self._flavor()
        groups = tuple(g for g in flavors.parse_groups(specs) if g.suffix)
        spec = make_spec(specs)
        states = self.states(groups)
        self.capture(spec, states)
        first_candidates = {
            s.uuid: list(s.allocation_candidates) for s in states
        }
        self.placement.read_paths.clear()
        started: list[tuple[Host, str]] = []
        for number in range(self.chance.choice([1, 1, 2, 3, 4])):
            server = new_server(self.servers)
            self.servers += 1
            spec.instance_uuid = server
            states, claimed = self._place(
                spec, states, first_candidates, number
            )
            if claimed is None:
                break
            if specs[PACKING] == flavors.Packing.EXCLUSIVE.value:
                self.exclusive.add(server)
            self._check_shared(number, groups)
            host = self.hosts[claimed.uuid]
            allocations = self.placement.allocations[server]
            reason = host.start(server, groups, allocations)
            self.verdict.placed += 1
            if reason:
                self._record(self.verdict.failing, number, groups, reason)
                started.append((host, server))
        for _, server in started:
            self.placement.release(server)
        self.verdict.calls[len(self.placement.read_paths)] += 1
        self._report()

    def _check_shared(
        self, number: int, groups: Sequence[flavors.RequestGroup]
    ) -> None:
        """Record devices that an exclusive server has not to itself."""
        allocations = self.placement.allocations
        for server in self.exclusive & allocations.keys():
            own = allocations[server].keys() & self.placement.nodes.keys()
            for other in allocations.keys() - {server}:
                if shared := own & allocations[other].keys():
                    what = f"{other} is on {shared} of {server}"
                    self._record(self.verdict.shared, number, groups, what)

    def _place(
        self,
        spec: Any,
        states: Sequence[Any],
        first: Mapping[str, list[provider_facts.Candidate]],
        number: int,
    ) -> tuple[list[Any], Any]:
        """Return the hosts that pass, and the claimed host."""
        passed = list(self.filter.filter_all(states, spec))
        accelerators = accelerator_filter.parse_spec(spec)
        for state in states:
            if state not in passed:
                self.verdict.refused_hosts += 1
                candidate = self._find_servable(
                    accelerators, spec, state, first
                )
                if candidate is not None:
                    self._record(
                        self.verdict.false,
                        number,
                        accelerators.groups,
                        f"{state.host} could serve {candidate['mappings']}",
                    )
        order = self.chance.sample(passed, len(passed))
        for state in order:
            candidate = state.allocation_candidates[0]
            if self.placement.claim(spec.instance_uuid, candidate):
                self.consume(state, spec)
                return passed, state
            self.verdict.conflicts += any(
                map(self.placement.has_room, state.allocation_candidates)
            )
        return passed, None

    def _find_servable(
        self,
        accelerators: Any,
        spec: Any,
        state: Any,
        first: Mapping[str, list[provider_facts.Candidate]],
    ) -> provider_facts.Candidate | None:
        """Return a candidate that a host could serve, None without one."""
        candidates = first[state.uuid]
        if not candidates:
            return None
        host_facts = candidate_fit.HostFacts(
            facts=self._list_places(),
            geometry=scheduled.GEOMETRY,
            cells=numa_cells.read_cells(state, spec, candidates[0]),
        )
        for candidate in candidates:
            fitting, _ = candidate_fit.select(
                accelerators, [candidate], host_facts
            )
            if not fitting or not self.placement.has_room(candidate):
                continue
            allocations = {
                u: part["resources"]
                for u, part in candidate["allocations"].items()
            }
            if (
                not self.hosts[state.uuid]
                .copy()
                .start("judge", accelerators.groups, allocations)
            ):
                return candidate
        return None

    def _list_places(self) -> dict[str, providers.Provider]:
        """Return facts that can only be rejected by affinity policies."""
        free = (names.layout_trait(""), *names.UNAVAILABLE_TRAITS)
        return {
            u: providers.Provider(
                uuid=u,
                capacities={},
                name=node.name,
                parent=node.parent,
                root=self.placement.roots[u],
                traits=frozenset(
                    trait
                    for trait in node.traits
                    if not trait.startswith(free)
                ),
            )
            for u, node in self.placement.nodes.items()
        }

    def _record(
        self,
        where: list[Mistake],
        number: int,
        groups: Sequence[flavors.RequestGroup],
        what: str,
    ) -> None:
        where.append(
            Mistake(
                seed=self.seed,
                kind="claim" if where is self.verdict.failing else "refusal",
                server=number,
                groups=len(groups),
                what=what,
            )
        )

    # -- requests -------------------------------------------------------------

    def _flavor(self) -> dict[str, str]:
        """Return extra specs of one to three groups, and policies."""
        chance = self.chance
        devices = list(
            itertools.chain.from_iterable(
                h.devices for h in self.hosts.values()
            )
        )
        packing = chance.choice(list(flavors.Packing))
        is_exclusive = packing is flavors.Packing.EXCLUSIVE
        if is_exclusive:
            devices = list(filter(_can_be_whole, devices))
        if not devices:
            return self._flavor()
        specs = {
            PACKING: packing.value,
            "accelerator:numa_policy": chance.choice(
                list(flavors.NumaPolicy)
            ).value,
            "accelerator:locality": chance.choice(
                [flavors.Locality.ANY] * 4
                + [flavors.Locality.DIFFERENT_CARD, flavors.Locality.NUMA]
            ).value,
        }
        if chance.random() < 0.4:
            specs["hw:numa_nodes"] = "1"
        device = chance.choice(devices)
        for suffix in "ABC"[: chance.choice([1, 1, 1, 2, 2, 3])]:
            if chance.random() < 0.3:
                device = chance.choice(devices)
            specs |= _group(suffix, device, chance, is_exclusive)
        return specs

    # -- Nova -----------------------------------------------------------------

    def states(self, groups: Sequence[flavors.RequestGroup]) -> list[Any]:
        """Return the hosts that Placement has candidates on."""
        states = []
        for root, candidates in self.placement.candidates(groups).items():
            if candidates:
                state = host_manager.HostState(
                    self.hosts[root].name, self.hosts[root].name, root
                )
                state.uuid = root
                state.allocation_candidates = copy.deepcopy(candidates)
                state.numa_topology = copy.deepcopy(self.cells[root])
                state.cpu_allocation_ratio = state.ram_allocation_ratio = 1.0
                states.append(state)
        return states

    def capture(self, spec: Any, states: Iterable[Any]) -> None:
        """Give Placement's summaries of some hosts to the filter."""
        candidate_capture.tie_answer(spec._context, spec)
        candidate_capture.store(
            spec, self.placement.summaries({state.uuid for state in states})
        )

    def consume(self, state: Any, spec: Any) -> None:
        """Take the guest's cells, as Nova's scheduler does it."""
        state.num_instances += 1
        if spec.numa_topology is None or state.numa_topology is None:
            return
        fitted = numa_cells._fit(state, spec, state.allocation_candidates[0])
        if fitted is not None:
            state.numa_topology = hardware.numa_usage_from_instance_numa(
                state.numa_topology, fitted
            )


def _can_be_whole(device: model.Device) -> bool:
    """Return whether one partition may take all of a device's units."""
    is_measured = not names.MEASURES.isdisjoint(device.counters)
    return is_measured or len(device.slots) == 1


def _group(
    suffix: str, device: model.Device, chance: Random, is_exclusive: bool
) -> dict[str, str]:
    """Return the extra specs of a group that a device could serve.

    An exclusive one takes all of the device.
    """
    profile = chance.choice(device.profiles)
    count = 2 if chance.random() < 0.1 else 1
    specs = {
        f"resources_{suffix}:{name}": str(
            device.counters[name]
            if is_exclusive and name in names.MEASURES & device.counters.keys()
            else amount * count
        )
        for name, amount in profile.charges.items()
    }
    if device.region is not None:
        traits = [
            t for t in device.traits if t.startswith(names.FUNCTION_PREFIX)
        ]
    else:
        traits = [profile.trait]
    return specs | {f"trait_{suffix}:{t}": "required" for t in traits}


def _topology(chance: Random) -> Any:
    """Return two cells for two guests each, or none."""
    if chance.random() < 0.5:
        return None
    return objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=n,
                socket=n,
                cpuset={2 * n, 2 * n + 1},
                pcpuset=set(),
                memory=CELL_MB,
                cpu_usage=0,
                memory_usage=0,
                pinned_cpus=set(),
                siblings=[{2 * n}, {2 * n + 1}],
                mempages=[
                    objects.NUMAPagesTopology(
                        size_kb=4, total=CELL_MB * 256, used=0, reserved=0
                    )
                ],
                network_metadata=objects.NetworkMetadata(
                    physnets=set(), tunneled=False
                ),
            )
            for n in (0, 1)
        ]
    )


def make_spec(specs: dict[str, str]) -> Any:
    """Return the RequestSpec of a flavor with these extra specs."""
    flavor = objects.Flavor(vcpus=1, memory_mb=GUEST_MB, extra_specs=specs)
    image = objects.ImageMeta(properties=objects.ImageMetaProps())
    return objects.RequestSpec(
        context.get_admin_context(),
        flavor=flavor,
        image=image,
        scheduler_hints={},
        numa_topology=hardware.numa_get_constraints(flavor, image),
        pci_requests=None,
        limits=objects.SchedulerLimits(),
        requested_resources=[],
    )


def judge(seeds: range, late: float = 0.0) -> Verdict:
    """Return the results of the servers of some clouds.

    :param late: the share of reports that come one request too late.
    """
    verdict = Verdict()
    for seed in seeds:
        Cloud(seed, verdict, late).run()
    return verdict
