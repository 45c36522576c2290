# SPDX-License-Identifier: Apache-2.0
"""Options that all commands share, and clients and hosts by them."""

import argparse
import dataclasses
import os
import uuid
from collections.abc import Callable
from typing import Any

from nova_accel import errors
from nova_accel.cli import (
    application,
    command_manager,
    state_dir_option,
    time_options,
)
from nova_accel.config import conf, conf_options
from nova_accel.discovery import nova_conf
from placement_sync.cli import progress
from placement_sync.client import cloud_client, rest

_SLOW_ANSWERS = progress.SlowAnswers()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command about one host."""
    for flag, name, text in _OPTIONS:
        parser.add_argument(flag, metavar=name, help=text)
    parser.add_argument(
        "--config-file",
        action="append",
        metavar="FILE",
        help="read [nova_accel] and [placement] from this nova.conf; may be"
        f" repeated (default: {nova_conf.DEFAULT_FILES}, if they exist; none"
        " with --root)",
    )
    time_options.add_timeout(parser)


def build_cloud_action(
    add_own: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], application.Output],
) -> application.Action:
    """Return the action of a command of ``openstack``, not about one host.

    :param add_own: adds the options that no other command has.
    """

    def add_all(parser: argparse.ArgumentParser) -> None:
        add_own(parser)
        parser.add_argument(
            "--config-file",
            action="append",
            metavar="FILE",
            help="read [nova_accel] from this nova.conf, and call nova-compute"
            " over its message bus; may be repeated",
        )
        time_options.add_timeout(parser)
        unused = [flag[2:].replace("-", "_") for flag, _, _ in _OPTIONS]
        parser.set_defaults(**dict.fromkeys(unused))

    return application.Action(add_all, run)


def add_host_services(parser: argparse.ArgumentParser) -> None:
    """Add the options for a libvirt, and for a Nova without Keystone."""
    parser.add_argument(
        "--connect",
        metavar="URI",
        help="read domains from this libvirt, for example qemu:///system"
        f" (default [libvirt] connection_uri, or {nova_conf.LIBVIRT_URI})",
    )
    add_compute_endpoint(parser)


def add_compute_endpoint(parser: argparse.ArgumentParser) -> None:
    """Add the option for a Nova without Keystone."""
    parser.add_argument(
        "--compute-endpoint",
        metavar="URL",
        help="use Nova's API at this address without credentials, for"
        " example http://127.0.0.1:8774/v2.1",
    )


def parse_option_seconds(text: str) -> float:
    """Return the seconds of an option whose value may be left out.

    :raises ArgumentTypeError: as ``time_options.parse_seconds``.
    """
    try:
        return time_options.parse_seconds(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"{error}; write devices before this option"
        ) from error


_OPTIONS = (
    (
        "--root",
        "DIR|ARCHIVE",
        "read another machine from this directory, which has sys/, or from"
        " this archive of `nova-accel capture`. Nova.conf and the name of"
        " this machine are not used unless options name them; of the state"
        " directory only the drained devices are, unless --state-dir names"
        " it",
    ),
    (
        "--host",
        "NAME",
        "set the name of the compute node's resource provider (default: the"
        " node that nova-compute has published in the state directory; else"
        " the node with the uuid in compute_id of nova.conf's [DEFAULT]"
        f" state_path ({conf_options.STATE_PATH}) or beside the configuration"
        " file; else the node of this machine's host name, as libvirt reports"
        " it)",
    ),
    (
        "--host-uuid",
        "UUID",
        "set the uuid of the compute node's resource provider",
    ),
    (
        "--os-cloud",
        "NAME",
        "use the credentials of this entry of clouds.yaml instead of"
        " [placement] of nova.conf (default without a nova.conf: OS_CLOUD)",
    ),
    (
        "--os-region-name",
        "NAME",
        "set the region of --os-cloud",
    ),
    (
        "--endpoint",
        "URL",
        "use Placement at this address without credentials, instead of"
        " [placement] of nova.conf, for example http://127.0.0.1:8778",
    ),
    (
        "--state-dir",
        "DIR",
        "set the directory of notes, published claims and the status of"
        " passes (default: [nova_accel] state_dir)",
    ),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """Settings from the arguments and the configuration files.

    ``root`` is the directory or archive to read; ``is_foreign`` is true if
    it is another machine's. Then ``state_dir`` is None, unless an option
    names it: this machine's state directory does not describe that host.
    ``drains_dir`` has the drain notes, of another machine's devices, too.
    ``files`` are the configuration files read, ``parsed`` is their
    oslo.config object. The connection of another program has settings of
    its own: then no default file is read.
    """

    settings: conf.Settings
    root: str
    state_dir: str | None
    drains_dir: str
    files: tuple[str, ...] = ()
    parsed: Any = None
    is_foreign: bool = False


def resolve_options(arguments: argparse.Namespace) -> CommandOptions:
    """Return the options of the arguments; the host is not read.

    :raises ConfigurationError: a file can't be read, or a value in it
        can't be used.
    :raises AcceleratorError: an argument can't be used.
    """
    _check_arguments(arguments)
    is_foreign = arguments.root is not None
    files = tuple(arguments.config_file or ())
    if not files and not is_foreign and arguments.connection is None:
        files = nova_conf.find_default_files()
    parsed, settings = nova_conf.parse_files(files)
    state_dir = settings.state_dir
    return CommandOptions(
        settings=settings,
        root=arguments.root or settings.root,
        state_dir=arguments.state_dir or (None if is_foreign else state_dir),
        drains_dir=arguments.state_dir or state_dir,
        files=files,
        parsed=parsed,
        is_foreign=is_foreign,
    )


def _check_arguments(arguments: argparse.Namespace) -> None:
    """Check the arguments; an empty value is an error, not a default."""
    for flag, _, _ in _OPTIONS:
        value = getattr(arguments, flag[2:].replace("-", "_"))
        if value is not None and not (value and value.isprintable()):
            raise errors.MalformedError(flag, value, "printable text")
    if arguments.state_dir is not None:
        state_dir_option.check_named(arguments.state_dir)
    if arguments.host_uuid is not None:
        try:
            arguments.host_uuid = str(uuid.UUID(arguments.host_uuid))
        except ValueError as error:
            raise errors.MalformedError(
                "--host-uuid", arguments.host_uuid, "a uuid"
            ) from error
    if arguments.os_cloud is not None and arguments.endpoint is not None:
        raise command_manager.UsageError(
            "--os-cloud has credentials, and --endpoint is a Placement without"
            " any; remove one of them"
        )


class NoCredentialsError(errors.ConfigurationError):
    """The arguments name no credentials for a service."""


_NONE = (
    "there are no credentials for {}; name an entry of clouds.yaml with"
    " --os-cloud, or nova.conf with --config-file"
)
_NO_CREDENTIALS = {
    rest.PLACEMENT: "name the file with --config-file, an entry of clouds.yaml"
    " with --os-cloud, or a Placement without credentials with --endpoint",
    rest.COMPUTE: _NONE.format("Nova's API"),
    rest.IDENTITY: _NONE.format("Keystone"),
    rest.ACCELERATOR: _NONE.format("Cyborg"),
}


def open_placement(
    arguments: argparse.Namespace, options: CommandOptions
) -> rest.RestClient:
    """Return a client of Placement; see ``open_client``."""
    return open_client(arguments, options, rest.PLACEMENT)


def open_compute(
    arguments: argparse.Namespace, options: CommandOptions
) -> tuple[rest.RestClient | None, str]:
    """Return a client of Nova's API, or None and the reason."""
    try:
        return open_client(arguments, options, rest.COMPUTE), ""
    except NoCredentialsError as error:
        return None, error.hint
    except errors.ConfigurationError as error:
        if arguments.os_cloud is not None or not options.files:
            raise
        return None, str(error)


