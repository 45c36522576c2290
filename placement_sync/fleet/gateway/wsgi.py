# SPDX-License-Identifier: Apache-2.0
"""Service of the gateway: requests with a token become calls of nova-compute.

A WSGI server serves ``application`` on a machine with Nova and its message
bus. The request reaches nova-compute with the user, the project and the roles
of its token, and nova-compute's policy decides, as for a command there: the
gateway has no rules of its own, and reveals no server to a user who can't
read it.
"""

import http
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_accel import errors
from nova_accel.config import logs
from nova_accel.discovery import nova_conf
from nova_accel.model import json_codec
from placement_sync.client import cloud_client, nova_api, rest
from placement_sync.daemon import json_application
from placement_sync.fleet import compute_rpc, host_bus
from placement_sync.fleet.gateway import methods

LOG = logging.getLogger(__name__)

# Uuids of all devices of a host, and more.
_MAX_BYTES = 1 << 18
_NO_SERVER = "there is no such server on a host"


class GatewayApplication(json_application.JsonApplication):
    """Application without authentication of its own."""

    def __init__(
        self, bus: host_bus.HostBus, compute: rest.RestClient
    ) -> None:
        """Pass requests on to a bus.

        :param compute: of Nova's API, with the credentials of a service:
            users are not shown on which host a server is.
        """
        super().__init__(self._pass_on)
        self._bus, self._compute = bus, compute

    def _pass_on(
        self, environment: json_application.Environment
    ) -> json_application.Answer:
        try:
            name, target, arguments, identity = _parse(environment)
            return http.HTTPStatus.OK, {
                "result": self._call(name, target, identity, arguments)
            }
        except _RefusalError as error:
            return json_application.build_refusal(error.status, str(error))
        except host_bus.RpcRefusedError as error:
            return json_application.build_refusal(
                http.HTTPStatus.CONFLICT, error.reason
            )
        except errors.AcceleratorError as error:
            # It may name hosts of the cloud.
            logs.error(LOG, "%s of %s: %s", name, target, error)
            return json_application.build_refusal(
                http.HTTPStatus.BAD_GATEWAY,
                "nova-compute or Nova's API does not answer; the log of the"
                " gateway says why",
            )

    def _call(
        self,
        name: str,
        target: str,
        identity: cloud_client.Identity,
        arguments: Mapping[str, Any],
    ) -> Any:
        method = methods.METHODS[name]
        host, about = target, dict(arguments)
        if method.kind == methods.SERVERS:
            server = nova_api.find_server(self._compute, target)
            if server is None or not server.host:
                raise _RefusalError(http.HTTPStatus.CONFLICT, _NO_SERVER)
            host, about["server"] = server.host, server.uuid
        return self._bus.call(
            host,
            name,
            method.is_long,
            identity,
            **about,
        )


class _RefusalError(Exception):
    """The gateway itself refuses a request."""

    def __init__(self, status: http.HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def _parse(
    environment: json_application.Environment,
) -> tuple[str, str, Mapping[str, Any], cloud_client.Identity]:
    """Return method, target, arguments and user of a request.

    :raises _RefusalError: it has none of them.
    """
    if environment["REQUEST_METHOD"] != "POST":
        raise _RefusalError(http.HTTPStatus.METHOD_NOT_ALLOWED, "use POST")
    if not json_application.is_confirmed(environment):
        raise _RefusalError(http.HTTPStatus.UNAUTHORIZED, "no valid token")
    try:
        name, target = methods.parse_path(environment.get("PATH_INFO", ""))
    except LookupError:
        raise _RefusalError(
            http.HTTPStatus.NOT_FOUND, "no such path"
        ) from None
    try:
        body = json_application.read_body(environment, _MAX_BYTES)
        arguments = methods.check_arguments(name, body)
        return name, target, arguments, parse_identity(environment)
    except (errors.MalformedError, ValueError) as error:
        raise _RefusalError(http.HTTPStatus.BAD_REQUEST, str(error)) from error


def parse_identity(
    environment: json_application.Environment,
) -> cloud_client.Identity:
    """Return the user of a request, from keystonemiddleware's headers.

    :raises ValueError: the service catalog is no JSON.
    """
    catalog = json_codec.loads(
        environment.get("HTTP_X_SERVICE_CATALOG") or "[]"
    )
    return cloud_client.Identity(
        token=environment.get("HTTP_X_AUTH_TOKEN", ""),
        user=environment.get("HTTP_X_USER_ID", ""),
        project=environment.get("HTTP_X_PROJECT_ID", ""),
        roles=json_application.list_roles(environment),
        catalog=tuple(parse_v2_catalog(catalog)),
        user_name=environment.get("HTTP_X_USER_NAME", ""),
    )


def parse_v2_catalog(
    catalog: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield the services of a catalog of version 2 in the form of version 3.

    keystonemiddleware passes the former on.
    """
    for service in catalog:
        yield {
            "type": service["type"],
            "name": service.get("name", ""),
            "endpoints": [
                {
                    "interface": key.removesuffix("URL"),
                    "region_id": endpoint.get("region"),
                    "url": url,
                }
                for endpoint in service["endpoints"]
                for key, url in endpoint.items()
                if key.endswith("URL")
            ],
        }


def build_application(files: Iterable[str]) -> json_application.Application:
    """Return the application behind keystonemiddleware.

    :param files: nova.conf files with transport_url, and credentials in
        [nova] or [placement] and [keystone_authtoken].
    :raises ConfigurationError: they can't be used.
    :raises ServiceError: the bus can't be reached.
    """
    parsed, _ = nova_conf.parse_files(list(files))
    return json_application.authenticated(
        GatewayApplication(
            compute_rpc.ComputeRpc(tuple(files)),
            cloud_client.from_conf(parsed, rest.COMPUTE),
        ),
        parsed,
    )


application = json_application.build_at_first_request(build_application)
