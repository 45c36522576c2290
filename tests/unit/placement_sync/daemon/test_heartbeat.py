# SPDX-License-Identifier: Apache-2.0
"""Passes write a status file, which survives restarts and damage."""

import dataclasses
import json
import os
import pathlib
import threading
import time

import pytest

from nova_accel import errors, model
from nova_accel.host import nvml_gpus
from nova_accel.model import usage
from placement_sync.client import calls
from placement_sync.daemon import heartbeat
from placement_sync.sync import sync_pass
from tests.support import strategies
from tests.support.hosts.states import CLAIMS, HOST, TREE

INTERVAL_S = 60.0
NOBODY = 65534


FINISHED = sync_pass.PassResult(reads=1, seconds=0.25)


def beating(
    place: pathlib.Path, interval_s: float = INTERVAL_S
) -> heartbeat.Heartbeat:
    return heartbeat.Heartbeat(str(place), "placement-sync", interval_s)


def read_only_status(place: pathlib.Path) -> heartbeat.Status:
    (status,) = heartbeat.read(str(place))
    return status


def test_a_pass_writes_its_status(tmp_path: pathlib.Path) -> None:
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
            dataclasses.replace(
                FINISHED, calls=made, reads=2, writes=3, problems=(refused,)
            ),
            HOST,
            TREE,
            CLAIMS,
        )
    status = read_only_status(tmp_path)
    assert status == dataclasses.replace(
        returned,
        started=status.started,
        attempted=status.attempted,
        succeeded=status.succeeded,
    )
    assert status.succeeded is not None and status.attempted is not None
    assert before - 1 < status.started <= status.attempted <= status.succeeded
    assert status.root == strategies.ROOT
    assert status.pid == os.getpid()
    assert status.version
    assert (status.seconds, status.interval_s) == (0.25, INTERVAL_S)
    assert (status.reads, status.writes) == (2, 3)
    assert status.calls == {"CreateTrait": 2, "DeleteProvider": 1}
    assert status.devices == {
        "ok": 1, "faulted": 1, "drained": 2, "missing": 1, "unreadable": 1,
    }  # fmt: skip
    assert status.use["CUSTOM_GPU_MEMORY_MB"].total == 1600
    assert status.use["CUSTOM_GPU_MEMORY_MB"].claimed == 200
    assert status.use["VGPU"].claimed == 1
    assert status.use["VGPU"].reserved >= 4
    assert status.problems == (*HOST.problems, refused)
    assert (status.outcome, status.error) == ("incomplete", "")


def test_the_umask_does_not_hide_the_file_from_the_group(
    tmp_path: pathlib.Path,
) -> None:
    mask = os.umask(0o077)
    try:
        beating(tmp_path).record_pass(FINISHED, HOST, TREE)
    finally:
        os.umask(mask)
    path = tmp_path / "status" / "placement-sync.json"
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o750
    assert os.listdir(path.parent) == [path.name]
    text = json.loads(path.read_text())
    for name in ("started", "attempted", "succeeded"):
        assert text[name]["time"].endswith("+00:00")
        assert abs(text[name]["epoch"] - time.time()) < 60
    assert text["root"] == {
        "name": strategies.ROOT.name, "uuid": strategies.ROOT_UUID,
    }  # fmt: skip


def test_a_failure_retains_the_last_success(tmp_path: pathlib.Path) -> None:
    beat = beating(tmp_path)
    good = beat.record_pass(FINISHED, HOST, TREE, CLAIMS)
    time.sleep(0.01)
    with pytest.raises(errors.UnreadableError), beat:
        raise errors.UnreadableError("/sys/first", 5)
    status = read_only_status(tmp_path)
    assert status.error == "/sys/first: EIO (Input/output error)"
    assert status.outcome == "failed"
    assert status.devices == good.devices
    assert status.use == good.use
    assert (status.calls, status.reads, status.writes) == ({}, 0, 0)
    assert good.succeeded is not None
    assert status.succeeded == pytest.approx(good.succeeded, abs=0.001)
    assert status.attempted is not None
    assert status.attempted > good.succeeded
    assert beat.record_pass(FINISHED, HOST, TREE).error == ""


