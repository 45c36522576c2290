# SPDX-License-Identifier: Apache-2.0
"""The ``nova-accel`` command: ``inspect``, ``capture``, ``heal``.

Other packages add commands by entry points (``plugin.COMMANDS_GROUP``).
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

# Exit statuses; argparse exits with 2, too.
_FAILED = 1
_BAD_INPUT = 2
# A command returns its output, or its output and the exit status.
Run = Callable[[argparse.Namespace], str | tuple[str, int]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 also for a host without accelerators; 1 if a service refuses or can't
    be reached; 2 for invalid input. Standard error has one line with the
    cause and what to do.
    """
    # Drivers log for the service; commands print the problems instead.
    logging.getLogger("nova_accel").addHandler(logging.NullHandler())
    words = sys.argv[1:] if argv is None else argv
    try:
        parser, runs = _parser(words)
        arguments = parser.parse_args(words)
        result = runs[arguments.command](arguments)
        text, status = (result, 0) if isinstance(result, str) else result
        print(text, end="", flush=True)
        return status
    except errors.ServiceError as error:
        return _fail(error, _FAILED)
    except errors.AcceleratorError as error:
        return _fail(error, _BAD_INPUT)
    except BrokenPipeError:
        # The reader closed the pipe; keep Python from flushing the rest.
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
    """Return the parser, and the function of each command.

    Commands of other packages are loaded only if they are used, or for the
    list of all commands: loading takes time, and their dependencies may be
    missing on this machine.

    :param words: command line to parse.
    :raises CommandError: the command in it can't be loaded.
    """
    parser = argparse.ArgumentParser(
        prog="nova-accel",
        description="Print the accelerators of a compute host, and print and"
        " change those of the cloud. `nova-accel COMMAND --help` describes a"
        " command.",
        epilog="exit status: 0 success; 1 a command was refused, or a service"
        " can't be reached; 2 the input can't be used, and one line on"
        " standard error has the correction.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"nova-accel {capture.library_version()}",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_inspect(commands)
    _add_capture(commands)
    _add_heal(commands)
    runs = dict(_COMMANDS)
    used = next((word for word in words if not word.startswith("-")), "")
    for name in plugin.list_commands():
        if used == name:
            command = plugin.load_command(name)
            command.add(commands)
            runs[name] = command.run
        elif name not in runs:
            has_help = not used and "--version" not in words
            _add_unused(commands, name, has_help)
    return parser, runs


def _add_unused(commands: Any, name: str, has_help: bool) -> None:
    """Add a command that the command line does not use.

    :param has_help: load the command to add its help.
    """
    if has_help:
        try:
            plugin.load_command(name).add(commands)
        except plugin.CommandError as error:
            text = f"({error.reason})".replace("%", "%%")
            commands.add_parser(name, help=text)
    else:
        commands.add_parser(name)


def _add_inspect(commands: Any) -> None:
    inspect = commands.add_parser(
        "inspect",
        help="print devices, profiles and the provider tree",
        description="Print the devices of this host, their profiles and"
        " resource providers, and the reason for each device that is not"
        " offered. Nothing is changed; run it as root to read NVIDIA GPUs in"
        " MIG mode. Example: nova-accel inspect",
    )
    _add_root(inspect)
    inspect.add_argument(
        "--host",
        metavar="NAME",
        help="set the name of the compute node in the report (default: the"
        " name of this machine, or of the captured one)",
    )
    inspect.add_argument(
        "--json", action="store_true", help="print JSON instead of text"
    )
    _add_config(inspect, "; none with --root")


def _add_capture(commands: Any) -> None:
    pack = commands.add_parser(
        "capture",
        help="write an archive of the host for a bug report",
        description="Write an archive of the kernel files and NVML answers"
        " that discovery reads. Serial numbers are left out. Run it as root."
        " Example: nova-accel capture -o host.tar.gz",
    )
    _add_root(pack)
    pack.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write this file (default: nova-accel-HOST-DATE.tar.gz)",
    )


def _add_heal(commands: Any) -> None:
    heal = commands.add_parser(
        "heal",
        help="offer devices again that were set aside after a failure",
        description="Offer devices again that were set aside, after their"
        " repair: nothing is repaired or scrubbed. Without an address, list"
        " them with the reason. Example: nova-accel heal 0000:41:00.0",
    )
    heal.add_argument(
        "address",
        nargs="*",
        metavar="ADDRESS",
        help="address of the device, for example 0000:41:00.0, or of an FPGA"
        " region, for example 0000:5e:00.0/region-0",
    )
    heal.add_argument(
        "--state-dir",
        metavar="DIR",
        help="set the directory of notes (default: [nova_accel] state_dir)",
    )
    _add_config(heal)


