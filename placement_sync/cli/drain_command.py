# SPDX-License-Identifier: Apache-2.0
"""``placement-sync drain`` and ``undrain``."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from nova_accel import errors, model
from nova_accel.host.state import claims_file, drains
from nova_accel.host.state import state_dir as state_dirs
from nova_accel.inventory import conditions
from nova_accel.model import names
from placement_sync.cli import common_options, outside_host, progress
from placement_sync.client import provider_records, resource_providers, rest
from placement_sync.flavors import offered_devices

_DONE, _UNDONE = 0, 1
# A pass begins within seconds of a drain, unless Placement is slow; a server
# may have to be moved off by people.
_MARK_S, _EMPTY_S = 120.0, 3600.0
_POLL_S = 1.0
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
    drain.add_argument(
        "--wait",
        nargs="?",
        const=_MARK_S,
        type=_seconds,
        metavar="SECONDS",
        help="wait until Placement has the mark of the devices, so long at"
        f" most ({_MARK_S:g})",
    )
    drain.add_argument(
        "--wait-empty",
        nargs="?",
        const=_EMPTY_S,
        type=_seconds,
        metavar="SECONDS",
        help="wait until Placement offers none of the devices and no server"
        f" has any of them, so long at most ({_EMPTY_S:g})",
    )
    common_options.add_compute_endpoint(drain)
    common_options.add_arguments(drain, is_command=True)
    undrain = commands.add_parser(
        "undrain",
        help="offer drained devices again",
        allow_abbrev=False,
    )
    undrain.add_argument(
        "address", nargs="+", metavar="ADDRESS", help=_ADDRESS
    )
    common_options.add_arguments(undrain, is_command=True)


def _seconds(text: str) -> float:
    try:
        return common_options.parse_seconds(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"{error}; addresses go before it"
        ) from error


def run_drain(arguments: argparse.Namespace) -> tuple[str, int]:
    """Drain devices, or list those drained; return the text and status.

    :raises MalformedError: an address is no device, or no reason is given.
    :raises ConfigurationError: it can't be written down, or there are no
        credentials to wait with.
    :raises ServiceError: Placement can't be asked for the compute node.
    """
    chosen = common_options.choose(arguments)
    notes = drains.DrainNotes(chosen.drains_dir)
    is_waiting = not (arguments.wait is None and arguments.wait_empty is None)
    if not arguments.address:
        if is_waiting:
            raise errors.MalformedError("device's address", "", "one or more")
        _check_state_dir(chosen)
        return _listed(notes, arguments.json), _DONE
    host = _read(chosen)
    found = [
        _address(host, given, arguments.force) for given in arguments.address
    ]
    reason = " ".join((arguments.reason or "").split())
    if not reason and not (is_waiting and notes.read().keys() >= {*found}):
        raise errors.MalformedError("reason", reason, "--reason TEXT")
    door = _open_door(arguments, chosen) if is_waiting else None
    if reason:
        with _written(chosen):
            for address in found:
                notes.put(address, reason)
    servers = _DrainedServers(chosen, found)
    text = (
        _listed(notes, is_json=True)
        if arguments.json
        else f"{', '.join(found)}: no new server gets any of it once"
        " nova-compute or placement-sync has passed, in a few seconds; what"
        f" runs there keeps running\n{servers.describe(arguments)}"
    )
    if door is None:
        return text, _DONE
    print(text, end="", flush=True)
    return "", _wait(arguments, chosen, host, found, door)


def _open_door(
    arguments: argparse.Namespace, chosen: common_options.CommandOptions
) -> rest.RestClient:
    """Return the connection to Placement that a drain waits with.

    What it needs is checked before devices are drained; nothing is asked.

    :raises ConfigurationError: there are no credentials.
    :raises MalformedError: nothing names the compute node.
    """
    host = outside_host.open_node(
        chosen.settings, chosen.root, chosen.state_dir
    )
    common_options.name_root(arguments, chosen, host)
    return common_options.open_door(arguments, chosen)


def run_undrain(arguments: argparse.Namespace) -> tuple[str, int]:
    """Offer drained devices again; return the text and the status.

    :raises MalformedError: an address is of no drained device.
    :raises ConfigurationError: the state directory is missing, or a note
        can't be removed.
    """
    chosen = common_options.choose(arguments)
    _check_state_dir(chosen)
    notes = drains.DrainNotes(chosen.drains_dir)
    known = notes.read()
    host = _read(chosen)
    found = []
    for given in arguments.address:
        address = conditions.address_of(host, given)
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
        else f"{', '.join(found)}: offered again once nova-compute or"
        " placement-sync has passed, in a few seconds\n"
    ), _DONE


@contextlib.contextmanager
def _written(chosen: common_options.CommandOptions) -> Iterator[None]:
    """Tell what to do where notes can't be written."""
    try:
        yield
    except OSError as error:
        raise common_options.unwritable(chosen, error) from error


