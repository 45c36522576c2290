# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel profile list``: profiles of the whole cloud."""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from nova_accel.catalog import loader
from nova_accel.cli import inspect_output
from nova_accel.model import names
from placement_sync.cli import common_options
from placement_sync.flavors import cloud, lookup, offered_devices, profile_list

_HEAD = ("PROFILE", "KIND", "MODEL", "TAKES", "FREE", "CARDS", "MOST", "HOSTS")
_UNAVAILABLE = "*"
_NOTE = (
    f"{_UNAVAILABLE} no card can create one now: all cards are full, have"
    " partitions of other sizes, or their host does not offer the profile\n"
)


def add(subparsers: Any) -> None:
    """Add the command to those of ``nova-accel``."""
    parser = subparsers.add_parser(
        "profile",
        help="list the profiles of the whole cloud",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True
    )
    listing = actions.add_parser(
        "list",
        help="list the profiles that are available now",
        description="List the profiles that are available now, read from"
        " Placement; with --all every profile that a card of the cloud"
        " supports. FREE is the maximum that the inventories allow: the"
        " partitions of a card may leave no room for one more, and the"
        " profiles of a card share its units. MOST is the maximum of an"
        " empty card; [nova_accel] device_spec may allow fewer (max_slots,"
        " max_instances). Example: nova-accel profile list --model A40",
        allow_abbrev=False,
    )
    listing.add_argument(
        "--model",
        metavar="MODEL",
        help="list only profiles of cards of this model, for example A40",
    )
    listing.add_argument(
        "--host",
        metavar="HOST",
        help="list only profiles of this compute node",
    )
    filters = listing.add_mutually_exclusive_group()
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
    listing.add_argument(
        "--long", action="store_true", help="print all hosts and the traits"
    )
    common_options.add_credentials(listing)


def run(arguments: argparse.Namespace) -> str:
    """Return the list, as text or JSON.

    :raises AcceleratorError: an argument can't be used, or Placement fails.
    """
    options = common_options.resolve_options(arguments)
    client = common_options.open_placement(arguments, options)
    devices: Sequence[offered_devices.OfferedDevice] = cloud.read(
        client
    ).devices
    if arguments.host:
        devices = lookup.select_host(devices, arguments.host)
    if arguments.model:
        devices = _select_model(devices, arguments.model)
    profiles = profile_list.list_profiles(
        devices, offered_devices.VgpuTypes(loader.load())
    )
    count = len(profiles)
    if not arguments.is_all:
        profiles = tuple(profile for profile in profiles if profile.free)
    if arguments.json:
        return json.dumps(
            {"profiles": list(map(_format_json, profiles))}, indent=2
        ) + ("\n")
    if count and not profiles:
        return f"None of {count} profiles is free; --all lists them.\n"
    return _format_text(profiles, arguments.long)


def _select_model(
    devices: Sequence[offered_devices.OfferedDevice], model: str
) -> list[offered_devices.OfferedDevice]:
    trait = lookup.model_trait(model, devices)
    return [d for d in devices if d.model == trait]


def _format_json(profile: profile_list.ListedProfile) -> dict[str, object]:
    return {
        "name": profile.terms.name,
        "kind": profile.terms.kind,
        "traits": sorted(profile.terms.required),
        "charges": dict(profile.terms.charges),
        "unknown_charges": sorted(profile.terms.unknown),
        "models": list(profile.models),
        "hosts": list(profile.hosts),
        "cards": profile.cards,
        "cards_in_all": profile.cards_in_all,
        "free": profile.free,
        "most": profile.most,
        "is_offered": profile.is_offered,
    }


def _format_text(
    profiles: Sequence[profile_list.ListedProfile], is_long: bool
) -> str:
    if not profiles:
        return "No host offers any accelerator.\n"
    rows = inspect_output.columns(
        [_HEAD, *(_format_row(o, is_long) for o in profiles)]
    )
    lines = []
    for row, profile in zip(rows, (None, *profiles), strict=True):
        lines.append(f"{row}\n")
        if is_long and profile is not None and profile.terms.required:
            lines.append(f"    {', '.join(sorted(profile.terms.required))}\n")
    is_full = any(not profile.is_offered for profile in profiles)
    return "".join(lines) + (_NOTE if is_full else "")


def _format_row(
    profile: profile_list.ListedProfile, is_long: bool
) -> tuple[str, ...]:
    mark = "" if profile.is_offered else f" {_UNAVAILABLE}"
    is_listed = is_long or len(profile.hosts) <= 1
    return (
        profile.terms.name,
        profile.terms.kind,
        ", ".join(profile.models),
        ", ".join(_format_charges(profile.terms)),
        f"{profile.free}{mark}",
        f"{profile.cards} of {profile.cards_in_all}",
        str(profile.most),
        ", ".join(profile.hosts) if is_listed else str(len(profile.hosts)),
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
