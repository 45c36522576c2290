# SPDX-License-Identifier: Apache-2.0
"""Commands that list devices, allocations, hosts and projects."""

import argparse
import dataclasses
import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence

from nova_accel import errors
from nova_accel.catalog import loader
from nova_accel.cli import application, command_manager
from placement_sync.cli import common_options, progress
from placement_sync.client import nova_api, provider_records, rest
from placement_sync.fleet import projects
from placement_sync.fleet.cli import (
    fleet_output,
    host_calls,
    unoffered_list,
)
from placement_sync.fleet.devices import (
    device_rows,
    drain_notes,
    fleet_query,
    fleet_reader,
    fleet_state,
    holder_rows,
    host_reports,
)
from placement_sync.fleet.flavors import offered_devices

_OK, _INCOMPLETE = 0, 1
_DEVICE = (
    "HOST/ADDRESS, ADDRESS or uuid of the device, for example"
    " node1/0000:41:00.0; the address of a card includes its regions"
)
# Devices whose holders are counted unless more are asked for: each costs a
# request.
MOST_COUNTED = 100
_NO_DEVICE = "No host offers any accelerator.\n"


def add_host(
    parser: argparse.ArgumentParser, subject: str = "list only devices"
) -> None:
    """Add the filter by host.

    :param subject: beginning of its help, before "of this compute node".
    """
    # The credentials set ``host`` to None: these commands are of all hosts.
    parser.add_argument(
        "--host",
        metavar="HOST",
        dest="hosts",
        action="append",
        default=[],
        help=f"{subject} of this compute node; may be repeated",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the filter by model."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="list only cards of this model, for example A40",
    )


def _add_servers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--servers",
        action="store_true",
        help="count the servers of all listed devices, with one request for"
        f" each; by default of up to {MOST_COUNTED} devices in use",
    )


def _add_device_arguments(parser: argparse.ArgumentParser) -> None:
    add_host(parser)
    add_model(parser)
    _add_servers(parser)
    parser.add_argument(
        "--state",
        choices=fleet_query.STATES,
        help="list only devices in this state",
    )
    parser.add_argument(
        "--free",
        action="store_true",
        help="list only devices that have room for a profile",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="list also accelerators that are not offered, with the reason, as"
        " nova-compute of each host reads them",
    )
    parser.add_argument(
        "--long",
        action="store_true",
        help="print also the uuid, all profiles that fit, and the traits",
    )


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", help=_DEVICE)


def _add_allocation_arguments(parser: argparse.ArgumentParser) -> None:
    add_host(parser)
    add_model(parser)
    parser.add_argument(
        "--device", metavar="DEVICE", default="", help=f"list only {_DEVICE}"
    )
    parser.add_argument(
        "--server",
        metavar="SERVER",
        help="list only allocations of this server, by uuid, or by its name in"
        " your own project",
    )
    parser.add_argument(
        "--project",
        metavar="PROJECT",
        help="list only allocations of servers of this project, by id, or by"
        " its name if one project has it",
    )
    parser.add_argument(
        "--profile",
        metavar="PROFILE",
        help="list only allocations of this profile, for example A40-8Q",
    )
    parser.add_argument(
        "--long",
        action="store_true",
        help="print also status, flavor, model and the device's uuid",
    )


def _add_usage_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--project",
        metavar="PROJECT",
        help="print only this project, by id, or by its name if one project"
        " has it",
    )
    add_host(parser)
    add_model(parser)


def _add_host_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    _add_servers(parser)
    parser.add_argument(
        "--long",
        action="store_true",
        help="print also the version of each nova-compute's nova-accel, and"
        " the accelerators that it does not offer, with the reason",
    )


