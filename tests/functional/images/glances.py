# SPDX-License-Identifier: Apache-2.0
"""Glance: the real service if installed, and a fake one that can fail."""

import contextlib
import hashlib
import http.server
import importlib.util
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import requests
from glanceclient.v2 import image_schema

# A Python that has Glance, if this one does not.
PYTHON = os.environ.get("NOVA_ACCEL_GLANCE_PYTHON") or (
    sys.executable if importlib.util.find_spec("glance") else ""
)
_SECONDS = 60
_SERVE = """
import os, sys
from wsgiref import simple_server
class Logged(simple_server.WSGIRequestHandler):
    def log_message(self, *arguments):
        print("request", self.requestline, file=sys.stderr, flush=True)
from glance.wsgi import api
server = simple_server.make_server(
    "127.0.0.1", 0, api.application, handler_class=Logged)
print("port", server.server_port, flush=True)
server.serve_forever()
"""
# In place of Keystone: a token is a project and a role.
_IDENTITY = """
def factory(global_conf, **local_conf):
    def identify(app):
        def call(environ, start_response):
            token = environ.get("HTTP_X_AUTH_TOKEN", "anonymous:reader")
            project, role = token.split(":")
            environ["HTTP_X_IDENTITY_STATUS"] = "Confirmed"
            environ["HTTP_X_USER_ID"] = "someone"
            environ["HTTP_X_PROJECT_ID"] = project
            environ["HTTP_X_ROLES"] = role + ",reader"
            return app(environ, start_response)
        return call
    return identify
"""


class Glance(Protocol):
    """Operations of a user of Glance."""

    url: str

    def add(
        self, content: bytes, properties: Mapping[str, str], owner: str
    ) -> str:
        """Make an image, and return its id."""
        ...

    def deactivate(self, image: str) -> None:
        """Take an image out of use."""
        ...

    def delete(self, image: str) -> None:
        """Delete an image."""
        ...

    def downloads(self) -> int:
        """Return the number of requests for contents."""
        ...


class Real:
    """The real Glance, without Keystone."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log

    def add(
        self, content: bytes, properties: Mapping[str, str], owner: str
    ) -> str:
        image = self._call(
            "POST",
            "",
            json={
                "name": "a bitstream",
                "disk_format": "raw",
                "container_format": "bare",
                "visibility": "shared",
                **properties,
            },
            headers={"X-Auth-Token": f"{owner}:member"},
        ).json()["id"]
        if content:
            self._call(
                "PUT",
                f"/{image}/file",
                data=content,
                headers={
                    "X-Auth-Token": f"{owner}:member",
                    "Content-Type": "application/octet-stream",
                },
            )
        return str(image)

    def deactivate(self, image: str) -> None:
        self._call("POST", f"/{image}/actions/deactivate")

    def delete(self, image: str) -> None:
        self._call("DELETE", f"/{image}")

    def downloads(self) -> int:
        lines = self._log.read_text().splitlines()
        return sum(
            line.startswith("request GET") and "/file" in line
            for line in lines
        )

    def _call(self, method: str, path: str, **content: Any) -> Any:
        content.setdefault("headers", {"X-Auth-Token": "admin:admin"})
        answer = requests.request(
            method,
            f"{self.url}/v2/images{path}",
            timeout=_SECONDS,
            **content,
        )
        answer.raise_for_status()
        return answer


@contextlib.contextmanager
def real(place: Path) -> Iterator[Real]:
    """Start the real Glance on files below a directory."""
    for name in ("images", "staging", "tasks"):
        (place / name).mkdir()
    conf = place / "glance-api.conf"
    conf.write_text(f"""
[DEFAULT]
log_file = {place}/glance.log
enabled_backends = disk:file
workers = 0
node_staging_uri = file://{place}/staging
[database]
connection = sqlite:///{place}/glance.sqlite
[glance_store]
default_backend = disk
[disk]
filesystem_store_datadir = {place}/images
[os_glance_staging_store]
filesystem_store_datadir = {place}/staging
[os_glance_tasks_store]
filesystem_store_datadir = {place}/tasks
[paste_deploy]
config_file = {place}/paste.ini
""")
    (place / "paste.ini").write_text("""
