# SPDX-License-Identifier: Apache-2.0
"""Target of Nova's dynamic vendordata; the only import of keystonemiddleware.

A WSGI server serves ``application``. Nova authenticates with the options of
``vendordata_dynamic_auth``; keystonemiddleware verifies its token with those
of ``keystone_authtoken``, and removes headers with roles that a client sends
itself.

The reply is the only output with the text of a licence token; it must not be
cached or logged.
"""

import functools
import http
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keystonemiddleware import auth_token

from nova_accel import errors
from nova_accel.config import conf
from nova_accel.model import strict_json
from placement_sync.client import rest
from placement_sync.licenses import tokens, vendordata

LOG = logging.getLogger(__name__)

# Configuration files, separated by colons, instead of nova.conf.
_VARIABLE = "NOVA_ACCEL_CONFIG_FILES"
_MAX_BYTES = 1 << 20
# Roles of a service's user; other users have tokens, too.
_ROLES = frozenset({"admin", "service"})

Environment = Mapping[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class VendordataApplication:
    """WSGI application without authentication of its own.

    It trusts the headers of keystonemiddleware and is served behind it only.
    """

    def __init__(self, service: vendordata.LicenseService) -> None:
        self._service = service

    def __call__(
        self, environment: Environment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer a request: JSON text with the vendordata."""
        status, body = self._answer(environment)
        content = json.dumps(body).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
        ]
        start_response(f"{status.value} {status.phrase}", headers)
        return [content]

    def _answer(
        self, environment: Environment
    ) -> tuple[http.HTTPStatus, object]:
        if environment["REQUEST_METHOD"] != "POST":
            return http.HTTPStatus.METHOD_NOT_ALLOWED, {}
        if not _is_service(environment):
            return http.HTTPStatus.FORBIDDEN, {}
        try:
            server, project = _parse_request(environment)
        except (LookupError, TypeError, ValueError):
            return http.HTTPStatus.BAD_REQUEST, {}
        try:
            token = self._service.find_token(server, project)
        except vendordata.RefusedError as error:
            LOG.warning("Licence vendordata is refused: %s", error)
            return http.HTTPStatus.FORBIDDEN, {}
        except errors.AcceleratorError as error:
            LOG.error("No licence vendordata for server %s: %s", server, error)
            return http.HTTPStatus.SERVICE_UNAVAILABLE, {}
        if token is not None:
            LOG.info("Server %s gets licence token %s", server, token.path)
        return http.HTTPStatus.OK, self._service.build_reply(token)


def _is_service(environment: Environment) -> bool:
    roles = environment.get("HTTP_X_ROLES", "").lower().split(",")
    return environment.get(
        "HTTP_X_IDENTITY_STATUS"
    ) == "Confirmed" and not _ROLES.isdisjoint(role.strip() for role in roles)


def _parse_request(environment: Environment) -> tuple[str, str]:
    """Return server and project of Nova's request."""
    length = int(environment["CONTENT_LENGTH"])
    if not 0 < length <= _MAX_BYTES:
        raise ValueError("length")
    body = strict_json.loads(environment["wsgi.input"].read(length))
    server, project = body["instance-id"], body["project-id"]
    if not (isinstance(server, str) and isinstance(project, str)):
        raise TypeError("ids")
    return server, project


def build_application(files: Iterable[str]) -> Application:
    """Return the application behind keystonemiddleware.

    :param files: nova.conf files with [nova_accel] license_dir, and
        credentials in [placement] and [keystone_authtoken].
    :raises ConfigurationError: they can't be used.
    """
    parsed, settings = conf.parse_files(list(files))
    if not settings.license_dir:
        raise settings.refusal(
            "license_dir", "(empty)", "set the directory of the tokens"
        )
    compute: rest.RestClient | None
    try:
        compute = rest.from_conf(parsed, rest.COMPUTE)
    except errors.ConfigurationError:
        compute = None  # needed for tokens of series only
    service = vendordata.LicenseService(
        tokens.TokenStore(settings.license_dir),
        rest.from_conf(parsed),
        compute,
    )
    protected: Application = auth_token.AuthProtocol(
        VendordataApplication(service), {"oslo_config_config": parsed}
    )
    return protected


@functools.cache
def _open() -> Application:
    files = os.environ.get(_VARIABLE, "")
    return build_application(
        files.split(":") if files else conf.find_default_files()
    )


def application(
    environment: dict[str, Any], start_response: StartResponse
) -> Iterable[bytes]:
    """Answer a request; the configuration is read with the first one."""
    return _open()(environment, start_response)
