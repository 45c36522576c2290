# SPDX-License-Identifier: Apache-2.0
"""The ``nova-accel`` command: inspect a host, capture it, and what else.

Commands on the whole cloud come from other packages, by entry points.
"""

import argparse
import dataclasses
import json
import logging
import os
import platform
import sys
import uuid
from collections.abc import Callable, Sequence, Set
from typing import Any

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
from nova_accel.host import (
    acknowledged,
    drains,
    fs,
    health_facts,
    nvml,
    quarantine,
    sysfs,
)

# Exit statuses; argparse ends with the second one itself.
_UNDONE = 1
_BAD_INPUT = 2
# A command returns what to print, or that and the exit status.
Run = Callable[[argparse.Namespace], str | tuple[str, int]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 also for a host without any accelerator; 1 where a service refuses or
    can't be asked, 2 for input that can't be used, with one line on
    standard error that says what to mend.
    """
    # What a driver logs is for the service; here problems are listed.
    logging.getLogger("nova_accel").addHandler(logging.NullHandler())
    words = sys.argv[1:] if argv is None else argv
    try:
        parser, runs = _parser(words)
        arguments = parser.parse_args(words)
        told = runs[arguments.command](arguments)
        text, status = (told, 0) if isinstance(told, str) else told
        print(text, end="", flush=True)
        return status
    except errors.ServiceError as error:
        return _fail(error, _UNDONE)
    except errors.AcceleratorError as error:
        return _fail(error, _BAD_INPUT)
    except BrokenPipeError:
        # The reader has seen enough; keep Python from writing the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"nova-accel: can't write: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BAD_INPUT
    return 0


def _fail(error: Exception, status: int) -> int:
    line = " ".join(str(error).split())
    print(f"nova-accel: {line}", file=sys.stderr)
    return status


def _parser(
    words: Sequence[str],
) -> tuple[argparse.ArgumentParser, dict[str, Run]]:
    """Return the parser, and what runs each command.

    :param words: those to be parsed. Commands of other packages are loaded
        when they are asked for, or all when none is: theirs is the time
        that takes, and what they need may be missing here.
    :raises CommandError: the command asked for can't be loaded.
    """
    parser = argparse.ArgumentParser(
        prog="nova-accel",
        description="Accelerators of a compute host, as they would be"
        " reported to Placement, and those of the whole cloud.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"nova-accel {capture.library_version()}",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_own(commands)
    runs = dict(_COMMANDS)
    asked = next((word for word in words if not word.startswith("-")), "")
    for name in plugin.commands():
        if asked == name:
            command = plugin.load_command(name)
            command.add(commands)
            runs[name] = command.run
        elif name not in runs:
            is_loaded = not asked and "--version" not in words
            _add_other(commands, name, is_loaded)
    return parser, runs


def _add_other(commands: Any, name: str, is_loaded: bool) -> None:
    """Make a command known that is not asked for, with its help if need be."""
    if is_loaded:
        try:
            plugin.load_command(name).add(commands)
        except plugin.CommandError as error:
            text = f"({error.reason})".replace("%", "%%")
            commands.add_parser(name, help=text)
    else:
        commands.add_parser(name)


def _add_own(commands: Any) -> None:
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
    source, read_gpus, meta = open_source(root)
    return sysfs.HostReader(source=source, gpus=read_gpus()), meta


def open_source(
    root: str,
) -> tuple[fs.Source, Callable[[], nvml.Gpus], capture.Meta]:
    """Return the files of a directory or an archive, and what is known.

    The second is what tells of its GPUs, in the words of NVML.

    :raises ArchiveError: it is neither.
    """
    if os.path.isdir(root + fs.TOP):
        # NVML speaks of this machine, whatever a tree from elsewhere shows.
        is_here = os.path.realpath(root) == "/"
        return (
            fs.Disk(root),
            nvml.read_gpus if is_here else lambda: nvml.Gpus({}),
            capture.describe_host(root),
        )
    if os.path.isdir(root):
        raise errors.ArchiveError(
            root, "holds no sys/ directory; name the directory above it"
        )
    if not os.path.exists(root):
        raise errors.ArchiveError(root, "does not exist")
    image, meta = capture.load(root)
    gpus = capture.gpus(root, meta)
    return image, lambda: gpus, meta


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
    state_dir = settings.bitstreams.state_dir
    seen_to = acknowledged.Acknowledged(state_dir)
    is_own = arguments.root is None  # its notes are of the same host
    ill = health_facts.find(host, state.devices, seen_to if is_own else None)
    if is_own:
        state = _marked(faults.ill_marks(state, ill), state_dir)
    elif ill:
        state, _ = faults.mark(faults.ill_marks(state, ill), {})
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
    """Return a host with what is set aside and what is drained."""
    try:
        known = quarantine.Quarantine(state_dir).read()
        drained = drains.Drains(state_dir).read()
    except errors.UnreadableError as error:
        problem = model.Problem(
            where=error.path,
            reason="what is set aside, or drained, can't be told; run this as"
            " root, or as the user of nova-compute",
        )
        return dataclasses.replace(state, problems=(*state.problems, problem))
    return faults.drain_marks(faults.mark(state, known)[0], drained)


def _functions(host: sysfs.HostReader) -> tuple[pci.PciFunction, ...]:
    """Return the host's functions; none if the bus can't be listed."""
    try:
        return host.functions()
    except errors.UnreadableError:
        return ()  # each driver that needs them has listed it as a problem


def _capture(arguments: argparse.Namespace) -> str:
    host, meta = open_host(_chosen(arguments.root, "/"))
    state = discovery.read(host, _drivers(()), policy.Policy())
    health_facts.find(host, state.devices)  # what it reads is captured, too
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
    state_dir = arguments.state_dir or settings.bitstreams.state_dir
    notes = quarantine.Quarantine(state_dir)
    seen_to = acknowledged.Acknowledged(state_dir)
    host, _ = open_host(settings.root)
    state = discovery.read(host, _drivers(settings.drivers), settings.rules)
    ill = health_facts.find(host, state.devices, seen_to)
    known = notes.read()
    if not arguments.address:
        found = _listed(ill, known)
        return found or f"Nothing is set aside in {notes.place}.\n"
    wanted = {
        one if one in known else faults.address_of(state, one)
        for one in arguments.address
    }
    _check_aside(wanted, known.keys() | ill.keys(), notes.place)
    for device in state.devices:
        if device.address in wanted & ill.keys():
            seen_to.put(health_facts.read_counts(host, device))
    healed = notes.heal(wanted) | (wanted & ill.keys())
    left = health_facts.find(host, state.devices, seen_to)
    return "".join(
        f"{address}: is set aside still: {left[address].reason}\n"
        if address in left
        else f"{address}: offered again from nova-compute's next pass on\n"
        for address in sorted(healed)
    )


def _check_aside(wanted: Set[str], aside: Set[str], place: str) -> None:
    """Check that all devices are set aside.

    :param place: where notes on such devices are.
    :raises MalformedError: one is not.
    """
    for address in sorted(wanted - aside):
        raise errors.MalformedError(
            "device that is set aside",
            address,
            f"one of those in {place}:"
            f" {', '.join(sorted(aside)) or 'nothing'}",
        )


def _listed(*told: faults.Faults) -> str:
    """Return what is set aside, in lines: what heals by itself first."""
    return "".join(
        f"{fault.address}  since {fault.when or '?'}: {fault.reason}\n"
        for known in told
        for _, fault in sorted(known.items())
    )


_COMMANDS: dict[str, Run] = {
    "inspect": _inspect,
    "capture": _capture,
    "heal": _heal,
}

if __name__ == "__main__":
    sys.exit(main())
