# SPDX-License-Identifier: Apache-2.0
"""Columns of the commands about the fleet.

A table prints the text of a cell, the formats for programs its value. The
columns and the values are version 1 of the interface
(``openstack.accel.v1``): a later release adds columns, and renames none.
"""

import dataclasses
import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence

from nova_accel.cli import application
from placement_sync.client import nova_api
from placement_sync.fleet.cli import unoffered_list
from placement_sync.fleet.devices import (
    device_rows,
    drain_notes,
    holder_rows,
    host_reports,
)

Cells = Mapping[str, object]

DEVICES = (
    *("Host", "Address", "Model", "State", "Mode", "In use", "Servers"),
    "Still fits",
)
DEVICES_LONG = (
    *(*DEVICES, "Device ID", "Profiles", "Traits", "Drains"),
    *("Last report", "Fault"),
)
ALLOCATIONS = (
    *("Server ID", "Server", "Project", "Host", "Address", "Profile"),
    "Units",
)
ALLOCATIONS_LONG = (*ALLOCATIONS, "Status", "Flavor", "Model", "Device ID")
HOSTS = (
    *("Host", "Service", "Devices", "States", "In use", "Servers"),
    "Last report",
)
#: Column that lists have with accelerators that are not offered.
UNOFFERED = "Not offered"
#: Column with the version of nova-accel of a host.
VERSION = "Version"
USAGES = ("Project", "Resource class", "Units", "Servers", "Devices")

_MIG = "mig"
# A cell without a value, and devices that take no servers.
_NONE = "-"
_NOT_OFFERED = "not offered"


def build_device(
    row: device_rows.DeviceRow,
    has_holders: bool = True,
    is_long: bool = True,
) -> Cells:
    """Return the cells of a device.

    :param has_holders: whether its holders were read.
    :param is_long: whether to return all columns.
    """
    cells: dict[str, object] = {
        "Host": row.device.host,
        "Address": row.device.address,
        "Model": as_model(row.model),
        "State": row.state,
        "Mode": _mode(row.mode),
        "In use": _usage(row.usage),
        "Servers": _count(row.consumers, has_holders),
        "Still fits": application.Cell(
            [_free_profile(p) for p in row.fits[:1]], _fits(row)
        ),
    }
    if not is_long:
        return cells
    traits = sorted(row.device.traits)
    return {
        **cells,
        "Device ID": row.device.uuid,
        "Profiles": application.Cell(
            [_free_profile(p) for p in row.fits],
            ", ".join(map(str, row.fits)) or _NONE,
        ),
        "Traits": application.Cell(traits, ", ".join(traits)),
        "Drains": application.Cell(
            [_drain_value(note) for note in row.drains],
            _describe_drains(row) or _NONE,
        ),
        "Last report": _report(row.device.service),
        "Fault": application.Cell(row.fault or None, row.fault or _NONE),
    }


def build_device_fields(
    row: device_rows.DeviceRow, holders: Iterable[holder_rows.AllocationRow]
) -> Cells:
    """Return all that is known of one device, with its holders."""
    cells = build_device(row)
    capacities = {
        name: {"total": c.total, "reserved": c.reserved, "used": c.used}
        for name, c in sorted(row.device.capacities.items())
    }
    holder_cells = [build_allocation(holder) for holder in holders]
    return {
        **{_key(name): cells[name] for name in DEVICES_LONG},
        "inventories": application.Cell(
            capacities,
            "\n".join(
                f"{name}: {n['used']} of {n['total']} used,"
                f" {n['reserved']} reserved"
                for name, n in capacities.items()
            ),
        ),
        "holders": application.Cell(
            [
                {_key(name): _value(c[name]) for name in ALLOCATIONS_LONG}
                for c in holder_cells
            ],
            "\n".join(
                f"{c['Server'] or c['Server ID']}: {c['Profile']}"
                for c in holder_cells
            )
            or _NONE,
        ),
    }


def build_allocation(row: holder_rows.AllocationRow) -> Cells:
    """Return the cells of an allocation, all columns."""
    server, device = row.server, row.device
    return {
        "Server ID": row.consumer,
        "Server": server.name if server else "",
        "Project": application.Cell(
            row.project, row.project_name or row.project
        ),
        "Host": device.host if device is not None else "",
        "Address": device.address if device is not None else "",
        "Profile": application.Cell(
            [part.name for part in row.parts],
            ", ".join(map(str, row.parts)),
        ),
        "Units": application.Cell(
            dict(sorted(row.amounts.items())),
            holder_rows.format_amounts(row.amounts),
        ),
        "Status": server.status if server else "",
        "Flavor": server.flavor.name if server and server.flavor else "",
        "Model": as_model(row.model),
        "Device ID": device.uuid if device is not None else "",
    }


def build_host(row: holder_rows.HostRow, has_holders: bool = True) -> Cells:
    """Return the cells of a host; see ``build_device``."""
    return {
        "Host": row.name,
        "Service": "disabled" if row.is_disabled else "enabled",
        "Devices": sum(row.states.values()),
        "States": application.Cell(
            dict(row.states),
            ", ".join(f"{n} {state}" for state, n in row.states.items()),
        ),
        "In use": application.Cell(
            [_usage_value(usage) for usage in row.usages],
            ", ".join(map(str, row.usages)),
        ),
        "Servers": _count(row.consumers, has_holders),
        "Last report": _report(row.service),
    }


