# SPDX-License-Identifier: Apache-2.0
"""Command ``openstack accel server``: show, attach and detach profiles."""

import argparse
import functools
import importlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from nova_accel.cli import application, command_manager
from nova_accel.discovery import nova_conf
from placement_sync.cli import common_options, progress
from placement_sync.client import cloud_client, nova_api, rest
from placement_sync.fleet import host_bus
from placement_sync.fleet.devices import host_reports
from placement_sync.fleet.gateway import client, methods

_COLUMNS = (
    *("Name", "Profile", "Device", "State", "Handle", "Provider"),
    *("License", "Guest driver"),
)
_FLAVOR = "(flavor)"
_WAIT_SUBJECTS = {
    "show": "{}",
    "attach": "{}, which prepares the device and attaches it to the guest",
    "detach": "{}: a running guest has [libvirt]"
    " device_detach_timeout (20 seconds by default) to release the device,"
    " which is scrubbed then",
}


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "server",
        metavar="SERVER",
        help="uuid of the server, or its name in your own project",
    )
    parser.add_argument(
        "--host",
        dest="only_host",
        metavar="HOST",
        help="call the nova-compute of this host without Nova's API; SERVER"
        " must be a uuid",
    )


def _add_attach_arguments(parser: argparse.ArgumentParser) -> None:
    _add_show_arguments(parser)
    parser.add_argument(
        "--profile",
        metavar="PROFILE",
        required=True,
        help="name of the profile in `openstack accel profile list`, or its"
        " trait",
    )
    parser.add_argument(
        "--bitstream",
        metavar="IMAGE",
        default="",
        help="load this Glance image, by uuid, into the FPGA region; it is"
        " read with your token, so not with --host",
    )


def _add_detach_arguments(parser: argparse.ArgumentParser) -> None:
    _add_show_arguments(parser)
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        default="",
        help="name such as attached-1, profile, device or handle, as `server"
        " show` prints it; may be omitted if only one is attached",
    )


def _run(arguments: argparse.Namespace, action: str) -> application.Output:
    """Return the result of show, attach or detach.

    :raises ConfigurationError: no message bus is configured.
    :raises MalformedError: Nova has no such server.
    :raises UsageError: the arguments can't be used together.
    :raises ServiceError: nova-compute refuses, or does not answer.
    """
    host_option = arguments.only_host
    options = common_options.resolve_options(arguments)
    bus = open_bus(arguments, options, "server")
    identity: cloud_client.Identity | None = None
    if host_option:
        server, host = _check_uuid(arguments.server), str(host_option)
        subject = f"nova-compute on {host}"
    else:
        nova = common_options.open_client(arguments, options, rest.COMPUTE)
        server, host = find_server(nova, arguments.server, bus.finds_hosts)
        identity = cloud_client.read_identity(nova)
        subject = "its nova-compute"
        if host:
            subject = host_reports.describe_host(nova, host)
    parameters = _build_parameters(arguments, action, identity is None)
    with progress.waiting_for(_WAIT_SUBJECTS[action].format(subject)):
        answer = bus.call(
            host,
            action,
            action != "show",
            identity,
            arguments.timeout,
            server=server,
            **parameters,
        )
    if action == "show":
        return _format_server(server, answer)
    return application.Document(
        lambda: answer, lambda: _FORMATS[action](server, answer)
    )


def _build_parameters(
    arguments: argparse.Namespace, action: str, has_no_identity: bool
) -> dict[str, Any]:
    """Return the arguments of an action, besides the server.

    :param has_no_identity: whether there is no token of a user.
    :raises UsageError: a bitstream needs a token.
    """
    if action == "show":
        return {}
    if action == "detach":
        return {"name": arguments.name}
    if arguments.bitstream and has_no_identity:
        raise command_manager.UsageError(
            "--bitstream is read from Glance with your token; use credentials"
            " of Keystone, and no --host"
        )
    parameters = {"profile": arguments.profile}
    if arguments.bitstream:
        parameters["bitstream"] = arguments.bitstream
    return parameters


