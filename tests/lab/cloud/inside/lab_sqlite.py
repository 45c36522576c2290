# SPDX-License-Identifier: Apache-2.0
"""A SQLAlchemy engine plugin that lets several services share sqlite files.

oslo.db begins deferred transactions.  Two processes that read and then write
would each hold a read lock the other one waits for, and sqlite answers
"database is locked" at once, whatever the timeout says
(https://www.sqlite.org/isolation.html).  So each outermost transaction begins
with ``BEGIN IMMEDIATE`` and they queue.  A transaction begun inside another
one of the same thread, as placement does to read a provider again, stays
deferred: it would wait for itself.

oslo.db marks a begun transaction in ``conn.info['in_transaction']``
(oslo_db.sqlalchemy.engines); the same mark is kept here, so that its own
``BEGIN`` does not follow this one.
"""

import os
import sqlite3
import threading
from typing import Any

import sqlalchemy
from sqlalchemy.engine import URL, Connection, CreateEnginePlugin, Engine

_kept_open: dict[tuple[int, str], sqlite3.Connection] = {}
_thread = threading.local()


def _owners() -> dict[str, int]:
    """Return which connection of this thread writes to which file."""
    if not hasattr(_thread, "owners"):
        _thread.owners = {}
    owners: dict[str, int] = _thread.owners
    return owners


def _keep_open(path: str) -> None:
    """Hold one connection, or sqlite removes the WAL file at each close."""
    key = (os.getpid(), path)
    if key not in _kept_open:
        connection = sqlite3.connect(path, check_same_thread=False)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        _kept_open[key] = connection


class SharedSqlite(CreateEnginePlugin):
    """``?plugin=lab_sqlite`` in a database URL."""

    def update_url(self, url: URL) -> URL:
        """Return the URL without our own query argument."""
        self.path = str(url.database)
        return url.difference_update_query(["plugin"])

    def engine_created(self, engine: Engine) -> None:
        """Register the listeners on a new engine."""
        path = self.path

        def connect(dbapi_connection: Any, _record: object) -> None:
            dbapi_connection.execute("PRAGMA journal_mode=WAL")
            dbapi_connection.execute("PRAGMA synchronous=OFF")
            _keep_open(path)

        def begin(conn: Connection) -> None:
            if "in_transaction" in conn.info:
                return
            nested = path in _owners()
            conn.exec_driver_sql("BEGIN" if nested else "BEGIN IMMEDIATE")
            conn.info["in_transaction"] = True
            if not nested:
                _owners()[path] = conn.info["lab_owner"] = id(conn)

        def end(conn: Connection) -> None:
            if conn.info.pop("lab_owner", None):
                _owners().pop(path, None)

        sqlalchemy.event.listen(engine, "connect", connect)
        sqlalchemy.event.listen(engine, "begin", begin)
        sqlalchemy.event.listen(engine, "commit", end)
        sqlalchemy.event.listen(engine, "rollback", end)
