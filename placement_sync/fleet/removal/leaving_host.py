# SPDX-License-Identifier: Apache-2.0
"""Host that this library is removed from, and what it has of it."""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping

from nova_accel import errors, model
from nova_accel.cli import command_manager, host_source, registered_readers
from nova_accel.discovery import nova_conf
from nova_accel.doctor import checked_host, host_checks, registry
from nova_accel.host.state import adoption_plan, device_notes
from nova_accel.inventory.adoption import records
from nova_accel.model import names, providers
from placement_sync.cli import common_options, outside_host
from placement_sync.client import (
    nova_api,
    provider_records,
)
from placement_sync.fleet.flavors import cloud, flavor_specs
from placement_sync.fleet.removal import removal_files, removal_plan

COMMAND = "remove"
# Checks of what this command does not change.
_MANUAL = ("remove.driver", "remove.filters", "remove.section", "remove.units")
# Partitions that a program can remove from outside of nova-compute: the host
# keeps GPU instances, and libvirt returns whole functions.
_REMOVABLE = frozenset({"mdev", "vendor-vfio"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnedPartition:
    """Partition that this library made, on its device."""

    device: model.Device
    partition: model.Partition


class LeavingHost:
    """A host, with its node in Placement and its service in Nova."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        options: common_options.CommandOptions,
    ) -> None:
        """Read the names of the node and of the service.

        :raises AcceleratorError: an argument can't be used, or a service
            can't be read.
        """
        if options.state_dir is None:
            raise command_manager.UsageError(
                "--root is another machine; name the state directory of its"
                " nova-compute with --state-dir"
            )
        self.options = options
        self.state_dir: str = options.state_dir
        self.notes = device_notes.FaultNotes(self.state_dir)
        node = outside_host.find_own_node(arguments, options)
        self.host, self.placement, self.root = (
            node.host,
            node.placement,
            node.root,
        )
        compute, reason = common_options.open_compute(arguments, options)
        if compute is None:
            raise nova_api.NoAnswerError(reason)
        self.compute = compute
        self.service = nova_api.read_service_host(compute, self.root.uuid)
        self._uri = arguments.connect or (
            None
            if options.is_foreign
            else nova_conf.read_libvirt_uri(options.parsed)
        )

    def read(self) -> removal_plan.HostContents:
        """Return what the host and its cloud have of this library.

        :raises AcceleratorError: a part of it can't be read.
        """
        nodes, holders = self.list_nodes(), self.list_holders()
        return removal_plan.HostContents(
            root=self.root,
            nodes=nodes,
            holders=holders,
            names=self.list_names(nodes)
            | removal_files.read_names(self.state_dir),
            mdevs=tuple(
                owned.partition.handle for owned in self.list_unused(holders)
            ),
            other_hosts=self.list_other_hosts(),
            flavors=self.list_flavors(),
            state_dir=self.state_dir if self.has_files() else "",
            unclean=self.read_unclean(holders),
            manual=tuple(self._list_manual()),
        )

    def has_files(self) -> bool:
        """Return whether the state directory has files of this library."""
        return removal_files.has_files(self.state_dir)

    # -- Placement and Nova -----------------------------------------------

    def list_nodes(self) -> tuple[providers.ProviderNode, ...]:
        """Return this library's providers of the host.

        :raises ServiceError: Placement can't be read.
        """
        return self.placement.fetch(self.root.uuid).tree.nodes

    def list_names(
        self, nodes: tuple[providers.ProviderNode, ...]
    ) -> frozenset[str]:
        """Return the custom classes and traits of some of these providers.

        With the traits that their devices' providers had before.
        """
        uuids = {node.uuid for node in nodes}
        return frozenset().union(
            *map(removal_plan.list_node_names, nodes),
            *(
                removal_plan.list_profile_names(device)
                for device in self.host.read().devices
                if names.provider_uuid(self.root.uuid, device.address) in uuids
            ),
        )

    def list_holders(self) -> tuple[removal_plan.Holder, ...]:
        """Return the consumers of the host's devices.

        A server with a claim, and without an allocation, is one while Nova
        has it on this host.

        :raises AcceleratorError: Placement, Nova or the claims can't be read.
        """
        nodes = self.list_nodes()
        allocated = {
            consumer
            for node in nodes
            for consumer in self.placement.fetch_allocations(node.uuid)
        }
        by_consumer: dict[str, list[model.Claim]] = {}
        for claim in self.read_claims(is_required=bool(nodes)):
            by_consumer.setdefault(claim.consumer, []).append(claim)
        adopted = self._list_adopted(records.AdoptionState.ADOPTED)
        holders = []
        for uuid in sorted(allocated | by_consumer.keys()):
            server = nova_api.find_server(self.compute, uuid)
            is_here = server is not None and server.host == self.service
            if uuid in allocated or is_here:
                holders.append(
                    removal_plan.Holder(
                        uuid=uuid,
                        server=server,
                        claims=tuple(by_consumer.get(uuid, ())),
                        is_adopted=uuid in adopted,
                    )
                )
        return tuple(holders)

    def _list_adopted(self, state: records.AdoptionState) -> frozenset[str]:
        """Return the servers of an adoption in a state.

        :raises ConfigurationError: the file of the adoption can't be used.
        """
        plan = adoption_plan.PlanFile(self.state_dir).read()
        if plan is None or plan.state is not state:
            return frozenset()
        return frozenset(server.uuid for server in plan.servers)

    def check_adoption(self) -> None:
        """Check that nova-compute has completed an adoption, or its undo.

        :raises CommandError: the next start of nova-compute completes it.
        :raises ConfigurationError: the file of the adoption can't be used.
        """
        plan_file = adoption_plan.PlanFile(self.state_dir)
        plan = plan_file.read()
        if plan is not None and plan.state.is_pending:
            raise command_manager.CommandError(
                COMMAND,
                f"{plan_file.path}: the adoption is {plan.state.value!r}, and"
                " the next start of nova-compute completes it; start and stop"
                " nova-compute, and run this again",
            )

    def read_claims(self, is_required: bool) -> tuple[model.Claim, ...]:
        """Return the claims of the host's servers.

        Servers that were handed back to Nova's own support have none.

        :param is_required: whether claims may exist.
        :raises AcceleratorError: they are required and not known.
        """
        recorded = self.host.read_claims()
        if is_required and not recorded.is_known:
            raise command_manager.CommandError(
                COMMAND,
                f"the servers' claims are unknown: {recorded.reason}; start"
                " nova-compute with nova-accel, which writes them, and stop"
                " it again",
            )
        returned = self._list_adopted(records.AdoptionState.UNDONE)
        return tuple(c for c in recorded.claims if c.consumer not in returned)

    def list_other_hosts(self) -> tuple[str, ...]:
        """Return the names of other compute nodes with such providers.

        :raises ServiceError: Placement can't be read.
        """
        listed = provider_records.list_with_trait(
            self.placement.client.fetch, names.OWNER_TRAIT
        )
        return tuple(
            sorted(
                {
                    names.find_root_name(provider.name) or provider.root
                    for provider in listed
                    if provider.root != self.root.uuid
                }
            )
        )

    def list_flavors(self) -> tuple[removal_plan.OwnFlavor, ...]:
        """Return the flavors that request devices of this library.

        :raises ServiceError: Nova can't be read.
        """
        return tuple(
            removal_plan.OwnFlavor(
                id=flavor.id, name=flavor.name, change=change
            )
            for flavor in cloud.list_flavors(self.compute)
            if (change := flavor_specs.plan_removal(flavor.specs)).removed
        )

    # -- the host ---------------------------------------------------------

    def read_unclean(
        self, holders: tuple[removal_plan.Holder, ...]
    ) -> Mapping[str, str]:
        """Return why devices and functions are not seen clean, by address.

        :param holders: consumers whose functions are in use.
        :raises UnreadableError: the notes can't be listed.
        """
        in_use = {c.slot for holder in holders for c in holder.claims}
        unclean = self.notes.read_unclean()
        return {a: unclean[a] for a in unclean if a not in in_use}

    def list_unused(
        self, holders: tuple[removal_plan.Holder, ...]
    ) -> tuple[OwnedPartition, ...]:
        """Return the partitions of this library that no server has.

        Those of claims whose servers are gone, and mdevs whose uuid proves
        that this library made them. A domain that has one keeps it.

        :param holders: consumers that still have their partitions.
        :raises DomainsError: libvirt of the host can't be read.
        """
        claims = self.read_claims(is_required=False)
        consumers = {holder.uuid for holder in holders}
        claimed = {c.handle for c in claims if c.consumer in consumers}
        released = {c.handle for c in claims} - claimed
        owned = tuple(
            OwnedPartition(device=device, partition=partition)
            for device in self.host.read().devices
            if device.technology in _REMOVABLE
            for partition in device.partitions
            if partition.handle not in claimed
            and partition.handle in released | self._list_handles(device)
        )
        if not owned:
            return ()
        if self._uri is None:
            raise errors.DomainsError(
                "--root", "is another machine; name its libvirt with --connect"
            )
        in_use = {
            handle
            for domain in registered_readers.read_domains(self._uri)
            for handle in domain.handles
        }
        return tuple(o for o in owned if o.partition.handle not in in_use)

    def _list_handles(self, device: model.Device) -> frozenset[str]:
        """Return the uuids that this library gives to mdevs of a device."""
        provider = names.provider_uuid(self.root.uuid, device.address)
        return frozenset(
            names.mdev_uuid(provider, slot) for slot in device.slots
        )

    def _list_manual(self) -> Iterator[tuple[str, str]]:
        """Yield texts and remedies of the doctor's checks of a removal."""
        options = self.options
        reader, _ = host_source.open_host(options.root)
        host = checked_host.CheckedHost(reader, options.files)
        checks = registry.select(
            registry.list_checks(),
            [host_checks.Role.REMOVAL],
            names=_MANUAL,
        )
        for result in registry.run(checks, host):
            for observation in result.observations:
                yield (
                    observation.text,
                    observation.remedy or result.check.remedy,
                )
