# SPDX-License-Identifier: Apache-2.0
"""Commands of ``nova-accel`` and of ``openstack accel``, built with cliff.

The module of a command is imported when the command is used. The list of
all commands needs the declarations only: a class with a docstring, and the
name of its ``Action``.

A command about a host is registered for ``nova-accel``, one about the cloud
for ``openstack``, whose connection it uses.
"""

import argparse
import contextlib
import difflib
import gc
import importlib
import importlib.metadata
import json
import logging
import os
import pkgutil
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cliff import (
    app,
    columns,
    command,
    help,
    lister,
    show,
)

from nova_accel import errors
from nova_accel.cli import command_manager

# Exit statuses; argparse exits with 2, too.
_FAILED = 1
_BAD_INPUT = 2
_TABLE, _TEXT, _JSON = "table", "text", "json"
# Formats whose cells are texts and numbers, without structure.
_FLAT = ("csv", "value", "shell")
# Columns of the table of one object, unless an option sets them.
_SHOW_WIDTH = 120
# Characters that a terminal obeys, or that change the order of others.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def replace_controls(text: str) -> str:
    """Return a text without control characters but tabs and line ends.

    Captured hosts and scheduler hints of users contain any characters.
    """
    return _CONTROLS.sub("?", text)


class Cell(columns.FormattableColumn):
    """Value with the text that a table prints for it.

    The formats for programs print the value itself.
    """

    def __init__(self, value: object, text: str) -> None:
        super().__init__(value)
        self._text = text

    def human_readable(self) -> str:
        return replace_controls(self._text)


def _flatten(cell: object) -> object:
    """Return the value of a cell, the text of an object in one line."""
    if not isinstance(cell, Cell):
        return cell
    value = cell.machine_readable()
    if isinstance(value, Mapping | list | tuple):
        return "; ".join(cell.human_readable().split("\n")) if value else ""
    return value


def _clean_cell(cell: object) -> object:
    return replace_controls(cell) if isinstance(cell, str) else cell


def build_cell(value: object) -> object:
    """Return a value, or a cell that prints an object in lines."""
    if isinstance(value, Mapping):
        lines = [f"{name}: {each}" for name, each in value.items()]
    elif isinstance(value, list | tuple):
        lines = [str(each) for each in value]
    else:
        return value
    return Cell(value, "\n".join(lines) or "-")


class Table(NamedTuple):
    """Output of a command that prints rows.

    ``head`` and ``notes`` are printed above and below a table, but not in
    the formats for programs.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    head: str = ""
    notes: str = ""
    status: int = 0


class Record(NamedTuple):
    """Output of a command that prints one object, field by field."""

    fields: Mapping[str, object]
    status: int = 0


class Document(NamedTuple):
    """Output of a command that prints a text, or an object as JSON.

    Only one of them is built. ``finish`` is called after it was printed, and
    returns the exit status.
    """

    build: Callable[[], object]
    format: Callable[[], str]
    finish: Callable[[], int] = int


# A text may come with the exit status.
Output = str | tuple[str, int] | Table | Record | Document


class Action(NamedTuple):
    """Implementation of a command."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Output]


class Command(command.Command):
    """Command that prints text; its docstring is its description."""

    # MODULE:NAME of the Action.
    action = ""
    # ``openstack`` authenticates before it runs the command.
    auth_required = True

    def get_description(self) -> str:
        # A docstring may wrap an example behind the program's name.
        return " ".join(super().get_description().split())

    def get_epilog(self) -> str:
        # cliff's epilog reads the metadata of all installed packages.
        return self._epilog or ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.allow_abbrev = False
        self._load().add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Run the action, print its output, and return the exit status."""
        # None in the programs of this project.
        client = getattr(self.app, "client_manager", None)
        if not self.auth_required:
            client = None
        parsed_args.connection = client and client.accel
        output = self._load().run(parsed_args)
        if isinstance(output, Table | Record | Document):
            return self._print_output(parsed_args, output)
        text, status = (output, 0) if isinstance(output, str) else output
        self._print(text)
        return status

    def _load(self) -> Action:
        """Return the action.

        :raises command_manager.CommandError: it can't be imported.
        """
        try:
            action: Action = pkgutil.resolve_name(self.action)
        except Exception as error:  # a foreign package may raise anything
            raise command_manager.explain_import(
                self.cmd_name or self.action, self.action, error
            ) from error
        return action

    def _print(self, text: str) -> None:
        self.app.stdout.write(replace_controls(text))
        self.app.stdout.flush()

    def _print_output(
        self,
        parsed_args: argparse.Namespace,
        output: Table | Record | Document,
    ) -> int:
        raise NotImplementedError


class DocumentCommand(Command):
    """Command that prints a text, or an object as JSON.

    ``is_json`` of its arguments is true for JSON.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            *("-f", "--format"),
            dest="formatter",
            choices=(_TEXT, _JSON),
            default=_TEXT,
            help=f"set the format (default {_TEXT})",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        parsed_args.is_json = parsed_args.formatter == _JSON
        return super().take_action(parsed_args)

    def _print_output(
        self,
        parsed_args: argparse.Namespace,
        output: Table | Record | Document,
    ) -> int:
        if not isinstance(output, Document):
            raise TypeError(type(output))
        if parsed_args.is_json:
            self._print(json.dumps(output.build(), indent=2) + "\n")
        else:
            self._print(output.format())
        return output.finish()


