# SPDX-License-Identifier: Apache-2.0
"""Trials of mutants: the tests that run a mutant's line, in a fork.

A process collects the tests of an area once. One fork of it runs all of them
and records who runs which line; then each mutant has a fork of its own, in
which the functions that it changes have its code. A change outside functions,
or in code that only other processes run, has a new interpreter instead.
"""

import ast
import collections
import dataclasses
import gc
import multiprocessing
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from types import CodeType, FunctionType
from typing import Any

import coverage
import pytest

#: Limits of a trial: these, and several times what its tests take.
CPU_SECONDS, SECONDS, TIMES = 20, 120, 10
_FORK = multiprocessing.get_context("fork")
_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: the code of a function
# Imports nothing of this project.
_FAKE_HOST = "tests.lab.fakehost.control.server"


class TooLongError(BaseException):
    """A trial exceeds its limit; nothing that it runs catches this."""


@dataclasses.dataclass
class Test:
    """Lines and seconds of a test, without mutants."""

    lines: dict[str, set[int]] = dataclasses.field(default_factory=dict)
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    has_processes: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """``tests`` is the number of tests that were chosen."""

    is_killed: bool
    tests: int
    seconds: float


def list_lines(source: str, line: int) -> range:
    """Return the lines of the innermost statement that has a line.

    Of a statement with a body, those of its head.
    """
    lines = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        end = body[0].lineno if body else (node.end_lineno or 0) + 1
        # Walked from the outside: the last one is the innermost.
        if node.lineno <= line < end:
            lines = range(node.lineno, end)
    return lines


def list_changed(old: CodeType, new: CodeType) -> Iterator[CodeType] | None:
    """Yield the changed code of functions, with the functions around it.

    Returns None if the code of a module or class differs, too.
    """
    pairs = zip(_nested(old), _nested(new), strict=False)
    inner = [list_changed(*pair) for pair in pairs if pair[0] != pair[1]]
    is_same = _plain(old) == _plain(new)
    if not old.co_flags & _OPTIMIZED and not is_same:
        return None
    changed: list[CodeType] = []
    for codes in inner:
        if codes is None:
            return None
        changed += codes
    if old.co_flags & _OPTIMIZED and (changed or not is_same):
        changed.append(new)
    return iter(changed)


def _nested(code: CodeType) -> list[CodeType]:
    return [c for c in code.co_consts if isinstance(c, CodeType)]


