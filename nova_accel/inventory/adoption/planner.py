# SPDX-License-Identifier: Apache-2.0
"""Plan of an adoption, from what a host, Placement and Nova show.

``Planner`` has what all sources have in common; ``mdev_planner``,
``pci_planner`` and ``cyborg_planner`` find the partitions of one source.
"""

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.claims import claim_plan
from nova_accel.config import policy
from nova_accel.inventory import tree_builder
from nova_accel.inventory.adoption import (
    alias_flavors,
    profile_requests,
    records,
)
from nova_accel.model import domains, names, providers

#: End of each remedy of a blocker.
AGAIN = "then run `nova-accel adopt plan` again"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NovaServer:
    """A server of the host; ``specs`` are the embedded flavor's.

    ``busy`` is why it can't be adopted now, empty for a server at rest;
    ``specs`` is None where Nova does not show them.
    """

    uuid: str
    name: str
    specs: Mapping[str, str] | None
    busy: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """State of a host under Nova's own support.

    ``allocations`` are those from ``natives``, by consumer. ``own`` are
    the consumers that have allocations of this library's providers.
    ``shared`` are the reasons why cards are Nova's in another way, too, by
    address. ``functions`` are those that ``[pci] device_spec`` names, by
    address, and ``aliases`` those of ``[pci] alias``. ``requests`` are
    Cyborg's of the host. ``moving`` are the servers with a migration that is
    not over, gone ones, too.
    """

    root: providers.ProviderRoot
    host: model.HostState
    rules: policy.DeviceRules
    domains: tuple[domains.Domain, ...]
    servers: Mapping[str, NovaServer]
    natives: tuple[records.NativeProvider, ...]
    allocations: Mapping[str, records.Allocations]
    own: frozenset[str] = frozenset()
    shared: Mapping[str, str] = dataclasses.field(default_factory=dict)
    functions: Mapping[str, alias_flavors.NovaFunction] = dataclasses.field(
        default_factory=dict
    )
    aliases: tuple[alias_flavors.Alias, ...] = ()
    requests: tuple[records.CyborgRequest, ...] = ()
    moving: frozenset[str] = frozenset()


