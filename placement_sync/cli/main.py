# SPDX-License-Identifier: Apache-2.0
"""Command ``placement-sync``: parser, subcommands, exit status."""

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

# Exit statuses; argparse itself uses 2, too.
_UNDONE = 1
_BAD_INPUT = 2

_AUDIT = "audit"

_DESCRIPTION = """\
Compare the accelerators of this host with their resource providers in
Placement, and correct the providers. Without a command, --once or --dry-run
this runs as a daemon: it makes a pass at an interval, and soon after a kernel
event. SIGTERM stops it after a running pass, SIGHUP requests a pass. Each
change is a line on standard error.

Only resource providers of nova-accel are changed, and resources that servers
use are never withdrawn. nova-compute may run on the same host.
"""
_EPILOGUE = """\
examples:
  placement-sync --dry-run      print the calls that a pass would make
  placement-sync --once         make one pass
  placement-sync status         print results of the last passes
  placement-sync drain 0000:5e:00.0 --reason "ECC errors" --wait-empty

exit status: 0 success; 1 calls were left undone, or a status is stale; 2 the
input can't be used, and one line on standard error has the correction.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 for success; 1 if calls were left undone, or a status is stale; 2
    for input that can't be used, with one line on standard error.
    """
    # Log lines are for the daemon, which adds its own handler.
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
        # The reader closed the pipe; keep Python from writing the rest.
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
    parser = _build_parser(_AUDIT in words)
    arguments = parser.parse_args(words)
    if arguments.command is not None:
        flags = sync_command.list_given_flags(arguments)
        if flags:
            parser.error(f"{flags[0]} can't be used with {arguments.command}")
    elif arguments.json and not (arguments.is_once or arguments.is_dry):
        parser.error("--json requires --once, --dry-run, or a command")
    return arguments


def _import_audit() -> Any:
    return importlib.import_module("placement_sync.cli.audit_command")


def _build_parser(has_audit: bool) -> argparse.ArgumentParser:
    """Return the parser.

    :param has_audit: whether to load the options of the audit. Its module
        imports Nova, which takes seconds and which the other commands do
        not need.
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
        _import_audit().add_parser(commands)
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
    _AUDIT: lambda arguments: _import_audit().run(arguments),
}

if __name__ == "__main__":
    sys.exit(console.placement_sync())
