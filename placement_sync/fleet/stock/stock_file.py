# SPDX-License-Identifier: Apache-2.0
"""Published stock: one JSON file, and what a project may read of it."""

import dataclasses
import datetime
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from nova_accel import errors
from nova_accel.host.state import directories
from nova_accel.model import json_codec
from placement_sync.client import rest
from placement_sync.fleet.stock import stock_levels

#: Type of the service that serves it, in Keystone's catalog.
SERVICE = rest.Service(name="accelerator-stock", group="nova_accel_stock")
PATH = "/v1/stock"
NAME = "stock.json"
#: Key of the stock of all projects that have none of their own.
OTHERS = ""
# Of 10,000 flavors with their names and projects, and more.
_MAX_BYTES = 16 << 20
# Readable for the group of the service: it names private flavors.
_MODE = 0o640


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """Stock of a flavor for a project.

    ``since`` is the time from which it has the level, in ISO format.
    ``at_most`` is the most servers that there is room for.
    """

    level: stock_levels.StockLevel
    since: str
    at_most: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlavorStock:
    """Stock of a flavor; ``projects`` are those with access to it.

    ``stocks`` are by id of a project that has hosts of its own; the others
    have that of OTHERS.
    """

    id: str
    name: str
    is_public: bool
    projects: tuple[str, ...]
    stocks: Mapping[str, Stock]

    def find(self, project: str) -> Stock | None:
        """Return the stock for a project, None if it can't see the flavor."""
        if not self.is_public and project not in self.projects:
            return None
        return self.get_stock(project)

    def get_stock(self, project: str) -> Stock:
        """Return the stock for a project, as if it saw the flavor."""
        return self.stocks.get(project) or self.stocks[OTHERS]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CloudStock:
    """Stock of all flavors at a time.

    ``as_of`` is in ISO format; ``max_age_s`` seconds later the levels are
    unknown. ``starts`` is the number of starts that a level of MANY survives
    until then. ``number_roles`` are the roles whose users see numbers.
    """

    as_of: str
    max_age_s: float
    starts: int
    number_roles: tuple[str, ...] = ()
    flavors: tuple[FlavorStock, ...] = ()

    @property
    def valid_until(self) -> datetime.datetime:
        """Return the time after which the levels are unknown."""
        return datetime.datetime.fromisoformat(
            self.as_of
        ) + datetime.timedelta(seconds=self.max_age_s)

    def list_rows(
        self,
        project: str,
        roles: Collection[str],
        now: datetime.datetime,
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of the flavors that a project may see.

        The keys are id, name, level, since and, for users of a role that
        sees numbers, at_most. Since and at_most of a level that is unknown
        are None.
        """
        has_numbers = not {r.lower() for r in roles}.isdisjoint(
            role.lower() for role in self.number_roles
        )
        is_known = now <= self.valid_until
        for flavor in self.flavors:
            stock = flavor.find(project)
            if stock is None:
                continue
            row: dict[str, Any] = {
                "id": flavor.id,
                "name": flavor.name,
                "level": stock_levels.StockLevel.UNKNOWN,
                "since": None,
            }
            if is_known:
                row |= {"level": stock.level, "since": stock.since}
            if has_numbers:
                row["at_most"] = stock.at_most if is_known else None
            yield row


#: Of the file; a release that changes a meaning raises the version.
FORMAT = json_codec.Format(kind=CloudStock)


def write(path: str, stock: CloudStock) -> None:
    """Replace the file atomically; other users can't read it.

    :raises ArchiveError: it can't be written.
    """
    replace(path, FORMAT.encode(stock, indent=1), _MODE)


def replace(path: str, text: str, mode: int) -> None:
    """Replace a file atomically.

    :raises ArchiveError: it can't be written.
    """
    try:
        directories.replace_file(path, text.encode(), mode)
    except OSError as error:
        raise errors.ArchiveError(
            path, f"can't be written: {error.strerror}"
        ) from error


def read(path: str) -> CloudStock | None:
    """Return the published stock, None without a file.

    :raises ArchiveError: the file can't be read, or has another form.
    """
    try:
        stock = FORMAT.decode(directories.read_path(path, _MAX_BYTES))
        if stock.valid_until.tzinfo is None:
            raise ValueError("as_of has no time zone")
        if any(OTHERS not in flavor.stocks for flavor in stock.flavors):
            raise ValueError("a flavor has no stock of all projects")
    except FileNotFoundError:
        return None
    except (OSError, OverflowError, ValueError) as error:
        raise errors.ArchiveError(
            path,
            f"can't be used as a stock: {error}; remove it, and run"
            " `openstack accel stock publish`",
        ) from error
    return stock


def add_times(
    levels: Mapping[str, tuple[stock_levels.StockLevel, int]],
    before: FlavorStock | None,
    now: str,
) -> dict[str, Stock]:
    """Return stocks with the times since which they have their levels.

    Projects whose stock is that of the others are left out.

    :param levels: level and most servers by project.
    :param before: the last stock of the flavor, None without one.
    """
    stocks = {}
    for project, (level, at_most) in levels.items():
        if project != OTHERS and levels[project] == levels[OTHERS]:
            continue
        last = before.get_stock(project) if before else None
        since = last.since if last and last.level is level else now
        stocks[project] = Stock(level=level, since=since, at_most=at_most)
    return stocks


def list_returned(
    before: CloudStock | None, after: CloudStock
) -> Iterator[tuple[FlavorStock, str, Stock]]:
    """Yield the flavors that can start again, with projects and stocks.

    There are none without an earlier stock.
    """
    old = {flavor.id: flavor for flavor in before.flavors} if before else {}
    for flavor in after.flavors:
        if flavor.id not in old:
            continue
        for project, stock in flavor.stocks.items():
            last = old[flavor.id].get_stock(project)
            is_empty = last.level is stock_levels.StockLevel.NONE
            if is_empty and stock.level is not stock_levels.StockLevel.NONE:
                yield flavor, project, stock
