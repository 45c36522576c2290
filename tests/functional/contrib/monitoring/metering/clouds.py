# SPDX-License-Identifier: Apache-2.0
"""A real Gnocchi with file storage, on a MariaDB of its own."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SCRIPTS = Path(sys.executable).parent
DEADLINE_S = 60
# The API as gnocchi-api serves it, in a server that is a wheel.
API = """
import sys, waitress
from gnocchi import service
from gnocchi.rest import app
conf = service.prepare_service(["--config-file", sys.argv[1]])
waitress.serve(app.load_app(conf), host="127.0.0.1", port=int(sys.argv[2]))
"""
CONFIGURATION = """
[DEFAULT]
coordination_url = file://{place}/coordination
[indexer]
url = mysql+pymysql://root@localhost/gnocchi?unix_socket={database}
[storage]
driver = file
file_basepath = {place}/measures
[incoming]
driver = file
file_basepath = {place}/measures
[api]
auth_mode = basic
[metricd]
workers = 1
metric_processing_delay = 1
"""
RESOURCE_TYPE = {
    "name": "accelerator",
    "attributes": {
        name: {"type": "string", "required": required, "max_length": length}
        for name, required, length in (
            ("server_id", True, 36),
            ("profile", True, 255),
            ("device", True, 255),
            ("resource_class", False, 255),
            ("host", False, 255),
        )
    },
}


class Gnocchi(NamedTuple):
    """Address of Gnocchi's API, and the socket of its database."""

    url: str
    database: Path


def find_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def request(url: str, body: Any = None) -> Any:
    """Return the answer of Gnocchi to its user ``admin``."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {
        "Authorization": "Basic YWRtaW46",
        "Content-Type": "application/json",
    }
    data = None if body is None else json.dumps(body).encode()
    sent = urllib.request.Request(url, data, headers)  # noqa: S310
    with opener.open(sent, timeout=30) as answer:
        return json.load(answer)


def until(check: Any, what: str) -> None:
    """Wait until a check is true; an OSError is no answer yet."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if check():
                return
        time.sleep(0.2)
    raise TimeoutError(what)


@contextlib.contextmanager
def started(log: Path, *words: object) -> Iterator[None]:
    """Run a program meanwhile."""
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own words
            [str(word) for word in words], stdout=output, stderr=output
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def mariadb(place: Path) -> Iterator[Path]:
    """Run a database server meanwhile; yield its socket."""
    user = f"--user={os.environ.get('USER', 'root')}"
    data, path = place / "database", place / "database.sock"
    subprocess.run(  # noqa: S603 - our own words
        [
            shutil.which("mariadb-install-db") or "",
            *("--no-defaults", f"--datadir={data}", user),
            *("--auth-root-authentication-method=normal", "--skip-test-db"),
        ],
        check=True,
        capture_output=True,
    )
    server = (
        *(shutil.which("mariadbd") or "", "--no-defaults", user),
        *(f"--datadir={data}", f"--socket={path}", "--skip-networking"),
        "--innodb-flush-log-at-trx-commit=0",
    )
    with started(place / "database.log", *server):
        until(path.exists, "the database does not start")
        yield path


def execute(database: Path, statement: str) -> None:
    subprocess.run(  # noqa: S603 - our own words
        [
            shutil.which("mariadb") or "",
            *("--user=root", f"--socket={database}", f"--execute={statement}"),
        ],
        check=True,
    )


@contextlib.contextmanager
def gnocchi(place: Path) -> Iterator[Gnocchi]:
    """Run Gnocchi meanwhile."""
    with mariadb(place) as database, contextlib.ExitStack() as stack:
        execute(database, "CREATE DATABASE gnocchi")
        file = place / "gnocchi.conf"
        file.write_text(CONFIGURATION.format(place=place, database=database))
        subprocess.run(  # noqa: S603 - our own words
            [SCRIPTS / "gnocchi-upgrade", "--config-file", file],
            check=True,
            capture_output=True,
        )
        port = find_port()
        api = (sys.executable, "-c", API, file, port)
        stack.enter_context(started(place / "api.log", *api))
        metricd = (SCRIPTS / "gnocchi-metricd", "--config-file", file)
        stack.enter_context(started(place / "metricd.log", *metricd))
        url = f"http://127.0.0.1:{port}"
        until(lambda: request(f"{url}/v1/status"), "Gnocchi does not start")
        request(f"{url}/v1/resource_type", RESOURCE_TYPE)
        yield Gnocchi(url, database)


def await_measures(url: str) -> None:
    """Wait until Gnocchi has processed all measures."""

    def is_done() -> bool:
        summary = request(f"{url}/v1/status")["storage"]["summary"]
        return not summary["measures"]

    until(is_done, "Gnocchi does not process its measures")