@contextlib.contextmanager
def _pause_collector() -> Iterator[None]:
    """Pause the cyclic garbage collector.

    The data of a command stay until it ends. Without a pause the collector
    traverses them again and again: a third of the time of a large list.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


class _FormattedCommand(Command):
    """Command whose output has a format of cliff."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Return the exit status; that of cliff's own commands is 0."""
        with _pause_collector():
            return self.take_action(parsed_args)

    def _print_output(
        self,
        parsed_args: argparse.Namespace,
        output: Table | Record | Document,
    ) -> int:
        if isinstance(output, Document):
            raise TypeError(type(output))
        return self._print_cells(parsed_args, output)

    def _print_cells(
        self, parsed_args: argparse.Namespace, output: Table | Record
    ) -> int:
        raise NotImplementedError

    def _flatten_values(self, values: Sequence[object]) -> Sequence[object]:
        return [_flatten(value) for value in values]

    def _produce(
        self,
        parsed_args: argparse.Namespace,
        names: Sequence[str],
        values: Sequence[object],
    ) -> None:
        """Print values in the format that the arguments choose.

        :raises MalformedError: an argument names a column that is not
            there.
        """
        self.formatter = self._formatter_plugins[parsed_args.formatter].obj
        if parsed_args.formatter in _FLAT:
            values = self._flatten_values(values)
        try:
            self.produce_output(parsed_args, names, values)
        except ValueError as error:
            raise errors.MalformedError(
                "column",
                ", ".join(parsed_args.columns),
                f"one of {', '.join(names)}",
            ) from error


class ListCommand(_FormattedCommand, lister.Lister):
    """Command that prints a table, or its rows in a format of cliff."""

    def _flatten_values(self, values: Sequence[object]) -> Sequence[object]:
        rows: Sequence[Any] = values
        return [[_flatten(cell) for cell in row] for row in rows]

    def _print_cells(
        self, parsed_args: argparse.Namespace, output: Table | Record
    ) -> int:
        if isinstance(output, Record):
            raise TypeError(type(output))
        is_table = parsed_args.formatter == _TABLE
        self._print(output.head if is_table else "")
        rows = output.rows
        if is_table:
            rows = [[_clean_cell(cell) for cell in row] for row in rows]
        if rows or not is_table:
            self._produce(parsed_args, output.columns, rows)
        self._print(output.notes if is_table else "")
        return output.status


def _limit_width(parsed_args: argparse.Namespace) -> None:
    """Limit a table that no option limits, on a terminal to its width."""
    if parsed_args.max_width < 1:
        width = _SHOW_WIDTH
        if sys.stdout.isatty() or parsed_args.fit_width:
            width = min(width, shutil.get_terminal_size((width, 0)).columns)
        parsed_args.max_width = width


class ShowCommand(_FormattedCommand, show.ShowOne):
    """Command that prints one object, field by field."""

    def _print_cells(
        self, parsed_args: argparse.Namespace, output: Table | Record
    ) -> int:
        if isinstance(output, Table):
            raise TypeError(type(output))
        values = [*output.fields.values()]
        if parsed_args.formatter == _TABLE:
            values = [_clean_cell(value) for value in values]
            _limit_width(parsed_args)
        self._produce(parsed_args, [*output.fields], values)
        return output.status


