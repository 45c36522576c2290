# SPDX-License-Identifier: Apache-2.0
"""Two nova-computes of one host see each other by lock files."""

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nova_accel.host.state import ended_service, service_lock

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Another service: it prints whether it has the lock, and waits for a kill.
OTHER = """
import sys, time
from nova_accel.host.state import service_lock
lock = service_lock.ServiceLock(sys.argv[1])
print(lock.acquire(), flush=True)
time.sleep(60)
"""


def start_other(state: pathlib.Path) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-c", OTHER, str(state)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def other(tmp_path: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    with start_other(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_one_service_has_the_lock(
    tmp_path: pathlib.Path,
    other: subprocess.Popen[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    lock = service_lock.ServiceLock(str(tmp_path))
    assert not lock.acquire()
    assert not lock.acquire()
    (line,) = caplog.messages
    assert f"still runs (process {other.pid}," in line
    assert "not removed until it has ended" in line
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert lock.acquire()
    assert lock.acquire()
    assert "no other nova-compute runs" in caplog.messages[-1]


def test_a_missing_directory_is_created(tmp_path: pathlib.Path) -> None:
    lock = service_lock.ServiceLock(str(tmp_path / "new" / "accel"))
    assert lock.acquire()
    assert pathlib.Path(lock.path).is_file()


def test_the_older_service_detects_its_successor(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = service_lock.ServiceLock(str(tmp_path))
    assert lock.acquire()
    with start_other(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        assert not lock.acquire()
        assert not lock.acquire()
        process.kill()
    (line,) = caplog.messages
    assert "has started" in line
    assert lock.acquire()


def test_a_restart_in_the_same_process_has_the_lock(
    tmp_path: pathlib.Path,
) -> None:
    assert service_lock.ServiceLock(str(tmp_path / "state")).acquire()
    assert service_lock.ServiceLock(str(tmp_path / "state")).acquire()


def test_a_file_that_cant_be_locked_is_logged(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkdir(tmp_path / "nova-compute.lock")
    lock = service_lock.ServiceLock(str(tmp_path))
    assert lock.acquire()
    assert lock.acquire()
    (line,) = caplog.messages
    assert lock.path in line
    assert "make [nova_accel] state_dir writable" in line


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_the_last_service_is_identified_after_its_end(
    tmp_path: pathlib.Path, other: subprocess.Popen[str]
) -> None:
    state = str(tmp_path)
    assert ended_service.identify(state) == ""
    end(other)
    identity = ended_service.identify(state)
    assert identity.startswith(f"{other.pid} ")
    assert ended_service.identify(state) == identity
    with start_other(tmp_path) as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "True\n"
        assert ended_service.identify(state) == ""
        end(second)
    assert ended_service.identify(state) not in ("", identity)


def test_a_successor_runs_before_it_has_the_lock(
    tmp_path: pathlib.Path, other: subprocess.Popen[str]
) -> None:
    with start_other(tmp_path) as successor:
        assert successor.stdout is not None
        assert successor.stdout.readline() == "False\n"
        end(other)
        assert ended_service.identify(str(tmp_path)) == ""
        end(successor)
    assert ended_service.identify(str(tmp_path))


def test_files_that_nova_compute_could_not_lock_prove_nothing(
    tmp_path: pathlib.Path, other: subprocess.Popen[str]
) -> None:
    end(other)
    state = str(tmp_path)
    assert ended_service.identify(state)
    if os.geteuid() == 0:
        os.chown(state, 12345, 12345)
        assert ended_service.identify(state) == ""
        os.chown(state, 0, 0)
    (tmp_path / "nova-compute.lock").unlink()
    assert ended_service.identify(state) == ""
    assert ended_service.identify(f"{state}/absent") == ""