def _plain(code: CodeType) -> tuple[Any, ...]:
    """Return what code does, without its place and the code in it."""
    constants = [
        None if isinstance(constant, CodeType) else (type(constant), constant)
        for constant in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, constants


def patch(path: pathlib.Path, source: str, changed: str) -> bool:
    """Let the live functions of a module have changed code.

    Returns whether this is all of the change.
    """
    codes = list_changed(
        compile(source, path, "exec"), compile(changed, path, "exec")
    )
    if codes is None:
        return False
    codes_by_name = {(c.co_qualname, c.co_firstlineno): c for c in codes}
    gc.unfreeze()
    functions = [
        value
        for value in gc.get_objects()
        if isinstance(value, FunctionType)
        and value.__code__.co_filename == str(path)
    ]
    patched = 0
    for function in functions:
        code = function.__code__
        new = codes_by_name.get((code.co_qualname, code.co_firstlineno))
        if new is None:
            continue
        if new.co_freevars != code.co_freevars:
            return False
        function.__code__ = new
        patched += 1
    return patched > 0


class Trials:
    """Plugin of pytest: runs trials in place of its loop of tests.

    :param work: called with this object, once the tests are collected.
    """

    def __init__(
        self, root: pathlib.Path, work: Callable[["Trials"], None]
    ) -> None:
        self._root, self._work = root, work
        self._items: list[pytest.Item] = []
        self._tests: dict[str, Test] = {}
        self._costs: collections.Counter[str] = collections.Counter()
        self._session: Any = None
        self._failed = ""

    # -- hooks -------------------------------------------------------------

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants."""
        if session.testsfailed:
            raise session.Interrupted("errors during collection")
        self._session, self._items = session, session.items
        self._work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that fails."""
        if report.failed:
            self._failed = f"{report.nodeid}\n{report.longreprtext}"

    # -- forks -------------------------------------------------------------

    def _fork(self, work: Callable[[], Any], seconds: float) -> Any:
        """Return what a function returns in a fork; None: it was killed."""
        receiver, sender = _FORK.Pipe(duplex=False)
        child = _FORK.Process(target=self._run_child, args=(work, sender))
        child.start()
        sender.close()
        answer = None
        try:
            if receiver.poll(seconds):
                answer = receiver.recv()
        except EOFError:
            pass
        child.join(SECONDS)
        if child.is_alive():
            child.kill()
            child.join()
        return answer

    def _run_child(
        self, work: Callable[[], Any], sender: connection.Connection
    ) -> None:
        plugins = self._session.config.pluginmanager
        plugins.unregister(name="terminalreporter")
        sender.send(work())
        # Unmounts, and removes the directories of the tests.
        self._session.config.hook.pytest_sessionfinish(
            session=self._session, exitstatus=0
        )

    def _run(self, items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
        """Run tests; yield each after it, until one fails."""
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item
            if self._failed:
                return

    # -- without mutants ---------------------------------------------------

    def measure(self, modules: Sequence[str]) -> None:
        """Run all tests and record the lines of some modules.

        :raises RuntimeError: a test fails.
        """
        answer = self._fork(lambda: self._record(modules), 3600)
        if not isinstance(answer, dict):
            raise RuntimeError(f"without a mutant: {answer}")
        self._tests = answer
        for name, test in answer.items():
            self._costs[name.partition("::")[0]] += int(test.seconds * 1000)

    def _record(self, modules: Sequence[str]) -> dict[str, Test] | str:
        tests: dict[str, Test] = collections.defaultdict(Test)
        running = ""

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "os.fork" or (
                event == "subprocess.Popen"
                and _FAKE_HOST not in map(str, arguments[1])
            ):
                tests[running].has_processes = True

        sys.addaudithook(audit)
        recorder = coverage.Coverage(
            data_file=None,
            config_file=False,
            include=[str(self._root / module) for module in modules],
        )
        recorder.start()
        running = self._items[0].nodeid
        recorder.switch_context(running)
        started, cpu = time.monotonic(), time.process_time()
        following = iter([*self._items[1:], None])
        for item in self._run(self._items):
            test = tests[item.nodeid]
            test.seconds = time.monotonic() - started
            test.cpu_seconds = time.process_time() - cpu
            started, cpu = time.monotonic(), time.process_time()
            if (after := next(following)) is not None:
                running = after.nodeid
                recorder.switch_context(running)
        recorder.stop()
        if self._failed:
            return self._failed
        data = recorder.get_data()
        for path in data.measured_files():
            relative = str(pathlib.Path(path).relative_to(self._root))
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in contexts:
                    lines = tests[context].lines
                    lines.setdefault(relative, set()).add(line)
        return {name: test for name, test in tests.items() if name}

    # -- with a mutant -----------------------------------------------------

    def choose(self, path: str, lines: range | None) -> list[pytest.Item]:
        """Return the tests of some lines; those of cheap modules first.

        Of all lines for None. A test that starts processes may run any line
        of a module there.
        """
        chosen = []
        for item in self._items:
            test = self._tests[item.nodeid]
            own = test.lines.get(path, set())
            is_own = bool(own) if lines is None else own & {*lines}
            if is_own or test.has_processes:
                chosen.append(item)
        chosen.sort(key=lambda item: self._costs[item.nodeid.split("::")[0]])
        return chosen

    def judge(self, path: str, line: int, source: str, changed: str) -> Result:
        """Return whether the tests of a changed line find the change."""
        started = time.monotonic()
        module = self._root / path
        items = self.choose(path, list_lines(source, line))
        module.write_text(changed, encoding="utf-8")
        try:
            answer: Any = False
            if items:
                _, seconds = self._limits(items)
                answer = self._fork(
                    lambda: self._try(items, module, source, changed),
                    seconds + SECONDS,
                )
            if answer is False:  # not all of the change is in live functions
                items = self.choose(path, None)
                answer = self._start(items) if items else "survived"
        finally:
            module.write_text(source, encoding="utf-8")
        return Result(
            answer != "survived", len(items), time.monotonic() - started
        )

    def _limits(self, items: Sequence[pytest.Item]) -> tuple[int, int]:
        tests = [self._tests[item.nodeid] for item in items]
        return (
            CPU_SECONDS + TIMES * int(sum(t.cpu_seconds for t in tests)),
            SECONDS + TIMES * int(sum(t.seconds for t in tests)),
        )

    def _try(
        self,
        items: Sequence[pytest.Item],
        module: pathlib.Path,
        source: str,
        changed: str,
    ) -> str | bool:
        if not patch(module, source, changed):
            return False
        cpu, seconds = self._limits(items)

        def stop(*_: Any) -> None:
            raise TooLongError

        signal.signal(signal.SIGPROF, stop)
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_PROF, cpu)
        signal.alarm(seconds)
        try:
            collections.deque(self._run(items), maxlen=0)
        except (TooLongError, KeyboardInterrupt, pytest.exit.Exception):
            return "exceeded its limit"
        finally:
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_PROF, 0)
        return "failed" if self._failed else "survived"

    def _start(self, items: Sequence[pytest.Item]) -> str:
        """Run tests by a new interpreter, which reads the changed file."""
        cpu, seconds = self._limits(items)

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))

        command = [sys.executable, "-B", "-m", "pytest", "-q", "-x"]
        command += ["-p", "no:cacheprovider"]
        command += [item.nodeid for item in items]
        try:
            result = subprocess.run(  # noqa: S603
                command,
                check=False,
                cwd=self._root,
                env={**os.environ, "PYTHONPATH": str(self._root)},
                capture_output=True,
                timeout=seconds,
                preexec_fn=limit,
            )
        except subprocess.TimeoutExpired:
            return "exceeded its limit"
        return "failed" if result.returncode else "survived"