class _Help(help.HelpCommand):
    """Print the options and the commands, or the help of a command."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        if not parsed_args.cmd:
            self.app.print_help()
            return 0
        try:
            status: int = super().take_action(parsed_args)
        except ValueError:
            self.app.refuse(" ".join(parsed_args.cmd))
            raise
        return status


class _Version(argparse.Action):
    """Option that prints the version."""

    def __call__(
        self, parser: argparse.ArgumentParser, *_: object, **__: object
    ) -> None:
        # To read the version takes longer than to start.
        module = importlib.import_module("nova_accel.config.library_version")
        print(f"{parser.prog} {module.read()}")
        parser.exit()


class Application(app.App):
    """Program with commands.

    The exit status is that of the command; 1 if a service refuses or can't
    be reached; 2 for invalid input. Then standard error has one line with
    the cause and what to do.
    """

    def __init__(
        self,
        name: str,
        description: str,
        commands: command_manager.CommandManager,
    ) -> None:
        """Create the program; it has not run yet."""
        self.NAME = name
        super().__init__(description, None, commands, deferred_help=True)
        commands.add_command("help", _Help)

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the command in the arguments; return its exit status."""
        status: int = self.run(sys.argv[1:] if argv is None else argv)
        return status

    def build_option_parser(
        self, description: str, version: None
    ) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().build_option_parser(
            description,
            version,
            {
                "prog": self.NAME,
                "usage": f"{self.NAME} [options] COMMAND ...",
                "conflict_handler": "resolve",
                "allow_abbrev": False,
                "formatter_class": argparse.RawDescriptionHelpFormatter,
                "epilog": "Options of the command that may precede it:\n"
                + textwrap.fill(", ".join(command_manager.GLOBAL_OPTIONS), 70),
            },
        )
        parser.add_argument(
            "--version",
            action=_Version,
            nargs=0,
            help="Print the version and exit.",
        )
        return parser

    def configure_logging(self) -> None:
        """Print log lines if options ask for them.

        Drivers log for the services; commands print the problems instead.
        """
        for name in ("nova_accel", "placement_sync"):
            logging.getLogger(name).addHandler(logging.NullHandler())
        is_default = self.options.verbose_level <= self.DEFAULT_VERBOSE_LEVEL
        if self.options.log_file or not is_default:
            super().configure_logging()

    def print_help_if_requested(self) -> None:
        if self.options.deferred_help:
            self.print_help()
            self.parser.exit()

    def print_help(self) -> None:
        """Print the options and the commands."""
        self.parser.print_help(self.stdout)
        self.stdout.write("\nCommands:\n")
        for name, point in sorted(self.command_manager):
            try:
                text = (point.load().__doc__ or "").partition("\n")[0]
            except command_manager.CommandError as error:
                text = f"({error.reason})"
            self.stdout.write(f"  {name:<15} {text.rstrip('.')}\n")

    def interact(self) -> None:
        """Refuse a line without a command; cliff would open a shell."""
        self.refuse("")

    def run_subcommand(self, argv: Sequence[str]) -> int:
        """Run a command, and return the exit status."""
        try:
            return self._run_command(argv)
        except (errors.ServiceError, errors.BusyError) as error:
            return self._fail(error, _FAILED)
        except errors.AcceleratorError as error:
            return self._fail(error, _BAD_INPUT)
        except BrokenPipeError:
            # The reader closed the pipe; keep Python from writing the rest.
            self._close_output()
            return 0
        except OSError as error:
            self._close_output()
            return self._fail(error, _BAD_INPUT, "can't write: ")

    def _run_command(self, argv: Sequence[str]) -> int:
        options, argv = command_manager.split_options(argv)
        try:
            factory, name, arguments = self.command_manager.find_command(
                list(argv)
            )
        except ValueError:
            self.refuse(" ".join(argv))
            raise
        chosen = factory(self, self.options, cmd_name=name)
        parser = chosen.get_parser(f"{self.NAME} {name}")
        status: int = chosen.run(parser.parse_args([*options, *arguments]))
        return status

    def refuse(self, line: str) -> None:
        """Exit with the names of the commands."""
        names = sorted(name for name, _ in self.command_manager)
        cause = f"unknown command: {line}" if line else "no command"
        is_begin = any(name.startswith(f"{line} ") for name in names)
        near = difflib.get_close_matches(line, names, n=1)
        if near and not is_begin:
            cause += f" (nearest: {near[0]})"
        self.parser.error(f"{cause}; use one of: {', '.join(names)}")

    def _fail(self, error: Exception, status: int, head: str = "") -> int:
        if self.options.debug:
            traceback.print_exception(error, file=self.stderr)
        line = replace_controls(" ".join(str(error).split()))
        self.stderr.write(f"{self.NAME}: {head}{line}\n")
        return status

    def _close_output(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.stdout.fileno())