class CloudReader:
    """Clients and options of the arguments, and the catalog of vGPU types."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Send no request yet."""
        self._arguments = arguments
        self.options = common_options.resolve_options(arguments)
        self.placement, self.compute, self._identity = (
            common_options.open_client(arguments, self.options, service)
            for service in (rest.PLACEMENT, rest.COMPUTE, rest.IDENTITY)
        )
        self.types = offered_devices.VgpuTypes(loader.load())

    def read(
        self, query: fleet_query.FleetQuery, limit: int | None = None
    ) -> fleet_state.Fleet:
        """Return the devices of a query with the reports of their hosts.

        Two more requests, to Nova; reports that it does not show are a gap.

        :param limit: see ``fleet_reader.read``.
        :raises AcceleratorError: the query can't be used, or Placement fails.
        """
        reports, gap = host_reports.read(self.compute)
        query = dataclasses.replace(query, reports=reports)
        fleet = fleet_reader.read(self.placement, query.select, limit)
        gaps = (*fleet.gaps, gap) if gap else fleet.gaps
        return dataclasses.replace(fleet, gaps=gaps)

    def read_cloud(self) -> tuple[offered_devices.Cloud, str]:
        """Return all devices with the reports of hosts, and the gap, if any.

        :raises ServiceError: Placement can't be read.
        """
        return fleet_reader.read_cloud(self.placement, self.compute)

    def add_servers(self, fleet: fleet_state.Fleet) -> fleet_state.Fleet:
        """Return a fleet with the holders' servers; warn of each gap."""
        fleet = fleet_reader.add_servers(fleet, self.compute)
        names, gaps = fleet_reader.read_project_names(
            fleet.servers.values(), self._identity
        )
        fleet = dataclasses.replace(
            fleet, project_names=names, gaps=(*fleet.gaps, *gaps)
        )
        _warn_of_gaps(fleet.gaps)
        return fleet

    def list_requested(
        self, servers: Sequence[nova_api.Server]
    ) -> tuple[holder_rows.AllocationRow, ...]:
        """Return what the flavors of servers request; warn of each gap."""
        names, gaps = fleet_reader.read_project_names(servers, self._identity)
        _warn_of_gaps(gaps)
        return holder_rows.list_requested(servers, self.types, names)

    @property
    def lists(self) -> host_calls.HostLists:
        """Return the client of many nova-compute services."""
        return host_calls.HostLists(
            self._arguments, self.options, self.compute
        )

    def add_notes(self, fleet: fleet_state.Fleet) -> fleet_state.Fleet:
        """Return a fleet with the notes on drained and faulted devices."""
        notes = self.lists.read_notes(fleet.devices)
        return dataclasses.replace(
            fleet, drains=notes.drains, faults=notes.faults
        )

    def list_unoffered(
        self,
        fleet: fleet_state.Fleet,
        hosts: Collection[str] = (),
        has_versions: bool = False,
    ) -> tuple[unoffered_list.HostAccelerators, ...]:
        """Return the hosts with the accelerators that they do not offer.

        :param hosts: names of the only hosts to ask.
        :param has_versions: whether to ask for their versions, too.
        :raises AcceleratorError: there is no such host, or Nova's API fails.
        """
        services = nova_api.list_services(self.compute)
        return unoffered_list.read(
            fleet, self.lists, services, hosts, has_versions
        )

    def describe_drains(
        self, devices: Iterable[offered_devices.OfferedDevice]
    ) -> Mapping[str, str]:
        """Return the known reasons of drained devices, by provider."""
        drained = [
            device
            for device in devices
            if fleet_query.find_state(device) == fleet_query.DRAINED
        ]
        now = datetime.datetime.now(datetime.UTC)
        texts = {
            uuid: drain_notes.describe_all(
                (note for note in notes if not note.unknown), now
            )
            for uuid, notes in self.lists.read_notes(drained).drains.items()
        }
        return {uuid: text for uuid, text in texts.items() if text}


def _list_devices(arguments: argparse.Namespace) -> application.Output:
    """Return the devices; holders are counted.

    Nova is asked for the last reports of hosts, and for those of drained
    devices.

    :raises AcceleratorError: an argument can't be used, or Placement fails.
    """
    _check_all(arguments)
    reader = CloudReader(arguments)
    query = fleet_query.FleetQuery(
        hosts=arguments.hosts,
        model=arguments.model or "",
        state=arguments.state or "",
        is_strict=not arguments.all,
    )
    fleet = reader.read(query, _limit_counted(arguments))
    if not arguments.free:  # a drained device has no room
        fleet = reader.add_notes(fleet)
    rows = device_rows.list_devices(fleet, reader.types)
    if arguments.free:
        rows = device_rows.select_free(rows)
    is_long = arguments.long
    columns = fleet_output.DEVICES_LONG if is_long else fleet_output.DEVICES
    cells = [
        fleet_output.build_device(row, fleet.has_holdings, is_long)
        for row in rows
    ]
    gaps: list[str] = []
    if arguments.all:
        hosts = reader.list_unoffered(fleet, arguments.hosts)
        columns = (*columns, fleet_output.UNOFFERED)
        cells = fleet_output.add_unoffered(cells, hosts)
        gaps = unoffered_list.list_gaps(hosts)
    note = _note(fleet, gaps) if cells else _explain_none(arguments, gaps)
    return fleet_output.as_output(columns, cells, note=note)


