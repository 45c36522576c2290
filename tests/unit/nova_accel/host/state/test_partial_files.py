# SPDX-License-Identifier: Apache-2.0
"""Partial files of killed writers are removed, those of live ones stay."""

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel.host.bitstreams import bitstream_cache
from nova_accel.host.state import (
    claims_file,
    device_notes,
    directories,
    state_dir,
)
from placement_sync.daemon import heartbeat
from virt_hooks.operations import rebuild

OLD = ".0123456789abcdef"
_WAIT = """
import os, sys, time
from nova_accel.host.state import directories
def wait(*_, **__):
    print("ready", flush=True)
    time.sleep(60)
os.replace = wait
directories.replace_file(sys.argv[1], b"text", 0o644, is_durable=True)
"""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that has written a partial file, and waits."""
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", _WAIT, str(path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_live_writer_keeps_its_file_and_a_killed_one_does_not(
    tmp_path: Path,
) -> None:
    with writing(tmp_path / "note.json") as process:
        (partial,) = tmp_path.iterdir()
        assert directories.remove_partial_files(str(tmp_path)) == []
        assert partial.exists()
        process.kill()
        process.wait()
        removed = directories.remove_partial_files(str(tmp_path))
    assert removed == [partial.name]
    assert not list(tmp_path.iterdir())


def test_only_the_partial_files_of_a_target(tmp_path: Path) -> None:
    """A directory of metrics has files of other programs."""
    own, other = f".accel.prom{OLD}", f".other.prom{OLD}"
    for name in (own, other, OLD):
        (tmp_path / name).touch()
    directories.remove_partial_files(str(tmp_path), "accel.prom")
    assert sorted(os.listdir(tmp_path)) == sorted((other, OLD))


def test_no_link_is_followed_and_nothing_else_is_removed(
    tmp_path: Path,
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("keep")
    place = tmp_path / "place"
    place.mkdir()
    (place / OLD).symlink_to(outside)
    (place / ".aaaaaaaaaaaaaaaa").mkdir()
    os.mkfifo(place / ".bbbbbbbbbbbbbbbb")
    for name in ("book.json", ".0123", "0123456789abcdef", f"{OLD}.json"):
        (place / name).touch()
    before = sorted(os.listdir(place))
    assert directories.remove_partial_files(str(place)) == []
    assert sorted(os.listdir(place)) == before
    assert outside.read_text() == "keep"


def test_a_file_that_is_removed_before_it_is_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    lock = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        if not removed:
            removed.append("")
            removed.extend(directories.remove_partial_files(str(tmp_path)))
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    directories.replace_file(str(tmp_path / "note"), b"text", 0o644)
    assert len(removed) == 2
    assert os.listdir(tmp_path) == ["note"]
    assert (tmp_path / "note").read_bytes() == b"text"


def test_each_directory_of_the_state_is_cleaned(tmp_path: Path) -> None:
    place = str(tmp_path)
    fault_notes = device_notes.FaultNotes(place)
    written = [
        os.path.dirname(claims_file.ClaimsFile(place).path),
        fault_notes.path,
        fault_notes._scrubs.path,
        fault_notes.unreleased.path,
        device_notes.DrainNotes(place).path,
        fault_notes.serials.path,
        rebuild.RebuildAllocations(place).path,
        device_notes.ErrorBaseline(place).path,
        os.path.dirname(heartbeat.Heartbeat(place, "test", 60.0).path),
    ]
    assert len(set(written)) == len(written)
    partial = [Path(directory, OLD) for directory in written]
    for path in partial:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    state_dir.remove_partial_files(place)
    assert not [path for path in partial if path.exists()]


def test_downloads_of_a_killed_service(tmp_path: Path) -> None:
    cache = tmp_path / "bitstreams"
    images = bitstream_cache.BitstreamCache(str(cache), 1 << 20)
    images.remove_partial_files()  # there is no directory yet
    cache.mkdir(mode=0o700)
    (cache / "half-killed").touch()
    (cache / "half-live").touch()
    (cache / "half-link").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").touch()
    with (cache / "lock-all").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        images.remove_partial_files()  # another process is at work
    assert (cache / "half-killed").exists()
    with (cache / "half-live").open() as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        images.remove_partial_files()
    assert not (cache / "half-killed").exists()
    assert (cache / "half-live").exists()
    assert (tmp_path / "outside").exists()