def _check_state_dir(chosen: common_options.CommandOptions) -> None:
    """Check that the state directory exists.

    That of another host may be missing here, unless a nova.conf names it.

    :raises ConfigurationError: it does not: what is drained is not known.
    """
    if chosen.is_foreign and not chosen.files:
        return
    if mend := state_dirs.describe_missing(chosen.drains_dir):
        raise chosen.settings.refusal("state_dir", chosen.drains_dir, mend)


def _read(chosen: common_options.CommandOptions) -> model.HostState:
    return outside_host.open_node(chosen.settings, chosen.root, None).read()


def _address(host: model.HostState, given: str, is_forced: bool) -> str:
    """Return the address of the device that was meant.

    :raises MalformedError: it is none of this host, and it is not forced;
        or it is no text at all.
    """
    if not given.strip() or not given.isprintable():
        raise errors.MalformedError(
            "device's address", given, "printable text"
        )
    device = conditions.device_of(host, given)
    known = {d.address for d in host.devices} | host.unknown
    address = conditions.address_of(host, given)
    if device is None and address not in known and not is_forced:
        raise errors.MalformedError(
            "device of this host",
            given,
            f"{_one_of(known)}; --force drains one that is not there now",
        )
    return address


class _DrainedServers:
    """The servers that have some of the drained devices.

    They are read from the claims that nova-compute publishes.
    """

    def __init__(
        self, chosen: common_options.CommandOptions, addresses: Iterable[str]
    ) -> None:
        self._chosen = chosen
        self._addresses = tuple(addresses)
        place = chosen.state_dir
        self._claims = claims_file.ClaimsFile(place) if place else None

    @property
    def has_claims(self) -> bool:
        """Return whether a state directory is named that can have claims."""
        return self._claims is not None

    def read(self) -> tuple[frozenset[str], str]:
        """Return their uuids, and why they are not known."""
        if self._claims is None:
            return frozenset(), "--state-dir does not name where they are"
        book = self._claims.read()
        return frozenset(
            claim.consumer
            for claim in book.claims
            if any(_is_part(claim.device, a) for a in self._addresses)
        ), book.reason

    def describe(self, arguments: argparse.Namespace) -> str:
        """Return lines with uuids, and names where Nova's API tells them."""
        uuids, reason = self.read()
        if reason:
            return (
                "Which servers have some of it is not known, nova-compute"
                f" has published no claims: {reason}\n"
            )
        if not uuids:
            return "No server has any of it.\n"
        with progress.waiting_for("placement-sync", "names of Nova's API"):
            names_by_uuid = _read_names(arguments, self._chosen, uuids)
        return "".join(
            f"Server {uuid} has some of it{names_by_uuid.get(uuid, '')}\n"
            for uuid in sorted(uuids)
        )


def _is_part(device: str, address: str) -> bool:
    """Return whether a device is the drained one, or a region of it."""
    return device == address or device.startswith(f"{address}/")


def _read_names(
    arguments: argparse.Namespace,
    chosen: common_options.CommandOptions,
    uuids: Iterable[str],
) -> dict[str, str]:
    """Return servers' names in parentheses; none where Nova doesn't tell."""
    found = {}
    try:
        door, _ = common_options.open_compute(arguments, chosen)
        for uuid in uuids if door is not None else ():
            path = f"/servers/{provider_records.quoted(uuid)}"
            body = door.get(path).body if door is not None else None
            if body is not None:
                found[uuid] = f" ({body['server']['name']})"
    except errors.AcceleratorError:
        return found
    return found


