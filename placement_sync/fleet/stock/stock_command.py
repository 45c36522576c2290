# SPDX-License-Identifier: Apache-2.0
"""Commands ``stock publish`` and ``stock list``."""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nova_accel import errors
from nova_accel.cli import application, command_manager, time_options
from nova_accel.inventory import wording
from placement_sync.cli import common_options, progress
from placement_sync.client import cloud_client, rest
from placement_sync.fleet.cli import server_command
from placement_sync.fleet.explain import cloud_context
from placement_sync.fleet.gateway import client
from placement_sync.fleet.stock import (
    stock_file,
    stock_levels,
    stock_page,
    stock_reader,
)

_EVENT = "accelerator.stock.available"
_PUBLISHER = "nova-accel"
_COLUMNS = ("Flavor", "Stock", "Since")
_NUMBER = "At most"
_OUT_OF_STOCK = 1
_NO_FLAVOR = "No flavor that you may use requests accelerators.\n"


def _add_publish_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        metavar="DIR",
        required=True,
        help=f"write {stock_file.NAME} and {stock_page.NAME} to it",
    )
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=time_options.parse_seconds,
        help="publish again each time, until the command is stopped (default:"
        " publish once)",
    )
    parser.add_argument(
        "--max-age",
        metavar="SECONDS",
        type=time_options.parse_seconds,
        default=180.0,
        help="levels are unknown when they are older (default 180)",
    )
    parser.add_argument(
        "--starts",
        metavar="NUMBER",
        type=_parse_number,
        default=5,
        help="servers that others may start within --max-age without making"
        " a level of many wrong (default 5)",
    )
    parser.add_argument(
        "--number-role",
        metavar="ROLE",
        action="append",
        default=[],
        help="show users of this role how many servers there is room for at"
        " most; may be repeated (default: no one)",
    )
    parser.add_argument(
        "--notify",
        action="store_true",
        help=f"send the notification {_EVENT} on Nova's notifiers for each"
        " flavor that can start again; needs Nova and its nova.conf",
    )