class Planner(abc.ABC):
    """Plan of one host and source; each object builds one plan."""

    source: records.Source
    #: What to do about a server whose flavor does not fit its devices.
    flavor_remedy: str

    def __init__(self, observed: Observed) -> None:
        self.observed = observed
        self.natives = {n.address: n for n in observed.natives}
        self.devices = [d for d in observed.host.devices if self.is_native(d)]
        #: Addresses that ``[pci] device_spec`` names of the devices.
        self.functions: tuple[str, ...] = ()
        self.partitions: dict[str, list[records.AdoptedPartition]] = {}
        self._blockers: list[records.Blocker] = []
        self._reserved: list[str] = []

    # -- of each source ----------------------------------------------------

    @abc.abstractmethod
    def is_native(self, device: model.Device) -> bool:
        """Return whether Nova's support has the device."""

    @abc.abstractmethod
    def assign(self, device: model.Device) -> None:
        """Assign the partitions of a device to servers.

        With ``add``, ``reserve`` and ``block``.
        """

    @abc.abstractmethod
    def check_servers(self) -> None:
        """Block servers that differ from what their domains have."""

    @abc.abstractmethod
    def rewrite(
        self, server: records.AdoptedServer, specs: Mapping[str, str]
    ) -> dict[str, str]:
        """Return a flavor's extra specs with profiles.

        :raises ValueError: they request other partitions than the server's.
        """

    @abc.abstractmethod
    def map_flavor(
        self, partition: records.AdoptedPartition
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return extra specs of one native unit, and of its profile."""

    # -- for each source ---------------------------------------------------

    def block(
        self,
        kind: records.Obstacle,
        subject: str,
        reason: str,
        remedy: str,
    ) -> None:
        self._blockers.append(
            records.Blocker(
                kind=kind, subject=subject, reason=reason, remedy=remedy
            )
        )

    def reserve(self, handle: str) -> None:
        """Note an mdev or function of a domain that is not Nova's."""
        self._reserved.append(handle)

    def add(
        self,
        server: str,
        device: model.Device,
        partition: model.Partition,
        profile: model.Profile,
        slot: str,
        units: tuple[records.NativeUnit, ...],
        type_id: str,
    ) -> None:
        """Note that a server will have a partition in a slot."""
        adopted = records.AdoptedPartition(
            handle=partition.handle,
            parent=partition.parent,
            type_id=type_id,
            profile=profile.name,
            device=device.address,
            units=units,
            provider=names.provider_uuid(
                self.observed.root.uuid, device.address
            ),
            resource_class=device.resource_class,
            slot=slot,
            charges={
                name: amount
                for name, amount in profile.charges.items()
                if name in device.counters
            },
        )
        self.partitions.setdefault(server, []).append(adopted)

    def build_request(
        self, partition: records.AdoptedPartition
    ) -> profile_requests.ProfileRequest:
        trait = next(
            profile.trait
            for device in self.devices
            if device.address == partition.device
            for profile in device.profiles
            if profile.name == partition.profile
        )
        return profile_requests.ProfileRequest(
            trait=trait, charges=partition.charges
        )

    def list_traits(
        self, partitions: Iterable[records.AdoptedPartition]
    ) -> frozenset[str]:
        """Return the traits of Nova's providers of some partitions."""
        used = {u.provider for each in partitions for u in each.units}
        return frozenset(
            trait
            for native in self.observed.natives
            if native.uuid in used
            for trait in native.traits
        )

    # -- the plan ----------------------------------------------------------

    def build(self) -> records.Plan:
        """Return the plan; with blockers it can't be applied."""
        for device in self.devices:
            self._check_card(device)
            self.assign(device)
        self._check_consumers()
        self.check_servers()
        servers = tuple(
            server
            for uuid in sorted(self.partitions)
            if (server := self._build_server(uuid)) is not None
        )
        for device in self.devices:
            self._check_room(device, servers)
        return records.Plan(
            source=self.source,
            root=self.observed.root,
            natives=tuple(sorted(self.observed.natives, key=lambda n: n.name)),
            functions=self.functions,
            servers=servers,
            flavors=tuple(self._list_flavors(servers)),
            reserved=tuple(sorted(self._reserved)),
            blockers=tuple(self._blockers),
        )

    def _check_card(self, device: model.Device) -> None:
        address = device.address
        if not device.counters:
            self.block(
                records.Obstacle.UNOFFERED_CARD,
                address,
                "nova-accel does not offer this card",
                f"see `nova-accel inspect` for the reason, {AGAIN}",
            )
        if device.is_closed:
            reason = (
                device.fault
                or device.drain
                or device.marks_unknown
                or device.unnoted
            )
            self.block(
                records.Obstacle.CLOSED_CARD,
                address,
                f"this card takes no new server: {reason}",
                f"`nova-accel undrain {address}` or `nova-accel heal"
                f" {address}`, {AGAIN}",
            )
        if reason := self.observed.shared.get(address, ""):
            self.block(
                records.Obstacle.SHARED_CARD,
                address,
                reason,
                f"remove the card there, {AGAIN}",
            )

    def _check_consumers(self) -> None:
        """Check that each consumer of Nova's providers is understood."""
        allocations = self.observed.allocations
        for consumer in sorted({*allocations, *self.partitions}):
            server = self.observed.servers.get(consumer)
            if server is None:
                self.block(
                    records.Obstacle.UNKNOWN_CONSUMER,
                    consumer,
                    "it has an allocation of Nova's providers, and is no"
                    " server of this host; the allocation of a migration"
                    " ends with it",
                    "confirm or revert resizes, wait for migrations, or see"
                    f" `nova-manage placement audit`, {AGAIN}",
                )
            elif consumer not in self.partitions and not server.busy:
                self.block(
                    records.Obstacle.DRIFTED,
                    consumer,
                    "it has an allocation of Nova's providers, and its"
                    " domain has nothing of an adopted card",
                    "resume or unshelve it, or reboot it with --hard,"
                    f" {AGAIN}",
                )
            if server is not None and server.busy:
                self.block(
                    records.Obstacle.MOVING,
                    consumer,
                    server.busy,
                    f"wait, or confirm or revert its resize, {AGAIN}",
                )

    def _build_server(self, uuid: str) -> records.AdoptedServer | None:
        nova_server = self.observed.servers[uuid]
        specs = nova_server.specs
        server = records.AdoptedServer(
            uuid=uuid,
            name=nova_server.name,
            partitions=tuple(
                sorted(self.partitions[uuid], key=lambda p: p.handle)
            ),
            specs_before=specs or {},
            specs_after={},
        )
        self._check_allocations(server)
        try:
            if specs is None:
                raise ValueError(
                    "Nova does not show them to these credentials"
                )
            after = self.rewrite(server, specs)
        except ValueError as error:
            self.block(
                records.Obstacle.FLAVOR,
                uuid,
                f"the extra specs of its flavor do not fit its devices:"
                f" {error}",
                f"{self.flavor_remedy}, {AGAIN}",
            )
            return None
        return dataclasses.replace(server, specs_after=after)

    def _check_allocations(self, server: records.AdoptedServer) -> None:
        """Compare a server's allocations with what its domain has."""
        uuid = server.uuid
        allocated = self.observed.allocations.get(uuid, {})
        if server.native_amounts() != {
            p: dict(a) for p, a in allocated.items()
        }:
            self.block(
                records.Obstacle.DRIFTED,
                uuid,
                "its allocations of Nova's providers differ from the devices"
                " of its domain",
                "compare `openstack resource provider allocation show"
                f" {uuid}` with `virsh dumpxml {uuid}`, {AGAIN}",
            )

    def _check_room(
        self, device: model.Device, servers: tuple[records.AdoptedServer, ...]
    ) -> None:
        """Check that the card's provider will hold what is moved to it."""
        adopted = [
            (server.uuid, partition)
            for server in servers
            for partition in server.partitions
            if partition.device == device.address
        ]
        existing = {p.handle: p for p in device.partitions}
        claims = [
            claim_plan.claim_from_partition(
                device,
                existing.get(partition.handle)
                or model.Partition(
                    profile=partition.profile,
                    parent=partition.parent,
                    handle=partition.handle,
                ),
                owner,
                partition.provider,
                partition.slot,
            )
            for owner, partition in adopted
        ]
        tree = tree_builder.build_tree(
            self.observed.root,
            model.HostState(devices=(device,)),
            self.observed.rules,
            claims,
        )
        (node,) = tree.nodes
        needed = records.sum_amounts(
            (partition.provider, partition.charges) for _, partition in adopted
        ).get(node.uuid, {})
        for name, amount in sorted(needed.items()):
            inventory = node.inventories.get(name)
            capacity = inventory.capacity if inventory else 0
            if amount > capacity and not device.is_closed:
                self.block(
                    records.Obstacle.OVERBOOKED,
                    device.address,
                    f"its servers need {amount} {name}, and nova-accel"
                    f" offers {capacity}",
                    "remove mdevs without servers, raise max_slots of"
                    f" [nova_accel] device_spec, or move a server, {AGAIN}",
                )

    def _list_flavors(
        self, servers: Iterable[records.AdoptedServer]
    ) -> Iterator[records.FlavorMapping]:
        """Yield a mapping of each native class and type, sorted."""
        partitions = {
            (each.native_class, each.type_id, each.profile): each
            for server in servers
            for each in server.partitions
        }
        for key, partition in sorted(partitions.items()):
            before, after = self.map_flavor(partition)
            yield records.FlavorMapping(
                native_class=key[0],
                type_id=key[1],
                profile=key[2],
                before=before,
                after=after,
                traits=self.list_traits([partition]),
            )
