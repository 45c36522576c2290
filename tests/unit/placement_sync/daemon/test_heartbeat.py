# SPDX-License-Identifier: Apache-2.0
"""Status file of passes: content, age, and unreadable files."""

import dataclasses
import json
import os
import pathlib
import threading
import time

import pytest

from nova_accel import errors, model
from placement_sync.client import calls
from placement_sync.daemon import heartbeat
from tests.support import strategies
from tests.support.hosts.states import CLAIMS, HOST, TREE

INTERVAL_S = 60.0
NOBODY = 65534


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """A pass that came to its end."""

    calls: tuple[object, ...] = ()
    reads: int = 1
    writes: int = 0
    problems: tuple[model.Problem, ...] = ()
    seconds: float = 0.25


def beating(
    place: pathlib.Path, interval_s: float = INTERVAL_S
) -> heartbeat.Heartbeat:
    return heartbeat.Heartbeat(str(place), "placement-sync", interval_s)


def only(place: pathlib.Path) -> heartbeat.Status:
    (found,) = heartbeat.read(str(place))
    return found


def test_a_pass_leaves_its_status(tmp_path: pathlib.Path) -> None:
    refused = model.Problem(where="provider", reason="403")
    made = (
        calls.CreateTrait(name="CUSTOM_A"),
        calls.CreateTrait(name="CUSTOM_B"),
        calls.DeleteProvider(uuid="1", name="a"),
    )
    before = time.time()
    beat = beating(tmp_path)
    with beat:
        returned = beat.record_pass(
            Ended(calls=made, reads=2, writes=3, problems=(refused,)),
            HOST,
            TREE,
            CLAIMS,
        )
    found = only(tmp_path)
    assert found == dataclasses.replace(
        returned,
        started=found.started,
        attempted=found.attempted,
        succeeded=found.succeeded,
    )
    assert found.succeeded is not None and found.attempted is not None
    assert before - 1 < found.started <= found.attempted <= found.succeeded
    assert found.root == strategies.ROOT
    assert found.pid == os.getpid()
    assert found.version
    assert (found.seconds, found.interval_s) == (0.25, INTERVAL_S)
    assert (found.reads, found.writes) == (2, 3)
    assert found.calls == {"CreateTrait": 2, "DeleteProvider": 1}
    assert found.devices == {
        "ok": 1, "faulted": 1, "drained": 2, "missing": 1, "unreadable": 1,
    }  # fmt: skip
    assert found.use["CUSTOM_GPU_MEMORY_MB"].total == 1600
    assert found.use["CUSTOM_GPU_MEMORY_MB"].claimed == 200
    assert found.use["VGPU"].claimed == 1
    assert found.use["VGPU"].reserved >= 4
    assert found.problems == (*HOST.problems, refused)
    assert (found.outcome, found.error) == ("incomplete", "")


def test_the_file_is_for_people_and_for_all(tmp_path: pathlib.Path) -> None:
    mask = os.umask(0o077)
    try:
        beating(tmp_path).record_pass(Ended(), HOST, TREE)
    finally:
        os.umask(mask)
    path = tmp_path / "status" / "placement-sync.json"
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert os.listdir(path.parent) == [path.name]
    text = json.loads(path.read_text())
    for name in ("started", "attempted", "succeeded"):
        assert text[name]["time"].endswith("+00:00")
        assert abs(text[name]["epoch"] - time.time()) < 60
    assert text["root"] == {
        "name": strategies.ROOT.name, "uuid": strategies.ROOT_UUID,
    }  # fmt: skip


def test_a_failure_leaves_the_last_success(tmp_path: pathlib.Path) -> None:
    beat = beating(tmp_path)
    good = beat.record_pass(Ended(), HOST, TREE, CLAIMS)
    time.sleep(0.01)
    with pytest.raises(errors.UnreadableError), beat:
        raise errors.UnreadableError("/sys/first", 5)
    found = only(tmp_path)
    assert found.error == "/sys/first: EIO (Input/output error)"
    assert found.outcome == "failed"
    assert found.devices == good.devices
    assert found.use == good.use
    assert (found.calls, found.reads, found.writes) == ({}, 0, 0)
    assert good.succeeded is not None
    assert found.succeeded == pytest.approx(good.succeeded, abs=0.001)
    assert found.attempted is not None
    assert found.attempted > good.succeeded
    assert beat.record_pass(Ended(), HOST, TREE).error == ""


