# SPDX-License-Identifier: Apache-2.0
"""Real Placement in its own process; see servers.py.

Started as ``python placement_app.py DATABASE-URL LOCK [GROUP.NAME=VALUE]...``,
with options of Placement; prints its port.
Paths below ``/.test/`` are the tests': ``log`` returns the requests so far,
``clear`` also forgets them, and ``empty`` empties the database, too.
``save/NAME`` copies the database, which is SQLite then, and ``restore/NAME``
replaces it by the copy; without one its status is 404.
"""

import contextlib
import functools
import http.server
import io
import json
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib import parse

import jsonschema
import sqlalchemy
from oslo_config import cfg
from oslo_db.sqlalchemy import engines
from placement import conf, db_api, deploy
from sqlalchemy import pool

# Children first. Records that Placement creates at its start remain.
_EMPTY = (
    "DELETE FROM allocations",
    "DELETE FROM consumers",
    "DELETE FROM projects",
    "DELETE FROM users",
    "DELETE FROM inventories",
    "DELETE FROM resource_provider_traits",
    "DELETE FROM resource_provider_aggregates",
    "DELETE FROM placement_aggregates",
    "UPDATE resource_providers"
    " SET parent_provider_id = NULL, root_provider_id = NULL",
    "DELETE FROM resource_providers",
    "DELETE FROM traits WHERE name LIKE 'CUSTOM_%'",
    "DELETE FROM resource_classes WHERE name LIKE 'CUSTOM_%'",
)


def load(
    database: str, options: Iterable[str] = ()
) -> Callable[..., Iterable[bytes]]:
    """Return Placement's application; creates the tables if necessary.

    An allocation that conflicts is not retried: Placement 16 on MariaDB
    would exceed the capacity (its retry checks it on an old snapshot).
    """
    config = cfg.ConfigOpts()
    conf.register_opts(config)
    config.set_override("connection", database, "placement_database")
    config.set_override("sync_on_startup", True, "placement_database")
    config.set_override("max_pool_size", 8, "placement_database")
    config.set_override("auth_strategy", "noauth2", "api")
    config.set_override("allocation_conflict_retry_count", 1, "placement")
    for option in options:
        place, _, value = option.partition("=")
        group, _, name = place.partition(".")
        config.set_override(name, value, group)
    config([], project="placement", default_config_files=[])
    db_api.configure(config)
    if database.startswith("sqlite"):
        sqlalchemy.event.listen(
            db_api.get_placement_engine(), "connect", _sync_off
        )
    application: Callable[..., Iterable[bytes]] = deploy.loadapp(config)
    return application


def empty() -> None:
    """Empty the database of this process' Placement."""
    with db_api.get_placement_engine().begin() as database:
        for statement in _EMPTY:
            database.execute(sqlalchemy.text(statement))


def _copy(
    source: sqlite3.Connection | None, target: sqlite3.Connection | None
) -> None:
    """Copy a database; None is that of Placement."""
    with contextlib.closing(
        db_api.get_placement_engine().raw_connection()
    ) as own:
        connection = own.driver_connection
        (source or connection).backup(target or connection)


@functools.cache
def spare_work() -> None:
    """Skip half of the work of this process, which proves nothing here."""
    _check_schemas_once()
    _share_aliases()


def _check_schemas_once() -> None:
    """Let jsonschema check a schema of Placement once, not each time."""
    checked: dict[int, object] = {}
    validator = jsonschema.Draft202012Validator
    check = validator.check_schema

    def check_once(schema: Any, *args: Any, **kwargs: Any) -> None:
        if checked.get(id(schema)) is not schema:
            check(schema, *args, **kwargs)
            checked[id(schema)] = schema

    validator.check_schema = check_once


def _share_aliases() -> None:
    """Let each line of Placement that names an alias of a table make one.

    An alias has a copy of each column; a request makes up to ten of them. Two
    lines have two, as they may be parts of one statement.
    """
    make, made = sqlalchemy.alias, {}

    def share(table: Any, name: str | None = None, **others: Any) -> Any:
        caller = sys._getframe(1)
        key = (caller.f_code, caller.f_lineno, table, name)
        if name is None or others:
            return make(table, name=name, **others)
        if key not in made:
            made[key] = make(table, name=name)
        return made[key]

    sqlalchemy.alias = share  # type: ignore[assignment]


class UncheckedPool(pool.QueuePool):
    """As many connections as threads need at once, to a file of SQLite."""

    def __init__(self, creator: Any, **words: Any) -> None:
        own = {"max_overflow": -1, "pre_ping": False}
        super().__init__(creator, **words | own)


def keep_connections() -> None:
    """Keep the file open, which oslo.db opens anew for each transaction."""
    engines.pool.NullPool = UncheckedPool


def _sync_off(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = MEMORY")


class Server(http.server.ThreadingHTTPServer):
    """Serves an application, with one or many requests at a time."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, application: Callable[..., Iterable[bytes]], is_serial: bool
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.application = application
        self.log: list[tuple[str, str, int]] = []
        self.copies: dict[str, sqlite3.Connection] = {}
        self.turn: Any = (
            threading.Lock() if is_serial else contextlib.nullcontext()
        )

    def test(self, order: str, name: str) -> tuple[str, bytes]:
        """Execute an order of a test; return status and requests so far."""
        answer = json.dumps(self.log).encode()
        if order != "log":
            self.log.clear()
        if order == "restore" and name not in self.copies:
            return "404 Not Found", answer
        with self.turn:
            if order == "empty":
                empty()
            elif order == "save":
                self.copies[name] = sqlite3.connect(
                    ":memory:", check_same_thread=False
                )
                _copy(None, self.copies[name])
            elif order == "restore":
                _copy(self.copies[name], None)
        return "200 OK", answer


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection, kept open as Placement's own web servers do."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if self.path.startswith("/.test/"):
            order, _, name = self.path.removeprefix("/.test/").partition("/")
            status, content = self.server.test(order, name)
            self._send(status, [("Content-Type", "text/json")], content)
            return
        with self.server.turn:
            status, headers, content = self._ask(body)
        self.server.log.append(
            (self.command, self.path, int(status.split()[0]))
        )
        self._send(status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = answer

    def _ask(self, body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return the application's answer."""
        response: list[Any] = []

        def start(status: str, headers: Any, *_: object) -> None:
            response[:] = [status, headers]

        content = b"".join(self.server.application(self._wsgi(body), start))
        return response[0], response[1], content

    def _wsgi(self, body: bytes) -> dict[str, Any]:
        path, _, query = self.path.partition("?")
        fields = {
            "HTTP_" + name.upper().replace("-", "_"): value
            for name, value in self.headers.items()
        }
        return fields | {
            "REQUEST_METHOD": self.command,
            "SCRIPT_NAME": "",
            "PATH_INFO": parse.unquote(path, "iso-8859-1"),
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type") or "",
            "CONTENT_LENGTH": str(len(body)),
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": str(self.server.server_port),
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }

    def _send(
        self, status: str, headers: list[tuple[str, str]], content: bytes
    ) -> None:
        number, _, reason = status.partition(" ")
        self.send_response(int(number), reason)
        for name, value in headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print no requests: ``log`` returns them."""


def main() -> None:
    database, lock, *options = sys.argv[1:]
    spare_work()
    keep_connections()
    server = Server(load(database, options), lock == "serial")
    print("port", server.server_port, flush=True)
    # Standard input ends when the parent process ends, in any way.
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
