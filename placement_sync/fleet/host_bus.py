# SPDX-License-Identifier: Apache-2.0
"""Requests to the nova-compute of a host: over Nova's bus or the gateway."""

from typing import Any, Protocol

from nova_accel import errors
from placement_sync.client import cloud_client


class RpcRefusedError(errors.ServiceError):
    """nova-compute refuses the request; the reason is its own text."""


class HostBus(Protocol):
    """Client of nova-compute's endpoints.

    ``finds_hosts``: it finds the host of a server itself.
    """

    finds_hosts: bool

    def call(
        self,
        host: str,
        method: str,
        is_long: bool,
        identity: cloud_client.Identity | None = None,
        timeout_s: float | None = None,
        **arguments: Any,
    ) -> Any:
        """Call a method of a host's nova-compute and return its result.

        :param is_long: whether the method waits for images or guests.
        :param identity: user in whose name nova-compute works, also towards
            Glance; Nova's policy decides by the roles. None for Nova's
            administrator, who has no token for Glance.
        :param timeout_s: wait at most this time instead. Over Nova's bus
            nova-compute does not start the request later.
        :raises RpcRefusedError: nova-compute refuses.
        :raises ServiceError: nova-compute does not answer.
        """
