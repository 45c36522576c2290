# SPDX-License-Identifier: Apache-2.0
"""Servers that can move, each with its terms, and why others can't.

A server that could lose something by a move, or of which Placement and Nova
do not say enough, stays.
"""

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping

from nova_accel import errors
from nova_accel.model import flavors
from placement_sync.client import nova_api
from placement_sync.fleet.devices import fleet_state, server_migrations
from placement_sync.fleet.flavors import flavor_specs
from placement_sync.fleet.moves import card_contents

Kind = server_migrations.MigrationKind
#: Policies of server groups.
AFFINITY = frozenset({"affinity", "soft-affinity"})
ANTI_AFFINITY = frozenset({"anti-affinity", "soft-anti-affinity"})
_RUNNING, _STOPPED = "ACTIVE", "SHUTOFF"
# Extra specs of guests with a NUMA topology (nova/virt/hardware.py,
# numa_get_constraints). No API shows the free memory of a host's NUMA nodes.
_TOPOLOGY = (
    "hw:numa_",
    "hw:cpu_policy",
    "hw:mem_page_size",
    "hw:cpu_dedicated_mask",
    "hw:pmu_numa",
)

# Extra specs of the group without a suffix: the compute node's own.
_OF_HOST = ("resources:", "trait:")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerGroup:
    """Server group of Nova. ``most`` are its servers on one host, at most."""

    uuid: str
    policy: str
    members: frozenset[str]
    most: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MovableServer:
    """Server with one partition, and what it needs of its next host.

    ``needs`` are its amounts on the compute node, ``excluded`` the uuids of
    nodes that Nova would refuse. ``separated`` are the uuids of its groups
    that limit their servers on one host, with the limit.
    """

    uuid: str
    name: str
    card: str
    root: str
    gpu: str
    profile: str
    group: flavors.RequestGroup
    policy: flavors.SelectionPolicy
    needs: Mapping[str, int]
    kind: Kind
    excluded: frozenset[str] = frozenset()
    separated: tuple[tuple[str, int], ...] = ()

    @property
    def likeness(self) -> tuple[object, ...]:
        """Return a value that servers with the same possible moves share."""
        return self.card, *self.terms

    @property
    def terms(self) -> tuple[object, ...]:
        """Return what decides about the targets of a server."""
        return (
            self.profile,
            tuple(sorted(self.group.resources.items())),
            tuple(sorted(self.group.required)),
            tuple(sorted(self.group.forbidden)),
            self.policy,
            tuple(sorted(self.needs.items())),
            self.kind,
            self.excluded,
            self.separated,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MoveRules:
    """Rules of a plan.

    ``has_cold`` permits cold migrations of servers that do not run.
    ``groups`` are Nova's server groups, ``excluded`` the uuids of compute
    nodes that Nova would refuse for a server, by its uuid, and ``pinned``
    the reasons why servers stay, by uuid.
    """

    has_cold: bool = False
    groups: tuple[ServerGroup, ...] = ()
    excluded: Mapping[str, frozenset[str]] = dataclasses.field(
        default_factory=dict
    )
    pinned: Mapping[str, str] = dataclasses.field(default_factory=dict)


class ServerTerms:
    """Terms of the servers on some cards. ``fixed`` are why others stay."""

    def __init__(
        self,
        cards: Iterable[card_contents.KnownCard],
        fleet: fleet_state.Fleet,
        rules: MoveRules,
    ) -> None:
        self._fleet, self._rules = fleet, rules
        self._holdings = collections.Counter(
            holding.consumer for holding in fleet.holdings
        )
        self.movable: dict[str, MovableServer] = {}
        self.fixed: dict[str, str] = {}
        for card in cards:
            for uuid, profile in card.holders.items():
                server = fleet.servers.get(uuid)
                reason = self._explain(uuid, card, profile)
                if reason or server is None:
                    self.fixed[uuid] = reason
                else:
                    self.movable[uuid] = self._build(server, card, profile)

    def count_fixed(self) -> list[tuple[str, int]]:
        """Return the reasons why servers stay, with the number of servers."""
        return sorted(collections.Counter(self.fixed.values()).items())

    def _explain(
        self, uuid: str, card: card_contents.KnownCard, profile: str
    ) -> str:
        """Return why a server stays, empty if it can move."""
        server = self._fleet.servers.get(uuid)
        if server is None:
            return "Nova does not show it: a migration, or a leaked allocation"
        if uuid in self._rules.pinned:
            return self._rules.pinned[uuid]
        if self._holdings[uuid] > 1:
            return "it has several devices"
        return (
            _explain_state(server, self._rules.has_cold)
            or _explain_flavor(server, card, profile)
            or _explain_topology(server)
            or self._explain_groups(uuid)
        )

    def _explain_groups(self, uuid: str) -> str:
        for group in self._rules.groups:
            others = group.members - {uuid}
            if uuid in group.members and group.policy in AFFINITY and others:
                return (
                    f"its server group {group.uuid} keeps its servers on one"
                    " host"
                )
        return ""

    def _build(
        self,
        server: nova_api.Server,
        card: card_contents.KnownCard,
        profile: str,
    ) -> MovableServer:
        contents = _read_flavor(server)
        return MovableServer(
            uuid=server.uuid,
            name=server.name,
            card=card.uuid,
            root=card.root,
            gpu=card.gpu,
            profile=profile,
            group=contents.groups[0],
            policy=contents.policy,
            needs=list_needs(server),
            kind=Kind.COLD if server.status == _STOPPED else Kind.LIVE,
            excluded=self._rules.excluded.get(server.uuid, frozenset()),
            separated=tuple(
                (group.uuid, group.most)
                for group in self._rules.groups
                if server.uuid in group.members
                and group.policy in ANTI_AFFINITY
            ),
        )


def _explain_state(server: nova_api.Server, has_cold: bool) -> str:
    if server.task:
        return f"it has a task: {server.task}"
    if server.status == _STOPPED and not has_cold:
        return "it is SHUTOFF, and moves only with --cold"
    if server.status not in {_RUNNING, _STOPPED}:
        return f"it is {server.status}"
    return ""


def _explain_flavor(
    server: nova_api.Server, card: card_contents.KnownCard, profile: str
) -> str:
    if server.flavor is None:
        return "Nova does not show the extra specs of its flavor"
    try:
        contents = _read_flavor(server)
    except errors.MalformedError as error:
        return str(error)
    if len(contents.groups) != 1 or not contents.groups[0].suffix:
        return "its flavor does not request exactly one group of one device"
    if _asks_for_more(server.flavor.extra_specs):
        return "its flavor requests more of its host than devices"
    resources = {n: a for n, a in contents.groups[0].resources.items() if a}
    if resources != dict(card.profiles[profile].charges):
        return "it has other devices than its flavor: attached ones"
    return ""


def _explain_topology(server: nova_api.Server) -> str:
    contents = _read_flavor(server)
    specs = server.flavor.extra_specs if server.flavor else {}
    if contents.policy.numa is flavors.NumaPolicy.REQUIRED or any(
        key.startswith(_TOPOLOGY) for key in specs
    ):
        return "its flavor has a NUMA topology, and no API shows its room"
    return ""


def _asks_for_more(specs: Mapping[str, str]) -> bool:
    """Return whether a flavor has groups that no device serves."""
    return len(list(flavors.parse_groups(specs))) > 1 or any(
        key.startswith(_OF_HOST) for key in specs
    )


def _read_flavor(server: nova_api.Server) -> flavor_specs.FlavorContents:
    specs = server.flavor.extra_specs if server.flavor else {}
    return flavor_specs.read(specs)


def list_needs(server: nova_api.Server) -> dict[str, int]:
    """Return a server's amounts on its compute node, by resource class."""
    flavor = server.flavor
    if flavor is None:
        return {}
    root_gb = 0 if server.is_volume_backed else flavor.root_gb
    return {
        "VCPU": flavor.vcpus,
        "MEMORY_MB": flavor.memory_mb,
        "DISK_GB": root_gb + flavor.other_gb,
    }


def list_members(
    groups: Iterable[ServerGroup], hosts: Mapping[str, str]
) -> Mapping[tuple[str, str], Collection[str]]:
    """Return the members of groups by group and host.

    :param hosts: uuids of the compute nodes of servers, by server.
    """
    members: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for group in groups:
        for uuid in group.members:
            if uuid in hosts:
                members[group.uuid, hosts[uuid]].add(uuid)
    return members
