# SPDX-License-Identifier: Apache-2.0
"""Service of the stock, for users: GET /v1/stock.

A WSGI server serves ``application``. It reads the published file for each
request, and has no credentials for Placement or Nova: keystonemiddleware
verifies tokens with those of ``keystone_authtoken``. A user sees the flavors
that the project of the token may use, and no other project.
"""

import datetime
import http
import logging
import os
from collections.abc import Iterable
from typing import Any

from nova_accel import errors
from nova_accel.config import logs
from nova_accel.discovery import nova_conf
from placement_sync.daemon import json_application
from placement_sync.fleet.stock import stock_file

LOG = logging.getLogger(__name__)

_VARIABLE = "NOVA_ACCEL_STOCK_FILE"


class StockApplication(json_application.JsonApplication):
    """Application without authentication of its own."""

    def __init__(self, path: str) -> None:
        """:param path: the published file."""
        super().__init__(self._list)
        self._path = path

    def _list(
        self, environment: json_application.Environment
    ) -> json_application.Answer:
        refuse = json_application.build_refusal
        if environment["REQUEST_METHOD"] != "GET":
            return refuse(http.HTTPStatus.METHOD_NOT_ALLOWED, "use GET")
        if not json_application.is_confirmed(environment):
            return refuse(http.HTTPStatus.UNAUTHORIZED, "no valid token")
        if environment.get("PATH_INFO") != stock_file.PATH:
            return refuse(http.HTTPStatus.NOT_FOUND, "no such path")
        try:
            stock = stock_file.read(self._path)
        except errors.AcceleratorError as error:
            logs.error(LOG, "No stock: %s", error)
            stock = None
        if stock is None:
            return refuse(
                http.HTTPStatus.SERVICE_UNAVAILABLE,
                "no stock is published; have an operator run `openstack accel"
                " stock publish`",
            )
        return http.HTTPStatus.OK, _build_answer(stock, environment)


def _build_answer(
    stock: stock_file.CloudStock, environment: json_application.Environment
) -> dict[str, Any]:
    rows = stock.list_rows(
        environment.get("HTTP_X_PROJECT_ID", ""),
        json_application.list_roles(environment),
        datetime.datetime.now(datetime.UTC),
    )
    return {
        "as_of": stock.as_of,
        "valid_until": stock.valid_until.isoformat(timespec="seconds"),
        "starts": stock.starts,
        "flavors": list(rows),
    }


def build_application(files: Iterable[str]) -> json_application.Application:
    """Return the application behind keystonemiddleware.

    :param files: nova.conf files with credentials in [keystone_authtoken].
    :raises ConfigurationError: the environment names no published file.
    """
    path = os.environ.get(_VARIABLE, "")
    if not path:
        raise errors.ConfigurationError(
            _VARIABLE,
            "(not set)",
            "set the path of the file that `openstack accel stock publish`"
            " writes",
            "environment",
        )
    parsed, _ = nova_conf.parse_files(list(files))
    return json_application.authenticated(StockApplication(path), parsed)


application = json_application.build_at_first_request(build_application)
