# SPDX-License-Identifier: Apache-2.0
"""Steps of a removal, in an order that can be interrupted anywhere.

Providers are closed first: from then on no server can get a device. Each
step finds what the steps before have left to do, so a second run completes
a killed one. The files go last: without them nothing proves that no
nova-compute with this library runs.
"""

import contextlib
import dataclasses
import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nova_accel import errors, model
from nova_accel.claims import claim_plan
from nova_accel.cli import command_manager
from nova_accel.discovery import plugin
from nova_accel.host.execute import action_executor, open_files, privileged
from nova_accel.host.state import device_notes, ended_service
from nova_accel.model import providers
from placement_sync.cli import (
    drain_command,
    progress,
    sync_command,
)
from placement_sync.client import (
    calls,
    drained_providers,
    provider_records,
)
from placement_sync.fleet.cli import server_command
from placement_sync.fleet.devices import server_migrations
from placement_sync.fleet.flavors import cloud
from placement_sync.fleet.removal import (
    leaving_host,
    removal_files,
    removal_plan,
)
from placement_sync.sync import diff, sync_pass

_NOT_FOUND, _IN_USE = 404, 409
_KINDS = ("/traits", "/resource_classes")


@dataclasses.dataclass(slots=True, kw_only=True)
class Removed:
    """Result of the steps so far.

    ``servers`` have no slots any more, ``holders`` still have their devices.
    ``unclean`` are devices and functions whose notes stay, with the reasons.
    ``problems`` are texts about objects that stay, each with the reason.
    """

    servers: tuple[str, ...] = ()
    mdevs: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    flavors: tuple[str, ...] = ()
    unclean: Mapping[str, str] = dataclasses.field(default_factory=dict)
    has_removed_files: bool = False
    holders: tuple[removal_plan.Holder, ...] = ()
    problems: tuple[str, ...] = ()


