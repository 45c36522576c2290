# SPDX-License-Identifier: Apache-2.0
"""A service that is killed between any two steps, and its environment.

The service is a child process of the test. It sends messages to the test
for all state that outlives the service. It reports each step before taking
it, and the test replies whether to continue or to die.
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

from nova_accel.host.execute.technologies import fpga_actions

_MOST = 1 << 20
# The name of a step, or a function that makes it from a call's arguments.
Named = str | Callable[..., str]
# Timeout for a service that hangs, in seconds.
_PATIENCE_S = 120


class Link:
    """Connection of the service to the test: one message and one reply."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def ask(self, name: str, *arguments: Any) -> Any:
        self._end.send(pickle.dumps((name, arguments)))
        return pickle.loads(self._end.recv(_MOST))  # noqa: S301 - our pickle

    def step(self, name: str) -> None:
        """Report the next step; die here if the test says so."""
        if not self.ask("step", name):
            os.kill(os.getpid(), signal.SIGKILL)

    def report_calls(self, owner: Any, method: str, name: Named) -> None:
        """Report a step before each call of an object's method."""
        real = getattr(owner, method)

        def call(*arguments: Any, **words: Any) -> Any:
            self.step(name if isinstance(name, str) else name(*arguments))
            return real(*arguments, **words)

        setattr(owner, method, call)

    def report_steps(self, life: Any) -> None:
        """Report each step from now on, also those inside the product."""
        self.ask("count")
        for owner, method, name in (
            (life._executor, "_change", lambda action, _: _name(action)),
            (fpga_actions, "_write", lambda _, action: _name(action)),
            (life.store, "set_claims", "note claims"),
            (life.store, "remove_claims", "forget claims"),
            (life.store, "forget_made", "note removed partitions"),
            (life._claims_file, "_replace", "publish claims"),
        ):
            self.report_calls(owner, method, name)


def _name(action: Any) -> str:
    return f"write {type(action).__name__}"


class World:
    """State that outlives the service; its ``do_`` methods serve messages."""

    def __init__(self) -> None:
        #: Steps that the last service reported.
        self.steps: list[str] = []
        #: Number of the step before which the service dies.
        self.kill_at: int | None = None
        self._is_counting = False

    def run(self, work: Callable[[Link], None]) -> int:
        """Run a service; return the signal that killed it, 0 for none."""
        self.steps, self._is_counting = [], False
        test_end, service_end = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        for end in (test_end, service_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
        child = os.fork()
        if not child:
            test_end.close()
            self._be_service(work, service_end)
        service_end.close()
        test_end.settimeout(_PATIENCE_S)
        with test_end:
            try:
                while packet := test_end.recv(_MOST):
                    name, arguments = pickle.loads(packet)  # noqa: S301 - our pickle
                    answer = getattr(self, f"do_{name}")(*arguments)
                    test_end.send(pickle.dumps(answer))
            except BaseException:
                os.kill(child, signal.SIGKILL)
                raise
            finally:
                test_end.close()
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
        """Close the resources of the test in the service process."""

    # -- messages of the service -------------------------------------------

    def do_step(self, name: str) -> bool:
        """Record a step if counting; return whether to continue."""
        if not self._is_counting:
            return True
        number = sum(s.partition(" #")[0] == name for s in self.steps)
        self.steps.append(f"{name} #{number + 1}" if number else name)
        return len(self.steps) - 1 != self.kill_at

    def do_count(self) -> None:
        """Count steps from now on."""
        self._is_counting = True
