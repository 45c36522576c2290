# SPDX-License-Identifier: Apache-2.0
"""Real Placement over HTTP, on SQLite or MariaDB.

Placement runs in a process of its own (``placement_app.py``), with its own
noauth middleware: any token is a user of that name, and the user ``admin``
has all roles. Tests take it from a fixture of conftest.py::

    def test_reads(placement: servers.Server) -> None:
        client = cloud_client.from_endpoint(placement.url)
        ...
        assert placement.requests() == [servers.Request("GET", "/...", 200)]

``placement`` uses SQLite and serves one request at a time (concurrent
writers would fail with "database is locked"); ``mariadb_placement`` serves
requests concurrently. Both have an empty database at the start of a test.
``placement_url`` and ``mariadb_placement_url`` are their addresses. A test
that needs its own processes calls ``start``.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import requests

_APP = Path(__file__).with_name("placement_app.py")
# A test that waits longer for an answer than this has failed.
_SECONDS = 60.0


class Request(NamedTuple):
    """An answered request; the path includes the query."""

    method: str
    path: str
    status: int

    @property
    def is_write(self) -> bool:
        """Return whether its method can change data."""
        return self.method != "GET"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """A running Placement."""

    url: str
    database: str

    def requests(self) -> list[Request]:
        """Return the requests since the log was cleared."""
        return [Request(*each) for each in self._ask("log")]

    def clear(self) -> list[Request]:
        """Clear the log; return its requests."""
        return [Request(*each) for each in self._ask("clear")]

    def empty(self) -> None:
        """Empty the database and the log."""
        self._ask("empty")

    def save(self, name: str) -> None:
        """Save a copy of the database, which is SQLite."""
        self._ask(f"save/{name}")

    def restore(self, name: str) -> bool:
        """Restore the copy of that name; return whether there is one."""
        answer = requests.get(
            f"{self.url}/.test/restore/{name}", timeout=_SECONDS
        )
        return answer.ok

    def _ask(self, order: str) -> list[tuple[str, str, int]]:
        answer = requests.get(f"{self.url}/.test/{order}", timeout=_SECONDS)
        answer.raise_for_status()
        log: list[tuple[str, str, int]] = answer.json()
        return log

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return Placement's answer to an operator's request."""
        answer = requests.request(
            method,
            self.url + path,
            json=body,
            headers={
                "X-Auth-Token": "admin",
                "OpenStack-API-Version": "placement 1.39",
            },
            timeout=_SECONDS,
        )
        assert answer.ok, f"{method} {path}: {answer.text}"
        return json.loads(answer.text or "null")


@contextlib.contextmanager
def start(
    database: str, log: Path, options: Iterable[str] = ()
) -> Iterator[Server]:
    """Run Placement on a database; it creates the tables.

    :param database: SQLAlchemy's URL of it.
    :param log: a file for the output of the process.
    :param options: of placement.conf, as ``group.name=value``.
    """
    is_serial = database.startswith("sqlite")
    with (
        log.open("w") as words,
        subprocess.Popen(  # noqa: S603
            [
                sys.executable,
                "-W",
                "ignore",
                str(_APP),
                database,
                "serial" if is_serial else "parallel",
                *options,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
        ) as running,
    ):
        try:
            assert running.stdout is not None
            word, _, port = running.stdout.readline().partition(" ")
            assert word == "port", log.read_text()
            yield Server(
                url=f"http://127.0.0.1:{port.strip()}", database=database
            )
        finally:
            running.kill()


def start_sqlite(
    place: Path, options: Iterable[str] = ()
) -> contextlib.AbstractContextManager[Server]:
    """Run Placement on a database of SQLite below a directory."""
    database = f"sqlite:///{place}/placement.sqlite"
    return start(database, place / "log", options)


def missing_mariadb() -> str:
    """Return why MariaDB can't run here, "" if it can."""
    if not _mariadbd():
        return "mariadbd is not installed (Debian: mariadb-server)"
    return ""


def _mariadbd() -> str:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin"
    return shutil.which("mariadbd", path=path) or ""


@contextlib.contextmanager
def mariadb(place: Path) -> Iterator[str]:
    """Run a MariaDB, and yield the URL of a database in it.

    It has a socket below ``place`` and no port, and doesn't wait for disks.
    """
    data, socket = place / "data", place / "s"
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    subprocess.run(  # noqa: S603
        [
            shutil.which("mariadb-install-db") or "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *as_root,
        ],
        check=True,
        capture_output=True,
    )
    with (
        (place / "log").open("w") as words,
        subprocess.Popen(  # noqa: S603
            [
                _mariadbd(),
                "--no-defaults",
                f"--datadir={data}",
                f"--socket={socket}",
                f"--pid-file={place}/pid",
                "--skip-networking",
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-flush-method=nosync",
                *as_root,
            ],
            stdout=words,
            stderr=words,
        ) as running,
    ):
        try:
            _create_database(socket, running, place / "log")
            yield (
                "mysql+pymysql://root@localhost/placement"
                f"?unix_socket={socket}&charset=utf8"
            )
        finally:
            running.kill()


def _create_database(
    socket: Path, running: "subprocess.Popen[bytes]", log: Path
) -> None:
    """Wait for MariaDB and create the database."""
    import pymysql

    until = time.monotonic() + _SECONDS
    while True:
        try:
            with contextlib.closing(
                pymysql.connect(unix_socket=str(socket), user="root")
            ) as connection:
                connection.query("CREATE DATABASE placement")
                return
        except pymysql.OperationalError:
            is_over = running.poll() is not None or time.monotonic() > until
            assert not is_over, log.read_text()
            time.sleep(0.05)
