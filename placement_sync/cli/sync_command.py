# SPDX-License-Identifier: Apache-2.0
"""Command ``placement-sync``: one pass, a dry run, or the daemon."""

import argparse
import contextlib
import importlib.resources
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator

from nova_accel import errors, model
from placement_sync.cli import common_options, locked_pass
from placement_sync.daemon import serve
from placement_sync.sync import sync_pass

_COMMAND = "placement-sync"
_UNIT = f"{_COMMAND}.service"
_OK, _UNDONE = 0, 1
# Options that no subcommand has: the argument's name, by its flag.
_FLAGS = {
    "--once": "is_once",
    "--dry-run": "is_dry",
    "--create-root": "is_created",
    "--interval": "interval",
    "--metrics-textfile": "textfile",
    "--metrics-port": "port",
    "--print-unit": "is_unit",
}
# Names of errno in problems that a missing permission causes.
_PERMISSION_ERRORS = ("EACCES", "EPERM")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command without a subcommand."""
    parser.add_argument(
        "--once",
        action="store_true",
        dest="is_once",
        help="make one pass, print the changes, and exit",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        dest="is_dry",
        help="print the calls that one pass would make, one per line, and"
        " write nothing to Placement or to this host",
    )
    parser.add_argument(
        "--create-root",
        action="store_true",
        dest="is_created",
        help="create the compute node's resource provider if Placement does"
        " not have it, for a host without nova-compute",
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        metavar="SECONDS",
        help="set the seconds between two passes, which vary by up to a"
        " tenth (default [nova_accel] sync_interval, or 60 if that is 0)",
    )
    _add_metrics_arguments(parser)
    parser.add_argument(
        "--print-unit",
        action="store_true",
        dest="is_unit",
        help="print a systemd unit that starts this placement-sync; enable"
        " it with: placement-sync --print-unit >"
        " /etc/systemd/system/placement-sync.service && systemctl enable"
        " --now placement-sync",
    )


def _add_metrics_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics-textfile",
        dest="textfile",
        metavar="FILE",
        help="write Prometheus metrics to this file (default [nova_accel]"
        " metrics_textfile); a nova-compute on this host needs another file",
    )
    parser.add_argument(
        "--metrics-port",
        dest="port",
        type=int,
        metavar="PORT",
        help="serve Prometheus metrics at this port of 127.0.0.1 (default"
        " [nova_accel] metrics_port); a nova-compute on this host needs"
        " another port",
    )


def list_given_flags(arguments: argparse.Namespace) -> list[str]:
    """Return the given flags that no subcommand has."""
    return [flag for flag, name in _FLAGS.items() if getattr(arguments, name)]


def _seconds(text: str) -> float:
    number = common_options.parse_seconds(text)
    if not number:
        raise argparse.ArgumentTypeError("must be more than 0 seconds")
    return number


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """Run one pass or the daemon; return the output and the exit status.

    :raises AcceleratorError: an argument can't be used, or the pass failed.
    """
    if arguments.is_unit:
        return _build_unit(), _OK
    options = common_options.resolve_options(arguments)
    if arguments.is_once or arguments.is_dry:
        with (
            _warnings_on_stderr(),
            _config_problems_on_error(options.settings.problems),
        ):
            passes = locked_pass.LockedPasses(arguments, options)
            result = passes.run()
        print_hint(passes.host_problems)
        text = _as_json if arguments.json else _as_text
        return text(passes, result), _OK if result.is_ok else _UNDONE
    passes = locked_pass.LockedPasses(arguments, options)
    serve.serve(
        passes.run,
        passes.interval,
        lambda: passes.host_problems,
        passes.drains.has_changed,
    )
    return "", _OK


@contextlib.contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Print warnings of the log, because a single pass has no log file."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("placement-sync: %(message)s"))
    loggers = [logging.getLogger(n) for n in ("nova_accel", "placement_sync")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


@contextlib.contextmanager
def _config_problems_on_error(
    problems: Iterable[model.Problem],
) -> Iterator[None]:
    """Print problems of nova.conf on an error, which they may have caused.

    The output of a pass has them otherwise.
    """
    try:
        yield
    except errors.AcceleratorError:
        for problem in problems:
            line = f"{_COMMAND}: {problem.where}: {problem.reason}"
            print(line, file=sys.stderr)
        raise


def _as_text(
    passes: locked_pass.LockedPasses, result: sync_pass.PassResult
) -> str:
    lines = [str(call) for call in result.calls]
    lines += [f"left undone: {p.where}: {p.reason}" for p in result.problems]
    lines += [f"problem: {p.where}: {p.reason}" for p in passes.host_problems]
    root = passes.root.name if passes.root else "?"
    verb = "would be made" if passes.is_dry else "made"
    lines.append(
        f"{root}: {len(result.calls)} calls {verb},"
        f" {result.reads} reads, {result.writes} writes,"
        f" {len(result.problems)} left undone, {result.seconds:.1f} s"
    )
    return "\n".join(lines) + "\n"


def _as_json(
    passes: locked_pass.LockedPasses, result: sync_pass.PassResult
) -> str:
    root = passes.root
    content = {
        "host": {"name": root.name, "uuid": root.uuid} if root else None,
        "dry_run": passes.is_dry,
        "calls": [str(call) for call in result.calls],
        "reads": result.reads,
        "writes": result.writes,
        "attempts": result.attempts,
        "seconds": round(result.seconds, 3),
        "problems": _format_problems(result.problems),
        "host_problems": _format_problems(passes.host_problems),
    }
    return json.dumps(content, indent=2) + "\n"


def _format_problems(
    problems: Iterable[model.Problem],
) -> list[dict[str, str]]:
    return [{"where": p.where, "reason": p.reason} for p in problems]


def print_hint(problems: Iterable[model.Problem]) -> None:
    """Print a hint to a user without permission to read kernel files."""
    denied = [
        problem
        for problem in problems
        if any(name in problem.reason for name in _PERMISSION_ERRORS)
    ]
    if denied and os.geteuid() != 0:
        print(
            f"placement-sync: this user may not read {len(denied)} kernel"
            f" files; the first is {denied[0].where}: {denied[0].reason};"
            " run it as root",
            file=sys.stderr,
        )


def _build_unit() -> str:
    """Return the systemd unit with the path of the installed command."""
    unit = importlib.resources.files("placement_sync") / "systemd" / _UNIT
    command = os.path.abspath(sys.argv[0])
    if os.path.basename(command) != _COMMAND:
        command = os.path.join(os.path.dirname(sys.executable), _COMMAND)
    return unit.read_text().replace(
        f"ExecStart={_COMMAND}", f"ExecStart={command}"
    )
