# SPDX-License-Identifier: Apache-2.0
"""RPC endpoint of nova-compute for servers.

A server is first read with the caller's context, as Nova's API reads it: a
caller who is no administrator can read servers of its own project only. The
policy rules are then checked with the server's project and user as target.
"""

import logging
from collections.abc import Callable
from typing import Any

import oslo_messaging
from nova import exception, objects, rpc
from nova.objects import base

from nova_accel import errors
from nova_accel.config import logs
from nova_accel.model import rpc_names
from virt_hooks.attach import attach_show, hot_attach, rpc_policy

LOG = logging.getLogger(__name__)

# Fields of responses that name the host or its devices.
_OF_HOST = frozenset({"host", "device", "provider", "provider_name", "handle"})


class Endpoint:
    """Methods that nova-compute offers over RPC.

    Each returns a dict with the result, or with the reason of a refusal.
    """

    target = oslo_messaging.Target(
        namespace=rpc_names.NAMESPACE, version=rpc_names.VERSION
    )

    def __init__(
        self,
        hot_attach: hot_attach.HotAttach,
        attach_show: attach_show.AttachShow,
    ) -> None:
        self._hot_attach, self._attach_show = hot_attach, attach_show

    def show(
        self, context: Any, server: str, deadline: str | None = None
    ) -> dict[str, Any]:
        """Return the accelerators of a server.

        :param server: its uuid.
        :param deadline: see nova_accel.model.rpc_names.
        """
        return _answer(
            context,
            "show",
            server,
            lambda: self._attach_show.show(context, server),
            deadline,
        )

    def attach(
        self,
        context: Any,
        server: str,
        profile: str,
        bitstream: str = "",
        deadline: str | None = None,
    ) -> dict[str, Any]:
        """Attach a profile to a server; return its name and device.

        :param bitstream: the image to load into an FPGA region.
        :param deadline: see nova_accel.model.rpc_names.
        """
        return _answer(
            context,
            "attach",
            server,
            lambda: self._hot_attach.attach(
                context, server, profile, bitstream
            ),
            deadline,
        )

    def detach(
        self,
        context: Any,
        server: str,
        name: str,
        deadline: str | None = None,
    ) -> dict[str, Any]:
        """Detach a profile from a server; return its name and profile.

        :param deadline: see nova_accel.model.rpc_names.
        """
        return _answer(
            context,
            "detach",
            server,
            lambda: self._hot_attach.detach(context, server, name),
            deadline,
        )


class RpcServer:
    """RPC server on Nova's message bus."""

    def __init__(self, *endpoints: Any) -> None:
        """Serve endpoints of one namespace and of different versions."""
        self._endpoints = endpoints
        self._server: Any = None

    def start(self, host: str) -> None:
        """Accept calls to this host; they run in Nova's own threads."""
        self.stop()
        target = oslo_messaging.Target(topic=rpc_names.TOPIC, server=host)
        self._server = rpc.get_server(
            target,
            [*self._endpoints],
            serializer=base.NovaObjectSerializer(),
        )
        self._server.start()
        LOG.info("serving RPC requests for accelerators as %s", target)

    def stop(self) -> None:
        """Accept no more calls, and wait until the accepted ones end."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            server.wait()


def _answer(
    context: Any,
    action: str,
    server: str,
    call: Callable[[], Any],
    deadline: str | None,
) -> dict[str, Any]:
    """Return the result of a call, or the reason of its refusal."""
    has_details = False
    try:
        target = _read_target(context, server)
        has_details = rpc_policy.is_allowed(
            context, rpc_policy.SERVER, rpc_policy.DETAILS, target
        )
        rpc_policy.check_deadline(deadline)
        rpc_policy.authorize(context, rpc_policy.SERVER, action, target)
        result = call()
    except exception.PolicyNotAuthorized as error:
        logs.warning(
            LOG, "%s of server %s is refused: %s", action, server, error
        )
        allowed = rpc_policy.describe_allowed(
            context, rpc_policy.SERVER, target
        )
        return {rpc_names.REFUSED: f"{error} {allowed}"}
    except (
        errors.AcceleratorError,
        exception.NovaException,
        oslo_messaging.MessagingException,
    ) as error:
        logs.warning(
            LOG, "%s of server %s is refused: %s", action, server, error
        )
        return {
            rpc_names.REFUSED: str(error) if has_details else _public(error)
        }
    except Exception as error:
        LOG.exception("%s of server %s failed", action, server)
        return {rpc_names.REFUSED: _public(error)}
    return {rpc_names.RESULT: result if has_details else _without_host(result)}


def _public(error: Exception) -> str:
    """Return the text of an error for callers without the details rule."""
    if isinstance(error, errors.AcceleratorError):
        return error.public
    if isinstance(error, exception.InstanceNotFound):
        return str(error)
    return (
        "the host of the server could not answer; the log of its"
        " nova-compute says why"
    )


def _read_target(context: Any, server: str) -> dict[str, str]:
    """Return the project and the user of a server, as a policy target.

    :raises ClaimError: the caller can't see such a server.
    """
    try:
        instance = objects.Instance.get_by_uuid(
            context, server, expected_attrs=[]
        )
    except exception.InstanceNotFound as error:
        reason = "there is no such server"
        raise errors.ClaimError(server, reason, public=reason) from error
    return {"project_id": instance.project_id, "user_id": instance.user_id}


def _without_host(result: Any) -> Any:
    """Return a result with empty fields for the host and its devices."""
    if isinstance(result, list):
        return [_without_host(each) for each in result]
    if isinstance(result, dict):
        return {
            key: "" if key in _OF_HOST else _without_host(value)
            for key, value in result.items()
        }
    return result
