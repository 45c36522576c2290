# SPDX-License-Identifier: Apache-2.0
"""nova-compute, asked over Nova's own message bus."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import oslo_messaging
from nova import config, context, rpc
from nova.conf import CONF
from nova.objects import base

from nova_accel import bus, errors
from placement_sync import api


class RefusedError(errors.ServiceError):
    """nova-compute was asked, and refuses."""


@dataclasses.dataclass(frozen=True, slots=True)
class Asker:
    """In whose name nova-compute is asked, and Glance by that.

    ``is_administrator``: with the credentials of nova.conf. Whoever may
    read those, and its transport_url, is trusted by all of Nova. Others
    are what Nova's policy says of their roles.
    """

    identity: api.Identity
    is_administrator: bool


class Bus:
    """Calls to nova-compute, with Nova's own context."""

    def __init__(self, files: Sequence[str]) -> None:
        """Use the bus that these configuration files name."""
        if rpc.TRANSPORT is None:
            words = [word for f in files for word in ("--config-file", f)]
            config.parse_args(
                ["nova-accel", *words],
                default_config_files=[],
                configure_db=False,
            )
        self._client = rpc.get_client(
            oslo_messaging.Target(
                topic=bus.TOPIC,
                namespace=bus.NAMESPACE,
                version=bus.VERSION,
            ),
            serializer=base.NovaObjectSerializer(),
        )

    def ask(
        self,
        host: str,
        method: str,
        is_long: bool,
        asker: Asker | None = None,
        **words: Any,
    ) -> Any:
        """Return what nova-compute of a host answers.

        :param asker: None for Nova's administrator, whom Glance does not
            know.
        :param is_long: whether it may take as long as a guest does; that
            nova-compute is there is still known within a minute.
        :raises RefusedError: it refuses.
        :raises ServiceError: it does not answer.
        """
        told = f"{method} on {host}"
        prepared = self._client.prepare(
            server=host,
            timeout=(
                CONF.long_rpc_timeout if is_long else CONF.rpc_response_timeout
            ),
            call_monitor_timeout=(
                CONF.rpc_response_timeout if is_long else None
            ),
        )
        try:
            answer = prepared.call(_context_of(asker), method, **words)
        except oslo_messaging.MessagingTimeout as error:
            raise errors.ServiceError(
                "RPC",
                told,
                None,
                f"no nova-compute answers ({error}); see whether it runs with"
                " nova-accel, and whether transport_url is its cell's",
            ) from error
        except oslo_messaging.MessagingException as error:
            raise errors.ServiceError("RPC", told, None, str(error)) from error
        if bus.REFUSED in answer:
            raise RefusedError("RPC", told, None, answer[bus.REFUSED])
        return answer[bus.TOLD]


def _context_of(asker: Asker | None) -> context.RequestContext:
    """Return Nova's context of whoever asks."""
    if asker is None:
        return context.get_admin_context()
    who = asker.identity
    return context.RequestContext(
        user_id=who.user,
        project_id=who.project,
        roles=list(who.roles),
        auth_token=who.token,
        service_catalog=list(old_catalog(who.catalog)),
        is_admin=True if asker.is_administrator else None,
    )


def old_catalog(
    catalog: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield Keystone's catalogue in the form of its version 2.

    Nova's context has it in that one (nova/context.py, ServiceCatalogV2),
    as keystonemiddleware gives it to Nova's API: an endpoint for each
    region, with a URL for each interface.
    """
    for service in catalog:
        regions: dict[str | None, dict[str, Any]] = {}
        for endpoint in service["endpoints"]:
            region = endpoint.get("region_id") or endpoint.get("region")
            found = regions.setdefault(region, {"region": region})
            found[f"{endpoint['interface']}URL"] = endpoint["url"]
        yield {
            "type": service["type"],
            "name": service.get("name", ""),
            "endpoints": list(regions.values()),
        }
