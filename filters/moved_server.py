# SPDX-License-Identifier: Apache-2.0
"""A server that moves, as nova-scheduler reads it from its cell."""

import logging
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states

from filters.fit import device_shape
from nova_accel import errors
from nova_accel.config import logs
from placement_sync.client import provider_records

LOG = logging.getLogger(__name__)


def find_cell(spec: Any) -> Any:
    """Return the cell of a server that moves, None for any other.

    :param spec: a RequestSpec, in which Nova names the cell.
    """
    if "requested_destination" not in spec or "instance_uuid" not in spec:
        return None
    destination = spec.requested_destination
    if destination is None or "cell" not in destination:
        return None
    return destination.cell


def read(ctxt: Any, cell: Any, uuid: str, *attributes: str) -> Any:
    """Return the ``nova.objects.Instance`` of a server.

    :param attributes: those to load with it.
    :raises nova.exception.NovaException: it can't be read.
    """
    with nova_context.target_cell(ctxt.elevated(), cell) as cell_context:
        return objects.Instance.get_by_uuid(
            cell_context, uuid, expected_attrs=list(attributes)
        )


def read_shape(
    spec: Any, classes: frozenset[str], get: provider_records.Get
) -> device_shape.Shape | None:
    """Return the shape of the accelerators of a server that moves live.

    None for any other server, for one with a single device, and if it can't
    be read: then no candidate is preferred, and the destination may refuse.

    :param classes: resource classes of accelerators.
    :param get: sends a query to Placement, one for each device.
    """
    cell = find_cell(spec)
    if cell is None:
        return None
    try:
        instance = read(spec._context, cell, spec.instance_uuid, "resources")
        if instance.task_state != task_states.MIGRATING:
            return None
        units: dict[str, dict[str, int]] = {}
        for slot in instance.resources or ():
            if slot.resource_class in classes:
                by_class = units.setdefault(slot.provider_uuid, {})
                count = by_class.get(slot.resource_class, 0)
                by_class[slot.resource_class] = count + 1
        if len(units) <= 1:
            return None
        traits = {u: provider_records.fetch_traits(get, u) for u in units}
    except (errors.ServiceError, exception.NovaException) as error:
        logs.warning(
            LOG,
            "Can't read where the accelerators of server %s are: %s;"
            " scheduling goes on without preferring the same places",
            spec.instance_uuid,
            error,
        )
        return None
    return device_shape.build(
        (record[1], units[uuid])
        for uuid, record in traits.items()
        if record is not None
    )
