# SPDX-License-Identifier: Apache-2.0
"""Keystone whose tokens expire on request of a test.

It serves the part of the v3 API that keystoneauth uses. It forwards requests
below ``/placement`` to Placement if their token is valid. ``answers`` are
statuses by path that replace Keystone's own answers. It names the projects
of ``names`` to any token. ``services`` are more services by type, ``roles``,
``user`` and ``project`` those of each token, which is ``text`` if that is set.
"""

import contextlib
import datetime
import http.server
import ipaddress
import itertools
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

USER = "nova"
PASSWORD = "correct horse battery staple"  # noqa: S105
PROJECT = "service"
REGION = "north"


def certify(path: Path) -> Path:
    """Write the key and certificate of an untrusted server."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "keystone")]
    )
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


class Identity:
    """Issues tokens, and forwards requests that have a valid one."""

    def __init__(
        self, placement: str, certificate: Path | None = None
    ) -> None:
        self._placement = placement
        self._numbers = itertools.count(1)
        self._valid: set[str] = set()
        self.tokens: list[str] = []
        self.refused = 0
        self.answers: dict[str, int] = {}
        self.names: dict[str, str] = {}
        self.services: dict[str, str] = {}
        self.roles = ["admin"]
        self.user, self.project, self.text = "u", "p", ""
        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), self._handler()
        )
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        if certificate:
            self.url = self.url.replace("http:", "https:")
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket,
                server_side=True,
                do_handshake_on_connect=False,
            )

    def expire(self) -> None:
        """Invalidate all tokens."""
        self._valid.clear()

    @contextlib.contextmanager
    def running(self) -> Iterator["Identity"]:
        threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        ).start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()

    def answer(
        self,
        method: str,
        path: str,
        token: str,
        body: bytes,
        subject: str = "",
    ) -> tuple[int, dict[str, str], bytes]:
        """Return a status, headers and content."""
        if path in self.answers:
            return self.answers[path], {}, b"{}"
        if path.startswith("/placement"):
            return self._gate(method, path, token, body)
        if path == "/v3/auth/tokens" and method == "GET":
            return self._validate(subject)
        if path == "/v3/auth/tokens":
            return self._token(json.loads(body)["auth"])
        if path.startswith("/v3/projects/"):
            return self._project(path.removeprefix("/v3/projects/"))
        return 200, {}, json.dumps(self._versions()).encode()

    def _project(self, project: str) -> tuple[int, dict[str, str], bytes]:
        if project not in self.names:
            return 404, {}, b'{"error": {"message": "no such project"}}'
        body = {"project": {"id": project, "name": self.names[project]}}
        return 200, {}, json.dumps(body).encode()

    def _versions(self) -> Any:
        return {
            "version": {
                "id": "v3.14",
                "status": "stable",
                "links": [{"rel": "self", "href": f"{self.url}/v3/"}],
            }
        }

    def _token(self, auth: Any) -> tuple[int, dict[str, str], bytes]:
        user = auth["identity"]["password"]["user"]
        if (user["name"], user["password"]) != (USER, PASSWORD):
            text = "The request you have made requires authentication."
            return 401, {}, json.dumps({"error": {"message": text}}).encode()
        token = self.text or f"secret-token-{next(self._numbers)}"
        self.tokens.append(token)
        self._valid.add(token)
        content = json.dumps(self._describe()).encode()
        return 201, {"X-Subject-Token": token}, content

    def _validate(self, token: str) -> tuple[int, dict[str, str], bytes]:
        if token not in self._valid:
            return 404, {}, b'{"error": {"message": "no such token"}}'
        return 200, {}, json.dumps(self._describe()).encode()

    def _describe(self) -> Any:
        domain = {"id": "d", "name": "default"}
        services = {
            "placement": f"{self.url}/placement",
            "identity": self.url,
            **self.services,
        }
        return {
            "token": {
                "methods": ["password"],
                "user": {"id": self.user, "name": USER, "domain": domain},
                "project": {
                    "id": self.project,
                    "name": PROJECT,
                    "domain": domain,
                },
                "roles": [{"id": name, "name": name} for name in self.roles],
                "issued_at": "2026-01-01T00:00:00.000000Z",
                "expires_at": "2096-01-01T00:00:00.000000Z",
                "catalog": [self._service(*item) for item in services.items()],
            }
        }

    def _service(self, name: str, url: str) -> Any:
        return {
            "id": name,
            "type": name,
            "name": name,
            "endpoints": [
                {
                    "id": interface,
                    "interface": interface,
                    "region": REGION,
                    "region_id": REGION,
                    "url": url,
                }
                for interface in ("internal", "public")
            ],
        }

    def _gate(
        self, method: str, path: str, token: str, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        rest = path.removeprefix("/placement") or "/"
        if rest != "/" and token not in self._valid:
            self.refused += 1
            return 401, {}, b'{"error": {"message": "no valid token"}}'
        answer = requests.request(
            method,
            self._placement + rest,
            data=body,
            timeout=60,
            headers={
                "X-Auth-Token": "admin",
                "Content-Type": "application/json",
                "OpenStack-API-Version": "placement 1.39",
            },
        )
        headers = {"Content-Type": answer.headers.get("Content-Type", "")}
        return answer.status_code, headers, answer.content

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        identity = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                status, headers, content = identity.answer(
                    self.command,
                    self.path,
                    self.headers.get("X-Auth-Token") or "",
                    self.rfile.read(length),
                    self.headers.get("X-Subject-Token") or "",
                )
                self.send_response(status)
                defaults = {"Content-Type": "application/json"}
                for name, value in (defaults | headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        return Handler
