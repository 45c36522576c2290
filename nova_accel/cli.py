# SPDX-License-Identifier: Apache-2.0
"""The ``nova-accel`` command: inspect a host, or capture it for a bug."""

import argparse
import dataclasses
import json
import logging
import os
import platform
import sys
import uuid
from collections.abc import Sequence

from nova_accel import (
    capture,
    conf,
    discovery,
    errors,
    faults,
    inventory,
    model,
    pci,
    plugin,
    policy,
    providers,
    report,
)
from nova_accel.host import fs, nvml, quarantine, sysfs

# Exit status for input that can't be used, as argparse's own.
_BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 also for a host without any accelerator; 2 for input that can't be
    used, with one line on standard error that says what to mend.
    """
    # What a driver logs is for the service; here problems are listed.
    logging.getLogger("nova_accel").addHandler(logging.NullHandler())
    arguments = _parser().parse_args(argv)
    try:
        print(_COMMANDS[arguments.command](arguments), end="", flush=True)
    except errors.AcceleratorError as error:
        line = " ".join(str(error).split())
        print(f"nova-accel: {line}", file=sys.stderr)
        return _BAD_INPUT
    except BrokenPipeError:
        # The reader has seen enough; keep Python from writing the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"nova-accel: can't write: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BAD_INPUT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nova-accel",
        description="Accelerators of a compute host, as they would be"
        " reported to Placement.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"nova-accel {capture.library_version()}",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser(
        "inspect", help="print devices, profiles and the provider tree"
    )
    _add_root(inspect)
    inspect.add_argument(
        "--host",
        metavar="NAME",
        help="name of the compute node in the report (this machine's, or"
        " the captured one's)",
    )
    inspect.add_argument(
        "--json", action="store_true", help="print JSON for programs"
    )
    _add_config(inspect)
    pack = commands.add_parser(
        "capture",
        help="pack what discovery reads into an archive for a bug report",
    )
    _add_root(pack)
    pack.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the archive to write (nova-accel-HOST-DATE.tar.gz)",
    )
    heal = commands.add_parser(
        "heal", help="offer devices again that were set aside after a failure"
    )
    heal.add_argument(
        "address",
        nargs="*",
        metavar="ADDRESS",
        help="the device, as 0000:5e:00.0/region-0; without one all that are"
        " set aside are listed",
    )
    heal.add_argument(
        "--state-dir",
        metavar="DIR",
        help="[nova_accel] state_dir of nova-compute",
    )
    _add_config(heal)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-file",
        action="append",
        default=[],
        metavar="FILE",
        help="nova.conf whose [nova_accel] options to follow; may be"
        " repeated. Without it: the defaults",
    )


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        metavar="DIR|ARCHIVE",
        help="directory that holds sys/, or an archive of `nova-accel"
        " capture`, to read instead of this machine",
    )


def open_host(root: str) -> tuple[sysfs.HostReader, capture.Meta]:
    """Return a reader for a directory or an archive, and what is known.

    :raises ArchiveError: it is neither.
    """
    if os.path.isdir(root + fs.TOP):
        # NVML speaks of this machine, whatever a tree from elsewhere shows.
        is_here = os.path.realpath(root) == "/"
        gpus = nvml.read_gpus() if is_here else nvml.Gpus({})
        return sysfs.HostReader(root, gpus=gpus), capture.describe_host(root)
    if os.path.isdir(root):
        raise errors.ArchiveError(
            root, "holds no sys/ directory; name the directory above it"
        )
    if not os.path.exists(root):
        raise errors.ArchiveError(root, "does not exist")
    image, meta = capture.load(root)
    gpus = capture.gpus(root, meta)
    return sysfs.HostReader(source=image, gpus=gpus), meta


def _chosen(given: str | None, default: str) -> str:
    """Return the root to read: an empty one is a mistake, not a default.

    :raises ArchiveError: the root given is empty.
    """
    if given == "":
        raise errors.ArchiveError(
            "--root", "is empty; name a directory or an archive"
        )
    return default if given is None else given


def _drivers(wanted: Sequence[str]) -> dict[str, plugin.Driver]:
    drivers = dict(plugin.load(wanted))
    if not drivers:
        raise errors.ConfigurationError(
            "[nova_accel] drivers",
            "(empty)",
            "no vendor driver is installed; install nova-accel with pip so"
            " that its entry points are known",
        )
    return drivers


def _settings(arguments: argparse.Namespace) -> conf.Settings:
    if arguments.config_file:
        return conf.read_files(arguments.config_file)
    return conf.Settings(drivers=(), rules=policy.Policy(), root="/")


def _inspect(arguments: argparse.Namespace) -> str:
    settings = _settings(arguments)
    host, meta = open_host(_chosen(arguments.root, settings.root))
    state = discovery.read(host, _drivers(settings.drivers), settings.rules)
    if arguments.root is None:
        state = _marked(state, settings.bitstreams.state_dir)
    name = arguments.host or meta.get("hostname") or platform.node()
    if not name.isprintable():
        raise errors.MalformedError("host name", name, "printable text")
    root = providers.ProviderRoot(
        name=name, uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    )
    tree = inventory.build_tree(root, state, settings.rules)
    if arguments.json:
        return json.dumps(report.as_dict(state, tree), indent=2) + "\n"
    return report.as_text(state, tree, _functions(host))


def _marked(state: model.HostState, state_dir: str) -> model.HostState:
    """Return a host with what nova-compute has set aside."""
    try:
        known = quarantine.Quarantine(state_dir).read()
    except errors.UnreadableError as error:
        problem = model.Problem(
            where=error.path,
            reason="what is set aside can't be told; run this as root, or as"
            " the user of nova-compute",
        )
        return dataclasses.replace(state, problems=(*state.problems, problem))
    return faults.mark(state, known)[0]


def _functions(host: sysfs.HostReader) -> tuple[pci.PciFunction, ...]:
    """Return the host's functions; none if the bus can't be listed."""
    try:
        return host.functions()
    except errors.UnreadableError:
        return ()  # each driver that needs them has listed it as a problem


def _capture(arguments: argparse.Namespace) -> str:
    host, meta = open_host(_chosen(arguments.root, "/"))
    state = discovery.read(host, _drivers(()), policy.Policy())
    name = meta.get("hostname") or "host"
    day = str(meta.get("date", ""))[:10]
    path = arguments.output or f"nova-accel-{name}-{day}.tar.gz"
    count = capture.save(host, path, meta)
    return (
        f"{path}: {count} paths,"
        f" {len(state.devices)} devices, {len(state.problems)} problems.\n"
        f"Read it with: nova-accel inspect --root {path}\n"
    )


def _heal(arguments: argparse.Namespace) -> str:
    settings = _settings(arguments)
    notes = quarantine.Quarantine(
        arguments.state_dir or settings.bitstreams.state_dir
    )
    known = notes.read()
    if not arguments.address:
        return "".join(
            f"{fault.address}  since {fault.when or '?'}: {fault.reason}\n"
            for _, fault in sorted(known.items())
        ) or f"Nothing is set aside in {notes.place}.\n"
    for address in arguments.address:
        if address not in known:
            raise errors.MalformedError(
                "device that is set aside",
                address,
                f"one of those in {notes.place}:"
                f" {', '.join(sorted(known)) or 'nothing'}",
            )
    healed = ", ".join(sorted(notes.heal(arguments.address)))
    return f"{healed}: offered again from nova-compute's next pass on\n"


_COMMANDS = {"inspect": _inspect, "capture": _capture, "heal": _heal}

if __name__ == "__main__":
    sys.exit(main())