def _parse_number(text: str) -> int:
    """Return a positive number.

    :raises ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _publish(arguments: argparse.Namespace) -> application.Output:
    """Publish the stock once, or at an interval until the process ends.

    :raises AcceleratorError: it can't be published once.
    """
    publisher = _Publisher(arguments)
    count = publisher.publish()
    while arguments.interval:
        time.sleep(arguments.interval)
        try:
            publisher.publish()
        except errors.AcceleratorError as error:
            # Readers see by the age that the file is old.
            progress.warn(f"the stock is not published: {error}")
    return (
        f"Published the stock of {wording.count_of(count, 'flavor')}:"
        f" {publisher.path}\n"
    )


class _Publisher:
    """Publishes the stock of a cloud."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Read the last file, for the times of its levels.

        :raises AcceleratorError: an argument or the file can't be used.
        """
        context = cloud_context.open_cloud(arguments)
        self._reader = stock_reader.StockReader(
            placement=context.placement,
            compute=context.compute,
            types=context.types,
            max_age_s=arguments.max_age,
            starts=arguments.starts,
            number_roles=tuple(arguments.number_role),
        )
        self.path = os.path.join(arguments.directory, stock_file.NAME)
        self._page = os.path.join(arguments.directory, stock_page.NAME)
        self._last = stock_file.read(self.path)
        self._bus: Any = None
        if arguments.notify:
            self._bus = server_command.open_nova_bus(
                common_options.resolve_options(arguments), "stock publish"
            )

    def publish(self) -> int:
        """Publish the stock; return the number of its flavors.

        :raises AcceleratorError: it can't be read or written.
        """
        stock = self._reader.read(self._last)
        stock_file.write(self.path, stock)
        stock_file.replace(
            self._page, stock_page.render(stock), stock_page.MODE
        )
        returned = list(stock_file.list_returned(self._last, stock))
        self._last = stock
        for flavor, project, change in returned:
            if self._bus is not None:
                self._bus.notify(
                    _PUBLISHER, _EVENT, _build_payload(flavor, project, change)
                )
        return len(stock.flavors)


def _build_payload(
    flavor: stock_file.FlavorStock, project: str, stock: stock_file.Stock
) -> dict[str, Any]:
    """Return the payload; without a project it is for all others."""
    return {
        "flavor_id": flavor.id,
        "flavor": flavor.name,
        "is_public": flavor.is_public,
        "tenant_id": project or None,
        "level": stock.level.value,
        "since": stock.since,
    }


def _add_list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--flavor",
        metavar="FLAVOR",
        action="append",
        default=[],
        help="list only this flavor, by id or name; may be repeated",
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=time_options.parse_seconds,
        help="wait up to so many seconds until a server of a listed flavor can"
        " start",
    )


def _list(arguments: argparse.Namespace) -> application.Output:
    """Return the stock of the user's flavors, and 1 if there is none.

    :raises CommandError: the cloud has no service of the stock.
    :raises MalformedError: no flavor of the stock has a name.
    :raises ServiceError: the service or Keystone does not respond.
    """
    service = _open_service(arguments)

    def explain_shortage() -> str:
        answer = service.read(stock_file.PATH, dict)
        return "" if _is_in_stock(_select(arguments, answer)) else "none yet"

    if arguments.wait:
        progress.wait_until(
            "stock of a flavor", explain_shortage, arguments.wait
        )
    answer = service.read(stock_file.PATH, dict)
    rows = _select(arguments, answer)
    has_numbers = any("at_most" in row for row in rows)
    note = (
        f"As of {answer['as_of']}; not valid after {answer['valid_until']}."
        f" many: a server can still start after {answer['starts']} others.\n"
    )
    return application.Table(
        columns=(*_COLUMNS, _NUMBER) if has_numbers else _COLUMNS,
        rows=[
            (
                row["name"],
                row["level"],
                row["since"],
                *([row["at_most"]] if has_numbers else []),
            )
            for row in rows
        ],
        notes=note if rows else _NO_FLAVOR,
        status=0 if _is_in_stock(rows) else _OUT_OF_STOCK,
    )


def _open_service(arguments: argparse.Namespace) -> rest.RestClient:
    """Return the client of the stock's service.

    :raises CommandError: Keystone's catalog does not have it.
    :raises ConfigurationError: there are no credentials.
    """
    options = common_options.resolve_options(arguments)
    compute = common_options.open_client(arguments, options, rest.COMPUTE)
    identity = cloud_client.read_identity(compute)
    if not client.is_offered(identity, stock_file.SERVICE):
        raise command_manager.CommandError(
            "stock list",
            "Keystone's catalog has no service of type"
            f" {stock_file.SERVICE.name}; have an operator install it",
        )
    return common_options.open_client(arguments, options, stock_file.SERVICE)


def _select(
    arguments: argparse.Namespace, answer: Mapping[str, Any]
) -> Sequence[Mapping[str, Any]]:
    """Return the rows of the flavors of the arguments.

    :raises MalformedError: there is no such flavor.
    """
    rows: list[Mapping[str, Any]] = answer["flavors"]
    if not arguments.flavor:
        return rows
    listed = {row["id"]: row for row in rows}
    for name in arguments.flavor:
        if not any(name in (row["id"], row["name"]) for row in rows):
            raise errors.MalformedError(
                "flavor of the stock",
                name,
                "one that `openstack accel stock list` lists",
            )
    return [
        row
        for row in listed.values()
        if {row["id"], row["name"]} & set(arguments.flavor)
    ]


def _is_in_stock(rows: Sequence[Mapping[str, Any]]) -> bool:
    levels = (stock_levels.StockLevel.FEW, stock_levels.StockLevel.MANY)
    return any(row["level"] in levels for row in rows)


PUBLISH = common_options.build_cloud_action(_add_publish_arguments, _publish)
LIST = common_options.build_cloud_action(_add_list_arguments, _list)
