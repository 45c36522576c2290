# SPDX-License-Identifier: Apache-2.0
"""Slots and flavors of adopted servers, in Nova's database."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import objects

from nova_accel import model
from nova_accel.inventory.adoption import records, reshape
from virt_hooks.instance import instance_request
from virt_hooks.operations.adoption import pci_devices

LOG = logging.getLogger(__name__)

_ATTRIBUTES = ("resources", "flavor", "pci_requests", "system_metadata")


class AdoptedServers:
    """The servers of a plan; all are checked before the first is written."""

    def __init__(self, plan: records.Plan) -> None:
        self._plan = plan

    def adopt(
        self, find_change: Callable[[records.AdoptedPartition], str]
    ) -> None:
        """Give the servers their slots, and flavors with profiles.

        Servers that left the host since the plan are skipped: what they
        still have of Nova's providers fails the reshape.

        :param find_change: returns how a partition differs from its plan.
        :raises PlanError: a server is not as planned; nothing was written.
        """
        pending = []
        for server, instance in self._list_present():
            for partition in server.partitions:
                if change := find_change(partition):
                    raise reshape.PlanError(f"server {server.uuid}: {change}")
            slots = self._slots_of(instance)
            _check(server, slots, {frozenset(), server.slots}, "slots")
            specs = dict(instance.flavor.extra_specs)
            _check(
                server,
                specs,
                (server.specs_before, server.specs_after),
                "extra specs",
            )
            if slots != server.slots or specs != server.specs_after:
                pending.append((server, instance))
        for server, instance in pending:
            requests = (
                pci_devices.build_requests_after(server, instance)
                if server.requests
                else None
            )
            self._save(instance, server.slots, server.specs_after, requests)
            LOG.info(
                "Server %s has slots for its devices of Nova's own support",
                server.uuid,
            )

    def hand_back(self) -> None:
        """Take the slots of all servers, and give their flavors back.

        :raises PlanError: a server has slots that Nova can't express;
            nothing was written.
        """
        pending = []
        for instance in self.list_instances():
            slots = self._slots_of(instance)
            server = self._plan.server(instance.uuid)
            if server is None or slots not in (frozenset(), server.slots):
                if slots:
                    raise reshape.PlanError(
                        f"server {instance.uuid} has slots that are not in"
                        " the plan; run `nova-accel adopt undo` again, which"
                        " says what to do"
                    )
                continue
            specs = dict(instance.flavor.extra_specs)
            if slots or specs == server.specs_after:
                pending.append((server, instance))
        for server, instance in pending:
            requests = (
                pci_devices.parse_requests(server, instance)
                if server.requests
                else None
            )
            self._save(instance, frozenset(), server.specs_before, requests)
            LOG.info("Server %s has no slots any more", server.uuid)

    def _list_present(
        self,
    ) -> Iterator[tuple[records.AdoptedServer, Any]]:
        instances = {each.uuid: each for each in self.list_instances()}
        for server in self._plan.servers:
            if server.uuid in instances:
                yield server, instances[server.uuid]
            else:
                LOG.info("Planned server %s is not here any more", server.uuid)

    def list_instances(self) -> Any:
        """Return the servers of this host, as Nova's database has them."""
        return objects.InstanceList.get_by_host(
            nova_context.get_admin_context(),
            nova.conf.CONF.host,
            expected_attrs=[*_ATTRIBUTES],
        )

    def _slots_of(self, instance: Any) -> frozenset[model.Slot]:
        return frozenset(
            instance_request.slots_of(instance.resources, self._plan.root)
        )

    def _save(
        self,
        instance: Any,
        slots: frozenset[model.Slot],
        specs: Mapping[str, str],
        requests: objects.InstancePCIRequests | None,
    ) -> None:
        """Write slots and extra specs; slots of the node itself stay.

        :param requests: PCI requests, None to leave them as they are.
        """
        resources = [
            resource
            for resource in instance.resources or ()
            if resource.provider_uuid == self._plan.root.uuid
        ]
        resources += [
            objects.Resource(
                provider_uuid=slot.provider,
                resource_class=slot.resource_class,
                identifier=slot.identifier,
            )
            for slot in sorted(slots)
        ]
        instance.resources = (
            objects.ResourceList(objects=resources) if resources else None
        )
        flavor = instance.flavor
        flavor.extra_specs = dict(specs)
        instance.flavor = flavor
        if requests is not None:
            instance.pci_requests = requests
        instance.save()


def _check(
    server: records.AdoptedServer, actual: Any, expected: Any, what: str
) -> None:
    """Check that something of a server is as it was, or as it will be.

    :raises PlanError: it is neither.
    """
    if actual not in expected:
        raise reshape.PlanError(
            f"the {what} of server {server.uuid} have changed; run"
            " `nova-accel adopt plan` and `apply` again"
        )
