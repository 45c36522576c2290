# SPDX-License-Identifier: Apache-2.0
"""The ``nova-accel`` command: ``inspect``, ``capture``, ``heal``.

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
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog import loader, pci_ids
from nova_accel.cli import console, inspect_output
from nova_accel.config import conf, policy
from nova_accel.discovery import capture, plugin, scan
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.state import claims_file, drains, error_baseline, faults
from nova_accel.host.state import state_dir as state_dirs
from nova_accel.host.sysfs import error_counters, fs, host_reader, hwdata
from nova_accel.inventory import conditions, tree_builder, unoffered
from nova_accel.model import pci, providers

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
        help="directory of nova-compute, instead of [nova_accel] state_dir",
    )
    _add_config(heal)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-file",
        action="append",
        default=[],
        metavar="FILE",
        help="nova.conf with [nova_accel]; may be repeated. Without it:"
        f" those of {' and '.join(conf.CONFIG_FILES)} that exist; none with"
        " --root",
    )


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        metavar="DIR|ARCHIVE",
        help="directory that holds sys/, or an archive of `nova-accel"
        " capture`, to read instead of this machine",
    )


def open_host(
    root: str, settings: conf.Settings | None = None
) -> tuple[host_reader.HostReader, capture.Meta]:
    """Return a reader for a directory or an archive, and what is known.

    :param settings: see ``open_source``.
    :raises ArchiveError: it is neither.
    :raises ConfigurationError: it is neither, and of the settings.
    """
    source, read_gpus, meta = open_source(root, settings)
    return host_reader.HostReader(source=source, gpus=read_gpus()), meta


def open_source(
    root: str, settings: conf.Settings | None = None
) -> tuple[fs.FileSource, Callable[[], gpu_reader.NvmlGpus], capture.Meta]:
    """Return the files of a directory or an archive, and what is known.

    The second is what tells of its GPUs, in the words of NVML.

    :param settings: those that ``root`` may be of: then an error names
        the option and its file.
    :raises ArchiveError: it is neither.
    :raises ConfigurationError: it is neither, and of the settings.
    """
    try:
        return _open_source(root)
    except errors.ArchiveError as error:
        if settings is None or root != settings.root:
            raise
        raise settings.refusal("root", root, error.reason) from error


def _open_source(
    root: str,
) -> tuple[fs.FileSource, Callable[[], gpu_reader.NvmlGpus], capture.Meta]:
    """See ``open_source``."""
    if os.path.isdir(root + fs.TOP):
        # NVML speaks of this machine, whatever a tree from elsewhere shows.
        is_here = os.path.realpath(root) == "/"
        return (
            fs.DiskSource(root),
            gpu_reader.read_gpus
            if is_here
            else lambda: gpu_reader.NvmlGpus({}),
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


def load_drivers(settings: conf.Settings) -> dict[str, plugin.Driver]:
    """Return the vendor drivers of ``drivers``, by name.

    :raises ConfigurationError: one can't be loaded, or there is none.
    """
    try:
        drivers = dict(plugin.load(settings.drivers))
    except errors.ConfigurationError as error:
        raise settings.refusal("drivers", error.value, error.mend) from error
    if not drivers:
        raise settings.refusal(
            "drivers",
            "(empty)",
            "no vendor driver is installed; install nova-accel with pip so"
            " that its entry points are known",
        )
    return drivers


def _settings(
    arguments: argparse.Namespace, is_foreign: bool = False
) -> conf.Settings:
    """Return the settings of the named files, or of this machine's.

    :param is_foreign: another host is read; no file of this machine is.
    """
    return conf.read_files(_config_files(arguments, is_foreign))


def _config_files(
    arguments: argparse.Namespace, is_foreign: bool = False
) -> Sequence[str]:
    """Return the files to read, see ``_settings``."""
    files: Sequence[str] = arguments.config_file
    return files or (() if is_foreign else conf.default_files())


def _inspect(arguments: argparse.Namespace) -> str:
    is_own = arguments.root is None  # state_dir is of the same host
    settings = _settings(arguments, is_foreign=not is_own)
    host, meta = open_host(_chosen(arguments.root, settings.root), settings)
    state = scan.read(host, load_drivers(settings), settings.rules)
    state = dataclasses.replace(
        state, problems=(*settings.problems, *state.problems)
    )
    state_dir = settings.bitstreams.state_dir
    seen_to = error_baseline.ErrorBaseline(state_dir)
    ill = error_counters.find(host, state.devices, seen_to if is_own else None)
    if is_own:
        is_configured = bool(_config_files(arguments))
        state = _marked(
            conditions.ill_marks(state, ill), settings, is_configured
        )
    elif ill:
        state, _ = conditions.mark(conditions.ill_marks(state, ill), {})
    book = claims_file.RecordedClaims()
    if is_own:
        book = claims_file.ClaimsFile(state_dir).read()
    if book.root is None or arguments.host not in (None, book.root.name):
        book = claims_file.RecordedClaims()
    name = arguments.host or meta.get("hostname") or platform.node()
    if not name.isprintable():
        raise errors.MalformedError("host name", name, "printable text")
    root = book.root or providers.ProviderRoot(
        name=name, uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    )
    tree = tree_builder.build_tree(
        root, state, settings.rules, book.claims, occupied=book.occupied
    )
    use = inspect_output.HostContext(
        claims=book.claims, is_registered=book.is_known
    )
    functions = _functions(host)
    names = _names(functions, _list_models(host, functions, meta))
    rest = unoffered.find(
        state,
        functions,
        settings.rules,
        (*host.problems(), *gpu_reader.problems(host.gpus)),
        names,
    )
    state = _named(state, names)
    if arguments.json:
        found = inspect_output.as_dict(state, tree, use, rest)
        return json.dumps(found, indent=2) + "\n"
    return inspect_output.as_text(state, tree, use, rest)


def _marked(
    state: model.HostState, settings: conf.Settings, is_configured: bool
) -> model.HostState:
    """Return a host with what is set aside and what is drained.

    :param is_configured: whether a nova.conf was read; without one this
        need not be a compute host, and a missing directory is no problem.
    """
    state_dir = settings.bitstreams.state_dir
    try:
        known = faults.FaultNotes(state_dir).read()
        drained = drains.DrainNotes(state_dir).read()
    except errors.UnreadableError as error:
        return conditions.unknown_marks(state, str(error), is_first=True)
    mend = state_dirs.describe_missing(state_dir) if is_configured else ""
    if mend:
        missing = settings.refusal("state_dir", state_dir, mend)
        where = f"{missing.file} {missing.option} = {missing.value}"
        problem = model.Problem(where=where, reason=mend)
        state = dataclasses.replace(state, problems=(*state.problems, problem))
    return conditions.drain_marks(conditions.mark(state, known)[0], drained)


def _functions(host: host_reader.HostReader) -> tuple[pci.PciFunction, ...]:
    """Return the host's functions; none if the bus can't be listed."""
    try:
        return host.functions()
    except errors.UnreadableError:
        return ()  # each driver that needs them has listed it as a problem


def _list_models(
    host: host_reader.HostReader,
    functions: Iterable[pci.PciFunction],
    meta: capture.Meta,
) -> Mapping[str, str]:
    """Return the names of an archive, or of the host's pci.ids, by ids."""
    ids = {f"{one.vendor}:{one.product}" for one in functions}
    models: Mapping[str, str] = meta.get("models", {})
    # Files of its own: the whole pci.ids does not go into an archive.
    return models or hwdata.read(fs.Files(host.files.source), ids)


