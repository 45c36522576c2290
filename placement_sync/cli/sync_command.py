# SPDX-License-Identifier: Apache-2.0
"""``placement-sync``: one pass, a dry run, or the daemon."""

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
_DONE, _UNDONE = 0, 1
# Options of the bare command: the argument's name, by its flag.
_OWN = {
    "--once": "is_once",
    "--dry-run": "is_dry",
    "--create-root": "is_created",
    "--interval": "interval",
    "--metrics-textfile": "textfile",
    "--metrics-port": "port",
    "--print-unit": "is_unit",
}
# The kernel refused to show something (errno's names, as problems have
# them).
_REFUSED = ("EACCES", "EPERM")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the bare command."""
    parser.add_argument(
        "--once",
        action="store_true",
        dest="is_once",
        help="make one pass, print what was changed, and end",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        dest="is_dry",
        help="print the calls that one pass would make, a line each, and"
        " write nothing, neither to Placement nor to this host",
    )
    parser.add_argument(
        "--create-root",
        action="store_true",
        dest="is_created",
        help="register the compute node itself if Placement does not have"
        " it: for a host that no nova-compute registers",
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        metavar="SECONDS",
        help="seconds from pass to pass; each waits up to a tenth more or"
        " less ([nova_accel] sync_interval, or 60 where that is 0)",
    )
    parser.add_argument(
        "--metrics-textfile",
        dest="textfile",
        metavar="FILE",
        help="instead of [nova_accel] metrics_textfile; a nova-compute on"
        " this host needs another one",
    )
    parser.add_argument(
        "--metrics-port",
        dest="port",
        type=int,
        metavar="PORT",
        help="instead of [nova_accel] metrics_port; a nova-compute on this"
        " host needs another one",
    )
    parser.add_argument(
        "--print-unit",
        action="store_true",
        dest="is_unit",
        help="print a unit for systemd that starts this very command",
    )


def given(arguments: argparse.Namespace) -> list[str]:
    """Return the flags of the bare command that were given."""
    return [flag for flag, name in _OWN.items() if getattr(arguments, name)]


def _seconds(text: str) -> float:
    number = common_options.parse_seconds(text)
    if not number:
        raise argparse.ArgumentTypeError("must be more than 0 seconds")
    return number


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """Do as the bare command says; return what to print, and the status.

    :raises AcceleratorError: it can't be done as it was asked for.
    """
    if arguments.is_unit:
        return _unit(), _DONE
    chosen = common_options.choose(arguments)
    if arguments.is_once or arguments.is_dry:
        with _warned(), _misspelt_on_error(chosen.settings.problems):
            turns = locked_pass.LockedPasses(arguments, chosen)
            result = turns.run()
        hint(turns.host_problems)
        text = _as_json if arguments.json else _as_text
        return text(turns, result), _DONE if result.is_ok else _UNDONE
    turns = locked_pass.LockedPasses(arguments, chosen)
    serve.serve(
        turns.run,
        turns.interval,
        lambda: turns.host_problems,
        turns.drains.has_changed,
    )
    return "", _DONE


@contextlib.contextmanager
def _warned() -> Iterator[None]:
    """Print what is logged as a warning: nobody keeps a log of one pass."""
    told = logging.StreamHandler(sys.stderr)
    told.setLevel(logging.WARNING)
    told.setFormatter(logging.Formatter("placement-sync: %(message)s"))
    logs = [logging.getLogger(n) for n in ("nova_accel", "placement_sync")]
    for log in logs:
        log.addHandler(told)
    try:
        yield
    finally:
        for log in logs:
            log.removeHandler(told)


@contextlib.contextmanager
def _misspelt_on_error(problems: Iterable[model.Problem]) -> Iterator[None]:
    """Print problems of nova.conf on an error, which may be due to them.

    The result of a pass that was made has them.
    """
    try:
        yield
    except errors.AcceleratorError:
        for one in problems:
            line = f"{_COMMAND}: {one.where}: {one.reason}"
            print(line, file=sys.stderr)
        raise


def _as_text(
    turns: locked_pass.LockedPasses, result: sync_pass.PassResult
) -> str:
    lines = [str(call) for call in result.calls]
    lines += [f"left undone: {p.where}: {p.reason}" for p in result.problems]
    lines += [f"problem: {p.where}: {p.reason}" for p in turns.host_problems]
    root = turns.root.name if turns.root else "?"
    would = "would be made" if turns.is_dry else "made"
    lines.append(
        f"{root}: {len(result.calls)} calls {would},"
        f" {result.reads} reads, {result.writes} writes,"
        f" {len(result.problems)} left undone, {result.seconds:.1f} s"
    )
    return "\n".join(lines) + "\n"


def _as_json(
    turns: locked_pass.LockedPasses, result: sync_pass.PassResult
) -> str:
    root = turns.root
    found = {
        "host": {"name": root.name, "uuid": root.uuid} if root else None,
        "dry_run": turns.is_dry,
        "calls": [str(call) for call in result.calls],
        "reads": result.reads,
        "writes": result.writes,
        "attempts": result.attempts,
        "seconds": round(result.seconds, 3),
        "problems": _plain(result.problems),
        "host_problems": _plain(turns.host_problems),
    }
    return json.dumps(found, indent=2) + "\n"


def _plain(problems: Iterable[model.Problem]) -> list[dict[str, str]]:
    return [{"where": p.where, "reason": p.reason} for p in problems]


def hint(problems: Iterable[model.Problem]) -> None:
    """Tell a user who is not root what may be hidden."""
    refused = [p for p in problems if any(n in p.reason for n in _REFUSED)]
    if refused and os.geteuid() != 0:
        print(
            f"placement-sync: the kernel hides {len(refused)} things from"
            f" this user, the first is {refused[0].where}:"
            f" {refused[0].reason}; run it as root",
            file=sys.stderr,
        )


def _unit() -> str:
    """Return the unit, with the path of the command that is installed."""
    unit = importlib.resources.files("placement_sync") / "systemd" / _UNIT
    called = os.path.abspath(sys.argv[0])
    if os.path.basename(called) != _COMMAND:
        called = os.path.join(os.path.dirname(sys.executable), _COMMAND)
    return unit.read_text().replace(
        f"ExecStart={_COMMAND}", f"ExecStart={called}"
    )
