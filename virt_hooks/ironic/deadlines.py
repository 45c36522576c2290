# SPDX-License-Identifier: Apache-2.0
"""HTTP adapter whose read timeout bounds a whole response.

The read timeout of requests and urllib3 bounds each ``recv()``, so a server
that sends one byte at a time can block the client for ever. This adapter
gives each response, headers and body together, one deadline: the timeout
of the socket, counted from the moment when the request was sent.
"""

import http.client
import io
import time
from typing import Any

import requests
import urllib3.connectionpool
from requests import adapters


def mount(session: requests.Session) -> None:
    """Set a deadline for each response on all adapters of a session.

    keystoneauth's adapters keep their keep-alive and TLS settings. Idempotent:
    several clients may share a session.
    """
    for prefix, adapter in list(session.adapters.items()):
        if isinstance(adapter, _DeadlineAdapter):
            continue
        settings = {
            name: getattr(adapter, name)
            for name in ("tls_ciphers", "tls_min_version")
            if hasattr(adapter, name)
        }
        session.mount(prefix, _extend(type(adapter))(**settings))


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket until a deadline."""

    def __init__(self, sock: Any, raw: Any) -> None:
        """Start the deadline.

        :param raw: the ``socket.SocketIO`` of ``sock``; this reader closes
            it.
        """
        super().__init__()
        self._sock, self._raw = sock, raw
        self._until = time.monotonic() + sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        seconds = self._until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the response does not end")
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
    """Return a new connection whose responses have a deadline."""
    connection.response_class = _DeadlineResponse
    return connection


_POOLS = {"http": _DeadlinePool, "https": _DeadlineTlsPool}


class _DeadlineAdapter(adapters.HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager


def _extend(kind: type[Any]) -> type[Any]:
    """Return a class of adapters with deadlines."""
    return type(f"Deadline{kind.__name__}", (_DeadlineAdapter, kind), {})
