# SPDX-License-Identifier: Apache-2.0
"""Options that all commands share."""

import argparse
import dataclasses
import os
import uuid
from typing import Any

from nova_accel import errors
from nova_accel.config import conf
from nova_accel.host.state import state_dir as state_dirs
from nova_accel.model import providers
from placement_sync.cli import outside_host
from placement_sync.client import resource_providers, rest


def add_arguments(
    parser: argparse.ArgumentParser, is_command: bool = False
) -> None:
    """Add the shared options to the command, or to a subcommand.

    :param is_command: of a subcommand: what is not given there is left as
        it was given before the subcommand's name.
    """
    missing: Any = argparse.SUPPRESS if is_command else None
    for flag, name, text in _OPTIONS:
        parser.add_argument(flag, metavar=name, help=text, default=missing)
    _add_common(parser, missing, argparse.SUPPRESS if is_command else False)


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Add what a command on the whole cloud needs: it is of no host."""
    parser.set_defaults(
        **{flag[2:].replace("-", "_"): None for flag, _, _ in _OPTIONS}
    )
    for flag, name, text in _OPTIONS:
        if flag in _CREDENTIALS:
            parser.add_argument(flag, metavar=name, help=text)
    _add_common(parser, None, False)


def add_compute_endpoint(parser: argparse.ArgumentParser) -> None:
    """Add where Nova's API is, if that asks for no credentials."""
    parser.add_argument(
        "--compute-endpoint",
        metavar="URL",
        help="address of a Nova that asks for no credentials",
    )


def parse_seconds(text: str) -> float:
    """Return a number of seconds, 0 or more, for argparse.

    :raises ArgumentTypeError: it is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return number


def _add_common(
    parser: argparse.ArgumentParser, missing: Any, no_json: Any
) -> None:
    parser.add_argument(
        "--config-file",
        action="append",
        metavar="FILE",
        default=missing,
        help="nova.conf with [nova_accel] and [placement]; may be repeated."
        f" Without it: those of {' and '.join(conf.CONFIG_FILES)} that exist;"
        " none with --root",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        default=no_json,
        help="print JSON for programs",
    )


_CREDENTIALS = ("--os-cloud", "--os-region-name", "--endpoint")
_OPTIONS = (
    (
        "--root",
        "DIR|ARCHIVE",
        "directory that holds sys/, or an archive of `nova-accel capture`,"
        " to read instead of this machine. Then nothing of this machine is"
        " used that is not named, no nova.conf and no name; of the state"
        " directory only what is drained, unless --state-dir names it",
    ),
    (
        "--host",
        "NAME",
        "name of the compute node's resource provider. Without it and"
        " --host-uuid: the node that nova-compute has published in the state"
        f" directory; else the one whose uuid is in"
        f" {conf.STATE_PATH}/compute_id"
        " or beside the configuration file; else the one of this machine's"
        " host name, as libvirt tells it",
    ),
    (
        "--host-uuid",
        "UUID",
        "uuid of the compute node's resource provider",
    ),
    (
        "--os-cloud",
        "NAME",
        "entry of clouds.yaml whose credentials to use, instead of"
        " [placement] of nova.conf; without either, OS_CLOUD counts",
    ),
    (
        "--os-region-name",
        "NAME",
        "region of the cloud of --os-cloud",
    ),
    (
        "--endpoint",
        "URL",
        "address of a Placement that asks for no credentials, as an embedded"
        " one, instead of [placement] of nova.conf",
    ),
    (
        "--state-dir",
        "DIR",
        "directory of notes, of nova-compute's published claims and of the"
        " status of passes ([nova_accel] state_dir)",
    ),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """What the options and the configuration files say together.

    ``root`` is the directory or archive to read. ``state_dir`` is None
    for a host from elsewhere: what this machine's says tells nothing of
    it, and nothing may be kept there; ``drains_dir`` is where the operator
    drains devices, also those of such a host. ``files`` are the
    configuration files read, ``parsed`` is their oslo.config object.
    """

    settings: conf.Settings
    root: str
    state_dir: str | None
    drains_dir: str
    files: tuple[str, ...] = ()
    parsed: Any = None
    is_foreign: bool = False


def choose(arguments: argparse.Namespace) -> CommandOptions:
    """Return what the arguments ask for; nothing of the host is read.

    :raises ConfigurationError: a file can't be read, or a value in it
        can't be used.
    :raises MalformedError: an argument can't be used.
    """
    _check(arguments)
    is_foreign = arguments.root is not None
    files = tuple(arguments.config_file or ())
    if not files and not is_foreign:
        files = conf.default_files()
    parsed, settings = conf.parse_files(files)
    kept = settings.bitstreams.state_dir
    return CommandOptions(
        settings=settings,
        root=arguments.root or settings.root,
        state_dir=arguments.state_dir or (None if is_foreign else kept),
        drains_dir=arguments.state_dir or kept,
        files=files,
        parsed=parsed,
        is_foreign=is_foreign,
    )


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what is given and says nothing: it is a mistake, no default."""
    for flag, _, _ in _OPTIONS:
        given = getattr(arguments, flag[2:].replace("-", "_"))
        if given is not None and not (given and given.isprintable()):
            raise errors.MalformedError(flag, given, "printable text")
    if arguments.state_dir is not None:
        state_dirs.check_named("--state-dir", arguments.state_dir)
    if arguments.host_uuid is not None:
        try:
            arguments.host_uuid = str(uuid.UUID(arguments.host_uuid))
        except ValueError as error:
            raise errors.MalformedError(
                "--host-uuid", arguments.host_uuid, "a uuid"
            ) from error
    if arguments.os_cloud is not None and arguments.endpoint is not None:
        raise errors.MalformedError(
            "choice",
            "--os-cloud with --endpoint",
            "one of them",
        )


