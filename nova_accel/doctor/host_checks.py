# SPDX-License-Identifier: Apache-2.0
"""Check of a host, its results, and an area of checks."""

import dataclasses
import enum
from collections.abc import Callable, Iterable

from nova_accel.doctor import checked_host

# Technology of checks that every host needs.
HOST = "host"


class Level(enum.StrEnum):
    """Severity of a result, from the least to the most severe one."""

    OK = "ok"
    ABSENT = "n/a"
    NOTE = "note"
    UNKNOWN = "unknown"
    WARN = "warn"
    FAIL = "fail"


class Role(enum.StrEnum):
    """Hosts on which a check is run."""

    COMPUTE = "compute"
    SCHEDULER = "scheduler"
    REMOVAL = "removal"
    CLOUD = "cloud"
    EVERY = "every"


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """One fact about a host.

    ``paths`` are the files that prove it. ``remedy`` has the lines that
    correct it, if those of the check do not apply.
    """

    level: Level
    text: str
    paths: tuple[str, ...] = ()
    remedy: str = ""


def ok(text: str, *paths: str) -> Observation:
    """Return an observation of a state that is right."""
    return Observation(Level.OK, text, paths)


def fail(text: str, *paths: str, remedy: str = "") -> Observation:
    """Return an observation that keeps devices from servers."""
    return Observation(Level.FAIL, text, paths, remedy)


def warn(text: str, *paths: str, remedy: str = "") -> Observation:
    """Return an observation that will cause trouble under a condition."""
    return Observation(Level.WARN, text, paths, remedy)


def unknown(text: str, *paths: str, remedy: str = "") -> Observation:
    """Return an observation of a fact that could not be verified."""
    return Observation(Level.UNKNOWN, text, paths, remedy)


def note(text: str, *paths: str, remedy: str = "") -> Observation:
    """Return an observation that is no error."""
    return Observation(Level.NOTE, text, paths, remedy)


Find = Callable[[checked_host.CheckedHost], Iterable[Observation]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostCheck:
    """A check: a pure function over a host's files, with its texts.

    ``name`` is ``AREA.NAME``. ``is_of_devices`` is True for a check that has
    no meaning on a host without accelerators. ``why`` is the consequence of
    an error, ``remedy`` has the lines that correct it, ``page`` is a page of
    the manual below ``admin``. ``ansible`` is the role that applies the
    remedy, empty if no role does.
    """

    name: str
    technology: str
    title: str
    why: str
    remedy: str
    page: str
    find: Find
    ansible: str = ""
    role: Role = Role.COMPUTE
    is_of_devices: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one check on one host.

    ``readings`` has for each observation the paths and their values.
    ``is_absent`` is True where the host has no device of its technology.
    """

    check: HostCheck
    observations: tuple[Observation, ...] = ()
    readings: tuple[tuple[tuple[str, str], ...], ...] = ()
    is_absent: bool = False

    @property
    def level(self) -> Level:
        """Return the level of the most severe observation."""
        levels = {observation.level for observation in self.observations}
        default = Level.ABSENT if self.is_absent else Level.OK
        return max(levels, key=list(Level).index, default=default)


class Area:
    """Checks of one area, in the order of their definition.

    :param name: the first part of the checks' names.
    :param technology: the technology of the checks; ``HOST`` for those that
        every host needs.
    :param page: the page of the manual about them.
    :param is_of_devices: whether the checks have no meaning on a host
        without accelerators.
    """

    def __init__(
        self,
        name: str,
        page: str,
        technology: str = HOST,
        role: Role = Role.COMPUTE,
        is_of_devices: bool = False,
    ) -> None:
        self.name = name
        self._is_of_devices = is_of_devices
        self.checks: list[HostCheck] = []
        self._page, self._technology, self._role = page, technology, role

    def check(
        self,
        name: str,
        *,
        why: str,
        remedy: str,
        ansible: str = "",
        technology: str = "",
        page: str = "",
    ) -> Callable[[Find], Find]:
        """Return a decorator that registers a function as a check.

        :param page: the page of the manual if it is not that of the area.
        """

        def register(find: Find) -> Find:
            title = (find.__doc__ or "").partition("\n")[0].rstrip(".")
            self.checks.append(
                HostCheck(
                    name=f"{self.name}.{name}",
                    technology=technology or self._technology,
                    title=title,
                    why=why,
                    remedy=remedy,
                    page=page or self._page,
                    find=find,
                    ansible=ansible,
                    role=self._role,
                    is_of_devices=self._is_of_devices,
                )
            )
            return find

        return register
