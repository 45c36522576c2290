# SPDX-License-Identifier: Apache-2.0
"""Target of Nova's dynamic vendordata.

A WSGI server serves ``application``. Nova authenticates with the options of
``vendordata_dynamic_auth``; keystonemiddleware verifies its token with those
of ``keystone_authtoken``.

The reply is the only output with the text of a licence token; it must not be
cached or logged.
"""

import http
import logging
from collections.abc import Iterable

from nova_accel import errors
from nova_accel.config import logs
from nova_accel.discovery import nova_conf
from placement_sync.client import cloud_client, rest
from placement_sync.daemon import json_application
from placement_sync.licenses import tokens, vendordata

LOG = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20
# Roles of a service's user; other users have tokens, too.
_ROLES = frozenset({"admin", "service"})


class VendordataApplication(json_application.JsonApplication):
    """Application without authentication of its own."""

    def __init__(self, service: vendordata.LicenseService) -> None:
        super().__init__(self._find_vendordata)
        self._service = service

    def _find_vendordata(
        self, environment: json_application.Environment
    ) -> json_application.Answer:
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
            logs.warning(LOG, "Licence vendordata is refused: %s", error)
            return http.HTTPStatus.FORBIDDEN, {}
        except errors.AcceleratorError as error:
            logs.error(
                LOG, "No licence vendordata for server %s: %s", server, error
            )
            return http.HTTPStatus.SERVICE_UNAVAILABLE, {}
        if token is not None:
            LOG.info("Server %s gets licence token %s", server, token.path)
        return http.HTTPStatus.OK, self._service.build_reply(token)


def _is_service(environment: json_application.Environment) -> bool:
    roles = json_application.list_roles(environment)
    return json_application.is_confirmed(
        environment
    ) and not _ROLES.isdisjoint(role.lower() for role in roles)


def _parse_request(
    environment: json_application.Environment,
) -> tuple[str, str]:
    """Return server and project of Nova's request."""
    body = json_application.read_body(environment, _MAX_BYTES)
    server, project = body["instance-id"], body["project-id"]
    if not (isinstance(server, str) and isinstance(project, str)):
        raise TypeError("ids")
    return server, project


def build_application(files: Iterable[str]) -> json_application.Application:
    """Return the application behind keystonemiddleware.

    :param files: nova.conf files with [nova_accel] license_dir, and
        credentials in [placement] and [keystone_authtoken].
    :raises ConfigurationError: they can't be used.
    """
    parsed, settings = nova_conf.parse_files(list(files))
    if not settings.license_dir:
        raise settings.refusal(
            "license_dir", "(empty)", "set the directory of the tokens"
        )
    compute: rest.RestClient | None
    try:
        compute = cloud_client.from_conf(parsed, rest.COMPUTE)
    except errors.ConfigurationError:
        compute = None  # needed for tokens of series only
    service = vendordata.LicenseService(
        tokens.TokenStore(settings.license_dir),
        cloud_client.from_conf(parsed),
        compute,
    )
    return json_application.authenticated(
        VendordataApplication(service), parsed
    )


application = json_application.build_at_first_request(build_application)
