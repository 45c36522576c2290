# SPDX-License-Identifier: Apache-2.0
"""Our endpoint on Nova's message bus, and who may use it."""

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

import oslo_messaging
from nova import exception, policy, rpc
from nova.objects import base
from oslo_policy import policy as oslo_policy

from nova_accel import bus, errors

LOG = logging.getLogger(__name__)

# Like what only operators may do in Nova's own API; policy.yaml of
# nova-compute may say otherwise. A context that a service made of itself
# has no roles (nova/context.py, get_admin_context).
_RULE = "nova_accel:server:{}"
_DEFAULT = "is_admin:True or role:admin"
_ACTIONS = ("show", "attach", "detach")
# A rule can be registered once, and several may ask for the first time.
_registering = threading.Lock()


class Driver(Protocol):
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
        namespace=bus.NAMESPACE, version=bus.VERSION
    )

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def show(self, context: Any, server: str) -> dict[str, Any]:
        """Return what a server has of accelerators.

        :param server: its uuid.
        """
        return _answer(
            context,
            "show",
            lambda: self._driver.show_accelerators(context, server),
        )

    def attach(
        self, context: Any, server: str, profile: str, bitstream: str = ""
    ) -> dict[str, Any]:
        """Give a server one more profile; return its name and device.

        :param bitstream: the image that an FPGA region is to hold.
        """
        return _answer(
            context,
            "attach",
            lambda: self._driver.attach_accelerator(
                context, server, profile, bitstream
            ),
        )

    def detach(self, context: Any, server: str, name: str) -> dict[str, Any]:
        """Take from a server what was attached; return what that was."""
        return _answer(
            context,
            "detach",
            lambda: self._driver.detach_accelerator(context, server, name),
        )


class Bus:
    """A server on Nova's message bus that lives as long as the service."""

    def __init__(self, driver: Driver) -> None:
        """Let this driver be asked."""
        self._driver = driver
        self._server: Any = None

    def start(self, host: str) -> None:
        """Listen for calls to this host; Nova's own threads answer them."""
        self.stop()
        target = oslo_messaging.Target(topic=bus.TOPIC, server=host)
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
    context: Any, action: str, ask: Callable[[], Any]
) -> dict[str, Any]:
    try:
        _authorize(context, action)
        return {bus.TOLD: ask()}
    except (errors.AcceleratorError, exception.NovaException) as error:
        LOG.warning("%s is refused: %s", action, error)
        return {bus.REFUSED: str(error)}


def _authorize(context: Any, action: str) -> None:
    """Check by Nova's policy whether somebody may do something.

    :raises nova.exception.PolicyNotAuthorized: no.
    """
    with _registering:
        policy.init()
        enforcer = policy._ENFORCER
        for each in _ACTIONS:
            name = _RULE.format(each)
            if name not in enforcer.registered_rules:
                enforcer.register_default(
                    oslo_policy.RuleDefault(name, _DEFAULT)
                )
    policy.authorize(context, _RULE.format(action), target={})
