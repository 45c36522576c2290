# SPDX-License-Identifier: Apache-2.0
"""HTTP adapter whose read timeout bounds a whole answer.

The read timeout of requests and urllib3 bounds each ``recv()``: a server
that sends a byte at a time is waited for without end. Here each answer,
headers and body together, has one deadline: the socket's timeout, counted
from the moment when the request was sent.
"""

import http.client
import io
import time
from typing import Any

import requests
import urllib3.connectionpool
from keystoneauth1 import session as ksa


def mount(session: requests.Session) -> None:
    """Give all adapters of a session a deadline for each answer.

    keystoneauth's settings for TLS stay as they are.
    """
    for prefix, adapter in list(session.adapters.items()):
        settings = {
            name: getattr(adapter, name)
            for name in ("tls_ciphers", "tls_min_version")
            if hasattr(adapter, name)
        }
        session.mount(prefix, _DeadlineAdapter(**settings))


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket until a deadline."""

    def __init__(self, sock: Any, raw: Any) -> None:
        """Begin to count.

        :param raw: the ``socket.SocketIO`` of ``sock``, which is closed
            with this reader.
        """
        super().__init__()
        self._sock, self._raw = sock, raw
        self._until = time.monotonic() + sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        seconds = self._until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the answer does not end")
        self._sock.settimeout(seconds)
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _DeadlineResponse(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        if hasattr(sock, "gettimeout") and sock.gettimeout() is not None:
            raw = self.fp.detach()
            self.fp = io.BufferedReader(_DeadlineReader(sock, raw))


class _DeadlinePool(urllib3.connectionpool.HTTPConnectionPool):
    def _new_conn(self) -> Any:
        return _limited(super()._new_conn())


class _DeadlineTlsPool(urllib3.connectionpool.HTTPSConnectionPool):
    def _new_conn(self) -> Any:
        return _limited(super()._new_conn())


def _limited(connection: Any) -> Any:
    """Return a new connection whose answers have a deadline."""
    connection.response_class = _DeadlineResponse
    return connection


_POOLS = {"http": _DeadlinePool, "https": _DeadlineTlsPool}


class _DeadlineAdapter(ksa.TCPKeepAliveAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager
