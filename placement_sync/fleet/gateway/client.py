# SPDX-License-Identifier: Apache-2.0
"""Bus of commands on a machine without Nova: HTTP requests to the gateway."""

import http
from typing import Any

from nova_accel import errors
from placement_sync.client import cloud_client, rest
from placement_sync.fleet import host_bus
from placement_sync.fleet.gateway import methods

# Nova's default of long_rpc_timeout, for which the gateway waits, too.
_LONG_S = 1800.0


class GatewayBus:
    """Client of nova-compute's endpoints, with the user's own token."""

    finds_hosts = True

    def __init__(self, client: rest.RestClient) -> None:
        """:param client: of ``methods.SERVICE``."""
        self._client = client
        self._usual = client.timeout

    def call(
        self,
        host: str,
        method: str,
        is_long: bool,
        identity: cloud_client.Identity | None = None,
        timeout_s: float | None = None,
        **arguments: Any,
    ) -> Any:
        """Call a method of a host's nova-compute; see ``HostBus``.

        The gateway finds the host of a server itself, and Keystone the user
        of the token.
        """
        del identity
        target = arguments.pop("server", host)
        connect_s, answer_s = self._usual
        self._client.timeout = (
            connect_s,
            timeout_s or (_LONG_S if is_long else answer_s),
        )
        path = methods.build_path(method, target)
        try:
            return self._client.post(path, arguments).body["result"]
        except errors.ServiceError as error:
            if error.status != http.HTTPStatus.CONFLICT:
                raise
            raise host_bus.RpcRefusedError(
                "RPC", f"{method} of {target}", None, error.reason
            ) from error


def is_offered(
    identity: cloud_client.Identity | None,
    service: rest.Service = methods.SERVICE,
) -> bool:
    """Return whether Keystone's catalog has a service, by default this."""
    return identity is not None and any(
        offered.get("type") == service.name for offered in identity.catalog
    )