def test_a_surprise_is_told_with_its_kind(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ZeroDivisionError), beating(tmp_path):
        _ = 1 / 0
    assert only(tmp_path).error == "ZeroDivisionError: division by zero"
    assert only(tmp_path).succeeded is None


def test_a_restart_remembers_the_last_success(
    tmp_path: pathlib.Path,
) -> None:
    good = beating(tmp_path).record_pass(Ended(), HOST, TREE)
    again = beating(tmp_path).record_failure("Placement is away")
    assert good.succeeded is not None
    assert again.succeeded == pytest.approx(good.succeeded, abs=0.001)
    assert again.started >= good.started
    assert again.devices == good.devices


def test_each_writer_has_its_own(tmp_path: pathlib.Path) -> None:
    for writer in ("nova-compute", "placement-sync", "../odd"):
        heartbeat.Heartbeat(str(tmp_path), writer).record_failure("x")
    found = heartbeat.read(str(tmp_path))
    assert {one.writer for one in found} == {
        "../odd", "nova-compute", "placement-sync",
    }  # fmt: skip
    assert os.listdir(tmp_path) == ["status"]


def test_where_nobody_passed_there_is_nothing(
    tmp_path: pathlib.Path,
) -> None:
    assert heartbeat.read(str(tmp_path)) == ()
    (tmp_path / "status").mkdir()
    (tmp_path / "status" / ".half").write_text("{")
    (tmp_path / "status" / "readme").write_text("{")
    assert heartbeat.read(str(tmp_path)) == ()


def test_a_place_that_is_no_directory_is_told(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "status").write_text("")
    with pytest.raises(errors.UnreadableError):
        heartbeat.read(str(tmp_path))


def test_what_can_not_be_written_stops_nobody(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "status").write_text("")
    seen: list[heartbeat.Status] = []
    beat = heartbeat.Heartbeat(
        str(tmp_path), "placement-sync", publish=seen.append
    )
    for _ in range(3):
        beat.record_pass(Ended(), HOST, TREE)
    assert len(caplog.records) == 1
    assert "state_dir" in caplog.messages[0]
    assert [one.outcome for one in seen] == ["ok"] * 3


BROKEN: tuple[bytes, ...] = (
    b"", b"{", b"[]", b"{}", b"null", b"\xff", b'{"format": 2}', b"[" * 10**5,
)  # fmt: skip


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_is_told_and_written_anew(
    tmp_path: pathlib.Path, content: bytes
) -> None:
    path = tmp_path / "status" / "placement-sync.json"
    path.parent.mkdir()
    path.write_bytes(content)
    found = only(tmp_path)
    assert found.writer == "placement-sync"
    assert str(path) in found.error
    assert found.is_broken
    assert found.is_stale(time.time())
    beating(tmp_path).record_pass(Ended(), HOST, TREE)
    assert not only(tmp_path).is_broken


def test_readers_never_see_half_a_file(tmp_path: pathlib.Path) -> None:
    beat = beating(tmp_path)
    beat.record_pass(Ended(), HOST, TREE)
    is_done = threading.Event()
    seen: list[str] = []

    def watch() -> None:
        while not is_done.is_set():
            seen.append(only(tmp_path).error)

    thread = threading.Thread(target=watch)
    thread.start()
    for _ in range(50):
        beat.record_pass(Ended(), HOST, TREE)
    is_done.set()
    thread.join()
    assert set(seen) == {""}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_root_makes_the_service_can_write(
    tmp_path: pathlib.Path,
) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    beating(tmp_path).record_pass(Ended(), HOST, TREE)
    assert (tmp_path / "status").stat().st_uid == NOBODY