def open_client(
    arguments: argparse.Namespace,
    options: CommandOptions,
    service: rest.Service,
) -> rest.RestClient:
    """Return a client of a service; it sends no request yet.

    The credentials are, of these, the first that there are: the connection of
    ``openstack``; none, for an endpoint; an entry of clouds.yaml; those of
    nova.conf.

    :raises NoCredentialsError: there are none.
    :raises ConfigurationError: they can't be used.
    """
    client = _build_client(arguments, options, service)
    if arguments.timeout is not None:
        client.limit(arguments.timeout)
    client.announce = _SLOW_ANSWERS.waiting_for
    return client


def _build_client(
    arguments: argparse.Namespace,
    options: CommandOptions,
    service: rest.Service,
) -> rest.RestClient:
    """Return a client of a service; see ``open_client``."""
    if arguments.connection is not None:
        return cloud_client.from_connection(arguments.connection, service)
    is_open = arguments.endpoint is not None
    if url := _find_endpoint(arguments, service):
        return cloud_client.from_endpoint(url, service=service)
    is_in_environment = os.environ.get("OS_CLOUD") and not options.files
    if not is_open and (arguments.os_cloud is not None or is_in_environment):
        return cloud_client.from_cloud(
            arguments.os_cloud or "", arguments.os_region_name or "", service
        )
    if is_open or not options.files:
        raise NoCredentialsError(
            f"[{service.group}]", "(no file)", _NO_CREDENTIALS[service]
        )
    return cloud_client.from_conf(options.parsed, service)


def _find_endpoint(
    arguments: argparse.Namespace, service: rest.Service
) -> str | None:
    """Return the address of a service without credentials, if any."""
    url: str | None = None
    if service is rest.PLACEMENT:
        url = arguments.endpoint
    elif service is rest.COMPUTE:
        url = arguments.compute_endpoint
    elif service is rest.ACCELERATOR:
        url = arguments.accelerator_endpoint
    return url


def build_unwritable_error(
    options: CommandOptions, error: OSError
) -> errors.AcceleratorError:
    """Return the error of a state directory that can't be written."""
    path, settings = options.drains_dir, options.settings
    hint = (
        f"can't be written ({error.strerror}); run this as root or as the"
        " user of nova-compute, or name another one with --state-dir"
    )
    if path == settings.state_dir:
        return settings.refusal("state_dir", path, hint)
    return errors.ConfigurationError("--state-dir", path, hint, "command line")