def _names(
    functions: Iterable[pci.PciFunction], models: Mapping[str, str]
) -> dict[str, str]:
    """Return the names of functions' models, by address, where known.

    :param models: names by vendor and device id.
    """
    found = {}
    for one in functions:
        facts = loader.load().of_card(
            (),
            one.vendor,
            one.product,
            one.subsystem_vendor,
            one.subsystem_product,
        )
        found[str(one.address)] = (
            facts.product if facts else pci_ids.find_model(one)
        ) or models.get(f"{one.vendor}:{one.product}", "")
    return found


def _named(
    state: model.HostState, names: Mapping[str, str]
) -> model.HostState:
    """Return the host with names for models that only have ids.

    Only the report names them: traits stay those of the ids.
    """
    return dataclasses.replace(
        state,
        devices=tuple(
            dataclasses.replace(
                device, model=names.get(device.address) or device.model
            )
            if device.model == f"{device.vendor_id}:{device.product_id}"
            else device
            for device in state.devices
        ),
    )


def _capture(arguments: argparse.Namespace) -> str:
    host, meta = open_host(_chosen(arguments.root, "/"))
    every = conf.Settings(drivers=(), rules=policy.Policy(), root="/")
    state = scan.read(host, load_drivers(every), every.rules)
    error_counters.find(host, state.devices)  # what it reads is captured, too
    name = meta.get("hostname") or "host"
    day = str(meta.get("date", ""))[:10]
    path = arguments.output or f"nova-accel-{name}-{day}.tar.gz"
    models = _list_models(host, _functions(host), meta)
    count = capture.save(host, path, {**meta, "models": models})
    return (
        f"{path}: {count} paths,"
        f" {len(state.devices)} devices, {len(state.problems)} problems.\n"
        f"Read it with: nova-accel inspect --root {path}\n"
    )


def _heal(arguments: argparse.Namespace) -> str:
    if arguments.state_dir is not None:
        state_dirs.check_named("--state-dir", arguments.state_dir)
    settings = _settings(arguments)
    state_dir = arguments.state_dir or settings.bitstreams.state_dir
    if mend := state_dirs.describe_missing(state_dir):
        raise settings.refusal("state_dir", state_dir, mend)
    notes = faults.FaultNotes(state_dir)
    seen_to = error_baseline.ErrorBaseline(state_dir)
    host, _ = open_host(settings.root, settings)
    state = scan.read(host, load_drivers(settings), settings.rules)
    ill = error_counters.find(host, state.devices, seen_to)
    known = notes.read()
    if not arguments.address:
        found = _listed(ill, known)
        return found or f"Nothing is set aside in {notes.place}.\n"
    wanted = {
        one if one in known else conditions.address_of(state, one)
        for one in arguments.address
    }
    _check_aside(wanted, known.keys() | ill.keys(), notes.place)
    for device in state.devices:
        if device.address in wanted & ill.keys():
            seen_to.put(error_counters.read_counts(host, device))
    healed = notes.heal(wanted) | (wanted & ill.keys())
    left = error_counters.find(host, state.devices, seen_to)
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


def _listed(*told: conditions.Faults) -> str:
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
    sys.exit(console.nova_accel())
