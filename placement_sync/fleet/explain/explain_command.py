# SPDX-License-Identifier: Apache-2.0
"""Command ``explain``: reasons why each card serves a flavor or not."""

import argparse
import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence

from nova_accel import errors
from nova_accel.catalog import loader, profile_order
from nova_accel.cli import application, command_manager
from nova_accel.model import names
from placement_sync.cli import common_options
from placement_sync.client import provider_records, rest
from placement_sync.fleet.cli import fleet_command
from placement_sync.fleet.explain import (
    card_explainer,
    node_simulation,
    server_request,
    simulation,
)
from placement_sync.fleet.flavors import cloud, lookup, offered_devices

_NO_HOST = 1
_COLUMNS = ("Host", "Card", "Verdict", "Why")
_COLUMNS_LONG = (*_COLUMNS, "Host ID", "Device ID", "Fits", "Refused")
_LEGEND = (
    "first: Nova takes it on this host; fits: in another choice that fits;"
    " refused: by the filter; left out: by Placement"
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        metavar="SERVER|FLAVOR",
        help="explain for the flavor, zone, hints and project of this server,"
        " by uuid, or its name in your own project; or for a flavor, by id or"
        " name; a name of both is refused",
    )
    parser.add_argument(
        "--flavor",
        metavar="FLAVOR",
        help="read the extra specs of this flavor, by name or id, from Nova",
    )
    parser.add_argument(
        "--extra-spec",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set an extra spec; may be repeated. Without --flavor Nova is"
        " not queried; with it, this value replaces the flavor's own",
    )
    parser.add_argument(
        "--long",
        action="store_true",
        help="print also uuids, and for each host the numbers of candidates"
        " that fit and that the filter refuses",
    )
    fleet_command.add_host(parser, "print only cards")


def _run(arguments: argparse.Namespace) -> application.Output:
    """Return the verdicts, and 1 if no host can serve.

    :raises MalformedError: an argument can't be used.
    :raises ServiceError: Placement or Nova does not respond.
    :raises RejectedError: Placement rejects the flavor's groups.
    """
    reader = fleet_command.CloudReader(arguments)
    server = _find_server(arguments, reader)
    if server is None:
        simulated = _build_request(arguments, reader)
    else:
        simulated = _with_specs(arguments, server.simulated)
    devices, gap = reader.read_cloud()
    tree = ""
    if arguments.hosts:
        of_hosts = lookup.select_hosts(devices.devices, arguments.hosts)
        # Placement's query takes one tree.
        trees = {device.root for device in of_hosts}
        tree = trees.pop() if len(trees) == 1 else ""
        devices = offered_devices.Cloud(
            devices=tuple(of_hosts), hosts=devices.hosts
        )
    excluded: Mapping[str, str] = {}
    if server is not None:
        groups = server_request.read_host_groups(reader.compute, server)
        excluded = server_request.explain_exclusions(server, groups)
    client = reader.placement
    if simulated.accelerators.groups:
        drains = reader.describe_drains(devices.devices)
        result = _simulate_choices(
            simulated,
            functools.partial(
                simulate,
                client,
                devices=devices,
                tree=tree,
                excluded=excluded,
                drains=drains,
            ),
        )
    else:
        result = _simulate_nodes(arguments, client, simulated, devices)
    status = 0 if result.is_possible else _NO_HOST
    notes = [*result.notes, *([f"not known: {gap}"] if gap else [])]
    if server is not None:
        notes = [*server_request.list_notes(server), *notes]
    result = dataclasses.replace(result, notes=tuple(notes))
    return _format(
        result, status, arguments.long, arguments.formatter == "table"
    )._replace(head=server.describe() if server else "")


def _simulate_choices(
    simulated: simulation.SimulatedRequest,
    run: Callable[[simulation.SimulatedRequest], simulation.SimulationResult],
) -> simulation.SimulationResult:
    """Return the result of the first choice that fits, or of the first one.

    A note names the choice of a flavor that has several.

    :raises MalformedError: the list of choices can't be used.
    """
    choices = profile_order.list_choices(simulated.specs, loader.load())
    if not choices:
        return run(simulated)
    results = []
    for number, choice in enumerate(choices, 1):
        attempt = dataclasses.replace(simulated, specs=choice.specs)
        results.append(run(attempt))
        if results[-1].is_possible:
            note = f"{choice.name} is choice {number} of {len(choices)}"
            break
    else:
        note = f"no host can serve {', '.join(c.name for c in choices)}"
        results.append(results[0])
    return dataclasses.replace(
        results[-1], notes=(f"{profile_order.KEY}: {note}", *results[-1].notes)
    )


