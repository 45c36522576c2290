# SPDX-License-Identifier: Apache-2.0
"""A call that hangs in the kernel: its caller, its thread, its card.

What hangs is the kernel's own open(2) of a FIFO without a writer.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel.host import bounded_calls

LIMIT_S = 0.3


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_calls, "READ_S", LIMIT_S)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[str]:
    path = make_fifo(tmp_path, "0000:41:00.0")
    yield path
    answer(path)


def make_fifo(root: Path, address: str) -> str:
    directory = root / "sys/bus/pci/devices" / address
    directory.mkdir(parents=True)
    os.mkfifo(directory / "numa_node")
    return str(directory / "numa_node")


def answer(path: str) -> None:
    """Let the calls that hang on a FIFO return."""
    until = time.monotonic() + 10
    while bounded_calls.count_late():
        assert time.monotonic() < until
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # its reader has not opened it yet
            time.sleep(0.01)


def open_file(path: str) -> str:
    os.close(os.open(path, os.O_RDONLY))
    return "opened"


def test_a_caller_waits_for_the_limit_and_then_no_more(fifo: str) -> None:
    sibling = f"{os.path.dirname(fifo)}/vendor"
    for path, most_s in ((fifo, 10 * LIMIT_S), (sibling, LIMIT_S)):
        began = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            bounded_calls.read(path, open_file)
        assert time.monotonic() - began < most_s
        assert caught.value.filename == fifo
    assert bounded_calls.count_late() == 1
    answer(fifo)
    Path(sibling).write_text("0x10de\n")
    assert bounded_calls.read(sibling, open_file) == "opened"


def test_other_cards_answer_meanwhile(fifo: str, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        bounded_calls.read(fifo, open_file)
    other = tmp_path / "sys/bus/pci/devices/0000:42:00.0/vendor"
    other.parent.mkdir()
    other.write_text("0x10de\n")
    assert bounded_calls.read(str(other), open_file) == "opened"


def test_a_write_that_was_late_is_not_repeated(fifo: str) -> None:
    calls = []

    def write(path: str) -> None:
        calls.append(path)
        open_file(path)

    with pytest.raises(TimeoutError):
        bounded_calls.write(fifo, LIMIT_S, write)
    answer(fifo)
    assert calls == [fifo]


def test_work_begins_again_without_the_late_card(fifo: str) -> None:
    attempts = []

    def work() -> str:
        attempts.append(1)
        try:
            return bounded_calls.read(fifo, open_file)
        except TimeoutError:
            return "late"

    assert bounded_calls.run(work) == "late"
    assert len(attempts) == 2


def test_errors_are_those_of_the_call(tmp_path: Path) -> None:
    def fail() -> None:
        raise KeyError("work")

    with pytest.raises(FileNotFoundError):
        bounded_calls.read(str(tmp_path / "absent"), open_file)
    with pytest.raises(KeyError, match="work"):
        bounded_calls.run(fail)


def test_a_child_process_has_threads_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert bounded_calls.read(str(path), open_file) == "opened"
    child = os.fork()
    if not child:
        result = bounded_calls.read(str(path), open_file)
        os._exit(0 if result == "opened" else 1)
    assert os.waitpid(child, 0)[1] == 0


CHILD = """
import os, sys, time
{patch}
from nova_accel.host import bounded_calls
bounded_calls.READ_S = 0.5
def open_file(path):
    os.close(os.open(path, os.O_RDONLY))
{ticker}
try:
    bounded_calls.read(sys.argv[1], open_file)
except TimeoutError as error:
    print("late", error.filename)
print(len(ticks))
"""
#: The other green thread runs while the call hangs.
GREEN = """
ticks = []
def tick():
    while True:
        ticks.append(1)
        time.sleep(0.02)
eventlet.spawn(tick)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_green", [False, True], ids=["native", "green"])
def test_a_process_ends_while_a_call_hangs(
    tmp_path: Path, is_green: bool
) -> None:
    if is_green:
        pytest.importorskip("eventlet")
    path = make_fifo(tmp_path, "0000:41:00.0")
    code = CHILD.format(
        patch="import eventlet; eventlet.monkey_patch()" if is_green else "",
        ticker=GREEN if is_green else "ticks = []",
    )
    child = subprocess.run(  # noqa: S603 - constant code
        [sys.executable, "-W", "ignore", "-c", code, path],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    late, ticks = child.stdout.splitlines()
    assert late == f"late {path}"
    assert (int(ticks) > 5) is is_green
