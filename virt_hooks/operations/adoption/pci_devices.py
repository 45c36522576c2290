# SPDX-License-Identifier: Apache-2.0
"""Nova's own records of PCI functions, and of servers' requests for them.

Rows of ``pci_devices`` are read and written by Nova's own tracker, before
that of the service reads them: a function that is allocated in them stays in
its tracker, and in Placement, whatever ``[pci] device_spec`` says.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.objects import fields
from nova.pci import manager
from nova.pci import request as pci_request
from nova.virt import hardware

from nova_accel.inventory.adoption import records, reshape

_AGAIN = "run `nova-accel adopt plan` and `apply` again"


class PciDevices:
    """Records of the functions of one compute node."""

    def __init__(self, plan: records.Plan) -> None:
        """Read the records.

        :raises nova.exception.NovaException: Nova's conductor can't.
        """
        self._context = nova_context.get_admin_context()
        node = objects.ComputeNode.get_by_uuid(self._context, plan.root.uuid)
        self._tracker = manager.PciDevTracker(self._context, node)

    @property
    def _rows(self) -> dict[str, Any]:
        return {each.address: each for each in self._tracker.pci_devs}

    # -- adoption ----------------------------------------------------------

    def record(
        self, plan: records.Plan, instances: Iterable[Any]
    ) -> records.Plan:
        """Return the plan with the requests of its servers.

        Those that are recorded already stay: an interrupted adoption may
        have freed their functions.

        :param instances: the servers of the host.
        :raises PlanError: Nova assigned the functions otherwise.
        """
        present = {each.uuid: each for each in instances}
        recorded = dataclasses.replace(
            plan,
            servers=tuple(
                self._record(server, present[server.uuid])
                if server.uuid in present and not server.requests
                else server
                for server in plan.servers
            ),
        )
        owners = {
            unit.address: server.uuid
            for server in recorded.servers
            for unit in server.units
        }
        rows = self._rows
        for address in recorded.functions:
            owner = _owner(rows.get(address))
            if owner not in (None, owners.get(address)):
                raise reshape.PlanError(
                    f"Nova has assigned {address} to {owner}, and the plan to"
                    f" {owners.get(address) or 'none'}; {_AGAIN}"
                )
        return recorded

    def _record(
        self, server: records.AdoptedServer, instance: Any
    ) -> records.AdoptedServer:
        names = {
            request.request_id: request.alias_name
            for request in instance.pci_requests.requests
        }
        rows = self._rows
        requests: dict[str, str] = {}
        for unit in server.units:
            row = rows.get(unit.address)
            owner = _owner(row)
            if (
                row is None
                or owner != server.uuid
                or names.get(row.request_id, "") != unit.alias
            ):
                raise reshape.PlanError(
                    f"Nova has assigned {unit.address} to {owner or 'none'},"
                    f" and the plan to {server.uuid} by alias"
                    f" {unit.alias}; {_AGAIN}"
                )
            requests[unit.address] = row.request_id
        return _set_requests(server, instance.pci_requests.to_json(), requests)

    def free(self, plan: records.Plan) -> None:
        """Free the functions of the servers; Nova forgets them. Idempotent."""
        owners = {
            unit.address: server.uuid
            for server in plan.servers
            for unit in server.units
        }
        for row in self._rows.values():
            owner = _owner(row)
            if owner is not None and owners.get(row.address) == owner:
                row.free()
        self._tracker.save(self._context)

    # -- undo --------------------------------------------------------------

    def record_back(
        self,
        plan: records.Plan,
        instances: Iterable[Any],
        list_functions: Callable[[], str],
    ) -> records.Plan:
        """Return the plan of an undo with the requests of all servers.

        Those of servers that were not adopted are made as Nova's API does.

        :param list_functions: returns the functions of the host, in JSON, as
            Nova's driver describes them.
        :raises PlanError: ``[pci] device_spec`` or ``alias`` lacks something
            of the plan, or Nova has assigned a function already.
        """
        self._tracker.update_devices_from_hypervisor_resources(
            list_functions()
        )
        present = {each.uuid: each for each in instances}
        rows = self._rows
        for server in plan.servers:
            for unit in server.units:
                row = rows.get(unit.address)
                if row is None:
                    raise reshape.PlanError(
                        f"no line of [pci] device_spec names {unit.address}"
                        f" of server {server.uuid}; set it as it was before"
                        " the adoption"
                    )
                is_free = row.status == fields.PciDeviceStatus.AVAILABLE
                owner = _owner(row)
                if owner != server.uuid and not is_free:
                    raise reshape.PlanError(
                        f"Nova has {unit.address} of server {server.uuid} as"
                        f" {row.status}, of {owner or 'none'}"
                    )
        return dataclasses.replace(
            plan,
            servers=tuple(
                _build_requests(server, present[server.uuid])
                if server.uuid in present and not server.requests
                else server
                for server in plan.servers
            ),
        )

    def assign(self, plan: records.Plan, instances: Iterable[Any]) -> None:
        """Assign the functions to the servers again. Idempotent.

        :param plan: result of ``record_back``.
        """
        rows = self._rows
        present = {each.uuid for each in instances}
        for server in plan.servers:
            for unit in server.units if server.uuid in present else ():
                row = rows[unit.address]
                if _owner(row) != server.uuid:
                    row.claim(server.uuid)
                    row.request_id = unit.request
                    row.allocate({"uuid": server.uuid})
        self._tracker.save(self._context)


def _owner(row: Any) -> str | None:
    """Return the server that has a function; a new row has no such field."""
    if row is None or "instance_uuid" not in row:
        return None
    owner: str | None = row.instance_uuid
    return owner


def build_requests_after(
    server: records.AdoptedServer, instance: Any
) -> objects.InstancePCIRequests:
    """Return a server's requests without those of its adopted functions.

    :param server: of a plan that ``PciDevices.record`` returned.
    """
    requests = parse_requests(server, instance)
    for unit in server.units:
        for request in requests.requests:
            if request.request_id == unit.request:
                request.count -= 1
    requests.requests = [each for each in requests.requests if each.count > 0]
    return requests


def parse_requests(
    server: records.AdoptedServer, instance: Any
) -> objects.InstancePCIRequests:
    """Return the recorded requests of a server."""
    return objects.InstancePCIRequests.obj_from_db(
        nova_context.get_admin_context(), instance.uuid, server.requests
    )


def _build_requests(
    server: records.AdoptedServer, instance: Any
) -> records.AdoptedServer:
    """Return a server with the requests of its flavor before.

    :raises PlanError: ``[pci] alias`` has no such alias.
    """
    flavor = instance.flavor.obj_clone()
    flavor.extra_specs = dict(server.specs_before)
    try:
        built = pci_request.get_pci_requests_from_flavor(
            flavor,
            hardware.get_pci_numa_policy_constraint(
                flavor, instance.image_meta
            ),
        )
    except exception.NovaException as error:
        raise reshape.PlanError(
            f"[pci] alias does not fit server {server.uuid}: {error}"
        ) from error
    by_alias = {r.alias_name: r.request_id for r in built.requests}
    built.requests += [
        request
        for request in instance.pci_requests.requests
        if request.alias_name is None  # of a network port
    ]
    return _set_requests(
        server,
        built.to_json(),
        {unit.address: by_alias[unit.alias] for unit in server.units},
    )


def _set_requests(
    server: records.AdoptedServer, text: str, requests: dict[str, str]
) -> records.AdoptedServer:
    return dataclasses.replace(
        server,
        requests=text,
        partitions=tuple(
            dataclasses.replace(
                partition,
                units=tuple(
                    dataclasses.replace(unit, request=requests[unit.address])
                    for unit in partition.units
                ),
            )
            for partition in server.partitions
        ),
    )
