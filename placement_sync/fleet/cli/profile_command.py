# SPDX-License-Identifier: Apache-2.0
"""Command ``openstack accel profile list``: profiles of the whole cloud."""

import argparse
from collections.abc import Iterator, Sequence

from nova_accel.cli import application
from nova_accel.model import names
from placement_sync.cli import common_options
from placement_sync.fleet.cli import fleet_command, fleet_output
from placement_sync.fleet.flavors import (
    lookup,
    offered_devices,
    profile_list,
)

_COLUMNS = (
    *("Profile", "Kind", "Model", "Takes", "Free", "Offered", "Cards"),
    *("Most", "Hosts"),
)
_NOTE = (
    "Offered is False if no card can create one now: all cards are full,"
    " drained or faulted, have partitions of other sizes, or their host does"
    " not offer the profile.\n"
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="list only profiles of cards of this model, for example A40",
    )
    fleet_command.add_host(parser, "list only profiles")
    filters = parser.add_mutually_exclusive_group()
    filters.add_argument(
        "--free",
        action="store_true",
        help="list only profiles that are available now (default)",
    )
    filters.add_argument(
        "--all",
        action="store_true",
        dest="is_all",
        help="list also profiles that no card can create now",
    )
    parser.add_argument(
        "--long",
        action="store_true",
        help="print all hosts, the traits, and the units of each class",
    )


def _run(arguments: argparse.Namespace) -> application.Output:
    """Return the list.

    :raises AcceleratorError: an argument can't be used, or Placement fails.
    """
    reader = fleet_command.CloudReader(arguments)
    offered, gap = reader.read_cloud()
    devices: Sequence[offered_devices.OfferedDevice] = offered.devices
    if arguments.hosts:
        devices = lookup.select_hosts(devices, arguments.hosts)
    if arguments.model:
        devices = _select_model(devices, arguments.model)
    profiles = profile_list.list_profiles(devices, reader.types)
    count = len(profiles)
    if not arguments.is_all:
        profiles = tuple(profile for profile in profiles if profile.free)
    note = "No host offers any accelerator.\n"
    if profiles:
        is_full = any(not profile.is_offered for profile in profiles)
        note = _NOTE if is_full else ""
    elif count and not all(device.is_unavailable for device in devices):
        note = f"No profile is free; --all lists all ({count}).\n"
    elif devices:
        note = (
            "No card takes servers now; see `openstack accel device list`.\n"
        )
    if gap and devices:
        note += f"Not known: {gap}.\n"
    is_long = arguments.long
    return application.Table(
        columns=(*_COLUMNS, "Traits", "Charges") if is_long else _COLUMNS,
        rows=[_format_row(profile, is_long) for profile in profiles],
        notes=note,
    )


def _select_model(
    devices: Sequence[offered_devices.OfferedDevice], model: str
) -> list[offered_devices.OfferedDevice]:
    trait = lookup.model_trait(model, devices)
    return [d for d in devices if d.model == trait]


def _format_row(
    profile: profile_list.ListedProfile, is_long: bool
) -> tuple[object, ...]:
    is_listed = is_long or len(profile.hosts) <= 1
    traits = ", ".join(sorted(profile.terms.required))
    charges = ", ".join(_format_charges(profile.terms))
    return (
        profile.terms.name,
        profile.terms.kind,
        fleet_output.as_model(", ".join(profile.models)),
        charges,
        profile.free,
        profile.is_offered,
        f"{profile.cards} of {profile.cards_in_all}",
        profile.most,
        ", ".join(profile.hosts) if is_listed else str(len(profile.hosts)),
        *(
            [traits, application.Cell(dict(profile.terms.charges), charges)]
            if is_long
            else []
        ),
    )


def _format_charges(terms: offered_devices.ProfileTerms) -> Iterator[str]:
    for name, amount in terms.charges.items():
        yield (
            f"{amount} MB"
            if name == names.GPU_MEMORY_CLASS
            else (f"{name} {amount}")
        )
    for name in sorted(terms.unknown):
        yield f"{name} ?"


ACTION = common_options.build_cloud_action(_add_arguments, _run)