[composite:glance-api]
paste.composite_factory = glance.api:root_app_factory
/: versions
/v2: v2
[pipeline:v2]
pipeline = identity context app
[pipeline:versions]
pipeline = versionsapp
[filter:identity]
paste.filter_factory = identity:factory
[filter:context]
paste.filter_factory = glance.api.middleware.context:ContextMiddleware.factory
[app:app]
paste.app_factory = glance.api.v2.router:API.factory
[app:versionsapp]
paste.app_factory = glance.api.versions:create_resource
""")
    (place / "identity.py").write_text(_IDENTITY)
    environment = os.environ | {
        "OS_GLANCE_CONFIG_DIR": str(place),
        "OS_GLANCE_CONFIG_FILES": conf.name,
        "PYTHONPATH": str(place),
    }
    sync = "import sys; from glance.cmd import manage; sys.exit(manage.main())"
    subprocess.run(  # noqa: S603
        [PYTHON, "-c", sync, "--config-file", str(conf), "db_sync"],
        env=environment,
        check=True,
        capture_output=True,
    )
    log = place / "log"
    with (
        log.open("w") as words,
        subprocess.Popen(  # noqa: S603
            [PYTHON, "-c", _SERVE],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
        ) as server,
    ):
        try:
            assert server.stdout is not None
            ports = (
                line.split()[1]
                for line in server.stdout
                if line.startswith("port ")
            )
            port = next(ports, "")
            assert port, log.read_text()
            yield Real(f"http://127.0.0.1:{port}", log)
        finally:
            server.kill()


class StandIn:
    """Answers as Glance does, or as a Glance with a fault.

    ``answers`` are HTTP statuses by request ("image", "file"), ``contents``
    replace the uploaded contents, and the contents of the images in ``cut``
    end in the middle; if ``is_reset``, with a reset of the connection.
    """

    def __init__(self) -> None:
        self.answers: dict[str, int] = {}
        self.contents: dict[str, bytes] = {}
        self.cut: set[str] = set()
        self.is_reset = False
        self._images: dict[str, dict[str, Any]] = {}
        self._files: dict[str, bytes] = {}
        self._downloads = 0
        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), self._handler()
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(
            target=self._server.serve_forever, args=(0.02,)
        ).start()

    def add(
        self, content: bytes, properties: Mapping[str, str], owner: str
    ) -> str:
        image = str(uuid.uuid4())
        self._files[image] = content
        self._images[image] = {
            "id": image,
            "name": "a bitstream",
            "status": "active" if content else "queued",
            "visibility": "shared",
            "size": len(content) or None,
            "owner": owner,
            "checksum": hashlib.md5(content).hexdigest(),  # noqa: S324
            "os_hash_algo": "sha512",
            "os_hash_value": hashlib.sha512(content).hexdigest(),
            "created_at": "2026-01-01T00:00:00Z",
            "updated_at": "2026-01-01T00:00:00Z",
            "tags": [],
            "disk_format": "raw",
            "container_format": "bare",
            "schema": "/v2/schemas/image",
            **properties,
        }
        return image

    def change(self, image: str, **changed: Any) -> None:
        """Change the record of an image."""
        self._images[image] |= changed

    def deactivate(self, image: str) -> None:
        self.change(image, status="deactivated")

    def delete(self, image: str) -> None:
        del self._images[image]

    def downloads(self) -> int:
        return self._downloads

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, project: str) -> tuple[int, bytes, bytes]:
        """Return a status, the announced content, and the sent content."""
        parts = path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["v2", "schemas"]:
            return self._json(image_schema._BASE_SCHEMA)
        record = self._images.get(parts[2])
        if record is None or record["owner"] != project:
            return 404, b"", b""
        kind = "file" if parts[3:] == ["file"] else "image"
        if kind in self.answers:
            return self.answers[kind], b"", b""
        if kind == "image":
            return self._json(record)
        self._downloads += 1
        content = self.contents.get(parts[2], self._files[parts[2]])
        half = content[: len(content) // 2]
        return 200, content, half if parts[2] in self.cut else content

    def _json(self, value: object) -> tuple[int, bytes, bytes]:
        text = json.dumps(value).encode()
        return 200, text, text

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        standin = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                project = self.headers["X-Auth-Token"].split(":")[0]
                status, announced, sent = standin.answer(self.path, project)
                self.send_response(status)
                is_file = self.path.endswith("/file")
                kind = "octet-stream" if is_file else "json"
                self.send_header("Content-Type", f"application/{kind}")
                self.send_header("Content-Length", str(len(announced)))
                self.end_headers()
                self.wfile.write(sent)
                if sent != announced and standin.is_reset:
                    # Closed at once, with a reset (socket(7), SO_LINGER).
                    self.connection.setsockopt(
                        socket.SOL_SOCKET,
                        socket.SO_LINGER,
                        struct.pack("ii", 1, 0),
                    )
                    self.connection.close()

            def log_message(self, *_: object) -> None:
                pass

        return Handler
