# SPDX-License-Identifier: Apache-2.0
"""``nova-accel profile list``: profiles of the whole cloud."""

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
_FULL = "*"
_NOTE = (
    f"{_FULL} no card can make one now: all are full, hold other sizes, or"
    " their host does not offer it\n"
)


def add(subparsers: Any) -> None:
    """Add the command to those of ``nova-accel``."""
    parser = subparsers.add_parser(
        "profile",
        help="list what the whole cloud offers to flavors",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True
    )
    listing = actions.add_parser(
        "list",
        help="list the profiles that can be had now",
        description="Lists the profiles that can be had at this moment, with"
        " --all every one that the cloud has cards for, read from Placement."
        " FREE is what the"
        " counters of the cards allow, at most: what stands on a card may"
        " leave no place for one more, and profiles of one card share it."
        " MOST is how many an empty card holds, at most: [nova_accel]"
        " device_spec may allow fewer (max_slots, max_instances).",
        allow_abbrev=False,
    )
    listing.add_argument(
        "--model", metavar="MODEL", help="only of cards of this model"
    )
    listing.add_argument(
        "--host", metavar="HOST", help="only of this compute node"
    )
    shown = listing.add_mutually_exclusive_group()
    shown.add_argument(
        "--free",
        action="store_true",
        help="list only profiles that can be had now, as is the default",
    )
    shown.add_argument(
        "--all",
        action="store_true",
        dest="is_all",
        help="list profiles that no card can make now, too",
    )
    listing.add_argument(
        "--long", action="store_true", help="name all hosts, and the traits"
    )
    common_options.add_credentials(listing)


def run(arguments: argparse.Namespace) -> str:
    """Return the list, for people or as JSON.

    :raises AcceleratorError: it can't be had as it was asked for.
    """
    chosen = common_options.choose(arguments)
    door = common_options.open_door(arguments, chosen)
    devices: Sequence[offered_devices.OfferedDevice] = cloud.read(door).devices
    if arguments.host:
        devices = lookup.on_host(devices, arguments.host)
    if arguments.model:
        devices = _of_model(devices, arguments.model)
    found = profile_list.list_offers(
        devices, offered_devices.VgpuTypes(loader.load())
    )
    count = len(found)
    if not arguments.is_all:
        found = tuple(offer for offer in found if offer.free)
    if arguments.json:
        return json.dumps({"profiles": list(map(_plain, found))}, indent=2) + (
            "\n"
        )
    if count and not found:
        return f"None of {count} profiles is free; --all lists them.\n"
    return _text(found, arguments.long)


def _of_model(
    devices: Sequence[offered_devices.OfferedDevice], model: str
) -> list[offered_devices.OfferedDevice]:
    trait = lookup.model_trait(model, devices)
    return [d for d in devices if d.model == trait]


def _plain(offer: profile_list.ListedProfile) -> dict[str, object]:
    return {
        "name": offer.terms.name,
        "kind": offer.terms.kind,
        "traits": sorted(offer.terms.required),
        "charges": dict(offer.terms.charges),
        "unknown_charges": sorted(offer.terms.unknown),
        "models": list(offer.models),
        "hosts": list(offer.hosts),
        "cards": offer.cards,
        "cards_in_all": offer.cards_in_all,
        "free": offer.free,
        "most": offer.most,
        "is_offered": offer.is_offered,
    }


def _text(found: Sequence[profile_list.ListedProfile], is_long: bool) -> str:
    if not found:
        return "No host offers any accelerator.\n"
    rows = inspect_output.columns([_HEAD, *(_row(o, is_long) for o in found)])
    lines = []
    for row, offer in zip(rows, (None, *found), strict=True):
        lines.append(f"{row}\n")
        if is_long and offer is not None and offer.terms.required:
            lines.append(f"    {', '.join(sorted(offer.terms.required))}\n")
    is_full = any(not offer.is_offered for offer in found)
    return "".join(lines) + (_NOTE if is_full else "")


def _row(offer: profile_list.ListedProfile, is_long: bool) -> tuple[str, ...]:
    mark = "" if offer.is_offered else f" {_FULL}"
    few = is_long or len(offer.hosts) <= 1
    return (
        offer.terms.name,
        offer.terms.kind,
        ", ".join(offer.models),
        ", ".join(_charges(offer.terms)),
        f"{offer.free}{mark}",
        f"{offer.cards} of {offer.cards_in_all}",
        str(offer.most),
        ", ".join(offer.hosts) if few else str(len(offer.hosts)),
    )


def _charges(terms: offered_devices.ProfileTerms) -> Iterator[str]:
    for name, amount in terms.charges.items():
        yield (
            f"{amount} MB"
            if name == names.GPU_MEMORY_CLASS
            else (f"{name} {amount}")
        )
    for name in sorted(terms.unknown):
        yield f"{name} ?"
