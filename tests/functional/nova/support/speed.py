# SPDX-License-Identifier: Apache-2.0
"""Fixtures that save waiting and processor time in Nova's harness.

Each removes one cost that a profile of these tests showed. None of them
changes the behaviour of Nova, Placement or this library. Those of Threads are
for native threads: eventlet's run few of these tests.

Services start anew for each test. With these fixtures that is half a second of
processor time, a fifth of a test; servers, notes and Nova's configuration of
the test before would cost more to remove than they cost to start.
"""

import sys
import threading
import time
import types
from typing import Any

import fixtures
import futurist
import sqlalchemy
from oslo_db.sqlalchemy import engines
from oslo_messaging._drivers import impl_fake
from sqlalchemy import util
from sqlalchemy.dialects.sqlite import pysqlite

from tests.functional.sync.support import placement_app

# First pause of a loop in seconds; each of its next is twice as long.
_FIRST_PAUSE_S = 0.05
# Longest time until a listener looks for messages without being woken.
_LISTENER_S = 1.0
# Seconds. Nova's tests set 0.01, so that a stopped executor ends soon.
_IDLE_THREAD_S = 0.05
# Nova has some 2,500 patterns: routes, and properties of flavors. Python
# compiles a pattern again that was not among the last 512.
_PATTERNS = 1 << 13
# Statements of Nova and Placement, as SQLAlchemy compiled them. A run of the
# whole harness has some 700.
_STATEMENTS: util.LRUCache[Any, Any] = util.LRUCache(1 << 12)


class Speed(fixtures.Fixture):
    """Fixtures for threads of both kinds."""

    def _setUp(self) -> None:
        self.useFixture(SharedStatements())
        placement_app.spare_work()
        self.useFixture(fixtures.MonkeyPatch("re._MAXCACHE", _PATTERNS))
        # requests reads the whole environment before each request.
        self.useFixture(
            fixtures.MonkeyPatch(
                "requests.sessions.get_environ_proxies", lambda *_, **__: {}
            )
        )


class Threads(fixtures.Fixture):
    """Fixtures for native threads."""

    def _setUp(self) -> None:
        self.useFixture(BackOff())
        self.useFixture(PromptMessages())
        self.useFixture(PooledConnections())


class BackOff(fixtures.Fixture):
    """Nova's helpers pause half a second; let them begin with less."""

    def _setUp(self) -> None:
        self._loop: types.FrameType | None = None
        self._pause = _FIRST_PAUSE_S
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.tests.functional.integrated_helpers.time",
                types.SimpleNamespace(sleep=self._sleep),
            )
        )
        self.addCleanup(setattr, self, "_loop", None)

    def _sleep(self, seconds: float) -> None:
        # A loop of a helper is one call of that helper.
        loop = sys._getframe(1)
        if loop is not self._loop:
            self._loop, self._pause = loop, _FIRST_PAUSE_S
        time.sleep(min(self._pause, seconds))
        self._pause *= 2


class PromptMessages(fixtures.Fixture):
    """A message wakes the listeners, which look each 50 ms otherwise."""

    def _setUp(self) -> None:
        self._changed = threading.Condition()
        self._changes = 0
        self._seen = threading.local()
        for owner, method in (
            (impl_fake.FakeExchange, "deliver_message"),
            (impl_fake.FakeListener, "stop"),
        ):
            self.useFixture(
                fixtures.MockPatchObject(
                    owner, method, self._notify_after(getattr(owner, method))
                )
            )
        self.useFixture(
            fixtures.MonkeyPatch(
                f"{impl_fake.__name__}.time",
                types.SimpleNamespace(time=time.time, sleep=self._await),
            )
        )

    def _notify_after(self, method: Any) -> Any:
        def call(*arguments: Any, **words: Any) -> None:
            method(*arguments, **words)
            with self._changed:
                self._changes += 1
                self._changed.notify_all()

        return call

    def _await(self, _seconds: float) -> None:
        seen = getattr(self._seen, "changes", -1)
        with self._changed:
            # A message may have come since this listener looked.
            self._changed.wait_for(lambda: self._changes != seen, _LISTENER_S)
            self._seen.changes = self._changes


class PooledConnections(fixtures.Fixture):
    """oslo.db opens a file of SQLite anew for each transaction.

    It also lets another greenlet run after each, which threads do anyway.
    """

    def _setUp(self) -> None:
        for owner, name, value in (
            (engines.pool, "NullPool", placement_app.UncheckedPool),
            (engines, "_thread_yield", lambda *_: None),
        ):
            self.useFixture(fixtures.MockPatchObject(owner, name, value))


class SharedStatements(fixtures.Fixture):
    """Each test has its own engines, which compile each statement anew.

    A compiled statement is valid for all engines of SQLite: its key has the
    dialect, one object for each engine, and otherwise the statement itself.
    """

    def _setUp(self) -> None:
        dialect = pysqlite.SQLiteDialect_pysqlite
        self._create_engine = sqlalchemy.create_engine
        for place, name, value in (
            (dialect, "__eq__", lambda own, other: type(own) is type(other)),
            (dialect, "__hash__", lambda own: hash(type(own))),
            (sqlalchemy, "create_engine", self._create),
        ):
            self.useFixture(fixtures.MockPatchObject(place, name, value))

    def _create(self, *arguments: Any, **words: Any) -> sqlalchemy.Engine:
        engine = self._create_engine(*arguments, **words)
        if isinstance(engine.dialect, pysqlite.SQLiteDialect_pysqlite):
            engine.update_execution_options(compiled_cache=_STATEMENTS)
        return engine


def let_threads_idle() -> None:
    """Let threads of executors sleep longer; after Nova has set it."""
    futurist._thread.ThreadWorker.MAX_IDLE_FOR = _IDLE_THREAD_S
