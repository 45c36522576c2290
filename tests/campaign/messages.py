# SPDX-License-Identifier: Apache-2.0
"""RPC messages of Nova, delivered in the sender's thread.

A call runs its method at once. A cast is queued, and runs when the sender's
outermost work has ended: no lock is held meanwhile, and a failure is not
the sender's, as with a real message bus. So a life has one thread, and the
same seed gives the same order of events.
"""

import collections
import logging
import threading
from collections.abc import Callable
from typing import Any

import oslo_messaging
from oslo_messaging.rpc import dispatcher

LOG = logging.getLogger(__name__)

#: Called around each delivered message with the server's host and topic.
Around = Callable[[str, str, Callable[[], Any]], Any]
#: Called around each call with its method; it may raise.
Answered = Callable[[str, Callable[[], Any]], Any]


class _Incoming:
    """A message as oslo.messaging's dispatcher reads it."""

    client_timeout = 0

    def __init__(self, context: Any, message: Any) -> None:
        self.ctxt, self.message = context, message


class _Server:
    """Result of ``nova.rpc.get_server()``."""

    def __init__(self, bus: "Bus", target: Any, work: Any) -> None:
        self._bus, self.target, self.dispatcher = bus, target, work

    def start(self) -> None:
        self._bus.servers[self.target.topic, self.target.server] = self

    def stop(self) -> None:
        key = (self.target.topic, self.target.server)
        if self._bus.servers.get(key) is self:
            del self._bus.servers[key]

    def wait(self) -> None:
        pass

    def reset(self) -> None:
        pass


class Bus:
    """All queues of a cloud. Each thread delivers what it sends."""

    def __init__(self, around: Around, answered: Answered) -> None:
        """Deliver each message inside ``around``, each call's answer
        inside ``answered``.
        """
        self.servers: dict[tuple[str, str], _Server] = {}
        self._around, self._answered = around, answered
        self._local = threading.local()

    def get_server(
        self,
        _transport: Any,
        target: Any,
        endpoints: Any,
        serializer: Any = None,
        **_: Any,
    ) -> _Server:
        """Replace ``oslo_messaging.get_rpc_server``."""
        work = dispatcher.RPCDispatcher(endpoints, serializer)
        return _Server(self, target, work)

    def send(
        self,
        _transport: Any,
        target: Any,
        context: Any,
        message: Any,
        wait_for_reply: bool | None = None,
        **_: Any,
    ) -> Any:
        """Replace ``oslo_messaging.Transport._send``."""
        if wait_for_reply:
            return self._answered(
                message["method"],
                lambda: self._deliver(target, context, message),
            )
        self._queue.append((target, context, message))
        if not self._depth:
            self.drain()
        return None

    def run(self, work: Callable[[], Any]) -> Any:
        """Do some work, and then all that was cast meanwhile."""
        self._local.depth = self._depth + 1
        try:
            return work()
        finally:
            self._local.depth -= 1
            if not self._depth:
                self.drain()

    def drain(self) -> None:
        """Deliver what this thread has cast."""
        self._local.depth = self._depth + 1
        try:
            while self._queue:
                target, context, message = self._queue.popleft()
                try:
                    self._deliver(target, context, message)
                except Exception:
                    LOG.exception("cast %s failed", message["method"])
        finally:
            self._local.depth -= 1

    @property
    def _queue(self) -> collections.deque[Any]:
        if not hasattr(self._local, "queue"):
            self._local.queue = collections.deque()
        pending: collections.deque[Any] = self._local.queue
        return pending

    @property
    def _depth(self) -> int:
        return getattr(self._local, "depth", 0)

    def _deliver(self, target: Any, context: Any, message: Any) -> Any:
        server = self._find(target)
        if server is None:
            raise oslo_messaging.MessagingTimeout(
                f"no server listens to {target} for {message['method']}"
            )

        def work() -> Any:
            try:
                return server.dispatcher.dispatch(_Incoming(context, message))
            except dispatcher.ExpectedException as error:
                raise error.exc_info[1] from None

        return self._around(server.target.server, target.topic, work)

    def _find(self, target: Any) -> _Server | None:
        for (topic, host), server in self.servers.items():
            if topic == target.topic and target.server in (None, host):
                return server
        return None