class HostRemoval:
    """Removes this library from one host."""

    def __init__(self, leaving: leaving_host.LeavingHost) -> None:
        """Change nothing yet."""
        self._leaving = leaving
        self._options = leaving.options
        self._placement = leaving.placement

    # -- with a running nova-compute --------------------------------------

    def close(self) -> None:
        """Drain all devices, and reserve all units of their providers.

        :raises CommandError: a provider still offers units.
        :raises AcceleratorError: a note can't be written, or Placement
            can't be used.
        """
        leaving, options = self._leaving, self._options
        notes = device_notes.DrainNotes(options.drains_dir)
        state = leaving.host.read()
        devices = {d.address for d in state.devices} | state.unknown
        with drain_command.translate_write_errors(options):
            for address in sorted(devices - notes.read().keys()):
                notes.put(
                    address, device_notes.LEAVING, drain_command.find_author()
                )
        problems = self._publish()
        for node in leaving.list_nodes():
            if offered := sorted(
                name for name, i in node.inventories.items() if i.capacity
            ):
                text = f"{node.name} still offers {', '.join(offered)}"
                problems.append(text)
        if problems:
            raise command_manager.CommandError(
                leaving_host.COMMAND,
                "nothing was removed, since devices are still offered: "
                + "; ".join(problems)
                + "; correct this, and run it again",
            )

    def _publish(self) -> list[str]:
        """Reserve all units of the providers; return the problems."""
        with sync_command.hold_lock(self._options):
            result = sync_pass.Synchronizer(self._placement).run(
                *self._read_closed(), is_shared=True, reread=self._read_closed
            )
        return [f"{p.where}: {p.reason}" for p in result.problems]

    def _read_closed(self) -> tuple[providers.ProviderTree, model.HostState]:
        """Return the closed tree of the providers that exist, and the host.

        A killed removal may have deleted others, which stay so.
        """
        view = self._leaving.host.read_view(self._leaving.root)
        tree = diff.close(view.tree)
        present = {node.uuid for node in self._leaving.list_nodes()}
        nodes = tuple(n for n in tree.nodes if n.uuid in present)
        return dataclasses.replace(tree, nodes=nodes), view.host

    def move(
        self, kind: server_migrations.MigrationKind, seconds: float
    ) -> bool:
        """Move or shelve all servers; return whether no device is in use.

        The reason is printed. nova-compute has to run.

        :param seconds: timeout.
        """
        leaving = self._leaving
        nodes = {node.uuid for node in leaving.list_nodes()}
        drained = drained_providers.DrainedProviders(
            self._placement, {leaving.root.uuid: nodes}, self._read_claimants
        )
        migrations = server_migrations.ServerMigrations(leaving.compute, kind)

        def find_use() -> str:
            # nova-compute may publish a device as it read it before.
            if drained.find_offered():
                self._publish()
            return drained.find_use(migrations.advance)

        return progress.wait_until(
            f"all servers to release the devices of {leaving.root.name}",
            find_use,
            seconds,
        )

    def _read_claimants(self) -> tuple[frozenset[str], str]:
        recorded = self._leaving.host.read_claims()
        claimants = frozenset(claim.consumer for claim in recorded.claims)
        return claimants, recorded.reason

    # -- after nova-compute was stopped -----------------------------------

    def remove(self, with_flavors: bool) -> Removed:
        """Remove all that is not in use; return what was done.

        :param with_flavors: remove extra specs of flavors too.
        :raises AcceleratorError: a service or the host can't be used.
        """
        removed = Removed()
        leaving = self._leaving
        nodes = leaving.list_nodes()
        if nodes:
            self._record(leaving.list_names(nodes))
            self.close()
            removed.servers = self._clear_slots(nodes)
        removed.holders = leaving.list_holders()
        removed.mdevs = tuple(self._remove_partitions(removed))
        # A closed device has other traits.
        self._record(leaving.list_names(leaving.list_nodes()))
        removed.providers = self._delete_providers()
        if with_flavors:
            removed.flavors = tuple(self._clean_flavors())
        removed.names = tuple(self._delete_names(removed))
        if not leaving.list_nodes() and not removed.problems:
            removed.unclean = leaving.read_unclean(removed.holders)
            self._remove_files(removed.unclean)
            removed.has_removed_files = not removed.unclean
        return removed

    def _clear_slots(
        self, nodes: tuple[providers.ProviderNode, ...]
    ) -> tuple[str, ...]:
        """Remove the slots of servers from Nova's database.

        :raises CommandError: servers migrate, or Nova is not installed here.
        :raises ServiceError: the message bus can't be reached.
        """
        slots = self._open_slots({node.uuid for node in nodes})
        if moving := slots.list_moving():
            raise command_manager.CommandError(
                leaving_host.COMMAND,
                f"servers with migrations that are not confirmed:"
                f" {', '.join(moving)}; start nova-compute again, and confirm"
                " or revert their migrations first",
            )
        cleared: tuple[str, ...] = slots.clear()
        return cleared

    def _open_slots(self, owned: set[str]) -> Any:
        bus = server_command.open_nova_bus(self._options, leaving_host.COMMAND)
        module = importlib.import_module(
            "placement_sync.fleet.removal.assigned_slots"
        )
        if bus.owns_transport:
            module.use_conductor()
        leaving = self._leaving
        return module.AssignedSlots(leaving.service, leaving.root.name, owned)

    def _remove_partitions(self, removed: Removed) -> Iterator[str]:
        """Yield the handles of the partitions that were removed.

        :raises AcceleratorError: a driver or libvirt can't be used.
        """
        leaving = self._leaving
        unused = leaving.list_unused(removed.holders)
        if not unused:
            return
        privileged.run_here()
        drivers = plugin.load_named(self._options.settings)
        executor = action_executor.Executor(self._options.root)
        for owned in unused:
            handle = owned.partition.handle
            try:
                _check_closed(executor.root, owned)
                executor.apply_all(
                    drivers[owned.device.plugin].plan_release(
                        claim_plan.claim_from_partition(
                            owned.device, owned.partition
                        )
                    )
                )
            except errors.AcceleratorError as error:
                removed.problems += (f"{handle}: {error}",)
            else:
                # The driver erases a vGPU on a VF when its type is cleared.
                leaving.notes.note_clean(handle)
                yield handle

    def _record(self, recorded: frozenset[str]) -> None:
        with drain_command.translate_write_errors(self._options):
            if recorded:
                removal_files.record_names(self._leaving.state_dir, recorded)

    def _delete_providers(self) -> tuple[str, ...]:
        """Delete the unused providers, children first; return their names.

        :raises ServiceError: Placement refuses.
        """
        deleted: list[str] = []
        nodes = {node.uuid: node for node in self._leaving.list_nodes()}
        while leaves := _list_leaves(nodes):
            for node in leaves:
                del nodes[node.uuid]
                if self._placement.fetch_allocations(node.uuid):
                    _keep_ancestors(node, nodes)
                    continue
                self._placement.apply(
                    calls.DeleteProvider(uuid=node.uuid, name=node.name)
                )
                deleted.append(node.name)
        return tuple(deleted)

    def _clean_flavors(self) -> Iterator[str]:
        """Yield the names of flavors whose extra specs were removed.

        :raises ServiceError: Nova refuses.
        """
        leaving = self._leaving
        for flavor in leaving.list_flavors():
            removed = dict.fromkeys(flavor.change.removed, "")
            self._record(removal_plan.list_flavor_names(removed))
            cloud.write_specs(
                leaving.compute,
                cloud.Flavor(
                    id=flavor.id, name=flavor.name, specs={}, needs={}
                ),
                flavor.change,
            )
            yield flavor.name

    def _delete_names(self, removed: Removed) -> Iterator[str]:
        """Yield the classes and traits that were deleted.

        Placement refuses to delete those of other providers. A name in a
        flavor stays: Placement answers a request for a name that it does
        not have with an error.

        :raises ServiceError: Placement or Nova can't be used.
        """
        leaving = self._leaving
        recorded = removal_files.read_names(leaving.state_dir)
        if not recorded:
            return
        in_flavors = frozenset().union(
            *(
                removal_plan.list_flavor_names(flavor.specs)
                for flavor in cloud.list_flavors(leaving.compute)
            )
        )
        for name in sorted(recorded - in_flavors):
            if any([self._delete_name(kind, name) for kind in _KINDS]):
                yield name

    def _delete_name(self, kind: str, name: str) -> bool:
        """Delete a class or trait; return whether it is gone just now."""
        path = f"{kind}/{provider_records.quote_name(name)}"
        try:
            self._placement.client.delete(path)
        except errors.ServiceError as error:
            if error.status in {_NOT_FOUND, _IN_USE}:
                return False
            raise
        return True

    def _remove_files(self, unclean: Mapping[str, str]) -> None:
        with (
            drain_command.translate_write_errors(self._options),
            contextlib.suppress(FileNotFoundError),
        ):
            removal_files.remove_files(self._leaving.state_dir, unclean)

    def forget_cleaned(self, addresses: Iterable[str]) -> None:
        """Remove the notes on functions that an operator has cleaned.

        :raises AcceleratorError: one has no note, or has a server, or its
            note can't be removed.
        """
        cleaned = {*addresses}
        if not cleaned:
            return
        unclean = self._leaving.read_unclean(self._leaving.list_holders())
        if unknown := sorted(cleaned - unclean.keys()):
            raise command_manager.UsageError(
                f"--cleaned {', '.join(unknown)}: no note says that it may"
                " hold data of a server; those with a note:"
                f" {', '.join(unclean) or 'none'}"
            )
        with drain_command.translate_write_errors(self._options):
            for address in sorted(cleaned):
                self._leaving.notes.forget(address)