def _add_config(
    parser: argparse.ArgumentParser, without_default: str = ""
) -> None:
    """Add the option for nova.conf.

    :param without_default: when the default files are not read.
    """
    parser.add_argument(
        "--config-file",
        action="append",
        default=[],
        metavar="FILE",
        help="read [nova_accel] from this nova.conf; may be repeated"
        f" (default: {' and '.join(conf.CONFIG_FILES)} if they exist"
        f"{without_default})",
    )


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        metavar="DIR|ARCHIVE",
        help="read another machine from this directory, which has sys/, or"
        " from this archive of `nova-accel capture`",
    )


def open_host(
    root: str, settings: conf.Settings | None = None
) -> tuple[host_reader.HostReader, capture.Meta]:
    """Return a reader and the metadata of a directory or an archive.

    :param settings: see ``open_source``.
    :raises ArchiveError: the root is neither.
    :raises ConfigurationError: the root of the settings is neither.
    """
    source, read_gpus, meta = open_source(root, settings)
    return host_reader.HostReader(source=source, gpus=read_gpus()), meta


def open_source(
    root: str, settings: conf.Settings | None = None
) -> tuple[fs.FileSource, Callable[[], gpu_reader.NvmlGpus], capture.Meta]:
    """Return files, NVML reader and metadata of a directory or an archive.

    :param settings: if ``root`` is the root of these settings, an error
        names the option and its file.
    :raises ArchiveError: the root is neither.
    :raises ConfigurationError: the root of the settings is neither.
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
        # NVML describes this machine only, not a tree of another host.
        is_this_host = os.path.realpath(root) == "/"
        return (
            fs.DiskSource(root),
            gpu_reader.read_gpus
            if is_this_host
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
    gpus = capture.load_gpus(root, meta)
    return image, lambda: gpus, meta


def _root(option: str | None, default: str) -> str:
    """Return the root to read: the option's, or the default without it.

    :raises ArchiveError: the option is empty.
    """
    if option == "":
        raise errors.ArchiveError(
            "--root", "is empty; name a directory or an archive"
        )
    return default if option is None else option


def load_drivers(settings: conf.Settings) -> dict[str, plugin.Driver]:
    """Return the vendor drivers of option ``drivers``, by name.

    :raises ConfigurationError: a driver can't be loaded, or there is none.
    """
    try:
        drivers = dict(plugin.load(settings.drivers))
    except errors.ConfigurationError as error:
        raise settings.refusal("drivers", error.value, error.hint) from error
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
    """Return the settings of ``--config-file``, or of this machine.

    :param is_foreign: another host is read, so this machine's files are
        not.
    """
    return conf.read_files(_config_files(arguments, is_foreign))


def _config_files(
    arguments: argparse.Namespace, is_foreign: bool = False
) -> Sequence[str]:
    """Return the configuration files; see ``_settings``."""
    files: Sequence[str] = arguments.config_file
    return files or (() if is_foreign else conf.find_default_files())


def _inspect(arguments: argparse.Namespace) -> str:
    is_own = arguments.root is None  # state_dir belongs to this host
    settings = _settings(arguments, is_foreign=not is_own)
    host, meta = open_host(_root(arguments.root, settings.root), settings)
    state = scan.read(host, load_drivers(settings), settings.rules)
    state = dataclasses.replace(
        state, problems=(*settings.problems, *state.problems)
    )
    if is_own:
        is_configured = bool(_config_files(arguments))
        state = _mark_devices(host, state, settings, is_configured)
    else:
        state = _mark_read_faults(host, state)
    published = claims_file.RecordedClaims()
    if is_own:
        state_dir = settings.state_dir
        published = claims_file.ClaimsFile(state_dir).read()
    if published.root is None or (
        arguments.host not in (None, published.root.name)
    ):
        published = claims_file.RecordedClaims()
    name = arguments.host or meta.get("hostname") or platform.node()
    if not name.isprintable():
        raise errors.MalformedError("host name", name, "printable text")
    tree = tree_builder.build_tree(
        published.root or _placeholder_root(name),
        state,
        settings.rules,
        published.claims,
        occupied=published.occupied,
    )
    context = inspect_output.HostContext(
        claims=published.claims, is_registered=published.is_known
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
    state = _set_models(state, names)
    if arguments.json:
        report = inspect_output.as_dict(state, tree, context, rest)
        return json.dumps(report, indent=2) + "\n"
    return inspect_output.as_text(state, tree, context, rest)


def _placeholder_root(name: str) -> providers.ProviderRoot:
    """Return the root of a host without published claims."""
    return providers.ProviderRoot(
        name=name, uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    )


def _mark_read_faults(
    host: host_reader.HostReader, state: model.HostState
) -> model.HostState:
    """Return a host with the faults that its devices show."""
    read_faults = error_counters.find_faults(host, state.devices)
    if not read_faults:
        return state
    state = conditions.mark_unhealthy(state, read_faults)
    return conditions.mark_faults(state, {})[0]


def _mark_devices(
    host: host_reader.HostReader,
    state: model.HostState,
    settings: conf.Settings,
    is_configured: bool,
) -> model.HostState:
    """Return this host with its faults and drains.

    :param is_configured: a nova.conf was read. Without one this may be no
        compute host, and a missing state_dir is no problem.
    """
    state_dir = settings.state_dir
    baseline = error_baseline.ErrorBaseline(state_dir)
    state = conditions.mark_unhealthy(
        state, error_counters.find_faults(host, state.devices, baseline)
    )
    try:
        faulted = faults.FaultNotes(state_dir).read()
        drained = drains.DrainNotes(state_dir).read()
    except errors.UnreadableError as error:
        return conditions.mark_unknown(state, str(error), is_first=True)
    hint = state_dirs.describe_missing(state_dir) if is_configured else ""
    if hint:
        missing = settings.refusal("state_dir", state_dir, hint)
        where = f"{missing.file} {missing.option} = {missing.value}"
        problem = model.Problem(where=where, reason=hint)
        state = dataclasses.replace(state, problems=(*state.problems, problem))
    state, _ = conditions.mark_faults(state, faulted)
    return conditions.mark_drains(state, drained)


def _functions(host: host_reader.HostReader) -> tuple[pci.PciFunction, ...]:
    """Return the host's functions; none if the bus can't be listed."""
    try:
        return host.functions()
    except errors.UnreadableError:
        return ()  # the drivers report the error


def _list_models(
    host: host_reader.HostReader,
    functions: Iterable[pci.PciFunction],
    meta: capture.Meta,
) -> Mapping[str, str]:
    """Return model names by ids, of the archive or the host's pci.ids."""
    ids = {f"{function.vendor}:{function.product}" for function in functions}
    models: Mapping[str, str] = meta.get("models", {})
    # Separate files: an archive must not contain the whole pci.ids.
    return models or hwdata.read(fs.Files(host.files.source), ids)


