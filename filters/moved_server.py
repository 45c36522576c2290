# SPDX-License-Identifier: Apache-2.0
"""A server that moves, as nova-scheduler reads it from its cell."""

from typing import Any

from nova import context as nova_context
from nova import objects


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
