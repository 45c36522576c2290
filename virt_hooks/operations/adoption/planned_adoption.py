# SPDX-License-Identifier: Apache-2.0
"""Adoption of servers of Nova's own support, and its undo.

When nova-compute starts, first the slots and flavors of the servers are
written, by which claims are restored, and Nova's records of PCI functions;
then one reshape moves the allocations. All are repeated by the next start if
the service is killed. Nova ends the service if the reshape is refused.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from nova import exception

from nova_accel import errors, model
from nova_accel.host.state import adoption_plan
from nova_accel.inventory.adoption import records, reshape
from virt_hooks.operations.adoption import (
    adopted_servers,
    definitions,
    pci_devices,
    tree_changes,
)
from virt_hooks.report import host_adoption

LOG = logging.getLogger(__name__)

_State = records.AdoptionState
_BACK = (
    "this host was handed back to Nova's own driver; set compute_driver ="
    " libvirt.LibvirtDriver and [devices] enabled_mdev_types or [pci]"
    " device_spec as before, or run `nova-accel adopt plan` to adopt it again"
)


class PlannedAdoption(host_adoption.HostAdoption):
    """Adoption by the plan of ``state_dir``."""

    def __init__(self, context: host_adoption.AdoptionContext) -> None:
        """Read the plan.

        :raises ConfigurationError: it can't be read.
        """
        self._context = context
        self._file = adoption_plan.PlanFile(context.directory)
        self._plan = self._file.read()
        self._definitions = definitions.Definitions(context.host)
        self._is_completed = False
        #: Servers whose allocations are still to be moved, where no provider
        #: of Nova's shows it; None while that is unknown.
        self._unmoved: frozenset[str] | None = None

    @property
    def is_adopting(self) -> bool:
        return self._state is _State.APPLYING

    @property
    def is_undoing(self) -> bool:
        return self._state in (_State.UNDOING, _State.UNDONE)

    @property
    def _state(self) -> records.AdoptionState | None:
        return self._plan.state if self._plan else None

    # -- before claims are restored ----------------------------------------

    def prepare(
        self, nodes: Mapping[str, str], list_functions: Callable[[], str]
    ) -> None:
        plan = self._plan
        if plan is None or not (self.is_adopting or self.is_undoing):
            return
        if plan.root.uuid not in nodes:
            self._refuse(
                f"it is of compute node {plan.root.name} ({plan.root.uuid}),"
                f" and this host has {', '.join(sorted(nodes.values()))}"
            )
        if plan.state is _State.UNDONE:
            self._refuse(_BACK)
        if plan.blockers:
            self._refuse("it has blockers; see `nova-accel adopt status`")
        try:
            if plan.state is _State.APPLYING:
                self._adopt_servers(plan)
            else:
                self._hand_back_servers(plan, list_functions)
        except reshape.PlanError as error:
            self._refuse(str(error))

    def _adopt_servers(self, plan: records.Plan) -> None:
        """Write what Nova's database has of the servers, after the record.

        :raises PlanError: the plan does not hold.
        """
        host = self._context.accel.host.refresh()
        devices = _open_devices(plan)
        if devices is not None:
            servers = adopted_servers.AdoptedServers(plan)
            plan = devices.record(plan, servers.list_instances())
            self._write(plan)
        adopted_servers.AdoptedServers(plan).adopt(
            lambda partition: _find_change(host, partition)
        )
        if devices is not None:
            devices.free(plan)

    def _hand_back_servers(
        self, plan: records.Plan, list_functions: Callable[[], str]
    ) -> None:
        """Write what Nova's database had of the servers.

        :raises PlanError: the plan does not hold.
        """
        devices = _open_devices(plan)
        if devices is None:
            adopted_servers.AdoptedServers(plan).hand_back()
            self._definitions.restore(plan)
            return
        instances = adopted_servers.AdoptedServers(plan).list_instances()
        plan = devices.record_back(plan, instances, list_functions)
        self._write(plan)
        adopted_servers.AdoptedServers(plan).hand_back()
        devices.assign(plan, instances)

    def _refuse(self, reason: str) -> NoReturn:
        raise errors.ConfigurationError(
            "plan of the adoption", self._file.path, reason
        )

    # -- in Nova's update of the tree --------------------------------------

    def reshape(self, nova_tree: Any, node: str, allocations: Any) -> None:
        if self._plan is None or not (self.is_adopting or self.is_undoing):
            return
        plan = self._plan
        stored = tree_changes.read(nova_tree, node, allocations or {})
        own = tree_changes.list_own(stored, plan.root.name)
        natives = {native.uuid for native in plan.natives}
        sources = reshape.list_sources(
            stored, natives if self.is_adopting else own
        )
        is_needed = bool(sources) or self._has_unmoved(plan)
        if is_needed and allocations is None:
            raise exception.ReshapeNeeded
        try:
            if self.is_adopting:
                plan = reshape.record(plan, stored)
                target = reshape.adopt(plan, stored)
            else:
                target = reshape.hand_back(plan, stored, own)
            if target == stored:
                self._end(plan)
                return
            self._write(plan)
        except errors.AcceleratorError as error:
            raise exception.ReshapeFailed(error=str(error)) from error
        if is_needed:
            target = reshape.make_room(plan, target)
        tree_changes.write(nova_tree, node, allocations or {}, stored, target)

    def _end(self, plan: records.Plan) -> None:
        """Note that Placement is as planned."""
        if plan.state is _State.APPLYING:
            LOG.info(
                "Adopted %d servers with devices of Nova's own support",
                len(plan.servers),
            )
            self._write(dataclasses.replace(plan, state=_State.ADOPTED))
        elif plan.state is _State.UNDOING:
            LOG.warning("Undo of the adoption is complete: %s", _BACK)
            self._write(dataclasses.replace(plan, state=_State.UNDONE))

    def _write(self, plan: records.Plan) -> None:
        """Write the plan unless it is written.

        :raises ConfigurationError: it can't be written.
        """
        if plan != self._plan:
            self._file.write(plan)
            self._plan = plan

    # -- guests ------------------------------------------------------------

    def exclude_mdevs(self, uuids: Iterable[str]) -> list[str]:
        adopted = {
            partition.handle
            for server in self._list_adopted()
            for partition in server.partitions
        }
        return [uuid for uuid in uuids if uuid not in adopted]

    def _list_adopted(self) -> tuple[records.AdoptedServer, ...]:
        """Return the servers that have slots by the plan."""
        if self._plan and self._state in (_State.APPLYING, _State.ADOPTED):
            return self._plan.servers
        return ()

    # -- passes ------------------------------------------------------------

    def run_pass(self) -> None:
        plan = self._plan
        if plan is None:
            return
        if plan.state is _State.APPLYING and not plan.natives:
            self._unmoved = None
            self._unmoved = frozenset(self._list_unmoved(plan))
        if plan.state is _State.ADOPTED:
            if not self._is_completed:
                self._is_completed = True
                self._definitions.disable_autostart(plan)
            claims = self._context.accel.claims()
            handles = {claim.handle for claim in claims}
            self._definitions.remove_unused(plan, handles)

    def _list_unmoved(self, plan: records.Plan) -> Iterable[str]:
        """Yield servers whose allocations are not all of our providers.

        A server without any allocation was deleted.

        :raises ServiceError: Placement can't be read.
        """
        for server in plan.servers:
            allocated = self._context.allocations.read(server.uuid)
            if allocated and not server.own_amounts().keys() <= {*allocated}:
                yield server.uuid

    def _has_unmoved(self, plan: records.Plan) -> bool:
        """Return whether allocations have to be added to our providers.

        Only where Nova reports no providers of its PCI devices.
        """
        return (
            self.is_adopting
            and not plan.natives
            and (self._unmoved is None or bool(self._unmoved))
        )


def _open_devices(plan: records.Plan) -> pci_devices.PciDevices | None:
    """Return Nova's records of PCI functions, None for a plan of mdevs."""
    if plan.source is records.Source.NOVA_PCI:
        return pci_devices.PciDevices(plan)
    return None


def _find_change(
    host: model.HostState, planned: records.AdoptedPartition
) -> str:
    """Return how a partition differs from its plan, empty if it does not.

    A whole function is no partition of its own: Nova's records have it.
    """
    device = host.device(planned.device)
    if device is None or not device.counters:
        return f"card {planned.device} is not offered"
    if device.technology in model.UNDIVIDED:
        return _find_function_change(device, planned)
    for partition in device.partitions:
        if partition.handle == planned.handle:
            actual = partition.parent, partition.profile
            if actual == (planned.parent, planned.profile):
                return ""
            return (
                f"{planned.handle} is a {actual[1]} on {actual[0]} now, and"
                f" the plan has {planned.profile}"
            )
    return f"{planned.handle} does not exist any more"


def _find_function_change(
    device: model.Device, planned: records.AdoptedPartition
) -> str:
    if planned.slot not in device.slots:
        return f"{planned.slot} of card {device.address} is not offered"
    if device.profile(planned.profile) is None:
        return f"card {device.address} offers no {planned.profile}"
    return ""
