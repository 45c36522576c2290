# SPDX-License-Identifier: Apache-2.0
"""``nova-accel server``: show, attach and detach profiles."""

import argparse
import importlib
import json
import uuid
from typing import Any

from nova_accel import errors
from nova_accel.cli import inspect_output
from nova_accel.discovery import plugin
from placement_sync.cli import common_options, progress
from placement_sync.client import nova_api, provider_records, rest

_HEAD = ("NAME", "PROFILE", "DEVICE", "STATE", "HANDLE", "PROVIDER")
_FLAVOR = "(flavor)"
_WAITS = {
    "show": "nova-compute on {}",
    "attach": "nova-compute on {}, which fetches a bitstream, makes the"
    " device and plugs it into the guest",
    "detach": "nova-compute on {}: a running guest has [libvirt]"
    " device_detach_timeout (20 seconds by default) to release the device,"
    " which is scrubbed then",
}


def add(subparsers: Any) -> None:
    """Add the command to those of ``nova-accel``."""
    parser = subparsers.add_parser(
        "server",
        help="show a server's accelerators, attach one, detach it",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True
    )
    show = actions.add_parser(
        "show",
        help="what a server has, of its flavor and attached",
        allow_abbrev=False,
    )
    _add_common(show)
    attach = actions.add_parser(
        "attach",
        help="give a server one more profile",
        description="Gives a server one more profile, while it runs or is"
        " stopped. All of it or nothing.",
        allow_abbrev=False,
    )
    _add_common(attach)
    attach.add_argument(
        "--profile",
        metavar="PROFILE",
        required=True,
        help="its name, as `nova-accel profile list` shows it, or its trait",
    )
    attach.add_argument(
        "--bitstream",
        metavar="IMAGE",
        default="",
        help="uuid of the Glance image that an FPGA region is to hold; Glance"
        " is asked in the name of whoever asks, so not with --host",
    )
    detach = actions.add_parser(
        "detach",
        help="take from a server what was attached",
        description="Takes from a server what was attached to it. A guest"
        " that runs is asked to give it away, and may refuse.",
        allow_abbrev=False,
    )
    _add_common(detach)
    detach.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        default="",
        help="its name, as attached-1, its profile, device or handle; may be"
        " left out where one is attached",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "server", metavar="SERVER", help="its uuid, or its name"
    )
    common_options.add_credentials(parser)
    common_options.add_compute_endpoint(parser)
    parser.add_argument(
        "--host",
        metavar="HOST",
        help="name of the nova-compute that has the server; then Nova's API"
        " is not asked, and SERVER is its uuid",
    )


def run(arguments: argparse.Namespace) -> str:
    """Return what was done, for people or as JSON.

    :raises ConfigurationError: no message bus is configured.
    :raises MalformedError: Nova has no such server.
    :raises ServiceError: nova-compute refuses, or can't be asked.
    """
    host_given = arguments.host
    arguments.host = None  # there it would name a provider
    chosen = common_options.choose(arguments)
    compute_rpc = _load_bus()
    with progress.waiting_for("nova-accel", "Nova's message bus"):
        connected = compute_rpc.ComputeRpc(chosen.files)
    identity: rest.Identity | None = None
    if host_given:
        server, host = _known(arguments.server), str(host_given)
    else:
        door, why = common_options.open_compute(arguments, chosen)
        if door is None:
            raise errors.ConfigurationError(
                "[nova]", "(nothing)", f"{why}; or name --host"
            )
        with progress.waiting_for("nova-accel", "an answer of Nova's API"):
            server, host = find_server(door, arguments.server)
            identity = door.identity()
    is_own = arguments.os_cloud is None and bool(chosen.files)
    words = _words(arguments, identity is None)
    with progress.waiting_for(
        "nova-accel", _WAITS[arguments.action].format(host)
    ):
        told = connected.ask(
            host,
            arguments.action,
            arguments.action != "show",
            compute_rpc.RequestIdentity(identity, is_own)
            if identity
            else None,
            server=server,
            **words,
        )
    if arguments.json:
        return json.dumps(told, indent=2) + "\n"
    return _TEXTS[arguments.action](server, told)