def open_door(
    arguments: argparse.Namespace, chosen: CommandOptions
) -> rest.RestClient:
    """Return the way to Placement; nothing is asked yet.

    :raises ConfigurationError: there are no credentials, or they can't be
        used.
    """
    if arguments.endpoint is not None:
        return rest.from_endpoint(arguments.endpoint)
    if arguments.os_cloud is not None or (
        os.environ.get("OS_CLOUD") and not chosen.files
    ):
        return rest.from_cloud(
            arguments.os_cloud or "", arguments.os_region_name or ""
        )
    if not chosen.files:
        raise errors.ConfigurationError(
            "[placement]",
            "(no file)",
            "name the file with --config-file, or an entry of clouds.yaml"
            " with --os-cloud, or with --endpoint a Placement that asks for"
            " no credentials",
        )
    return rest.from_conf(chosen.parsed)


def open_compute(
    arguments: argparse.Namespace, chosen: CommandOptions
) -> tuple[rest.RestClient | None, str]:
    """Return the way to Nova's API, or why there is none."""
    if arguments.compute_endpoint:
        url = arguments.compute_endpoint
        return rest.from_endpoint(url, service=rest.COMPUTE), ""
    is_alone = arguments.endpoint is not None
    is_named = os.environ.get("OS_CLOUD") and not chosen.files
    if arguments.os_cloud is not None or (is_named and not is_alone):
        return rest.compute_door(
            cloud=arguments.os_cloud or "",
            region=arguments.os_region_name or "",
        ), ""
    if is_alone or not chosen.files:
        return None, (
            "there are no credentials for it; name an entry of clouds.yaml"
            " with --os-cloud, or nova.conf with --config-file"
        )
    try:
        return rest.compute_door(chosen.parsed), ""
    except errors.ConfigurationError as error:
        return None, str(error)


def find_root(
    arguments: argparse.Namespace,
    chosen: CommandOptions,
    host: outside_host.OutsideHost,
    placement: resource_providers.PlacementClient,
    create: bool = False,
) -> providers.ProviderRoot:
    """Return the compute node that the arguments mean.

    Placement is asked only for what is not known here.

    :param create: whether a node that Placement does not have may be told.
    :raises MalformedError: Placement has no such node, or none is named.
    :raises ServiceError: Placement can't be asked.
    """
    name, own = name_root(arguments, chosen, host)
    if name and own:
        return providers.ProviderRoot(name=name, uuid=own)
    found = placement.fetch(own).root if own else placement.find_root(name)
    if found is not None:
        return found
    if create and not name and not chosen.is_foreign:
        name = outside_host.own_name()
    if not create or not name:
        raise errors.MalformedError(
            "compute node in Placement",
            name or own,
            "one that nova-compute has registered; name it with --host or"
            " --host-uuid, or, where no nova-compute will ever register it,"
            " give --create-root with --host",
        )
    return providers.ProviderRoot(
        name=name, uuid=own or str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    )


def name_root(
    arguments: argparse.Namespace,
    chosen: CommandOptions,
    host: outside_host.OutsideHost,
) -> tuple[str, str]:
    """Return the compute node's name and uuid, of which one may be empty.

    :raises MalformedError: nothing names it.
    :raises UnreadableError: what nova-compute left can't be read.
    """
    name, own = arguments.host or "", arguments.host_uuid or ""
    book = host.book()
    known = book.root if book.is_known else None
    if known and name in ("", known.name) and own in ("", known.uuid):
        return known.name, known.uuid
    if name or own:
        return name, own
    if chosen.is_foreign:
        if host.name:
            return host.name, ""
        raise errors.MalformedError(
            "name of the host in --root", "", "one: name it with --host"
        )
    # Nova-compute keeps the uuid of its node in its state_path or beside a
    # configuration file (nova/virt/node.py, COMPUTE_ID_FILE).
    places = [os.path.dirname(path) for path in chosen.files]
    own = outside_host.own_uuid([*places, conf.STATE_PATH]) or ""
    return "" if own else outside_host.own_name(), own


def unwritable(
    chosen: CommandOptions, error: OSError
) -> errors.AcceleratorError:
    """Return the error of a state directory that can't be written."""
    path, settings = chosen.drains_dir, chosen.settings
    mend = (
        f"can't be written ({error.strerror}); run this as root or as the"
        " user of nova-compute, or name another one with --state-dir"
    )
    if path == settings.bitstreams.state_dir:
        return settings.refusal("state_dir", path, mend)
    return errors.ConfigurationError("--state-dir", path, mend, "command line")