def _check_all(arguments: argparse.Namespace) -> None:
    """Check that ``--all`` is used without a filter of offered devices.

    :raises UsageError: it is not.
    """
    filters = {
        "--model": arguments.model,
        "--state": arguments.state,
        "--free": arguments.free,
    }
    used = [name for name, value in filters.items() if value]
    if arguments.all and used:
        raise command_manager.UsageError(
            f"{', '.join(used)} can't be used with --all, which also lists"
            " accelerators that are not offered; use --host to list fewer"
        )


def _explain_none(
    arguments: argparse.Namespace, gaps: Iterable[str] = ()
) -> str:
    filters = (arguments.hosts, arguments.model, arguments.state)
    is_filtered = any(filters) or arguments.free
    none = "No device passes the filters.\n" if is_filtered else _NO_DEVICE
    return none + _describe_gaps(gaps)


def _limit_counted(arguments: argparse.Namespace) -> int | None:
    return None if arguments.servers else MOST_COUNTED


def _note(fleet: fleet_state.Fleet, gaps: Iterable[str] = ()) -> str:
    note = (
        ""
        if fleet.has_holdings
        else f"More than {MOST_COUNTED} devices have servers: --servers counts"
        " them.\n"
    )
    return note + _describe_gaps((*fleet.gaps, *gaps))


def _describe_gaps(gaps: Iterable[str]) -> str:
    return "".join(f"Not known: {gap}.\n" for gap in gaps)


def _warn_of_gaps(gaps: Iterable[str]) -> None:
    progress.warn(*(f"not known: {gap}" for gap in gaps))


def _show_device(arguments: argparse.Namespace) -> application.Output:
    """Return one device with its holders.

    :raises AcceleratorError: there is no such device, or several have the
        address.
    """
    reader = CloudReader(arguments)
    query = fleet_query.FleetQuery(device=arguments.device, is_card=True)
    fleet = reader.read(query)
    if len(fleet.devices) != 1:
        listed = ", ".join(f"{d.host}/{d.address}" for d in fleet.devices)
        raise command_manager.UsageError(
            f"several devices are at {arguments.device}; name one of {listed}"
        )
    fleet = reader.add_notes(reader.add_servers(fleet))
    (row,) = device_rows.list_devices(fleet, reader.types)
    return application.Record(
        fleet_output.build_device_fields(
            row, holder_rows.list_allocations(fleet, reader.types)
        )
    )


def _list_allocations(arguments: argparse.Namespace) -> application.Output:
    """Return the allocations; those of own servers without admin rights.

    :raises AcceleratorError: an argument can't be used, or a service fails.
    """
    reader = CloudReader(arguments)
    status = _OK
    try:
        fleet = _read_holders(arguments, reader)
        rows = holder_rows.list_allocations(fleet, reader.types)
        status = _INCOMPLETE if fleet.gaps else _OK
    except errors.ServiceError as error:
        if not error.is_forbidden:
            raise
        rows = _list_own_servers(arguments, reader, error)
    if arguments.project:
        names = {row.project: row.project_name for row in rows}
        project = projects.select(arguments.project, names)
        rows = tuple(r for r in rows if project and r.project == project)
    rows = tuple(row for row in rows if _is_selected(arguments, row))
    is_long = arguments.long
    return fleet_output.as_output(
        fleet_output.ALLOCATIONS_LONG if is_long else fleet_output.ALLOCATIONS,
        [fleet_output.build_allocation(row) for row in rows],
        note="" if rows else _explain_no_holder(arguments),
        status=status,
    )


def _explain_no_holder(arguments: argparse.Namespace) -> str:
    devices = arguments.hosts, arguments.model, arguments.device
    servers = arguments.server, arguments.project, arguments.profile
    if any(devices + servers):
        return "No allocation passes the filters.\n"
    return "No server holds an accelerator.\n"


def _read_holders(
    arguments: argparse.Namespace, reader: CloudReader
) -> fleet_state.Fleet:
    """Return the fleet of the arguments; read only a server's own cards."""
    query = fleet_query.FleetQuery(
        hosts=arguments.hosts,
        model=arguments.model or "",
        device=arguments.device,
    )
    if not arguments.server:
        return reader.add_servers(
            fleet_reader.read(reader.placement, query.select)
        )
    if nova_api.is_uuid(arguments.server):
        consumers = {provider_records.check_uuid(arguments.server)}
    else:
        server = nova_api.find_single_server(reader.compute, arguments.server)
        consumers = {server.uuid}
    providers = fleet_reader.find_holders(reader.placement, consumers)
    fleet = fleet_reader.read(
        reader.placement,
        lambda devices: [
            d for d in query.select(devices) if d.uuid in providers
        ],
    )
    own = tuple(h for h in fleet.holdings if h.consumer in consumers)
    return reader.add_servers(dataclasses.replace(fleet, holdings=own))


