# SPDX-License-Identifier: Apache-2.0
"""A service that is killed between any two steps, and the world around it.

The service is a child of the test, and asks it by messages for whatever
outlives a service. It tells of each step that it is about to take, and
is told whether it is to go on or to die.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

_MOST = 1 << 20
# What a step is called, or what tells it by a call's arguments.
Named = str | Callable[..., str]
# Of a service that does not go on, in seconds.
_PATIENCE_S = 120


class Link:
    """The service's end: a call is a message and its answer."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def ask(self, name: str, *arguments: Any) -> Any:
        self._end.send(pickle.dumps((name, arguments)))
        return pickle.loads(self._end.recv(_MOST))  # noqa: S301 - our own

    def step(self, name: str) -> None:
        """Tell that this is about to be done; die here if that is wanted."""
        if not self.ask("step", name):
            os.kill(os.getpid(), signal.SIGKILL)

    def told(self, owner: Any, method: str, name: Named) -> None:
        """Let a method of an object be a step each time it is called."""
        real = getattr(owner, method)

        def call(*arguments: Any, **words: Any) -> Any:
            self.step(name if isinstance(name, str) else name(*arguments))
            return real(*arguments, **words)

        setattr(owner, method, call)

    def tell_steps(self, life: Any) -> None:
        """Tell of each step from now on, those inside production too."""
        self.ask("count")
        for owner, method, name in (
            (life._executor, "_write", _name),
            (life._executor._loading, "_write", _name),
            (life.book, "write_down", "note claims"),
            (life.book, "forget", "forget claims"),
            (life.book, "unmade", "note what is unmade"),
            (life.published, "_replace", "publish the book"),
        ):
            self.told(owner, method, name)


def _name(action: Any) -> str:
    return f"write {type(action).__name__}"


class World:
    """Everything but the service. Its ``do_`` methods are what it asks."""

    def __init__(self) -> None:
        #: What the last service told before its end.
        self.steps: list[str] = []
        #: Number of the step before which the service is to die.
        self.kill_at: int | None = None
        self._is_counting = False

    def run(self, work: Callable[[Link], None]) -> int:
        """Let a service work; return the signal it died of, 0 for none."""
        self.steps, self._is_counting = [], False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
        child = os.fork()
        if not child:
            ours.close()
            self._be_service(work, theirs)
        theirs.close()
        ours.settimeout(_PATIENCE_S)
        with ours:
            try:
                while packet := ours.recv(_MOST):
                    name, given = pickle.loads(packet)  # noqa: S301 - ours
                    answer = getattr(self, f"do_{name}")(*given)
                    ours.send(pickle.dumps(answer))
            except BaseException:
                os.kill(child, signal.SIGKILL)
                raise
            finally:
                ours.close()
                _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or not os.WEXITSTATUS(status), (
            f"the service failed after {self.steps[-3:]}; see above"
        )
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0

    def _be_service(
        self, work: Callable[[Link], None], end: socket.socket
    ) -> None:
        code = 1
        try:
            self.leave()
            work(Link(end))
            code = 0
        finally:
            if code:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(code)

    def leave(self) -> None:
        """Close in the service what is not the service's."""

    # -- what the service asks ---------------------------------------------

    def do_step(self, name: str) -> bool:
        """Note a step, once asked to; return whether it may be taken."""
        if not self._is_counting:
            return True
        number = sum(s.partition(" #")[0] == name for s in self.steps)
        self.steps.append(f"{name} #{number + 1}" if number else name)
        return len(self.steps) - 1 != self.kill_at

    def do_count(self) -> None:
        """Count steps from now on."""
        self._is_counting = True