def test_waiting_is_recorded_beside_the_last_pass(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = beating(tmp_path).record_pass(FINISHED, HOST, TREE)
    published: list[heartbeat.Status] = []
    beat = heartbeat.Heartbeat(
        str(tmp_path), "placement-sync", INTERVAL_S, published.append
    )
    beat.record_waiting("for a node")
    status = read_only_status(tmp_path)
    assert (status.waiting, status.outcome) == ("for a node", "ok")
    assert status.devices == good.devices
    assert published == []
    later = status.started + 1
    monkeypatch.setattr("time.time", lambda: later)
    restarted = beating(tmp_path)
    restarted.record_waiting("for a node")
    assert read_only_status(tmp_path).started == later
    assert restarted.record_failure("Placement is away").waiting == ""
    restarted.record_waiting("for a node")
    assert restarted.record_pass(FINISHED, HOST, TREE).waiting == ""


def test_guests_are_those_of_the_last_complete_pass(
    tmp_path: pathlib.Path,
) -> None:
    beat = beating(tmp_path)
    claim = CLAIMS[0]
    vgpu = nvml_gpus.NvmlVgpu(server=claim.consumer, license="licensed")
    gpu = nvml_gpus.NvmlGpu(address=claim.device, vgpus=(vgpu,))
    gpus = {claim.device: gpu}
    beat.record_pass(FINISHED, HOST, TREE, (claim,), gpus)
    beat.record_failure("Placement is away")
    (guest,) = read_only_status(tmp_path).guests
    assert (guest.server, guest.license) == (claim.consumer, "licensed")
    assert beat.record_pass(FINISHED, HOST, TREE, (claim,)).guests == ()


def test_failed_checks_are_recorded_with_each_pass(
    tmp_path: pathlib.Path,
) -> None:
    beat = beating(tmp_path)
    beat.record_checks(["pci.bars"])
    for _ in range(2):
        with beat:
            beat.record_pass(FINISHED, HOST, TREE)
        assert read_only_status(tmp_path).failed_checks == ("pci.bars",)


def test_an_unexpected_error_is_recorded(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ZeroDivisionError), beating(tmp_path):
        _ = 1 / 0
    assert (
        read_only_status(tmp_path).error
        == "ZeroDivisionError: division by zero"
    )
    assert read_only_status(tmp_path).succeeded is None


def test_a_restart_retains_the_last_success(
    tmp_path: pathlib.Path,
) -> None:
    good = beating(tmp_path).record_pass(FINISHED, HOST, TREE)
    again = beating(tmp_path).record_failure("Placement is away")
    assert good.succeeded is not None
    assert again.succeeded == pytest.approx(good.succeeded, abs=0.001)
    assert again.started >= good.started
    assert again.devices == good.devices


def test_each_writer_has_its_own_file(tmp_path: pathlib.Path) -> None:
    for writer in ("nova-compute", "placement-sync", "../odd"):
        heartbeat.Heartbeat(str(tmp_path), writer).record_failure("x")
    statuses = heartbeat.read(str(tmp_path))
    assert {status.writer for status in statuses} == {
        "../odd", "nova-compute", "placement-sync",
    }  # fmt: skip
    assert os.listdir(tmp_path) == ["status"]


def test_no_status_before_the_first_pass(
    tmp_path: pathlib.Path,
) -> None:
    assert heartbeat.read(str(tmp_path)) == ()
    (tmp_path / "status").mkdir()
    (tmp_path / "status" / ".half").write_text("{")
    (tmp_path / "status" / "readme").write_text("{")
    assert heartbeat.read(str(tmp_path)) == ()


def test_a_status_directory_that_is_a_file(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "status").write_text("")
    with pytest.raises(errors.UnreadableError):
        heartbeat.read(str(tmp_path))


def test_an_unwritable_directory_is_logged_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "status").write_text("")
    published: list[heartbeat.Status] = []
    beat = heartbeat.Heartbeat(
        str(tmp_path), "placement-sync", publish=published.append
    )
    for _ in range(3):
        beat.record_pass(FINISHED, HOST, TREE)
    assert len(caplog.records) == 1
    assert "state_dir" in caplog.messages[0]
    assert [status.outcome for status in published] == ["ok"] * 3


BROKEN: tuple[bytes, ...] = (
    b"", b"{", b"[]", b"{}", b"null", b"\xff", b'{"format": 2}', b"[" * 10**5,
)  # fmt: skip


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_malformed_file_is_reported_and_replaced(
    tmp_path: pathlib.Path, content: bytes
) -> None:
    path = tmp_path / "status" / "placement-sync.json"
    path.parent.mkdir()
    path.write_bytes(content)
    status = read_only_status(tmp_path)
    assert status.writer == "placement-sync"
    assert str(path) in status.error
    assert status.is_broken
    assert status.is_stale(time.time())
    beating(tmp_path).record_pass(FINISHED, HOST, TREE)
    assert not read_only_status(tmp_path).is_broken


