# SPDX-License-Identifier: Apache-2.0
"""``nova-accel explain``: reasons why each card serves a flavor or not."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from filters.explain import simulation
from filters.fit import fact_reader, vgpu_geometry
from nova_accel import errors
from nova_accel.catalog import loader
from nova_accel.cli import inspect_output
from nova_accel.model import names
from placement_sync.cli import common_options
from placement_sync.client import rest, tree_reader
from placement_sync.flavors import cloud, lookup, offered_devices

_NO_HOST = 1
_DISK = "DISK_GB"
_SERVER_ERROR = 500
_HEAD = ("HOST", "CARD", "VERDICT", "WHY")
_LEGEND = (
    "first: Nova takes it on this host; fits: in another choice that fits;"
    " refused: by the filter; left out: by Placement"
)


def add(subparsers: Any) -> None:
    """Add the command to the parser of ``nova-accel``."""
    parser = subparsers.add_parser(
        "explain",
        help="print for each card whether a flavor would get it, and why not",
        description="Send nova-scheduler's query for a server of the flavor"
        " to Placement, apply AcceleratorFilter to the candidates, and print"
        " the cards of each host with the reason. Nothing is changed."
        " Example: nova-accel explain --flavor gpu.small",
        epilog="exit status: 0 a host can serve the flavor; 1 no host can,"
        " or a service does not respond; 2 the input can't be used.",
        allow_abbrev=False,
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
    common_options.add_credentials(parser)
    common_options.add_compute_endpoint(parser)
    # add_credentials sets ``host`` to None: the command is of all hosts.
    parser.add_argument(
        "--host",
        metavar="HOST",
        dest="only_host",
        help="print only cards of this compute node",
    )


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """Return the table or JSON, and 1 if no host can serve.

    :raises MalformedError: an argument can't be used.
    :raises ServiceError: Placement or Nova does not respond.
    :raises QueryError: Placement rejects the flavor's groups.
    """
    chosen = common_options.resolve_options(arguments)
    simulated = _build_request(arguments, chosen)
    client = common_options.open_placement(arguments, chosen)
    devices = cloud.read(client)
    tree = ""
    if arguments.only_host:
        of_host = lookup.select_host(devices.devices, arguments.only_host)
        tree = of_host[0].root
        devices = offered_devices.Cloud(
            devices=tuple(of_host), hosts=devices.hosts
        )
    disabled = tree_reader.list_with_trait(client, simulation.DISABLED_TRAIT)
    result = simulation.simulate(
        build_getter(client),
        simulated,
        simulation.SimulationContext(
            cloud=devices, disabled={provider.uuid for provider in disabled}
        ),
        vgpu_geometry.VgpuGeometry(loader.load()),
        tree,
    )
    text = (
        json.dumps(simulation.as_dict(result), indent=2) + "\n"
        if arguments.json
        else _format(result)
    )
    return text, 0 if result.is_possible else _NO_HOST


def build_getter(client: rest.RestClient) -> fact_reader.Get:
    """Return a getter for the filter's modules that uses a REST client.

    The client's microversion is newer than Nova's; the responses to the
    filter's queries are the same in both.
    """

    def get(path: str) -> Any:
        try:
            return client.get(path).body
        except errors.ServiceError as error:
            if error.status is None or error.status >= _SERVER_ERROR:
                raise
            raise fact_reader.QueryError(
                path,
                f"HTTP {error.status}: {error.reason}",
                status=error.status,
                code=error.code,
            ) from error

    return get


def _build_request(
    arguments: argparse.Namespace, chosen: common_options.CommandOptions
) -> simulation.SimulatedRequest:
    """Return the request for a server of the flavor in the arguments.

    :raises MalformedError: the arguments name no flavor, a flavor without
        accelerators, or a flavor that Nova does not have.
    :raises ServiceError: Nova does not respond.
    """
    specs: dict[str, str] = {}
    needs: dict[str, int] = {}
    if arguments.flavor:
        compute, why = common_options.open_compute(arguments, chosen)
        if compute is None:
            raise errors.MalformedError(
                "way to Nova", f"none: {why}", "one, or --extra-spec alone"
            )
        flavor = cloud.find_flavor(compute, arguments.flavor)
        specs.update(flavor.specs)
        needs.update(flavor.needs)
        needs[_DISK] = flavor.disk_gb
    specs.update(_parse_pairs(arguments.extra_spec))
    simulated = simulation.SimulatedRequest(specs=specs, needs=needs)
    if not simulated.accelerators.groups:
        raise errors.MalformedError(
            "flavor",
            arguments.flavor or " ".join(arguments.extra_spec),
            "one that asks for accelerators, named by --flavor, or by"
            " --extra-spec resources_A:VGPU=1 and so on",
        )
    return simulated


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


def _format(result: simulation.SimulationResult) -> str:
    rows = [_HEAD]
    for host in result.hosts:
        for n, card in enumerate(host.cards):
            name = card.name.removeprefix(names.provider_name(host.name, ""))
            rows.append(("" if n else host.name, name, card.verdict, card.why))
    lines = list(inspect_output.columns(rows))
    if not result.hosts:
        lines = ["No host has an accelerator of the classes asked for."]
    hosts = sum(bool(host.fits) for host in result.hosts)
    lines += [
        "",
        f"{hosts} of {len(result.hosts)} hosts can serve the flavor now.",
        f"({_LEGEND})",
        *(f"Note: {note}." for note in result.notes),
    ]
    return "\n".join(lines) + "\n"
