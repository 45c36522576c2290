# SPDX-License-Identifier: Apache-2.0
"""Reach of NVIDIA's licence servers from this machine.

No token is sent, so that the certificate need not be verified: the server
has one of its own, which only NVIDIA's client can verify by the token.
"""

import socket
import ssl

CONNECT_SECONDS = 5.0


def explain_unreachable(
    host: str, port: int, seconds: float = CONNECT_SECONDS
) -> str:
    """Return why a server does not answer by TLS, empty if it does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), seconds) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return ""
    except ssl.SSLError as error:
        return f"answers, but not by TLS ({error.reason or 'no handshake'})"
    except OSError as error:
        return f"can't be reached ({error.strerror or error})"
    except ValueError as error:  # a name that no host can have
        return f"is no host and port ({error})"