def _names(
    functions: Iterable[pci.PciFunction], models: Mapping[str, str]
) -> dict[str, str]:
    """Return the models of functions by address, empty if unknown.

    :param models: names by vendor and device id.
    """
    names = {}
    for function in functions:
        card = loader.load().of_card(
            (),
            function.vendor,
            function.product,
            function.subsystem_vendor,
            function.subsystem_product,
        )
        names[str(function.address)] = (
            card.product if card else pci_ids.find_model(function)
        ) or models.get(f"{function.vendor}:{function.product}", "")
    return names


def _set_models(
    state: model.HostState, names: Mapping[str, str]
) -> model.HostState:
    """Return the host with names in place of models that are ids.

    They are for the report only; traits are made of the ids.
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
    host, meta = open_host(_root(arguments.root, "/"))
    settings = conf.Settings(drivers=(), rules=policy.DeviceRules(), root="/")
    state = scan.read(host, load_drivers(settings), settings.rules)
    # Read the files of the health check, too, to capture them.
    error_counters.find_faults(host, state.devices)
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
    state_dir = arguments.state_dir or settings.state_dir
    if hint := state_dirs.describe_missing(state_dir):
        raise settings.refusal("state_dir", state_dir, hint)
    notes = faults.FaultNotes(state_dir)
    baseline = error_baseline.ErrorBaseline(state_dir)
    host, _ = open_host(settings.root, settings)
    state = scan.read(host, load_drivers(settings), settings.rules)
    read_faults = error_counters.find_faults(host, state.devices, baseline)
    noted = notes.read()
    if not arguments.address:
        lines = _fault_lines(read_faults, noted)
        return lines or f"Nothing is set aside in {notes.path}.\n"
    addresses = {
        text if text in noted else conditions.resolve_address(state, text)
        for text in arguments.address
    }
    _check_faulted(addresses, noted.keys() | read_faults.keys(), notes.path)
    for device in state.devices:
        if device.address in addresses & read_faults.keys():
            baseline.put(error_counters.read_counts(host, device))
    healed = notes.heal(addresses) | (addresses & read_faults.keys())
    remaining = error_counters.find_faults(host, state.devices, baseline)
    return "".join(
        f"{address}: is set aside still: {remaining[address].reason}\n"
        if address in remaining
        else f"{address}: offered again from nova-compute's next pass on\n"
        for address in sorted(healed)
    )


def _check_faulted(addresses: Set[str], faulted: Set[str], path: str) -> None:
    """Check that all devices are set aside.

    :param path: directory of the notes on faults.
    :raises MalformedError: a device is not set aside.
    """
    for address in sorted(addresses - faulted):
        raise errors.MalformedError(
            "device that is set aside",
            address,
            f"one of those in {path}:"
            f" {', '.join(sorted(faulted)) or 'nothing'}",
        )


def _fault_lines(*sources: conditions.Faults) -> str:
    """Return a line for each fault, in the order of the sources."""
    return "".join(
        f"{fault.address}  since {fault.when or '?'}: {fault.reason}\n"
        for by_address in sources
        for _, fault in sorted(by_address.items())
    )


_COMMANDS: dict[str, Run] = {
    "inspect": _inspect,
    "capture": _capture,
    "heal": _heal,
}

if __name__ == "__main__":
    sys.exit(console.nova_accel())
