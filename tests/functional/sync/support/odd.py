# SPDX-License-Identifier: Apache-2.0
"""Web server with broken responses."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator


def http(status: str, body: bytes, kind: str = "application/json") -> bytes:
    """Return an HTTP response as bytes."""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


@contextlib.contextmanager
def answering(
    answer: bytes | None, port: int = 0, pause_s: float = 0.0
) -> Iterator[str]:
    """Yield the URL of a server with this answer; None never answers.

    :param pause_s: seconds before each byte; 0 sends all bytes at once.
    """
    with socket.create_server(("127.0.0.1", port)) as listening:
        connections: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connections.append(connection)
                connection.recv(65536)
                if answer is not None:
                    with contextlib.suppress(ConnectionError):
                        _send(connection, answer, pause_s)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.close()


def _send(to: socket.socket, answer: bytes, pause_s: float) -> None:
    if not pause_s:
        to.sendall(answer)
        return
    for byte in answer:
        time.sleep(pause_s)
        to.sendall(bytes([byte]))
