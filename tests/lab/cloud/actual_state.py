# SPDX-License-Identifier: Apache-2.0
"""State of the lab, read without the help of nova or placement.

Mdevs come from the compute host's
kernel, claims from nova's database, reasons from the services' logs.
"""

import dataclasses
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.lab.cloud.layout import Layout
from tests.lab.cloud.machine import on_hardware

MDEV_DEVICES = "/sys/bus/mdev/devices"
#: The parent that mtty, the kernel's sample driver, registers.
MTTY_TYPES = "/sys/class/mdev_bus/mtty/mdev_supported_types"

_CLAIMS = """
    SELECT i.uuid, e.resources FROM instances i
    JOIN instance_extra e ON e.instance_uuid = i.uuid
    WHERE i.deleted = 0 AND i.host IS NOT NULL AND e.resources IS NOT NULL
"""
_CONSUMERS = """
    SELECT i.uuid, i.host, i.vm_state, e.resources, e.migration_context
    FROM instances i JOIN instance_extra e ON e.instance_uuid = i.uuid
    WHERE i.deleted = 0
"""
_MOVE = "SELECT uuid, source_compute FROM migrations WHERE id = ?"


def mdevs(layout: Layout) -> set[str]:
    """Return the uuids of the mdevs that the compute host's kernel has."""
    return set(on_hardware(layout, ["ls", MDEV_DEVICES]).split())


def claims(layout: Layout) -> dict[str, list[str]]:
    """Return the slots that nova's database has for each server.

    Only a server with a host holds what its record says: a build that
    failed gives its claim back by losing the host, and the record stays
    (nova.compute.resource_tracker, abort_instance_claim).
    """
    rows = _rows(layout.databases / "nova_cell1.sqlite", _CLAIMS)
    slots_of = {uuid: list(_identifiers(text)) for uuid, text in rows}
    return {uuid: slots for uuid, slots in slots_of.items() if slots}


def _identifiers(text: str) -> Iterator[str]:
    """Yield the identifiers in a serialized ResourceList."""
    listed = json.loads(text)["nova_object.data"]["objects"]
    for item in listed:
        yield str(item["nova_object.data"]["identifier"])


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerSlots:
    """Slots of a consumer, as nova's database has them."""

    host: str
    #: a server, or the migration of one that has been moved and may go back
    consumer: str
    server: str
    #: providers, and the slots of them
    slots: frozenset[tuple[str, str]]


def consumer_slots(layout: Layout) -> Iterator[ConsumerSlots]:
    """Yield the slots of each server, and of each migration to revert."""
    path = layout.databases / "nova_cell1.sqlite"
    for uuid, host, state, resources, moved in _rows(path, _CONSUMERS):
        if host is not None:
            slots = _slots(json.loads(resources or "{}"))
            yield ConsumerSlots(host, uuid, uuid, slots)
        if state == "resized" and moved is not None:
            context = json.loads(moved)["nova_object.data"]
            number = int(context["migration_id"])
            ((move, source),) = _rows(path, _MOVE, number)
            old = _slots(context.get("old_resources") or {})
            yield ConsumerSlots(source, move, uuid, old)


def _slots(record: Any) -> frozenset[tuple[str, str]]:
    listed = record.get("nova_object.data", {}).get("objects", ())
    values = (item["nova_object.data"] for item in listed)
    return frozenset((v["provider_uuid"], v["identifier"]) for v in values)


def log_lines(log: Path, pattern: str, offset: int = 0) -> list[str]:
    """Return the lines of a log, after an offset, that match a pattern."""
    with log.open("rb") as file:
        file.seek(offset)
        text = file.read().decode(errors="replace")
    return [li for li in text.splitlines() if re.search(pattern, li)]


def hostdev_sources(domain_xml: str, kind: str) -> list[str]:
    """Return the hostdevs of one type in a domain's definition.

    A mediated device is named by its uuid (``mdev``), a PCI function by
    its address, as ``0000:02:00.0`` (``pci``).
    """
    sources = []
    # An --xpath query prints fragments: they get a root of their own.
    body = re.sub(r"<\?xml[^>]*>", "", domain_xml)
    root = ElementTree.fromstring(f"<r>{body}</r>")
    for hostdev in root.iter("hostdev"):
        source = hostdev.find("source/address")
        if hostdev.get("type") != kind or source is None:
            continue
        if kind == "mdev":
            sources.append(str(source.get("uuid")))
        else:
            parts = ("domain", "bus", "slot", "function")
            numbers = [int(str(source.get(p)), 16) for p in parts]
            sources.append("{:04x}:{:02x}:{:02x}.{:x}".format(*numbers))
    return sources


def server_names(layout: Layout) -> set[str]:
    """Return the names of the servers in nova's database."""
    path = layout.databases / "nova_cell1.sqlite"
    return _column(path, "SELECT display_name FROM instances WHERE deleted=0")


def flavor_names(layout: Layout) -> set[str]:
    """Return the names of the flavors in nova's database."""
    path = layout.databases / "nova_api.sqlite"
    return _column(path, "SELECT name FROM flavors")


def _column(path: Path, query: str) -> set[str]:
    """Return the values of a query's only column."""
    return {str(value) for (value,) in _rows(path, query)}


def _rows(path: Path, query: str, *values: int) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return database.execute(query, values).fetchall()
    finally:
        database.close()
