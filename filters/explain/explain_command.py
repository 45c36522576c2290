# SPDX-License-Identifier: Apache-2.0
"""``nova-accel explain``: why a flavor has a host, or has none."""

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
from placement_sync.client import rest
from placement_sync.flavors import cloud, lookup, offered_devices

_NOBODY = 1
_DISK = "DISK_GB"
_SERVER_ERROR = 500
_HEAD = ("HOST", "CARD", "VERDICT", "WHY")
_LEGEND = (
    "first: Nova takes it on this host; fits: in another choice that fits;"
    " refused: by the filter; left out: by Placement"
)


def add(subparsers: Any) -> None:
    """Add the command to those of ``nova-accel``."""
    parser = subparsers.add_parser(
        "explain",
        help="tell for each card whether a flavor gets it now, and why not",
        description="Asks Placement now what nova-scheduler would ask for a"
        " server of the flavor, judges what comes as AcceleratorFilter does,"
        " and lists each host's cards with the reason. Nothing is changed.",
        epilog="exit status: 0 some host can serve the flavor; 1 none can,"
        " or a service can't be asked; 2 the input can't be used.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--flavor", metavar="FLAVOR", help="name or id of Nova's flavor"
    )
    parser.add_argument(
        "--extra-spec",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an extra spec; may be repeated. Without --flavor Nova is not"
        " asked; with it, this one counts in place of the flavor's own",
    )
    common_options.add_credentials(parser)
    common_options.add_compute_endpoint(parser)
    # After the credentials, which say that there is no host.
    parser.add_argument(
        "--host",
        metavar="HOST",
        dest="only_host",
        help="only of this compute node",
    )


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """Return the table or JSON, and 1 if no host can serve.

    :raises MalformedError: an argument can't be used.
    :raises ServiceError: Placement or Nova can't be asked.
    :raises FactsError: Placement does not take what the flavor asks for.
    """
    chosen = common_options.choose(arguments)
    question = _question(arguments, chosen)
    door = common_options.open_door(arguments, chosen)
    whole = cloud.read(door)
    tree = ""
    if arguments.only_host:
        devices = lookup.on_host(whole.devices, arguments.only_host)
        tree = devices[0].root
        whole = offered_devices.Cloud(
            devices=tuple(devices), hosts=whole.hosts
        )
    disabled = cloud.with_trait(door, simulation.DISABLED_TRAIT)
    found = simulation.replay(
        getter(door),
        question,
        simulation.SimulationContext(
            cloud=whole, disabled={one.uuid for one in disabled}
        ),
        vgpu_geometry.VgpuGeometry(loader.load()),
        tree,
    )
    text = (
        json.dumps(simulation.as_dict(found), indent=2) + "\n"
        if arguments.json
        else _text(found)
    )
    return text, 0 if found.is_possible else _NOBODY


def getter(door: rest.RestClient) -> fact_reader.Get:
    """Return how the filter's modules ask, by way of our own door.

    Its microversion is newer than Nova's; what is asked here has the same
    answers in both.
    """

    def get(path: str) -> Any:
        try:
            return door.get(path).body
        except errors.ServiceError as error:
            if error.status is None or error.status >= _SERVER_ERROR:
                raise
            raise fact_reader.QueryError(
                path, f"HTTP {error.status}: {error.reason}"
            ) from error

    return get


def _question(
    arguments: argparse.Namespace, chosen: common_options.CommandOptions
) -> simulation.SimulatedRequest:
    """Return what is asked about.

    :raises MalformedError: nothing is, or no accelerator, or a flavor that
        Nova does not have.
    :raises ServiceError: Nova can't be asked.
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
    specs.update(_pairs(arguments.extra_spec))
    question = simulation.SimulatedRequest(specs=specs, needs=needs)
    if not question.wanted.groups:
        raise errors.MalformedError(
            "flavor",
            arguments.flavor or " ".join(arguments.extra_spec),
            "one that asks for accelerators, named by --flavor, or by"
            " --extra-spec resources_A:VGPU=1 and so on",
        )
    return question


def _pairs(given: Sequence[str]) -> dict[str, str]:
    """Return extra specs by key.

    :raises MalformedError: one is no pair.
    """
    found = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not (key and sign):
            raise errors.MalformedError("--extra-spec", text, "KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def _text(found: simulation.SimulationResult) -> str:
    rows = [_HEAD]
    for host in found.hosts:
        for n, card in enumerate(host.cards):
            name = card.name.removeprefix(names.provider_name(host.name, ""))
            rows.append(("" if n else host.name, name, card.verdict, card.why))
    lines = list(inspect_output.columns(rows))
    if not found.hosts:
        lines = ["No host has an accelerator of the classes asked for."]
    hosts = sum(bool(host.fits) for host in found.hosts)
    lines += [
        "",
        f"{hosts} of {len(found.hosts)} hosts can serve the flavor now.",
        f"({_LEGEND})",
        *(f"Note: {note}." for note in found.notes),
    ]
    return "\n".join(lines) + "\n"
