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

#: What must never happen; all of it is counted and printed.
WRONG = (
    "would be refused",
    "withheld",
    "offered, then refused",
    "books differ",
    "overbooked",
    "old reading",
    "tables differ",
    "left behind",
)
#: Of a hundred requests: deletes, and spawns of more than one.
DELETES, SEVERAL = 40, 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disagreement:
    """Two books that differ; ``held`` is what was on the card."""

    step: int
    kind: str
    card: str
    what: str
    held: tuple[str, ...]

    def __str__(self) -> str:
        """Return a case that can be made again."""
        held = ", ".join(self.held) or "nothing"
        return (
            f"step {self.step}: {self.kind}: {self.what} on {self.card}"
            f" beside {held}"
        )


class Run:
    """A cloud of a few nodes, and what became of its requests."""

    def __init__(
        self,
        placement: service.Service,
        hosts: Mapping[node.Node, Collection[str]],
        chance: random.Random,
    ) -> None:
        """Take nodes, and the cards of each whose instances come and go."""
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
        #: Of a hundred steps so many are a stranger's.
        self.strangers = 0
        self._strangers = {
            host: stranger.Stranger(host, chance) for host in hosts
        }
        for host in hosts:
            placement.create_root(host.root)
            self.publish(host)

    # -- requests --------------------------------------------------------

    def go(self) -> None:
        """Make one request and compare the books of what it touched."""
        self.step += 1
        if self._chance.randrange(100) < self.strangers:
            self._meet_stranger()
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

    def _meet_stranger(self) -> None:
        """Let somebody change a card, and the periodic task find out."""
        host = self._chance.choice(self.hosts)
        address = self._strangers[host].act()
        self.counts["strangers' changes"] += bool(address)
        host.pass_by()
        self.publish(host)
        for provider, device in host.providers().items():
            if device.address == address:
                self.compare(host, provider)

    def _delete(self, host: node.Node, server: str) -> str:
        (provider,) = {slot.provider for slot in host.servers[server]}
        host.destroy(server)
        self._placement.free(server, (provider,))
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
        found = self._placement.candidates(group.resources, profile.trait)
        if not found:
            self.counts["no candidate"] += 1
            return host, names.provider_uuid(host.root.uuid, device.address)
        chosen = self._chance.choice(found)
        (provider,) = chosen["allocations"]
        host = next(h for h in self._judges if provider in h.providers())
        self._claim(host, group, chosen["allocations"], provider)
        return host, provider

    def _claim(
        self,
        host: node.Node,
        group: flavors.RequestGroup,
        allocations: Mapping[str, Any],
        provider: str,
    ) -> None:
        server = str(uuid.UUID(int=self._chance.getrandbits(128)))
        booked = {provider: allocations[provider]["resources"]}
        device = host.device(provider)
        before = _held(host, device)
        self._placement.claim(server, allocations)
        slots = host.slots(provider, booked[provider])
        try:
            if slots is None:
                raise errors.ClaimError(server, "no slot is free")
            host.spawn(server, group, slots, booked)
        except (errors.ClaimError, errors.ActionError) as error:
            self._placement.free(server, (provider,))
            if group.resources[device.resource_class] > 1:
                self.counts["several, refused"] += 1
            else:
                what = f"{group}: {error}"
                self._note("offered, then refused", device, what, before)
        else:
            self.counts["spawned"] += 1

    def delete_all(self) -> None:
        """Delete every server; then nothing may be left of any."""
        for host in self.hosts:
            for server in sorted(host.servers):
                provider = self._delete(host, server)
                self.publish(host)
                self.compare(host, provider)
            for device in host.providers().values():
                left = self._judges[host].left(device.address)
                if left:
                    self._note("left behind", device, str(left), ())

    # -- books -----------------------------------------------------------

    def publish(self, host: node.Node) -> None:
        """Send Placement what differs; no device may vanish here."""
        wanted = host.tree()
        for gone in self._actual[host].nodes:
            if wanted.node(gone.uuid) is None:
                self._note_gone(host, gone.name)
        plan = diff.plan(self._actual[host], wanted, diff.Guard())
        self._placement.apply(plan, wanted)
        self._actual[host] = diff.apply(self._actual[host], plan)
        self.counts["calls"] += len(plan)

    def _note_gone(self, host: node.Node, name: str) -> None:
        state = host.life.host.state
        told = "; ".join(f"{p.where}: {p.reason}" for p in state.problems)
        raise AssertionError(
            f"step {self.step}: {name} vanished; complete: {state.complete},"
            f" unknown: {sorted(state.unknown)}, problems: {told or 'none'}"
        )

    def compare(self, host: node.Node, provider: str) -> None:
        """Compare Placement, tree and kernel as to one card."""
        device = host.device(provider)
        held = _held(host, device)
        books = self._placement.read(provider)
        wanted = host.tree().node(provider)
        assert wanted is not None
        kernel = self._judges[host].made(device.address, device.technology)
        for handle in self._strangers[host].made:
            kernel.pop(handle, None)
        for what, one, other in (
            (
                "inventories",
                books.inventories,
                {
                    name: (i.total, i.reserved)
                    for name, i in wanted.inventories.items()
                },
            ),
            ("traits", books.traits, wanted.traits),
            ("allocations", books.allocations, _charged(host, device)),
            ("partitions", kernel, _claimed(host, device)),
        ):
            if one != other:
                text = f"{what}: {one} is not {other}"
                self._note("books differ", device, text, held)
        used: collections.Counter[str] = collections.Counter()
        for amounts in books.allocations.values():
            used.update(amounts)
        left = {
            name: total - reserved - used[name]
            for name, (total, reserved) in books.inventories.items()
        }
        if min(left.values(), default=0) < 0:
            self._note("overbooked", device, str(left), held)
        offered = {
            p.name
            for p in device.profiles
            if p.trait in books.traits
            and all(left.get(k, 0) >= n for k, n in p.charges.items())
        }
        self.weigh(host, device, offered)

    def look_at_everything(self) -> None:
        """Compare every card, by slower ways than after each request.

        A service that starts now must see what this one has in memory,
        and Placement's API must tell what its tables hold.
        """
        for host in self.hosts:
            host.pass_by()
            host.facts.check()
            self.publish(host)
            known = host.life.host.state
            anew = host.read_anew()
            for provider, device in host.providers().items():
                self.compare(host, provider)
                seen = anew.device(device.address)
                if seen != device:
                    text = f"{seen} is not {device}"
                    self._note("old reading", device, text, ())
                books = self._placement.read(provider)
                if books != self._placement.read_api(provider):
                    self._note("tables differ", device, str(books), ())
            assert len(anew.devices) == len(known.devices)
            assert anew.problems == known.problems

    def summary(self) -> str:
        """Return the counts in words."""
        wrong = {kind: self.counts[kind] for kind in WRONG}
        usual = {k: n for k, n in self.counts.items() if k not in WRONG}
        return ", ".join(
            f"{number} {kind}"
            for kind, number in (*sorted(usual.items()), *wrong.items())
        )

    def weigh(
        self, host: node.Node, device: model.Device, offered: set[str]
    ) -> None:
        """Compare what is offered of a card with what the kernel gives."""
        given = self._judges[host].creatable(device.address, device.technology)
        if given == {"*"}:
            given = frozenset(p.name for p in device.profiles)
        self.counts["profiles compared"] += len(given | offered)
        held = _held(host, device)
        for name in sorted(offered - given):
            self._note("would be refused", device, name, held)
        for name in sorted(given - offered):
            self._note("withheld", device, name, held)

    def _note(
        self, kind: str, device: model.Device, what: str, held: tuple[str, ...]
    ) -> None:
        self.counts[kind] += 1
        self.disagreements.append(
            Disagreement(
                step=self.step,
                kind=kind,
                card=f"{device.address} ({device.model})",
                what=what,
                held=held,
            )
        )


def _claims(host: node.Node, device: model.Device) -> list[model.Claim]:
    return [c for c in host.life.claims() if c.device == device.address]


def _charged(
    host: node.Node, device: model.Device
) -> dict[str, dict[str, int]]:
    """Return what our claims should cost in Placement."""
    found: dict[str, collections.Counter[str]] = {}
    for claim in _claims(host, device):
        profile = device.profile(claim.profile)
        assert profile is not None
        amounts = found.setdefault(claim.consumer, collections.Counter())
        amounts.update(profile.charges)
    return {consumer: dict(amounts) for consumer, amounts in found.items()}


def _claimed(host: node.Node, device: model.Device) -> dict[str, str]:
    has_names = device.technology in ("mdev", "vendor-vfio")
    return {
        claim.handle: claim.profile if has_names else "*"
        for claim in _claims(host, device)
    }


def _held(host: node.Node, device: model.Device) -> tuple[str, ...]:
    where = {p.handle: p.start for p in device.partitions}
    return tuple(
        claim.profile
        if where.get(claim.handle) is None
        else f"{claim.profile} at {where[claim.handle]}"
        for claim in _claims(host, device)
    )