def _list_own_servers(
    arguments: argparse.Namespace,
    reader: CloudReader,
    refusal: errors.ServiceError,
) -> tuple[holder_rows.AllocationRow, ...]:
    """Return what the flavors of the user's own servers request.

    :param refusal: the answer of Placement.
    :raises ServiceError: Nova can't be read; or Placement refuses, and the
        arguments ask for devices.
    """
    if arguments.hosts or arguments.model or arguments.device:
        raise refusal
    progress.warn(
        "Placement refuses to show devices and allocations to you"
        f" ({refusal.reason}): these are the accelerators in the flavors of"
        " your own servers, without hosts, devices and attached accelerators"
    )
    compute = reader.compute
    servers = tuple(
        [nova_api.find_single_server(compute, arguments.server)]
        if arguments.server
        else nova_api.list_servers(compute, {})
    )
    return reader.list_requested(servers)


def _is_selected(
    arguments: argparse.Namespace, row: holder_rows.AllocationRow
) -> bool:
    return not arguments.profile or any(
        part.is_of(arguments.profile) for part in row.parts
    )


def _list_hosts(arguments: argparse.Namespace) -> application.Output:
    """Return the hosts with devices, and their last reports to Nova.

    :raises AcceleratorError: an argument can't be used, or Placement fails.
    """
    reader = CloudReader(arguments)
    query = fleet_query.FleetQuery(model=arguments.model or "")
    fleet = reader.read(query, _limit_counted(arguments))
    rows = holder_rows.list_hosts(
        fleet, device_rows.list_devices(fleet, reader.types)
    )
    columns: Sequence[str] = fleet_output.HOSTS
    cells = [fleet_output.build_host(row, fleet.has_holdings) for row in rows]
    gaps: list[str] = []
    if arguments.long:
        hosts = reader.list_unoffered(fleet, has_versions=True)
        columns = (*columns, fleet_output.VERSION, fleet_output.UNOFFERED)
        cells = fleet_output.add_hosts(cells, hosts)
        cells = fleet_output.add_versions(cells, hosts)
        gaps = unoffered_list.list_gaps(hosts)
    note = _note(fleet, gaps) if cells else _NO_DEVICE + _describe_gaps(gaps)
    return fleet_output.as_output(columns, cells, note=note)


def _list_usages(arguments: argparse.Namespace) -> application.Output:
    """Return the units of each project.

    :raises AcceleratorError: an argument can't be used, or Placement fails.
    """
    reader = CloudReader(arguments)
    query = fleet_query.FleetQuery(
        hosts=arguments.hosts, model=arguments.model or ""
    )
    fleet = reader.add_servers(
        fleet_reader.read(reader.placement, query.select)
    )
    rows = holder_rows.sum_by_project(fleet)
    if arguments.project is not None:
        names = {row.project: row.name for row in rows}
        project = projects.select(arguments.project, names)
        rows = tuple(r for r in rows if project and r.project == project)
    return fleet_output.as_output(
        fleet_output.USAGES,
        [fleet_output.build_usage(row) for row in rows],
        note="" if rows else _explain_no_usage(arguments),
        status=_INCOMPLETE if fleet.gaps else _OK,
    )


def _explain_no_usage(arguments: argparse.Namespace) -> str:
    """Return that nothing is held of what the arguments select."""
    servers, devices = "No server", "an accelerator"
    if arguments.project is not None:
        servers += f" of a project with id or name {arguments.project!r}"
    if arguments.hosts or arguments.model:
        devices = "any of these devices"
    return f"{servers} holds {devices}.\n"


DEVICE_LIST = common_options.build_cloud_action(
    _add_device_arguments, _list_devices
)
DEVICE_SHOW = common_options.build_cloud_action(
    _add_show_arguments, _show_device
)
ALLOCATION_LIST = common_options.build_cloud_action(
    _add_allocation_arguments, _list_allocations
)
HOST_LIST = common_options.build_cloud_action(_add_host_arguments, _list_hosts)
USAGE_LIST = common_options.build_cloud_action(
    _add_usage_arguments, _list_usages
)
