# SPDX-License-Identifier: Apache-2.0
"""Commands by name, from the entry points of all packages."""

import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cliff import command, commandmanager

from nova_accel import errors
from nova_accel.config import extensions, top_packages

# Commands about a host and about the cloud: names, with _ for a space, and
# classes.
HOST_GROUP, CLOUD_GROUP = "nova_accel.commands", "openstack.accel.v1"

# Options of several commands that may precede the command.
GLOBAL_OPTIONS = (
    *("--config-file", "--root", "--host", "--host-uuid", "--state-dir"),
    *("--os-cloud", "--os-region-name", "--endpoint", "--compute-endpoint"),
    "--timeout",
)


class CommandError(errors.AcceleratorError):
    """A command can't be loaded.

    :param name: the command.
    :param reason: the cause, and what to do.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"command {name}: {reason}", name, reason)
        self.name = name
        self.reason = reason


class UsageError(errors.AcceleratorError):
    """Arguments of a command can't be used together, or one is missing.

    The text says which, and what to write instead.
    """


def explain_import(name: str, place: str, error: Exception) -> CommandError:
    """Return why a command can't be imported, and what to do."""
    foreign = map(str, top_packages.find_foreign())
    return CommandError(
        name,
        f"its {place} fails to load ({error!r});"
        f" {next(foreign, 'install what it needs')}",
    )


class CommandPoint(NamedTuple):
    """Entry point of a command."""

    name: str
    point: importlib.metadata.EntryPoint

    def load(self) -> type[command.Command]:
        """Return the class of the command.

        :raises CommandError: it can't be imported, or is no command.
        """
        try:
            loaded = self.point.load()
        except Exception as error:  # third-party code may raise anything
            place = f"entry point {self.point.value}"
            raise explain_import(self.name, place, error) from error
        if not (
            isinstance(loaded, type) and issubclass(loaded, command.Command)
        ):
            raise CommandError(
                self.name,
                f"{self.point.value} is no command: it must be a class derived"
                " from cliff.command.Command",
            )
        return loaded


Points = Mapping[str, CommandPoint]


def load_points(group: str) -> Points:
    """Return the entry points of a group's commands, by name."""
    # stevedore, which cliff uses, would import all of them.
    points = (
        CommandPoint(point.name.replace("_", " "), point)
        for point in extensions.list_points(group)
    )
    return {point.name: point for point in points}


class CommandManager(commandmanager.CommandManager):
    """Commands by name; none is imported before it is used."""

    def __init__(self, points: Points) -> None:
        super().__init__("")
        self.commands.update(points)


def split_options(
    argv: Sequence[str],
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the global options before a command, and the words behind."""
    count = 0
    while count < len(argv):
        flag, sign, _ = argv[count].partition("=")
        if flag not in GLOBAL_OPTIONS:
            break
        count += 1 if sign else 2
    return argv[:count], argv[count:]
