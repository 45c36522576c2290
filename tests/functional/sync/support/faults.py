# SPDX-License-Identifier: Apache-2.0
"""HTTP proxy with faults between a pass and Placement.

The proxy runs in this process; the code under test takes it for Placement.
"""

import contextlib
import dataclasses
import http.client
import http.server
import itertools
import json
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from urllib import parse

from placement_sync.client import cloud_client, resource_providers, rest
from placement_sync.sync import sync_pass
from tests.functional.sync.support import trees

STATUSES = ("409", "500", "503", "401")
CODES = {"409": "placement.concurrent_update"}
# Placement carries out the request, but its answer is lost.
AFTER = ("500 after", "timeout after", "cut after", "kill after")
KINDS = (*STATUSES, "timeout", "cut", "kill", *AFTER)
# Timeout in seconds of the code under test. Placement's own answers take some
# hundredths of a second.
PATIENCE = 0.4


@dataclasses.dataclass(kw_only=True)
class Fault:
    """A kind of fault and the number of the request that it affects.

    Only requests with ``where`` in method, path or body are counted.
    """

    kind: str
    at: int
    is_lasting: bool = False
    where: str = ""

    def strikes(self, number: int) -> bool:
        """Return whether the fault affects a request; the first is 1."""
        return number >= self.at if self.is_lasting else number == self.at


class Proxy:
    """The proxy; without a fault it forwards every request."""

    def __init__(self, url: str) -> None:
        self._upstream = parse.urlsplit(url).netloc
        self.fault: Fault | None = None
        self.victim = 0
        self.seen = 0
        self.struck = 0
        #: Changes the bodies of answers that are sent with status 200.
        self.alter: Callable[[bytes], bytes] = bytes
        self._lock = threading.Lock()
        proxy = self

        class Bound(_Handler):
            owner = proxy

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def running(self) -> Iterator["Proxy"]:
        """Serve for a while."""
        thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def arm(self, fault: Fault | None) -> None:
        """Set the fault and restart the count of requests."""
        with self._lock:
            self.fault, self.seen, self.struck = fault, 0, 0

    def next_fault(self, request: str) -> str:
        """Count a request; return the kind of its fault, "" for none."""
        with self._lock:
            if self.fault is None or self.fault.where not in request:
                return ""
            self.seen += 1
            if not self.fault.strikes(self.seen):
                return ""
            self.struck += 1
            return self.fault.kind

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection to Placement."""
        return http.client.HTTPConnection(self._upstream, timeout=60)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: Proxy
    _connection: http.client.HTTPConnection | None = None

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        kind = self.owner.next_fault(
            f"{self.command} {self.path} {body.decode()}"
        )
        what, _, when = kind.partition(" ")
        if when or not what:
            status, content = self._forward(body)
            if not what:
                self._send(status, content)
                return
        if what.isdigit():
            self._refuse(what)
        else:
            self._vanish(what)

    do_GET = do_PUT = do_POST = do_DELETE = answer

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self.owner.connect()
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("host", "connection", "content-length")
        }
        self._connection.request(
            self.command, self.path, body or None, headers
        )
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def _refuse(self, status: str) -> None:
        """Answer with an error, as Placement or its web server does."""
        error = {
            "status": int(status),
            "title": "Injected",
            "detail": "injected by a test",
            "code": CODES.get(status, "placement.undefined_code"),
        }
        self._send(int(status), json.dumps({"errors": [error]}).encode())

    def _vanish(self, how: str) -> None:
        """Give no answer; kill the client first if the fault says so."""
        if how == "kill":
            os.kill(self.owner.victim, signal.SIGKILL)
        if how == "timeout":
            self.connection.settimeout(3 * PATIENCE)
            with contextlib.suppress(OSError):
                self.connection.recv(1)
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, content: bytes) -> None:
        if status == http.HTTPStatus.OK:
            content = self.owner.alter(content)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        if self._connection is not None:
            self._connection.close()

    def log_message(self, *_: object) -> None:
        """Print no requests."""


def new_pass(url: str) -> sync_pass.Synchronizer:
    """Return a new Synchronizer.

    Its clock runs fast: each pass reads the allocations again.
    """
    client = cloud_client.from_endpoint(url)
    ticks = itertools.count(0.0, sync_pass.RECHECK_SECONDS)
    return sync_pass.Synchronizer(
        resource_providers.PlacementClient(client),
        sleep=lambda _: None,
        clock=lambda: next(ticks),
    )


@contextlib.contextmanager
def short_timeout(
    synchronizer: sync_pass.Synchronizer, kind: str
) -> Iterator[None]:
    """Shorten the client's timeout while answers time out."""
    client = synchronizer._placement.client
    assert isinstance(client, rest.RestClient)
    before = client.timeout
    if kind.startswith("timeout"):
        client.timeout = (PATIENCE, PATIENCE)
    yield
    client.timeout = before


_CHILDREN = multiprocessing.get_context("forkserver")


def run_killed(proxy: Proxy, desired: trees.DesiredState) -> int:
    """Run a pass in a process of its own; return its exit status.

    The status is -9 if the proxy killed the process.
    """
    _CHILDREN.set_forkserver_preload([__name__])
    gate = _CHILDREN.Event()
    child = _CHILDREN.Process(
        target=_wait_and_run, args=(gate, proxy.url, desired), daemon=True
    )
    child.start()
    assert child.pid is not None
    proxy.victim = child.pid
    gate.set()
    child.join(60)
    assert child.exitcode is not None
    return child.exitcode


def _wait_and_run(
    gate: threading.Event, url: str, desired: trees.DesiredState
) -> None:
    """Run a pass once the proxy has the id of this process."""
    gate.wait()
    new_pass(url).run(desired.tree, desired.host)
