# SPDX-License-Identifier: Apache-2.0
"""A web server that answers as broken ones do."""

import contextlib
import socket
import threading
from collections.abc import Iterator


def http(status: str, body: bytes, kind: str = "application/json") -> bytes:
    """Return an answer as it goes over the wire."""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


@contextlib.contextmanager
def answering(answer: bytes | None, port: int = 0) -> Iterator[str]:
    """Return the address of what answers so, or not at all for None."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                kept.append(connection)
                connection.recv(65536)
                if answer is not None:
                    connection.sendall(answer)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()
