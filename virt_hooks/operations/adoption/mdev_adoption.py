# SPDX-License-Identifier: Apache-2.0
"""Adoption of mdevs of Nova's own driver, and its undo.

When nova-compute starts, first the slots and flavors of the servers are
written, by which claims are restored; then one reshape moves the
allocations. Both are repeated by the next start if the service is killed.
Nova ends the service if the reshape is refused.
"""

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from nova import exception

from nova_accel import errors, model
from nova_accel.host.state import adoption_plan
from nova_accel.inventory.adoption import records, reshape
from virt_hooks.operations.adoption import (
    adopted_servers,
    definitions,
    tree_changes,
)
from virt_hooks.report import host_adoption

LOG = logging.getLogger(__name__)

_State = records.AdoptionState
_BACK = (
    "this host was handed back to Nova's own driver; set compute_driver ="
    " libvirt.LibvirtDriver and [devices] enabled_mdev_types as before, or"
    " run `nova-accel adopt plan` to adopt it again"
)


class MdevAdoption(host_adoption.HostAdoption):
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

    def prepare(self, nodes: Mapping[str, str]) -> None:
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
        servers = adopted_servers.AdoptedServers(plan)
        try:
            if plan.state is _State.APPLYING:
                host = self._context.accel.host.refresh()
                servers.adopt(lambda mdev: _find_change(host, mdev))
            else:
                servers.hand_back()
                self._definitions.set_autostart(plan, is_on=True)
        except reshape.PlanError as error:
            self._refuse(str(error))

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
        own = tree_changes.list_own(stored)
        natives = {native.uuid for native in plan.natives}
        sources = reshape.list_sources(
            stored, natives if self.is_adopting else own
        )
        if sources and allocations is None:
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
        if sources:
            target = reshape.make_room(plan, target)
        tree_changes.write(nova_tree, node, allocations or {}, stored, target)

    def _end(self, plan: records.Plan) -> None:
        """Note that Placement is as planned."""
        if plan.state is _State.APPLYING:
            LOG.info(
                "Adopted %d servers with vGPUs of Nova's own driver",
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
            mdev.uuid
            for server in self._list_adopted()
            for mdev in server.mdevs
        }
        return [uuid for uuid in uuids if uuid not in adopted]

    def _list_adopted(self) -> tuple[records.AdoptedServer, ...]:
        """Return the servers that have slots by the plan."""
        if self._plan and self._state in (_State.APPLYING, _State.ADOPTED):
            return self._plan.servers
        return ()

    # -- after the reshape -------------------------------------------------

    def complete(self) -> None:
        plan = self._plan
        if plan and plan.state is _State.ADOPTED and not self._is_completed:
            self._is_completed = True
            self._definitions.set_autostart(plan, is_on=False)


def _find_change(host: model.HostState, mdev: records.AdoptedMdev) -> str:
    """Return how an mdev differs from its plan, empty if it does not."""
    device = host.device(mdev.device)
    if device is None:
        return f"card {mdev.device} is not offered"
    for partition in device.partitions:
        if partition.handle == mdev.uuid:
            actual = partition.parent, partition.profile
            if actual == (mdev.parent, mdev.profile):
                return ""
            return f"mdev {mdev.uuid} is a {actual[1]} on {actual[0]} now"
    return f"mdev {mdev.uuid} does not exist any more"
