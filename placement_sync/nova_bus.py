# SPDX-License-Identifier: Apache-2.0
"""nova-compute, asked over Nova's own message bus."""

from collections.abc import Sequence
from typing import Any

import oslo_messaging
from nova import config, context, rpc
from nova.conf import CONF
from nova.objects import base

from nova_accel import bus, errors


class RefusedError(errors.ServiceError):
    """nova-compute was asked, and refuses."""


class Bus:
    """Calls to nova-compute, as Nova's administrator.

    Whoever may read Nova's messaging credentials is trusted by all of
    Nova: what is asked is asked in the name of nova.conf.
    """

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

    def ask(self, host: str, method: str, is_long: bool, **words: Any) -> Any:
        """Return what nova-compute of a host answers.

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
            answer = prepared.call(
                context.get_admin_context(), method, **words
            )
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