def _find_server(
    arguments: argparse.Namespace, reader: fleet_command.CloudReader
) -> server_request.ServerRequest | None:
    """Return the server of the arguments; else set the flavor, if any.

    :raises MalformedError: the arguments name a flavor, too.
    :raises ServiceError: Nova does not respond.
    """
    name = arguments.name
    if not name:
        return None
    if arguments.flavor:
        raise command_manager.UsageError(
            f"{name} and --flavor name two requests; remove one of them"
        )
    compute = reader.compute
    server = server_request.find_request(compute, name)
    if server is None:
        arguments.flavor = name
    # Users choose the names of servers.
    elif name in {flavor.name for flavor in cloud.list_flavors(compute)}:
        raise errors.MalformedError(
            "name of one object",
            name,
            f"--flavor {name}, or the uuid of the server with this name:"
            f" {server.server.uuid}",
        )
    return server


def _with_specs(
    arguments: argparse.Namespace, simulated: simulation.SimulatedRequest
) -> simulation.SimulatedRequest:
    specs = {**simulated.specs, **_parse_pairs(arguments.extra_spec)}
    return dataclasses.replace(simulated, specs=specs)


def _simulate_nodes(
    arguments: argparse.Namespace,
    client: rest.RestClient,
    simulated: simulation.SimulatedRequest,
    devices: offered_devices.Cloud,
) -> simulation.SimulationResult:
    """Return the verdicts on bare-metal nodes.

    :raises MalformedError: the request is for no node either.
    """
    group = node_simulation.find_group(simulated, devices.devices)
    if group is None:
        flavor = arguments.name or arguments.flavor or "the request"
        raise command_manager.UsageError(
            f"{flavor} asks for no accelerator; name one that asks for"
            " accelerators, or add --extra-spec resources_GPU1:VGPU=1 and so"
            " on"
        )
    return node_simulation.simulate(
        client.fetch, simulated, group, devices.devices
    )


def simulate(
    client: rest.RestClient,
    simulated: simulation.SimulatedRequest,
    devices: offered_devices.Cloud,
    tree: str = "",
    excluded: Mapping[str, str] = types.MappingProxyType({}),
    drains: Mapping[str, str] = types.MappingProxyType({}),
) -> simulation.SimulationResult:
    """Return the verdicts of Placement and of the filter.

    :param client: client of Placement.
    :param devices: the devices that get a verdict.
    :param tree: uuid of the only compute node to simulate.
    :param excluded: see ``SimulationContext``, and for ``drains``.
    :raises ServiceError: Placement does not respond.
    :raises RejectedError: Placement rejects the flavor's groups.
    """
    disabled = provider_records.list_with_trait(
        client.fetch, names.DISABLED_TRAIT
    )
    return simulation.simulate(
        client.fetch,
        simulated,
        simulation.SimulationContext(
            cloud=devices,
            disabled={provider.uuid for provider in disabled},
            excluded=excluded,
            drains=drains,
        ),
        offered_devices.VgpuTypes(loader.load()),
        tree,
    )


def _build_request(
    arguments: argparse.Namespace, reader: fleet_command.CloudReader
) -> simulation.SimulatedRequest:
    """Return the request for a server of the flavor in the arguments.

    :raises MalformedError: the arguments name no flavor, or a flavor that
        Nova does not have.
    :raises ServiceError: Nova does not respond.
    """
    specs: dict[str, str] = {}
    needs: dict[str, int] = {}
    if arguments.flavor:
        flavor = cloud.find_flavor(reader.compute, arguments.flavor)
        specs.update(flavor.specs)
        needs.update(flavor.needs_with_disk)
    return _with_specs(
        arguments, simulation.SimulatedRequest(specs=specs, needs=needs)
    )


def _parse_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """Return extra specs by key.

    :raises MalformedError: an item is not KEY=VALUE.
    """
    specs = {}
    for text in pairs:
        key, sign, value = text.partition("=")
        if not (key and sign):
            raise errors.MalformedError("--extra-spec", text, "KEY=VALUE")
        specs[key.strip()] = value.strip()
    return specs


def _format(
    result: simulation.SimulationResult,
    status: int,
    is_long: bool,
    is_table: bool,
) -> application.Table:
    """Return the verdicts; cards of other models are one line of a table."""
    is_brief = is_table and not is_long
    hosts = sum(bool(host.fits) for host in result.hosts)
    count = f"{hosts} of {len(result.hosts)} hosts can serve the flavor now."
    head = [count, f"({_LEGEND})"] if result.hosts else [simulation.NO_CARD]
    lines = [*head, *(f"Note: {note}." for note in result.notes)]
    if is_brief and (others := result.describe_others()):
        lines.insert(1, f"Left out: {others} (--long lists them).")
    return application.Table(
        columns=_COLUMNS_LONG if is_long else _COLUMNS,
        rows=[
            (
                host.name,
                names.provider_address(host.name, card.name),
                card.verdict,
                card.why,
                *((host.uuid, card.uuid, host.fits, host.refused) * is_long),
            )
            for host in result.hosts
            for card in host.cards
            if not (is_brief and card.why == card_explainer.OTHER_MODEL)
        ],
        notes="\n".join(lines) + "\n",
        status=status,
    )


ACTION = common_options.build_cloud_action(_add_arguments, _run)
