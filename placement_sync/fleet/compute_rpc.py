# SPDX-License-Identifier: Apache-2.0
"""RPC client of nova-compute's endpoint."""

import datetime
import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import oslo_messaging
from nova import config, context, rpc
from nova.conf import CONF
from nova.objects import base

from nova_accel import errors
from nova_accel.model import rpc_names
from placement_sync.client import cloud_client, rest
from placement_sync.fleet import host_bus

# The same limit as for a connection to Placement.
CONNECT_SECONDS = rest.CONNECT_SECONDS
# Defaults of a transport_url without host or port (oslo.messaging,
# impl_rabbit.py).
_HOST, _PORT = "localhost", 5672
_UNSUPPORTED = "UnsupportedVersion"
# First versions with the methods about devices; all other methods are about
# a server.
_DEVICE_METHODS = {
    "drain": rpc_names.DEVICE_VERSION,
    "undrain": rpc_names.DEVICE_VERSION,
    "heal": rpc_names.DEVICE_VERSION,
    "list_drains": rpc_names.DRAINS_VERSION,
    "list_faults": rpc_names.FAULTS_VERSION,
    "list_unoffered": rpc_names.FAULTS_VERSION,
    "show_version": rpc_names.FAULTS_VERSION,
}


class ComputeRpc:
    """RPC client of nova-compute, with Nova's request context."""

    finds_hosts = False

    def __init__(self, files: Sequence[str]) -> None:
        """Connect to the message bus of these configuration files.

        :raises ConfigurationError: they configure no message bus.
        :raises ServiceError: the bus can't be reached.
        """
        #: Whether this process has no service of Nova.
        self.owns_transport = rpc.TRANSPORT is None
        if self.owns_transport:
            _configure(files)
            try:
                _check_url(files)
            except errors.ConfigurationError:
                rpc.cleanup()
                raise
            # The command prints an error in one line. Nova's libraries add
            # a handler to the root logger that would print it once more.
            logger = logging.getLogger("oslo.messaging")
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
        try:
            _connect(CONNECT_SECONDS)
        except errors.ServiceError:
            # The next command of a shell may have another nova.conf.
            if self.owns_transport:
                rpc.cleanup()
            raise
        self._client = rpc.get_client(
            oslo_messaging.Target(
                topic=rpc_names.TOPIC,
                namespace=rpc_names.NAMESPACE,
                version=rpc_names.VERSION,
            ),
            serializer=base.NovaObjectSerializer(),
        )

    def call(
        self,
        host: str,
        method: str,
        is_long: bool,
        identity: cloud_client.Identity | None = None,
        timeout_s: float | None = None,
        **arguments: Any,
    ) -> Any:
        """Call a method of a host's nova-compute; see ``host_bus.HostBus``.

        :param is_long: wait up to ``long_rpc_timeout``, with a heartbeat
            each ``rpc_response_timeout``: a guest may take long to release
            a device.
        """
        # This client stops waiting then, so nova-compute must not start
        # the request later.
        deadline = datetime.datetime.now(datetime.UTC) + datetime.timedelta(
            seconds=timeout_s or CONF.rpc_response_timeout
        )
        request = f"{method} on {host}"
        try:
            answer = self._call(
                functools.partial(self._prepare, host, is_long, timeout_s),
                host,
                _build_context(identity),
                method,
                arguments | {"deadline": deadline.isoformat()},
            )
        except oslo_messaging.MessagingTimeout as error:
            raise errors.ServiceError(
                "RPC",
                request,
                None,
                f"no nova-compute answers ({error}); check that it runs with"
                " nova-accel, and that transport_url is that of its cell",
            ) from error
        except oslo_messaging.MessagingException as error:
            raise errors.ServiceError(
                "RPC", request, None, str(error)
            ) from error
        if rpc_names.REFUSED in answer:
            raise host_bus.RpcRefusedError(
                "RPC", request, None, answer[rpc_names.REFUSED]
            )
        return answer[rpc_names.RESULT]

    def notify(
        self, publisher: str, event: str, data: Mapping[str, Any]
    ) -> None:
        """Send an unversioned notification on Nova's notifier.

        Drivers of oslo.messaging log what can't be sent.
        """
        sender = rpc.LEGACY_NOTIFIER.prepare(publisher_id=publisher)
        sender.info(context.get_admin_context(), event, data)

    def _call(
        self,
        prepare: Callable[[str], Any],
        host: str,
        request_context: context.RequestContext,
        method: str,
        arguments: Mapping[str, Any],
    ) -> Any:
        """Call nova-compute; an older one without a deadline.

        :param prepare: returns the client of a version of the endpoint.
        :raises oslo_messaging.MessagingException: the call failed.
        :raises RpcRefusedError: it is too old for the method.
        """
        version = _DEVICE_METHODS.get(method, rpc_names.VERSION)
        try:
            return prepare(version).call(request_context, method, **arguments)
        except oslo_messaging.UnsupportedVersion:
            pass
        except oslo_messaging.RemoteError as error:
            if error.exc_type != _UNSUPPORTED:
                raise
        if method in _DEVICE_METHODS:
            raise host_bus.RpcRefusedError(
                "RPC",
                f"{method} on {host}",
                None,
                "its nova-compute runs an older nova-accel; upgrade it, or"
                " run the command of the host",
            )
        older = prepare(rpc_names.VERSION_WITHOUT_DEADLINE)
        arguments = {n: v for n, v in arguments.items() if n != "deadline"}
        return older.call(request_context, method, **arguments)

    def _prepare(
        self, host: str, is_long: bool, timeout_s: float | None, version: str
    ) -> Any:
        usual_s = (
            CONF.long_rpc_timeout if is_long else CONF.rpc_response_timeout
        )
        return self._client.prepare(
            server=host,
            version=version,
            timeout=timeout_s or usual_s,
            call_monitor_timeout=(
                CONF.rpc_response_timeout if is_long else None
            ),
            retry=_count_retries(),
        )