def add_unoffered(
    rows: Iterable[Cells], hosts: Iterable[unoffered_list.HostAccelerators]
) -> list[Cells]:
    """Return the cells of devices, and of accelerators without a device."""
    none = application.Cell(None, _NONE)
    empty = dict.fromkeys(DEVICES_LONG, none)
    lists = dict.fromkeys(
        ("Still fits", "Profiles", "Traits", "Drains"),
        application.Cell([], _NONE),
    )
    return [
        *({**row, UNOFFERED: none} for row in rows),
        *(
            {
                **empty,
                **lists,
                "Host": host.name,
                "Address": item.address,
                "Model": item.model,
                "State": _NOT_OFFERED,
                "Last report": _report(host.service),
                UNOFFERED: item.reason,
            }
            for host in hosts
            for item in host.accelerators
        ),
    ]


def add_hosts(
    rows: Iterable[Cells], hosts: Collection[unoffered_list.HostAccelerators]
) -> list[Cells]:
    """Return the cells of hosts with what they do not offer.

    Hosts that offer nothing are added if they have such accelerators.
    """
    listed = list(rows)
    by_name = {host.name: host for host in hosts}
    names = {row["Host"] for row in listed}
    others = [h for h in hosts if h.accelerators and h.name not in names]
    empty = {
        "Service": application.Cell(None, _NONE),
        "Devices": 0,
        "States": application.Cell({}, _NONE),
        "In use": application.Cell([], _NONE),
        "Servers": 0,
    }
    return [
        *(
            {**row, UNOFFERED: _unoffered(by_name.get(str(row["Host"])))}
            for row in listed
        ),
        *(
            {
                **empty,
                "Host": host.name,
                "Last report": _report(host.service),
                UNOFFERED: _unoffered(host),
            }
            for host in others
        ),
    ]


def add_versions(
    rows: Iterable[Cells], hosts: Iterable[unoffered_list.HostAccelerators]
) -> list[Cells]:
    """Return the cells of hosts with their versions; null if not known."""
    versions = {host.name: host.version for host in hosts if host.version}
    return [
        {
            **row,
            VERSION: application.Cell(
                versions.get(str(row["Host"])),
                versions.get(str(row["Host"]), "unknown"),
            ),
        }
        for row in rows
    ]


def _unoffered(
    host: unoffered_list.HostAccelerators | None,
) -> application.Cell:
    """Return the accelerators of a host; null if they are not known."""
    if host is None or host.unknown:
        return application.Cell(None, "unknown")
    return application.Cell(
        [dataclasses.asdict(item) for item in host.accelerators],
        "\n".join(map(str, host.accelerators)) or _NONE,
    )


def build_usage(row: holder_rows.ProjectUsage) -> Cells:
    return {
        "Project": application.Cell(row.project, row.label),
        "Resource class": row.resource_class,
        "Units": row.units,
        "Servers": len(row.consumers),
        "Devices": len(row.devices),
    }


def as_output(
    columns: Sequence[str],
    rows: Sequence[Cells],
    *,
    note: str = "",
    status: int = 0,
) -> application.Table:
    return application.Table(
        columns=columns,
        rows=[[row[column] for column in columns] for row in rows],
        notes=note,
        status=status,
    )


def _key(column: str) -> str:
    return column.lower().replace(" ", "_")


def _value(cell: object) -> object:
    if isinstance(cell, application.Cell):
        return cell.machine_readable()
    return cell


def _count(consumers: Collection[str], is_known: bool) -> object:
    return len(consumers) if is_known else application.Cell(None, _NONE)


def _mode(mode: str) -> object:
    if not mode:
        return application.Cell(None, _NONE)
    return mode.upper() if mode == _MIG else mode


def as_model(model: str) -> object:
    """Return a model, None for programs if it is not known."""
    return application.Cell(None, _NONE) if model == _NONE else model


def _usage(usage: device_rows.UnitUsage) -> application.Cell:
    return application.Cell(_usage_value(usage), str(usage))


def _usage_value(usage: device_rows.UnitUsage) -> dict[str, object] | None:
    if not usage.unit:
        return None
    return {"used": usage.used, "total": usage.total, "unit": usage.unit}


def _free_profile(profile: device_rows.FreeProfile) -> dict[str, object]:
    return {"profile": profile.name, "count": profile.count}


def _fits(row: device_rows.DeviceRow) -> str:
    if row.largest is not None:
        return str(row.largest)
    is_full = row.state == "ok" and bool(row.usage.unit)
    reasons = [_describe_drains(row), row.fault]
    if row.device.service is not None and row.device.is_stale:
        service = row.device.service
        reasons.append(host_reports.describe_silence(service, _now()))
    text = "; ".join(filter(None, reasons))
    return "nothing" if is_full else text or _NONE


def _describe_drains(row: device_rows.DeviceRow) -> str:
    return drain_notes.describe_all(row.drains, _now())


def _report(service: nova_api.ComputeService | None) -> application.Cell:
    """Return the last report of a host; null for one that is not known."""
    value = service and {
        "host": service.host,
        "is_up": service.is_up,
        "time": service.reported or None,
    }
    return application.Cell(value, host_reports.describe(service, _now()))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _drain_value(note: drain_notes.DrainNote) -> dict[str, object]:
    """Return a note; ``unknown`` is the reason why it is not known."""
    return {
        "reason": None if note.unknown else note.reason,
        "author": note.author or None,
        "since": note.since or None,
        "unknown": f"{note.unknown}: {note.detail}" if note.unknown else None,
    }