def test_readers_never_read_a_partial_file(tmp_path: pathlib.Path) -> None:
    beat = beating(tmp_path)
    beat.record_pass(FINISHED, HOST, TREE)
    is_done = threading.Event()
    seen: list[str] = []

    def watch() -> None:
        while not is_done.is_set():
            seen.append(read_only_status(tmp_path).error)

    thread = threading.Thread(target=watch)
    thread.start()
    for _ in range(50):
        beat.record_pass(FINISHED, HOST, TREE)
    is_done.set()
    thread.join()
    assert set(seen) == {""}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_files_of_root_belong_to_the_owner_of_the_directory(
    tmp_path: pathlib.Path,
) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    beating(tmp_path).record_pass(FINISHED, HOST, TREE)
    assert (tmp_path / "status").stat().st_uid == NOBODY


SAMPLE = usage.UsageSample(
    devices=(usage.DeviceUsage(address="0000:01:00.0", power_watts=70.5),),
    partitions=(
        usage.PartitionUsage(
            device="0000:01:00.0",
            handle=CLAIMS[0].handle,
            engines=(usage.EngineUsage(engine="compute", ratio=0.5),),
        ),
    ),
    problems=(model.Problem(where="usage of GPU 1", reason="lost"),),
)


def test_a_sample_is_no_pass(tmp_path: pathlib.Path) -> None:
    passes: list[heartbeat.Status] = []
    samples: list[heartbeat.Status] = []
    beat = heartbeat.Heartbeat(
        str(tmp_path), "a", 60.0, passes.append, samples.append
    )
    beat.record_pass(FINISHED, HOST, TREE, CLAIMS)
    beat.record_sample(SAMPLE, HOST, CLAIMS, {"server": "project"})
    (status,) = samples
    assert len(passes) == 1
    assert (
        dataclasses.replace(
            status,
            sampled=None,
            device_usage=(),
            sample_problems=(),
            servers=passes[0].servers,
        )
        == passes[0]
    )
    stored = read_only_status(tmp_path)
    assert stored.sampled is not None
    assert stored.device_usage == SAMPLE.devices
    assert stored.sample_problems == SAMPLE.problems
    assert [row.project for row in stored.servers] == ["project"] * 2
    assert stored.servers == status.servers


def test_a_writer_without_projects_reports_no_servers(
    tmp_path: pathlib.Path,
) -> None:
    beating(tmp_path).record_pass(FINISHED, HOST, TREE, CLAIMS)
    assert read_only_status(tmp_path).servers == ()


def test_a_pass_keeps_the_figures_of_the_last_sample(
    tmp_path: pathlib.Path,
) -> None:
    beat = beating(tmp_path)
    beat.record_sample(SAMPLE, HOST, CLAIMS, {})
    beat.record_pass(FINISHED, HOST, TREE, CLAIMS[:1], projects={})
    (row,) = read_only_status(tmp_path).servers
    assert row.engines == SAMPLE.partitions[0].engines


def test_figures_end_with_the_next_sample_and_the_service(
    tmp_path: pathlib.Path,
) -> None:
    beat = beating(tmp_path)
    beat.record_sample(SAMPLE, HOST, CLAIMS, {})
    beat.record_sample(usage.UsageSample(), HOST, CLAIMS, {})
    assert read_only_status(tmp_path).device_usage == ()
    beat.record_sample(SAMPLE, HOST, CLAIMS, {})
    beating(tmp_path).record_failure("Placement is away")
    assert read_only_status(tmp_path).sampled is None


def test_a_status_of_an_earlier_release_is_read(
    tmp_path: pathlib.Path,
) -> None:
    beat = beating(tmp_path)
    good = beat.record_pass(FINISHED, HOST, TREE)
    fields = json.loads(pathlib.Path(beat.path).read_text())
    for name in ("room", "servers", "sampled", "device_usage",
                 "sample_problems", "waiting"):  # fmt: skip
        del fields[name]
    pathlib.Path(beat.path).write_text(json.dumps(fields))
    status = read_only_status(tmp_path)
    assert (status.room, status.servers, status.sampled) == ((), (), None)
    assert status.waiting == ""
    assert status.devices == good.devices