def _configure(files: Sequence[str]) -> None:
    """Configure Nova's message bus from these configuration files.

    :raises ConfigurationError: transport_url can't be used.
    """
    arguments = [a for path in files for a in ("--config-file", path)]
    # A shell of several commands may have configured Nova before.
    CONF.reset()
    try:
        config.parse_args(
            ["nova-accel", *arguments],
            default_config_files=[],
            configure_db=False,
        )
    except (oslo_messaging.MessagingException, ValueError) as error:
        # The text of the exception contains the URL with its password.
        raise errors.ConfigurationError(
            "[DEFAULT] transport_url",
            "(not shown)",
            f"oslo.messaging can't use it ({type(error).__name__}); write"
            " rabbit://USER:PASSWORD@HOST:PORT/",
        ) from None


def _check_url(files: Sequence[str]) -> None:
    """Check that the message bus is configured.

    :raises ConfigurationError: it is not, and oslo.messaging would use its
        default, a RabbitMQ on this machine.
    """
    setting = CONF.get_location("transport_url")
    if setting is None or not setting.location.is_user_controlled:
        raise errors.ConfigurationError(
            "[DEFAULT] transport_url",
            "",
            f"no message bus is named in {', '.join(files) or 'any file'};"
            " run this where /etc/nova/nova.conf names it, as on a"
            " controller, or set up the gateway (page admin/gateway)",
        )


def _count_retries() -> int:
    """Return the number of retries that tries each host of the bus once."""
    return max(0, len(rpc.get_transport_url().hosts) - 1)


def _connect(seconds: float) -> None:
    """Open the connection to the bus that the first call will use.

    oslo.messaging itself retries for ever, and its sockets have no usable
    timeout, so a daemon thread connects and is abandoned at the timeout.

    :raises ServiceError: there is no connection after so many seconds.
    """
    # All AMQP drivers have it; other drivers connect in other ways.
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
            f"{_describe_hosts()} can't be reached ({reason}); check that"
            " RabbitMQ runs there, and that transport_url is right",
        )


def _describe_hosts() -> str:
    """Return hosts and ports of the bus, without user and password."""
    hosts = rpc.get_transport_url().hosts
    endpoints = [f"{h.hostname or _HOST}:{h.port or _PORT}" for h in hosts]
    return ", ".join(endpoints) or f"{_HOST}:{_PORT}"


def _build_context(
    identity: cloud_client.Identity | None,
) -> context.RequestContext:
    if identity is None:
        return context.get_admin_context()
    return context.RequestContext(
        user_id=identity.user,
        user_name=identity.user_name or None,
        project_id=identity.project,
        roles=list(identity.roles),
        auth_token=identity.token,
        service_catalog=list(build_v2_catalog(identity.catalog)),
    )


def build_v2_catalog(
    catalog: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield the services of a Keystone v3 catalog in the form of v2.

    Nova's context expects v2 (nova/context.py, ServiceCatalogV2), as
    keystonemiddleware passes it to Nova's API: one endpoint for each
    region, with a URL for each interface.
    """
    for service in catalog:
        regions: dict[str | None, dict[str, Any]] = {}
        for endpoint in service["endpoints"]:
            region = endpoint.get("region_id") or endpoint.get("region")
            urls = regions.setdefault(region, {"region": region})
            urls[f"{endpoint['interface']}URL"] = endpoint["url"]
        yield {
            "type": service["type"],
            "name": service.get("name", ""),
            "endpoints": list(regions.values()),
        }