# -- waiting ----------------------------------------------------------------


class _DrainedProviders:
    """The providers of drained devices, in Placement."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        chosen: common_options.CommandOptions,
        host: model.HostState,
        addresses: Iterable[str],
        door: rest.RestClient,
    ) -> None:
        self._placement = resource_providers.PlacementClient(door)
        self._root = common_options.find_root(
            arguments,
            chosen,
            outside_host.open_node(
                chosen.settings, chosen.root, chosen.state_dir
            ),
            self._placement,
        ).uuid
        every = {*addresses} | {
            device.address
            for device in host.devices
            if any(_is_part(device.address, a) for a in addresses)
        }
        self._uuids = {names.provider_uuid(self._root, a) for a in every}

    def are_marked(self, marks: frozenset[str]) -> bool:
        """Return whether all that Placement has have one of some traits."""
        tree = self._placement.fetch(self._root).tree
        return all(
            marks & provider.traits
            for provider in tree.nodes
            if provider.uuid in self._uuids
        )

    def consumers(self) -> frozenset[str]:
        """Return all that Placement has allocated some of them to."""
        return frozenset(
            consumer
            for uuid in self._uuids
            for consumer in self._placement.allocations(uuid)
        )


def _wait(
    arguments: argparse.Namespace,
    chosen: common_options.CommandOptions,
    host: model.HostState,
    addresses: Sequence[str],
    door: rest.RestClient,
) -> int:
    """Wait as asked; return the exit status."""
    with progress.waiting_for("placement-sync", "an answer of Placement"):
        placed = _DrainedProviders(arguments, chosen, host, addresses, door)
    servers = _DrainedServers(chosen, addresses)
    subject = ", ".join(addresses)
    if arguments.wait_empty is not None and not servers.has_claims:
        print(
            "placement-sync: only Placement is asked which servers have"
            f" some of {subject}; name the directory of nova-compute's"
            " claims with --state-dir",
            file=sys.stderr,
        )

    def find_unmarked(
        marks: frozenset[str] = frozenset({names.DRAINED_TRAIT}),
    ) -> str:
        is_marked = placed.are_marked(marks)
        return "" if is_marked else "Placement does not show the mark yet"

    def find_servers() -> str:
        # A device that is offered can get a server at any time. One that is
        # missing or can't be read is not offered, and no pass drains it.
        if unmarked := find_unmarked(offered_devices.OUT):
            return unmarked
        uuids, reason = servers.read()
        uuids |= placed.consumers()
        if uuids:
            return f"in use by {', '.join(sorted(uuids))}"
        return reason if servers.has_claims else ""

    marked = f"Placement to have the mark of {subject}"
    emptied = f"all servers to leave {subject}"
    for seconds, find, what in (
        (arguments.wait, find_unmarked, marked),
        (arguments.wait_empty, find_servers, emptied),
    ):
        if seconds is None:
            continue
        with progress.waiting_for("placement-sync", what):
            reason = _poll(find, seconds)
        if reason:
            print(
                f"placement-sync: gave up waiting for {what} after"
                f" {seconds:g} s: {reason}",
                file=sys.stderr,
            )
            return _UNDONE
    return _DONE


def _poll(find: Callable[[], str], seconds: float) -> str:
    """Return the reason to wait that is left after so many seconds.

    A service that does not answer meanwhile is asked again.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            reason = find()
        except errors.ServiceError as error:
            reason = str(error)
        if not reason or time.monotonic() >= until:
            return reason
        time.sleep(min(_POLL_S, max(0.0, until - time.monotonic())))


def _one_of(addresses: Iterable[str]) -> str:
    return f"one of {', '.join(sorted(addresses)) or 'none'}"


def _listed(notes: drains.DrainNotes, is_json: bool) -> str:
    known = [one for _, one in sorted(notes.read().items())]
    if is_json:
        plain = [
            {"address": one.address, "reason": one.reason, "when": one.when}
            for one in known
        ]
        return json.dumps({"drained": plain}, indent=2) + "\n"
    return (
        "".join(
            f"{one.address}  since {one.when or '?'}: {one.reason}\n"
            for one in known
        )
        or f"Nothing is drained in {notes.place}.\n"
    )
