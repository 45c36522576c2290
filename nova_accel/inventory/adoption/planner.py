# SPDX-License-Identifier: Apache-2.0
"""Plan of an adoption, from what a host, Placement and Nova show."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from nova_accel import model
from nova_accel.claims import claim_plan
from nova_accel.config import policy
from nova_accel.inventory import tree_builder
from nova_accel.inventory.adoption import native_flavors, records
from nova_accel.model import domains, names, pci, providers

_MDEV = "mdev"
_AGAIN = "then run `nova-accel adopt plan` again"


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
    address.
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


def native_names(
    root: providers.ProviderRoot, host: model.HostState
) -> dict[str, str]:
    """Return addresses of mdev parents by the name of Nova's provider.

    Only those of devices that this library offers as mdevs.
    """
    return {
        f"{root.name}_{pci.nodedev_name(address)}": address
        for device in host.devices
        if device.technology == _MDEV
        for address in (device.address, *device.slots, *device.members)
        if pci.is_address(address)
    }


def build(observed: Observed) -> records.Plan:
    """Return the plan; with blockers it can't be applied."""
    return _Planner(observed).build()


class _Planner:
    def __init__(self, observed: Observed) -> None:
        self._seen = observed
        self._natives = {n.address: n for n in observed.natives}
        self._uuids = {n.uuid for n in observed.natives}
        self._devices = [
            device
            for device in observed.host.devices
            if device.technology == _MDEV and self._list_natives(device)
        ]
        self._blockers: list[records.Blocker] = []
        self._reserved: list[str] = []
        self._mdevs: dict[str, list[records.AdoptedMdev]] = {}

    def build(self) -> records.Plan:
        for device in self._devices:
            self._check_card(device)
            for partition in device.partitions:
                self._assign(device, partition)
        self._check_consumers()
        servers = tuple(
            server
            for uuid in sorted(self._mdevs)
            if (server := self._build_server(uuid)) is not None
        )
        for device in self._devices:
            self._check_room(device, servers)
        return records.Plan(
            source=records.Source.NOVA_MDEV,
            root=self._seen.root,
            natives=tuple(sorted(self._seen.natives, key=lambda n: n.name)),
            servers=servers,
            flavors=tuple(self._list_flavors(servers)),
            reserved=tuple(sorted(self._reserved)),
            blockers=tuple(self._blockers),
        )

    def _block(
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

    def _list_natives(
        self, device: model.Device
    ) -> list[records.NativeProvider]:
        addresses = dict.fromkeys(
            (device.address, *device.slots, *device.members)
        )
        return [self._natives[a] for a in addresses if a in self._natives]

    # -- cards and mdevs ---------------------------------------------------

    def _check_card(self, device: model.Device) -> None:
        address = device.address
        if not device.counters:
            self._block(
                records.Obstacle.UNOFFERED_CARD,
                address,
                "nova-accel does not offer this card",
                f"see `nova-accel inspect` for the reason, {_AGAIN}",
            )
        if device.is_closed:
            reason = (
                device.fault
                or device.drain
                or device.marks_unknown
                or device.unnoted
            )
            self._block(
                records.Obstacle.CLOSED_CARD,
                address,
                f"this card takes no new server: {reason}",
                f"`nova-accel undrain {address}` or `nova-accel heal"
                f" {address}`, {_AGAIN}",
            )
        if reason := self._seen.shared.get(address, ""):
            self._block(
                records.Obstacle.SHARED_CARD,
                address,
                reason,
                f"remove the card there, {_AGAIN}",
            )

    def _assign(
        self, device: model.Device, partition: model.Partition
    ) -> None:
        """Assign an mdev to its server, or say why it has none."""
        uuid = partition.handle
        holders = [d for d in self._seen.domains if uuid in d.mdevs]
        if not holders:
            self._block(
                records.Obstacle.UNUSED_MDEV,
                uuid,
                f"no domain has this mdev of {partition.parent}; Nova leaves"
                " one behind for each deleted server",
                f"mdevctl undefine --uuid {uuid}; mdevctl stop --uuid {uuid}",
            )
            return
        if len(holders) > 1:
            self._block(
                records.Obstacle.SHARED_MDEV,
                uuid,
                f"domains {', '.join(sorted(d.name for d in holders))} have"
                " the same mdev",
                f"delete or move all of them but one, {_AGAIN}",
            )
            return
        server = holders[0].uuid
        if server not in self._seen.servers:
            self._reserved.append(uuid)
            return
        is_native = server in self._seen.allocations
        if is_native or server not in self._seen.own:
            self._adopt(device, partition, server)

    def _adopt(
        self, device: model.Device, partition: model.Partition, server: str
    ) -> None:
        profile = device.profile(partition.profile)
        native = self._natives.get(partition.parent)
        if profile is None or partition.is_nameless:
            self._block(
                records.Obstacle.UNKNOWN_TYPE,
                partition.handle,
                f"{partition.profile} of {partition.parent} is no profile"
                " that nova-accel offers of this card",
                "see `nova-accel inspect`; [nova_accel] device_spec may"
                f" exclude it, {_AGAIN}",
            )
            return
        if native is None or len(native.inventories) != 1:
            self._block(
                records.Obstacle.DRIFTED,
                server,
                f"Placement has no provider of Nova for {partition.parent},"
                f" of which the server has mdev {partition.handle}",
                f"restart nova-compute with Nova's own driver, {_AGAIN}",
            )
            return
        (native_class,) = native.inventories
        parent = partition.parent
        self._mdevs.setdefault(server, []).append(
            records.AdoptedMdev(
                uuid=partition.handle,
                parent=parent,
                type_id=profile.handles.get(parent, ""),
                profile=profile.name,
                device=device.address,
                native=native.uuid,
                native_class=native_class,
                provider=names.provider_uuid(
                    self._seen.root.uuid, device.address
                ),
                resource_class=device.resource_class,
                slot=parent if parent in device.slots else partition.handle,
                charges={
                    name: amount
                    for name, amount in profile.charges.items()
                    if name in device.counters
                },
            )
        )

    # -- servers -----------------------------------------------------------

    def _check_consumers(self) -> None:
        """Check that each consumer of Nova's providers is understood."""
        for consumer in sorted(self._seen.allocations):
            server = self._seen.servers.get(consumer)
            if server is None:
                self._block(
                    records.Obstacle.UNKNOWN_CONSUMER,
                    consumer,
                    "it has an allocation of Nova's providers, and is no"
                    " server of this host; the allocation of a migration"
                    " ends with it",
                    "confirm or revert resizes, wait for migrations, or see"
                    f" `nova-manage placement audit`, {_AGAIN}",
                )
            elif consumer not in self._mdevs and not server.busy:
                self._block(
                    records.Obstacle.DRIFTED,
                    consumer,
                    "it has an allocation of a vGPU, and its domain has no"
                    " mdev of an adopted card",
                    "resume or unshelve it, or reboot it with --hard,"
                    f" {_AGAIN}",
                )
            if server is not None and server.busy:
                self._block(
                    records.Obstacle.MOVING,
                    consumer,
                    server.busy,
                    f"wait, or confirm or revert its resize, {_AGAIN}",
                )

    def _build_server(self, uuid: str) -> records.AdoptedServer | None:
        nova_server = self._seen.servers[uuid]
        mdevs = tuple(sorted(self._mdevs[uuid], key=lambda m: m.uuid))
        server = records.AdoptedServer(
            uuid=uuid,
            name=nova_server.name,
            mdevs=mdevs,
            specs_before=nova_server.specs or {},
            specs_after={},
        )
        self._check_mdevs(server)
        try:
            profiles = self._profiles_by_class(mdevs)
            _check_specs(nova_server.specs, mdevs)
            after = native_flavors.rewrite(
                nova_server.specs or {}, profiles, self._list_traits(mdevs)
            )
        except ValueError as error:
            self._block(
                records.Obstacle.FLAVOR,
                uuid,
                f"the extra specs of its flavor do not fit its mdevs: {error}",
                f"resize it to a flavor of one type of vGPU, {_AGAIN}",
            )
            return None
        return dataclasses.replace(server, specs_after=after)

    def _check_mdevs(self, server: records.AdoptedServer) -> None:
        """Compare a server's mdevs with its domain and its allocations."""
        uuid = server.uuid
        allocated = self._seen.allocations.get(uuid, {})
        if server.native_amounts() != {
            p: dict(a) for p, a in allocated.items()
        }:
            self._block(
                records.Obstacle.DRIFTED,
                uuid,
                "its allocations of Nova's providers differ from the mdevs"
                " of its domain",
                "compare `openstack resource provider allocation show"
                f" {uuid}` with `virsh dumpxml {uuid}`, {_AGAIN}",
            )
        present = {mdev.uuid for mdev in server.mdevs}
        for domain in self._seen.domains:
            for missing in sorted(domain.mdevs - present):
                if domain.uuid == uuid and not self._is_elsewhere(missing):
                    self._block(
                        records.Obstacle.MISSING_MDEV,
                        uuid,
                        f"mdev {missing} of its domain does not exist",
                        f"reboot the server with --hard, {_AGAIN}",
                    )

    def _is_elsewhere(self, mdev: str) -> bool:
        """Return whether a mdev exists on any card of the host."""
        return any(
            partition.handle == mdev
            for device in self._seen.host.devices
            for partition in device.partitions
        )

    def _profiles_by_class(
        self, mdevs: Iterable[records.AdoptedMdev]
    ) -> dict[str, native_flavors.ProfileRequest]:
        """Return the profile of each native class of a server.

        :raises ValueError: a class has several.
        """
        by_class: dict[str, native_flavors.ProfileRequest] = {}
        for mdev in mdevs:
            profile = native_flavors.ProfileRequest(
                trait=self._find_trait(mdev), charges=mdev.charges
            )
            if by_class.setdefault(mdev.native_class, profile) != profile:
                raise ValueError(
                    f"{mdev.native_class} is {profile.trait} and"
                    f" {by_class[mdev.native_class].trait}"
                )
        return by_class

    def _find_trait(self, mdev: records.AdoptedMdev) -> str:
        return next(
            profile.trait
            for device in self._devices
            if device.address == mdev.device
            for profile in device.profiles
            if profile.name == mdev.profile
        )

    def _list_traits(
        self, mdevs: Iterable[records.AdoptedMdev]
    ) -> frozenset[str]:
        used = {mdev.native for mdev in mdevs}
        return frozenset(
            trait
            for native in self._seen.natives
            if native.uuid in used
            for trait in native.traits
        )

    # -- the result --------------------------------------------------------

    def _check_room(
        self, device: model.Device, servers: tuple[records.AdoptedServer, ...]
    ) -> None:
        """Check that the card's provider will hold what is moved to it."""
        mdevs = {
            mdev.uuid: (server.uuid, mdev)
            for server in servers
            for mdev in server.mdevs
            if mdev.device == device.address
        }
        claims = [
            claim_plan.claim_from_partition(
                device, partition, owner, mdev.provider, mdev.slot
            )
            for partition in device.partitions
            if partition.handle in mdevs
            for owner, mdev in (mdevs[partition.handle],)
        ]
        tree = tree_builder.build_tree(
            self._seen.root,
            model.HostState(devices=(device,)),
            self._seen.rules,
            claims,
        )
        (node,) = tree.nodes
        needed = records.sum_amounts(
            (mdev.provider, mdev.charges) for _, mdev in mdevs.values()
        ).get(node.uuid, {})
        for name, amount in sorted(needed.items()):
            inventory = node.inventories.get(name)
            capacity = inventory.capacity if inventory else 0
            if amount > capacity and not device.is_closed:
                self._block(
                    records.Obstacle.OVERBOOKED,
                    device.address,
                    f"its servers need {amount} {name}, and nova-accel"
                    f" offers {capacity}",
                    "remove mdevs without servers, raise max_slots of"
                    f" [nova_accel] device_spec, or move a server, {_AGAIN}",
                )

    def _list_flavors(
        self, servers: Iterable[records.AdoptedServer]
    ) -> Iterator[records.FlavorMapping]:
        """Yield a mapping of each native class and type, sorted."""
        mdevs = {
            (mdev.native_class, mdev.type_id, mdev.profile): mdev
            for server in servers
            for mdev in server.mdevs
        }
        for key, mdev in sorted(mdevs.items()):
            before = {f"resources:{mdev.native_class}": "1"}
            profile = native_flavors.ProfileRequest(
                trait=self._find_trait(mdev), charges=mdev.charges
            )
            yield records.FlavorMapping(
                native_class=key[0],
                type_id=key[1],
                profile=key[2],
                before=before,
                after=native_flavors.rewrite(
                    before, {mdev.native_class: profile}
                ),
                traits=self._list_traits([mdev]),
            )


def _check_specs(
    specs: Mapping[str, str] | None, mdevs: Iterable[records.AdoptedMdev]
) -> None:
    """Check that a flavor requests as many units as there are mdevs.

    :raises ValueError: it does not, or it is not known.
    """
    if specs is None:
        raise ValueError("Nova does not show them to these credentials")
    present = collections.Counter(mdev.native_class for mdev in mdevs)
    requested = native_flavors.count_classes(specs, present.keys())
    if requested != present:
        raise ValueError(
            f"they request {requested or 'none'}, and it has {dict(present)}"
        )
