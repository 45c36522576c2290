# SPDX-License-Identifier: Apache-2.0
"""``placement-sync drain`` and ``undrain``: what the operator says."""

import argparse
import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from nova_accel import errors, faults, model
from nova_accel.host import drains
from placement_sync import cli_options, node

_DONE = 0
_ADDRESS = (
    "the device, as 0000:5e:00.0 or 0000:5e:00.0/region-0; any of its"
    " functions stands for it, and a card for its regions"
)


def add_parsers(commands: Any) -> None:
    """Add the two commands to argparse's subparsers."""
    drain = commands.add_parser(
        "drain",
        help="give devices to no new server; without one list those drained",
        description="What runs on a drained device keeps running; no new"
        " server gets any of it. It outlives restarts, until undrain.",
        allow_abbrev=False,
    )
    drain.add_argument("address", nargs="*", metavar="ADDRESS", help=_ADDRESS)
    drain.add_argument(
        "--reason", metavar="TEXT", help="why, for people; needed"
    )
    drain.add_argument(
        "--force",
        action="store_true",
        help="also a device that is not there at the moment",
    )
    cli_options.add_arguments(drain, is_command=True)
    undrain = commands.add_parser(
        "undrain",
        help="offer drained devices again",
        allow_abbrev=False,
    )
    undrain.add_argument(
        "address", nargs="+", metavar="ADDRESS", help=_ADDRESS
    )
    cli_options.add_arguments(undrain, is_command=True)


def run_drain(arguments: argparse.Namespace) -> tuple[str, int]:
    """Drain devices, or list those drained; return the text and status.

    :raises MalformedError: an address is no device, or no reason is given.
    :raises ConfigurationError: it can't be written down.
    """
    chosen = cli_options.choose(arguments)
    notes = drains.Drains(chosen.drains_dir)
    if not arguments.address:
        return _listed(notes, arguments.json), _DONE
    reason = " ".join((arguments.reason or "").split())
    if not reason:
        raise errors.MalformedError("reason", reason, "--reason TEXT")
    host = _read(chosen)
    found = [
        _address(host, given, arguments.force) for given in arguments.address
    ]
    with _written(chosen):
        for address in found:
            notes.put(address, reason)
    return (
        _listed(notes, is_json=True)
        if arguments.json
        else f"{', '.join(found)}: no new server gets any of it from the next"
        " pass of nova-compute or placement-sync on; what runs there keeps"
        " running\n"
    ), _DONE


def run_undrain(arguments: argparse.Namespace) -> tuple[str, int]:
    """Offer drained devices again; return the text and the status.

    :raises MalformedError: an address is of no drained device.
    :raises ConfigurationError: a note can't be removed.
    """
    chosen = cli_options.choose(arguments)
    notes = drains.Drains(chosen.drains_dir)
    known = notes.read()
    host = _read(chosen)
    found = []
    for given in arguments.address:
        address = faults.address_of(host, given)
        if address not in known and given not in known:
            raise errors.MalformedError(
                "device that is drained", given, _one_of(known)
            )
        found.append(address if address in known else given)
    with _written(chosen):
        notes.remove(found)
    return (
        _listed(notes, is_json=True)
        if arguments.json
        else f"{', '.join(found)}: offered again from the next pass of"
        " nova-compute or placement-sync on\n"
    ), _DONE


@contextlib.contextmanager
def _written(chosen: cli_options.Chosen) -> Iterator[None]:
    """Tell what to do where notes can't be written."""
    try:
        yield
    except OSError as error:
        raise cli_options.unwritable(chosen.drains_dir, error) from error


def _read(chosen: cli_options.Chosen) -> model.HostState:
    return node.open_node(chosen.settings, chosen.root, None).read()


def _address(host: model.HostState, given: str, is_forced: bool) -> str:
    """Return the address of the device that was meant.

    :raises MalformedError: it is none of this host, and it is not forced;
        or it is no text at all.
    """
    if not given.strip() or not given.isprintable():
        raise errors.MalformedError(
            "device's address", given, "printable text"
        )
    device = faults.device_of(host, given)
    known = {d.address for d in host.devices} | host.unknown
    address = faults.address_of(host, given)
    if device is None and address not in known and not is_forced:
        raise errors.MalformedError(
            "device of this host",
            given,
            f"{_one_of(known)}; --force drains one that is not there now",
        )
    return address


def _one_of(addresses: Iterable[str]) -> str:
    return f"one of {', '.join(sorted(addresses)) or 'none'}"


def _listed(notes: drains.Drains, is_json: bool) -> str:
    known = [one for _, one in sorted(notes.read().items())]
    if is_json:
        plain = [
            {"address": one.address, "reason": one.reason, "when": one.when}
            for one in known
        ]
        return json.dumps({"drained": plain}, indent=2) + "\n"
    return "".join(
        f"{one.address}  since {one.when or '?'}: {one.reason}\n"
        for one in known
    ) or f"Nothing is drained in {notes.place}.\n"