def open_bus(
    arguments: argparse.Namespace,
    options: common_options.CommandOptions,
    command: str,
) -> host_bus.HostBus:
    """Return the client of nova-compute.

    With credentials of a user and no nova.conf it is the gateway, if
    Keystone's catalog has one; else Nova's message bus.

    :param options: those of the arguments.
    :param command: name of the command, for the error.
    :raises CommandError: there is no gateway, and Nova is not installed here.
    :raises ConfigurationError: no message bus is configured.
    :raises ServiceError: Keystone or the bus can't be reached.
    """
    if not options.files and (gateway := _find_gateway(arguments, options)):
        return gateway
    bus: host_bus.HostBus = open_nova_bus(options, command)
    return bus


def open_nova_bus(options: common_options.CommandOptions, command: str) -> Any:
    """Return a ``compute_rpc.ComputeRpc``; see ``open_bus``.

    :raises CommandError: Nova is not installed here.
    """
    try:
        # It imports Nova.
        rpc = importlib.import_module("placement_sync.fleet.compute_rpc")
    except ImportError as error:
        raise command_manager.CommandError(
            command,
            "it calls nova-compute by the gateway, which Keystone's catalog"
            " does not have, or over Nova's message bus, for which this Python"
            f" environment lacks Nova: {error}; have an operator install the"
            " gateway, or run this where Nova is installed",
        ) from error
    with progress.waiting_for("Nova's message bus"):
        return rpc.ComputeRpc(options.files or nova_conf.find_default_files())


def _find_gateway(
    arguments: argparse.Namespace, options: common_options.CommandOptions
) -> host_bus.HostBus | None:
    """Return the gateway of Keystone's catalog, None without one.

    :raises ServiceError: Keystone refuses, or does not answer.
    """
    compute = common_options.open_client(arguments, options, rest.COMPUTE)
    if not client.is_offered(cloud_client.read_identity(compute)):
        return None
    return client.GatewayBus(
        common_options.open_client(arguments, options, methods.SERVICE)
    )


def find_server(
    nova: rest.RestClient, name_or_uuid: str, is_hidden: bool = False
) -> tuple[str, str]:
    """Return the uuid and the host of a server by its uuid or name.

    :param is_hidden: whether the host may be empty, as Nova shows it to
        users.
    :raises UsageError: there is no such server, or it is on no host.
    :raises ServiceError: Nova can't be read.
    """
    server = nova_api.find_single_server(nova, name_or_uuid)
    if not server.host and not is_hidden:
        raise command_manager.UsageError(
            f"Nova shows no host of server {name_or_uuid}: unshelve it if it"
            " is shelved, or use credentials to which Nova shows hosts"
        )
    return server.uuid, server.host


def _check_uuid(text: str) -> str:
    if not nova_api.is_uuid(text):
        raise command_manager.UsageError(
            f"{text!r} is no uuid; with --host name the server by its uuid"
        )
    return str(uuid.UUID(text))


def _format_server(server: str, answer: Any) -> application.Table:
    task = f", {answer['task']}" if answer["task"] else ""
    # Host and device are empty for users who may not see them.
    location = f" on {answer['host']}" if answer["host"] else ""
    head = f"Server {server}{location}: {answer['state']}{task}\n"
    rows = [
        (
            row["name"] or _FLAVOR,
            row["profile"],
            row["device"],
            row["state"],
            row["handle"],
            row["provider_name"],
            # A nova-compute of an older release has neither.
            row.get("license", ""),
            row.get("guest_driver", ""),
        )
        for row in answer["accelerators"]
    ]
    return application.Table(
        columns=_COLUMNS,
        rows=rows,
        head=head,
        notes="" if rows else "It has no accelerator.\n",
    )


def _format_attached(server: str, answer: Any) -> str:
    device = f" of {answer['device']}" if answer["device"] else ""
    return f"Attached {answer['name']}{device} to server {server}.\n"


def _format_detached(server: str, answer: Any) -> str:
    return (
        f"Detached {answer['name']} ({answer['profile']}) from server"
        f" {server}.\n"
    )


_FORMATS: Mapping[str, Callable[[str, Any], str]] = {
    "attach": _format_attached,
    "detach": _format_detached,
}

SHOW = common_options.build_cloud_action(
    _add_show_arguments, functools.partial(_run, action="show")
)
ATTACH = common_options.build_cloud_action(
    _add_attach_arguments, functools.partial(_run, action="attach")
)
DETACH = common_options.build_cloud_action(
    _add_detach_arguments, functools.partial(_run, action="detach")
)
