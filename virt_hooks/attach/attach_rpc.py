# SPDX-License-Identifier: Apache-2.0
"""RPC endpoint of nova-compute, and its policy.

Before anything is done with a server, it is read with the caller's own
context, as Nova's API reads it: a caller who is no administrator finds the
servers of the own project only. The policy rules are then checked with the
server's project and user as target.
"""

import datetime
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

import oslo_messaging
from nova import exception, objects, policy, rpc
from nova.objects import base
from oslo_policy import policy as oslo_policy

from nova_accel import errors
from nova_accel.model import rpc_names

LOG = logging.getLogger(__name__)

# Like what only operators may do in Nova's own API; policy.yaml of
# nova-compute may say otherwise. A context that a service made of itself
# has no roles (nova/context.py, get_admin_context).
_RULE = "nova_accel:server:{}"
_DEFAULT = "is_admin:True or role:admin"
# Who may see hosts, devices and reasons that speak of them.
_DETAILS = "details"
_ACTIONS = ("show", "attach", "detach", _DETAILS)
# Fields of answers that speak of the host.
_OF_HOST = frozenset({"host", "device", "provider", "provider_name", "handle"})
# Errors of Nova that say nothing of hosts.
_PUBLIC = (exception.PolicyNotAuthorized, exception.InstanceNotFound)
# A rule can be registered once, and several may ask for the first time.
_registering = threading.Lock()


class AttachDriver(Protocol):
    """What the endpoint asks."""

    def attach_accelerator(
        self, context: Any, uuid: str, profile: str, bitstream: str = ""
    ) -> Any:
        """Give a server one more profile."""

    def detach_accelerator(self, context: Any, uuid: str, name: str) -> Any:
        """Take from a server what was attached."""

    def show_accelerators(self, context: Any, uuid: str) -> Any:
        """Return what a server has."""


class Endpoint:
    """What may be asked over the bus; each answer is a dict.

    It has what was asked for, or why that is refused.
    """

    target = oslo_messaging.Target(
        namespace=rpc_names.NAMESPACE, version=rpc_names.VERSION
    )

    def __init__(self, driver: AttachDriver) -> None:
        self._driver = driver

    def show(
        self, context: Any, server: str, deadline: str | None = None
    ) -> dict[str, Any]:
        """Return what a server has of accelerators.

        :param server: its uuid.
        :param deadline: see nova_accel.model.rpc_names.
        """
        return _answer(
            context,
            "show",
            server,
            lambda: self._driver.show_accelerators(context, server),
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
        """Give a server one more profile; return its name and device.

        :param bitstream: the image that an FPGA region is to hold.
        :param deadline: see nova_accel.model.rpc_names.
        """
        return _answer(
            context,
            "attach",
            server,
            lambda: self._driver.attach_accelerator(
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
        """Take from a server what was attached; return what that was.

        :param deadline: see nova_accel.model.rpc_names.
        """
        return _answer(
            context,
            "detach",
            server,
            lambda: self._driver.detach_accelerator(context, server, name),
            deadline,
        )


class RpcServer:
    """A server on Nova's message bus that lives as long as the service."""

    def __init__(self, driver: AttachDriver) -> None:
        """Let this driver be asked."""
        self._driver = driver
        self._server: Any = None

    def start(self, host: str) -> None:
        """Listen for calls to this host; Nova's own threads answer them."""
        self.stop()
        target = oslo_messaging.Target(topic=rpc_names.TOPIC, server=host)
        self._server = rpc.get_server(
            target,
            [Endpoint(self._driver)],
            serializer=base.NovaObjectSerializer(),
        )
        self._server.start()
        LOG.info("accelerators can be asked for as %s", target)

    def stop(self) -> None:
        """Listen no more, once those that were heard are answered."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            server.wait()


def _answer(
    context: Any,
    action: str,
    server: str,
    ask: Callable[[], Any],
    deadline: str | None,
) -> dict[str, Any]:
    has_details = False
    try:
        target = _read_target(context, server)
        has_details = _is_allowed(context, _DETAILS, target)
        _check_deadline(deadline)
        policy.authorize(context, _RULE.format(action), target)
        answer = ask()
    except (
        errors.AcceleratorError,
        exception.NovaException,
        oslo_messaging.MessagingException,
    ) as error:
        LOG.warning("%s of server %s is refused: %s", action, server, error)
        return {
            rpc_names.REFUSED: str(error) if has_details else _public(error)
        }
    return {rpc_names.TOLD: answer if has_details else _without_host(answer)}


def _public(error: Exception) -> str:
    """Return the text of an error for callers who may not read of hosts."""
    if isinstance(error, errors.AcceleratorError):
        return error.public
    if isinstance(error, _PUBLIC):
        return str(error)
    return (
        "the host of the server could not answer; the log of its"
        " nova-compute says why"
    )


def _check_deadline(text: str | None) -> None:
    """Check that a request may still begin.

    :param text: None for no deadline.
    :raises MalformedError: it is too late, or no time.
    """
    if text is None:
        return
    try:
        deadline = datetime.datetime.fromisoformat(text)
        delay = datetime.datetime.now(datetime.UTC) - deadline
    except (TypeError, ValueError) as error:
        raise errors.MalformedError(
            "deadline", text, "a time in ISO 8601 with its offset from UTC"
        ) from error
    if delay > datetime.timedelta():
        raise errors.MalformedError(
            "request in time",
            f"until {text}",
            f"one that nova-compute gets earlier, it is {delay} late: send it"
            " again, and see whether the clocks of both hosts agree",
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


def _is_allowed(context: Any, action: str, target: dict[str, str]) -> bool:
    _register_rules()
    rule = _RULE.format(action)
    return bool(policy.authorize(context, rule, target, do_raise=False))


def _register_rules() -> None:
    with _registering:
        policy.init()
        enforcer = policy._ENFORCER
        for each in _ACTIONS:
            name = _RULE.format(each)
            if name not in enforcer.registered_rules:
                enforcer.register_default(
                    oslo_policy.RuleDefault(name, _DEFAULT)
                )


def _without_host(answer: Any) -> Any:
    """Return an answer in which fields that speak of the host are empty."""
    if isinstance(answer, list):
        return [_without_host(each) for each in answer]
    if isinstance(answer, dict):
        return {
            key: "" if key in _OF_HOST else _without_host(value)
            for key, value in answer.items()
        }
    return answer