def check_stopped(state_dir: str) -> None:
    """Check that no process of this library runs on the host.

    :raises CommandError: nova-compute or ``placement-sync`` runs.
    """
    if not ended_service.identify(state_dir):
        raise command_manager.CommandError(
            leaving_host.COMMAND,
            f"nova-compute of this host must be stopped (systemctl stop"
            f" nova-compute), after it ran with nova-accel and {state_dir}",
        )
    if sync_command.read_daemon_interval(state_dir):
        raise command_manager.CommandError(
            leaving_host.COMMAND,
            "placement-sync of this host must be stopped, since it would"
            " create the providers again: systemctl disable --now"
            " placement-sync",
        )


def _check_closed(root: str, owned: leaving_host.OwnedPartition) -> None:
    """Check that no process has a partition open.

    :raises BusyError: one has; the removal of an mdev would wait for it.
    """
    if owned.device.technology == "mdev":
        if pids := open_files.find_processes(root, owned.partition.handle):
            raise errors.AcceleratorError(
                f"open in processes {', '.join(map(str, sorted(pids)))}; end"
                " them"
            )


def _list_leaves(
    nodes: dict[str, providers.ProviderNode],
) -> list[providers.ProviderNode]:
    parents = {node.parent for node in nodes.values()}
    return [node for node in nodes.values() if node.uuid not in parents]


def _keep_ancestors(
    node: providers.ProviderNode, nodes: dict[str, providers.ProviderNode]
) -> None:
    """Take a provider's ancestors out of those to delete."""
    parent = nodes.pop(node.parent, None)
    if parent is not None:
        _keep_ancestors(parent, nodes)
