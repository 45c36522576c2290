# SPDX-License-Identifier: Apache-2.0
"""The ``placement-sync`` command."""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova_accel import errors
from nova_accel.cli import console
from nova_accel.discovery import capture
from placement_sync.cli import (
    common_options,
    drain_command,
    status_command,
    sync_command,
)

# Exit statuses; argparse ends with the second one itself.
_UNDONE = 1
_BAD_INPUT = 2

_AUDIT = "audit"

_DESCRIPTION = """\
Compares the accelerators of this host with what Placement has of them, and
mends what differs. Without a command or --once it goes on doing so: at an
interval, and soon after the kernel tells of a change. SIGTERM ends it after
the pass that runs, SIGHUP asks for a pass now. What it changes is told on
standard error, a line for each change.

Only resource providers of nova-accel are touched, and what servers hold is
never withdrawn. Nova-compute may run beside it.
"""
_EPILOGUE = """\
exit status: 0 done; 1 something was left undone, or is stale; 2 the input
can't be used, and one line on standard error says what to mend.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 when all is done; 1 when something was left undone, or is stale; 2
    for input that can't be used, with one line on standard error that says
    what to mend.
    """
    # What is logged is for a service; the daemon sets its own ways.
    for name in ("nova_accel", "placement_sync"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    arguments = _parse(argv)
    try:
        text, status = _COMMANDS[arguments.command](arguments)
        print(text, end="", flush=True)
    except (errors.ServiceError, errors.BusyError) as error:
        return _fail(error, _UNDONE)
    except errors.AcceleratorError as error:
        return _fail(error, _BAD_INPUT)
    except BrokenPipeError:
        # The reader has seen enough; keep Python from writing the rest.
        _close_output()
        return 0
    except OSError as error:
        _close_output()
        return _fail(error, _BAD_INPUT)
    return status


def _fail(error: Exception, status: int) -> int:
    line = " ".join(str(error).split())
    print(f"placement-sync: {line}", file=sys.stderr)
    return status


def _close_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    words = sys.argv[1:] if argv is None else argv
    parser = _parser(_AUDIT in words)
    arguments = parser.parse_args(words)
    if arguments.command is not None:
        given = sync_command.given(arguments)
        if given:
            parser.error(f"{given[0]} goes without {arguments.command}")
    elif arguments.json and not (arguments.is_once or arguments.is_dry):
        parser.error("--json goes with --once, --dry-run, or a command")
    return arguments


def _audit() -> Any:
    return importlib.import_module("placement_sync.cli.audit_command")


def _parser(has_audit: bool) -> argparse.ArgumentParser:
    """Return the parser.

    :param has_audit: whether an audit may be asked for: it loads what
        mends devices, and with that Nova's own libraries, which the other
        commands neither need nor wait for.
    """
    parser = argparse.ArgumentParser(
        prog="placement-sync",
        description=_DESCRIPTION,
        epilog=_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"placement-sync {capture.library_version()}",
    )
    common_options.add_arguments(parser)
    sync_command.add_arguments(parser)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands"
    )
    drain_command.add_parsers(commands)
    status_command.add_parser(commands)
    if has_audit:
        _audit().add_parser(commands)
    else:
        commands.add_parser(
            _AUDIT, help="compare allocations, claims, guests and devices"
        )
    return parser


_COMMANDS: Mapping[
    str | None, Callable[[argparse.Namespace], tuple[str, int]]
] = {
    None: sync_command.run,
    "drain": drain_command.run_drain,
    "undrain": drain_command.run_undrain,
    "status": status_command.run,
    _AUDIT: lambda arguments: _audit().run(arguments),
}

if __name__ == "__main__":
    sys.exit(console.placement_sync())
