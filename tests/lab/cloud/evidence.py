# SPDX-License-Identifier: Apache-2.0
"""What is really there: looked at behind the services' backs.

Nothing here asks nova or placement: mdevs come from the compute host's
kernel, claims from nova's database, reasons from the services' logs.
"""

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
    found = {uuid: list(_identifiers(text)) for uuid, text in rows}
    return {uuid: slots for uuid, slots in found.items() if slots}


def _identifiers(text: str) -> Iterator[str]:
    """Yield the identifiers in a serialized ResourceList."""
    listed = json.loads(text)["nova_object.data"]["objects"]
    for item in listed:
        yield str(item["nova_object.data"]["identifier"])


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
    found = []
    # An --xpath query prints fragments: they get a root of their own.
    body = re.sub(r"<\?xml[^>]*>", "", domain_xml)
    root = ElementTree.fromstring(f"<r>{body}</r>")
    for hostdev in root.iter("hostdev"):
        source = hostdev.find("source/address")
        if hostdev.get("type") != kind or source is None:
            continue
        if kind == "mdev":
            found.append(str(source.get("uuid")))
        else:
            parts = ("domain", "bus", "slot", "function")
            numbers = [int(str(source.get(p)), 16) for p in parts]
            found.append("{:04x}:{:02x}:{:02x}.{:x}".format(*numbers))
    return found


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


def _rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()