def _words(arguments: argparse.Namespace, is_alone: bool) -> dict[str, str]:
    """Return what an action is told beside the server.

    :param is_alone: whether Keystone was not asked who asks.
    :raises MalformedError: then no bitstream can be had.
    """
    if arguments.action == "show":
        return {}
    if arguments.action == "detach":
        return {"name": arguments.name}
    if arguments.bitstream and is_alone:
        raise errors.MalformedError(
            "bitstream that can be had",
            arguments.bitstream,
            "one beside credentials of Keystone's, by --os-cloud or"
            " nova.conf, and without --host: Glance is asked in the name of"
            " whoever asks",
        )
    loaded = {"bitstream": arguments.bitstream} if arguments.bitstream else {}
    return {"profile": arguments.profile} | loaded


def _load_bus() -> Any:
    """Return what asks over Nova's message bus; Nova is loaded only for it.

    :raises CommandError: Nova is not installed here.
    """
    try:
        return importlib.import_module("placement_sync.client.compute_rpc")
    except ImportError as error:
        raise plugin.CommandError(
            "server", f"it needs Nova in this Python environment: {error}"
        ) from error


def find_server(door: rest.RestClient, wanted: str) -> tuple[str, str]:
    """Return the uuid and the host of the server of that uuid, or name.

    :raises MalformedError: there is none, or it is on no host.
    :raises ServiceError: Nova can't be asked.
    """
    path = f"/servers/{provider_records.quoted(wanted)}"
    found = door.read(path, _parse_one) if _is_uuid(wanted) else []
    if not found:
        query = {"all_tenants": 1, "name": wanted}
        listed = nova_api.pages(
            door, "/servers/detail", "servers", _parse_server, query
        )
        found = [server for server in listed if server[0] == wanted]
    if len(found) != 1:
        raise errors.MalformedError(
            "server of this cloud",
            wanted,
            "the uuid of one: several have that name"
            if found
            else "the uuid or the name of one that Nova has",
        )
    _, server, host = found[0]
    if not host:
        raise errors.MalformedError(
            "server on a host",
            wanted,
            "one that is on a host: shelved ones are not; or credentials to"
            " which Nova shows hosts",
        )
    return server, host


def _parse_one(body: Any) -> list[tuple[str, str, str]]:
    return [] if body is None else [_parse_server(body["server"])]


def _parse_server(body: Any) -> tuple[str, str, str]:
    """Return a server's name, uuid and host; no host is empty."""
    host = body.get("OS-EXT-SRV-ATTR:host") or ""
    return str(body["name"]), str(body["id"]), str(host)


def _known(text: str) -> str:
    if not _is_uuid(text):
        raise errors.MalformedError("server", text, "a uuid, with --host")
    return str(uuid.UUID(text))


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _shown(server: str, told: Any) -> str:
    task = f", {told['task']}" if told["task"] else ""
    # Who may not see hosts and devices gets them empty.
    place = f" on {told['host']}" if told["host"] else ""
    head = f"Server {server}{place}: {told['state']}{task}\n"
    if not told["accelerators"]:
        return f"{head}It has no accelerator.\n"
    rows = [
        (
            each["name"] or _FLAVOR,
            each["profile"],
            each["device"],
            each["state"],
            each["handle"],
            each["provider_name"],
        )
        for each in told["accelerators"]
    ]
    lines = inspect_output.columns([_HEAD, *rows])
    return head + "".join(f"{line}\n" for line in lines)


def _attached(server: str, told: Any) -> str:
    device = f", of {told['device']}" if told["device"] else ""
    return f"Server {server} has {told['name']} now{device}.\n"


def _detached(server: str, told: Any) -> str:
    return f"Server {server} gave {told['name']} back ({told['profile']}).\n"


_TEXTS = {"show": _shown, "attach": _attached, "detach": _detached}
