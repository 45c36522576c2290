# SPDX-License-Identifier: Apache-2.0
"""RPC client of nova-compute's endpoint."""

import dataclasses
import datetime
import logging
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import oslo_messaging
from nova import config, context, rpc
from nova.conf import CONF
from nova.objects import base

from nova_accel import errors
from nova_accel.model import rpc_names
from placement_sync.client import rest

# As long as placement_sync.client.rest allows for a connection to Placement.
CONNECT_SECONDS = rest.CONNECT_SECONDS
# Where a transport_url names none (oslo.messaging, impl_rabbit.py).
_HOST, _PORT = "localhost", 5672
_UNSUPPORTED = "UnsupportedVersion"


class RpcRefusedError(errors.ServiceError):
    """nova-compute was asked, and refuses."""


@dataclasses.dataclass(frozen=True, slots=True)
class RequestIdentity:
    """In whose name nova-compute is asked, and Glance by that.

    ``is_administrator``: with the credentials of nova.conf. Whoever may
    read those, and its transport_url, is trusted by all of Nova. Others
    are what Nova's policy says of their roles.
    """

    identity: rest.Identity
    is_administrator: bool


class ComputeRpc:
    """Calls to nova-compute, with Nova's own context."""

    def __init__(self, files: Sequence[str]) -> None:
        """Connect to the bus that these configuration files name.

        :raises ConfigurationError: they name none.
        :raises ServiceError: it can't be reached.
        """
        if rpc.TRANSPORT is None:
            _configure(files)
            _check_url(files)
            # The command prints what fails, in one line. Nova's libraries
            # give the root logger a handler that prints all of them.
            quiet = logging.getLogger("oslo.messaging")
            quiet.addHandler(logging.NullHandler())
            quiet.propagate = False
        _connect(CONNECT_SECONDS)
        self._client = rpc.get_client(
            oslo_messaging.Target(
                topic=rpc_names.TOPIC,
                namespace=rpc_names.NAMESPACE,
                version=rpc_names.VERSION,
            ),
            serializer=base.NovaObjectSerializer(),
        )

    def ask(
        self,
        host: str,
        method: str,
        is_long: bool,
        asker: RequestIdentity | None = None,
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
        # After that this client hears no more of a nova-compute that has
        # not begun: it must not begin any more either.
        deadline = datetime.datetime.now(datetime.UTC) + datetime.timedelta(
            seconds=CONF.rpc_response_timeout
        )
        called = f"{method} on {host}"
        try:
            answer = self._call(
                host,
                is_long,
                _context_of(asker),
                method,
                words | {"deadline": deadline.isoformat()},
            )
        except oslo_messaging.MessagingTimeout as error:
            raise errors.ServiceError(
                "RPC",
                called,
                None,
                f"no nova-compute answers ({error}); see whether it runs with"
                " nova-accel, and whether transport_url is its cell's",
            ) from error
        except oslo_messaging.MessagingException as error:
            raise errors.ServiceError(
                "RPC", called, None, str(error)
            ) from error
        if rpc_names.REFUSED in answer:
            raise RpcRefusedError(
                "RPC", called, None, answer[rpc_names.REFUSED]
            )
        return answer[rpc_names.TOLD]

    def _call(
        self,
        host: str,
        is_long: bool,
        asker: context.RequestContext,
        method: str,
        words: Mapping[str, Any],
    ) -> Any:
        """Call nova-compute; one that knows no deadlines without it.

        :raises oslo_messaging.MessagingException: it can't be called.
        """
        try:
            return self._prepare(host, is_long).call(asker, method, **words)
        except oslo_messaging.UnsupportedVersion:
            pass
        except oslo_messaging.RemoteError as error:
            if error.exc_type != _UNSUPPORTED:
                raise
        older = self._prepare(
            host, is_long, rpc_names.VERSION_WITHOUT_DEADLINE
        )
        words = {n: word for n, word in words.items() if n != "deadline"}
        return older.call(asker, method, **words)

    def _prepare(
        self, host: str, is_long: bool, version: str = rpc_names.VERSION
    ) -> Any:
        return self._client.prepare(
            server=host,
            version=version,
            timeout=(
                CONF.long_rpc_timeout if is_long else CONF.rpc_response_timeout
            ),
            call_monitor_timeout=(
                CONF.rpc_response_timeout if is_long else None
            ),
            retry=_count_retries(),
        )


def _configure(files: Sequence[str]) -> None:
    """Set up Nova's message bus by these configuration files.

    :raises ConfigurationError: transport_url can't be used.
    """
    words = [word for path in files for word in ("--config-file", path)]
    try:
        config.parse_args(
            ["nova-accel", *words],
            default_config_files=[],
            configure_db=False,
        )
    except (oslo_messaging.MessagingException, ValueError) as error:
        # The exception's own text has the URL, and with it a password.
        raise errors.ConfigurationError(
            "[DEFAULT] transport_url",
            "(not shown)",
            f"oslo.messaging can't use it ({type(error).__name__}); write"
            " rabbit://USER:PASSWORD@HOST:PORT/",
        ) from None


def _check_url(files: Sequence[str]) -> None:
    """Check that the message bus is configured.

    :raises ConfigurationError: oslo.messaging would take its default, a
        RabbitMQ on this machine.
    """
    found = CONF.get_location("transport_url")
    if found is None or not found.location.is_user_controlled:
        raise errors.ConfigurationError(
            "[DEFAULT] transport_url",
            "(nothing)",
            f"no message bus is named in {', '.join(files) or 'any file'};"
            " name the nova.conf of a nova-compute with --config-file",
        )


def _count_retries() -> int:
    """Return the retries with which each host of the bus is tried once."""
    return max(0, len(rpc.get_transport_url().hosts) - 1)


def _connect(seconds: float) -> None:
    """Open the connection to the bus that the first call will use.

    oslo.messaging itself tries for ever, and its sockets may wait longer
    than anyone does: so this is done in a thread that is left behind.

    :raises ServiceError: there is no connection after so many seconds.
    """
    # Of all drivers that speak AMQP; the others connect in other ways.
    connection = getattr(rpc.TRANSPORT._driver, "_get_connection", None)
    if connection is None:
        return
    reasons: queue.SimpleQueue[str] = queue.SimpleQueue()

    def connect() -> None:
        try:
            with connection(retry=_count_retries()):
                reasons.put("")
        except Exception as error:
            reasons.put(str(error) or type(error).__name__)

    threading.Thread(target=connect, name="connect", daemon=True).start()
    try:
        reason = reasons.get(timeout=seconds)
    except queue.Empty:
        reason = f"no answer in {seconds:g} s"
    if reason:
        raise errors.ServiceError(
            "RPC",
            "message bus",
            None,
            f"{_describe_hosts()} can't be reached ({reason}); see whether"
            " RabbitMQ runs there, and whether transport_url is right",
        )


def _describe_hosts() -> str:
    """Return hosts and ports of the bus, without user and password."""
    hosts = rpc.get_transport_url().hosts
    named = [f"{h.hostname or _HOST}:{h.port or _PORT}" for h in hosts]
    return ", ".join(named) or f"{_HOST}:{_PORT}"


def _context_of(asker: RequestIdentity | None) -> context.RequestContext:
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
