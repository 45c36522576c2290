# SPDX-License-Identifier: Apache-2.0
"""Random spawns and deletes, with all inventories compared after each."""

from __future__ import annotations

import collections
import dataclasses
import random
import uuid
from collections.abc import Collection, Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.model import flavors, names, providers
from placement_sync.sync import diff
from tests.functional.agreement import judge, node, service, stranger
from tests.support.placement import applied_plans

#: Errors; all of them are counted and printed.
WRONG = (
    "would be refused",
    "withheld",
    "offered, then refused",
    "records differ",
    "overbooked",
    "stale reading",
    "tables differ",
    "left behind",
)
#: Percentages of requests: deletes, and spawns with two partitions.
DELETES, SEVERAL = 40, 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disagreement:
    """Two records that differ, and the profiles of the card's claims."""

    step: int
    kind: str
    card: str
    what: str
    profiles: tuple[str, ...]

    def __str__(self) -> str:
        """Return the data that reproduce the case."""
        profiles = ", ".join(self.profiles) or "no profiles"
        return (
            f"step {self.step}: {self.kind}: {self.what} on {self.card}"
            f" beside {profiles}"
        )


class Run:
    """A cloud of a few nodes, and the results of its requests."""

    def __init__(
        self,
        placement: service.Service,
        hosts: Mapping[node.Node, Collection[str]],
        chance: random.Random,
    ) -> None:
        """Take nodes, each with the addresses of its dynamic cards."""
        self._placement = placement
        self._judges = {
            host: judge.Judge(host.kernel, dynamic)
            for host, dynamic in hosts.items()
        }
        self._chance = chance
        self._actual = {
            host: providers.ProviderTree(root=host.root) for host in hosts
        }
        self.step = 0
        self.counts: collections.Counter[str] = collections.Counter()
        self.disagreements: list[Disagreement] = []
        self.hosts = tuple(hosts)
        #: Percentage of steps that are a stranger's.
        self.strangers = 0
        self._strangers = {
            host: stranger.Stranger(host, chance) for host in hosts
        }
        for host in hosts:
            placement.create_root(host.root)
            self.publish(host)

    # -- requests --------------------------------------------------------

    def run_step(self) -> None:
        """Make one request and compare the records of its card."""
        self.step += 1
        if self._chance.randrange(100) < self.strangers:
            self._run_stranger()
            return
        servers = sorted(
            (server, host.root.name, host)
            for host in self._judges
            for server in host.servers
        )
        if servers and self._chance.randrange(100) < DELETES:
            server, _, host = self._chance.choice(servers)
            provider = self._delete(host, server)
        else:
            host, provider = self._spawn()
        self.publish(host)
        self.compare(host, provider)

    def _run_stranger(self) -> None:
        """Let a stranger change a card, and the periodic task detect it."""
        host = self._chance.choice(self.hosts)
        address = self._strangers[host].act()
        self.counts["strangers' changes"] += bool(address)
        host.run_periodic_task()
        self.publish(host)
        for provider, device in host.providers().items():
            if device.address == address:
                self.compare(host, provider)

    def _delete(self, host: node.Node, server: str) -> str:
        (provider,) = {slot.provider for slot in host.servers[server]}
        host.destroy(server)
        self._placement.delete_allocations(server, (provider,))
        self.counts["deleted"] += 1
        return provider

    def _spawn(self) -> tuple[node.Node, str]:
        host = self._chance.choice(list(self._judges))
        device = self._chance.choice(host.life.host.state.devices)
        profile = self._chance.choice(device.profiles)
        count = 2 if self._chance.randrange(100) < SEVERAL else 1
        group = flavors.RequestGroup(
            suffix="_G",
            resources={k: n * count for k, n in profile.charges.items()},
            required=frozenset({profile.trait}),
        )
        candidates = self._placement.candidates(group.resources, profile.trait)
        if not candidates:
            self.counts["no candidate"] += 1
            return host, names.provider_uuid(host.root.uuid, device.address)
        candidate = self._chance.choice(candidates)
        (provider,) = candidate["allocations"]
        host = next(h for h in self._judges if provider in h.providers())
        self._claim(host, group, candidate["allocations"], provider)
        return host, provider

    def _claim(
        self,
        host: node.Node,
        group: flavors.RequestGroup,
        allocations: Mapping[str, Any],
        provider: str,
    ) -> None:
        server = str(uuid.UUID(int=self._chance.getrandbits(128)))
        charges = {provider: allocations[provider]["resources"]}
        device = host.device(provider)
        profiles = _list_profiles(host, device)
        self._placement.claim(server, allocations)
        slots = host.slots(provider, charges[provider])
        try:
            if slots is None:
                raise errors.ClaimError(server, "no slot is free")
            host.spawn(server, group, slots, charges)
        except (errors.ClaimError, errors.ActionError) as error:
            self._placement.delete_allocations(server, (provider,))
            if group.resources[device.resource_class] > 1:
                self.counts["several, refused"] += 1
            else:
                what = f"{group}: {error}"
                self._note("offered, then refused", device, what, profiles)
        else:
            self.counts["spawned"] += 1

    def delete_all(self) -> None:
        """Delete every server; then no card may have a partition."""
        for host in self.hosts:
            for server in sorted(host.servers):
                provider = self._delete(host, server)
                self.publish(host)
                self.compare(host, provider)
            for device in host.providers().values():
                leftovers = self._judges[host].list_leftovers(device.address)
                if leftovers:
                    self._note("left behind", device, str(leftovers), ())

    # -- records ---------------------------------------------------------

    def publish(self, host: node.Node) -> None:
        """Write the differences to Placement; no provider may vanish."""
        desired = host.tree()
        for gone in self._actual[host].nodes:
            if desired.node(gone.uuid) is None:
                self._note_gone(host, gone.name)
        plan = diff.plan(self._actual[host], desired, diff.Guard())
        self._placement.apply(plan, desired)
        self._actual[host] = applied_plans.apply(self._actual[host], plan)
        self.counts["calls"] += len(plan)

    def _note_gone(self, host: node.Node, name: str) -> None:
        state = host.life.host.state
        problems = [f"{p.where}: {p.reason}" for p in state.problems]
        raise AssertionError(
            f"step {self.step}: {name} vanished; complete: {state.complete},"
            f" unknown: {sorted(state.unknown)}, problems: {problems}"
        )

    def compare(self, host: node.Node, provider: str) -> None:
        """Compare Placement, tree and kernel for one card."""
        device = host.device(provider)
        profiles = _list_profiles(host, device)
        record = self._placement.read(provider)
        desired = host.tree().node(provider)
        assert desired is not None
        kernel = self._judges[host].partitions(
            device.address, device.technology
        )
        for handle in self._strangers[host].partitions:
            kernel.pop(handle, None)
        for what, actual, expected in (
            (
                "inventories",
                record.inventories,
                {
                    name: (i.total, i.reserved)
                    for name, i in desired.inventories.items()
                },
            ),
            ("traits", record.traits, desired.traits),
            ("allocations", record.allocations, _charged(host, device)),
            ("partitions", kernel, _claimed(host, device)),
        ):
            if actual != expected:
                text = f"{what}: {actual} is not {expected}"
                self._note("records differ", device, text, profiles)
        used: collections.Counter[str] = collections.Counter()
        for amounts in record.allocations.values():
            used.update(amounts)
        free = {
            name: total - reserved - used[name]
            for name, (total, reserved) in record.inventories.items()
        }
        if min(free.values(), default=0) < 0:
            self._note("overbooked", device, str(free), profiles)
        offered = {
            p.name
            for p in device.profiles
            if p.trait in record.traits
            and all(free.get(k, 0) >= n for k, n in p.charges.items())
        }
        self.compare_profiles(host, device, offered)

    def compare_all(self) -> None:
        """Compare every card, by slower ways than after each request.

        A new scan must equal the state in memory, and Placement's REST API
        must answer what its tables contain.
        """
        for host in self.hosts:
            host.run_periodic_task()
            host.nvml.check()
            self.publish(host)
            state = host.life.host.state
            rescanned = host.rescan()
            for provider, device in host.providers().items():
                self.compare(host, provider)
                seen = rescanned.device(device.address)
                if seen != device:
                    text = f"{seen} is not {device}"
                    self._note("stale reading", device, text, ())
                record = self._placement.read(provider)
                if record != self._placement.read_api(provider):
                    self._note("tables differ", device, str(record), ())
            assert len(rescanned.devices) == len(state.devices)
            assert rescanned.problems == state.problems

    def summary(self) -> str:
        """Return the counts in words."""
        wrong = {kind: self.counts[kind] for kind in WRONG}
        usual = {k: n for k, n in self.counts.items() if k not in WRONG}
        return ", ".join(
            f"{number} {kind}"
            for kind, number in (*sorted(usual.items()), *wrong.items())
        )

    def compare_profiles(
        self, host: node.Node, device: model.Device, offered: set[str]
    ) -> None:
        """Compare the offered profiles of a card with the kernel's."""
        creatable = self._judges[host].creatable(
            device.address, device.technology
        )
        if creatable == {"*"}:
            creatable = frozenset(p.name for p in device.profiles)
        self.counts["profiles compared"] += len(creatable | offered)
        profiles = _list_profiles(host, device)
        for name in sorted(offered - creatable):
            self._note("would be refused", device, name, profiles)
        for name in sorted(creatable - offered):
            self._note("withheld", device, name, profiles)

    def _note(
        self,
        kind: str,
        device: model.Device,
        what: str,
        profiles: tuple[str, ...],
    ) -> None:
        self.counts[kind] += 1
        self.disagreements.append(
            Disagreement(
                step=self.step,
                kind=kind,
                card=f"{device.address} ({device.model})",
                what=what,
                profiles=profiles,
            )
        )


def _claims(host: node.Node, device: model.Device) -> list[model.Claim]:
    return [c for c in host.life.claims() if c.device == device.address]


def _charged(
    host: node.Node, device: model.Device
) -> dict[str, dict[str, int]]:
    """Return the amounts that claims charge in Placement, by consumer."""
    charges: dict[str, collections.Counter[str]] = {}
    for claim in _claims(host, device):
        profile = device.profile(claim.profile)
        assert profile is not None
        amounts = charges.setdefault(claim.consumer, collections.Counter())
        amounts.update(profile.charges)
    return {consumer: dict(amounts) for consumer, amounts in charges.items()}


def _claimed(host: node.Node, device: model.Device) -> dict[str, str]:
    has_names = device.technology in ("mdev", "vendor-vfio")
    return {
        claim.handle: claim.profile if has_names else "*"
        for claim in _claims(host, device)
    }


def _list_profiles(host: node.Node, device: model.Device) -> tuple[str, ...]:
    starts = {p.handle: p.start for p in device.partitions}
    return tuple(
        claim.profile
        if starts.get(claim.handle) is None
        else f"{claim.profile} at {starts[claim.handle]}"
        for claim in _claims(host, device)
    )
