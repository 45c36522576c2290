# SPDX-License-Identifier: Apache-2.0
"""nova-compute checks state_dir when it starts."""

import errno
import os
import pathlib

import pytest

from nova_accel import errors
from nova_accel.config import conf
from nova_accel.discovery import nova_conf
from nova_accel.host.state import state_dir
from tests.lab.fakehost import mount

needs_mount = pytest.mark.skipif(
    os.geteuid() != 0, reason="mounts a file system"
)


def configure(place: pathlib.Path, path: pathlib.Path) -> conf.Settings:
    """Return the settings of a configuration file with this state_dir."""
    file = place / "compute.conf"
    file.write_text(f"[nova_accel]\nstate_dir = {path}\n")
    return nova_conf.read_files([str(file)])


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file", os.strerror(20)),
        ("file/accel", os.strerror(20)),
        ("/proc/accel", os.strerror(2)),
        ("/proc/missing/accel", os.strerror(2)),
    ],
)
def test_an_unusable_state_dir_is_an_error_with_path_and_reason(
    tmp_path: pathlib.Path, place: str, reason: str
) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / place
    with pytest.raises(errors.ConfigurationError) as caught:
        state_dir.check(configure(tmp_path, path))
    assert str(caught.value).startswith(
        f"{tmp_path}/compute.conf [nova_accel] state_dir = {path}: "
    )
    assert reason in str(caught.value)


def find_errors(path: pathlib.Path) -> tuple[str, str]:
    """Return what a try to write finds, and what a dry run does."""
    return (
        state_dir.find_write_error(str(path)),
        state_dir.find_write_error(str(path), is_dry=True),
    )


@needs_mount
def test_a_full_file_system_is_found_while_it_is_full(
    tmp_path: pathlib.Path,
) -> None:
    with mount.small_directory(tmp_path, "size=1m") as small:
        assert find_errors(tmp_path) == ("", "")
        small.fill()
        for reason in find_errors(tmp_path):
            assert f"{tmp_path} can't be written (No space left" in reason
            assert "free space on the file system" in reason
        small.free()
        assert find_errors(tmp_path) == ("", "")
        assert list(tmp_path.iterdir()) == []


@needs_mount
def test_the_doctor_finds_a_full_file_system(tmp_path: pathlib.Path) -> None:
    with mount.small_directory(tmp_path / "state", "size=1m") as small:
        settings = configure(tmp_path, small.path)
        assert state_dir.find_obstacle(settings) is None
        small.fill()
        assert "No space left" in str(state_dir.find_obstacle(settings))


@needs_mount
def test_room_for_the_status_is_left_when_it_counts_as_full(
    tmp_path: pathlib.Path,
) -> None:
    with mount.small_directory(tmp_path, "size=1m") as small:
        small.fill(remaining=100_000)
        assert all(find_errors(tmp_path))
        (tmp_path / "status").write_bytes(bytes(64_000))


@needs_mount
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("size=1m,nr_inodes=1", "No space left"),
        ("size=1m,ro", "mount the file system of this directory read-write"),
    ],
)
def test_other_file_systems_without_room_are_found(
    tmp_path: pathlib.Path, options: str, reason: str
) -> None:
    with mount.small_directory(tmp_path, options):
        for error in find_errors(tmp_path / "missing"):
            assert reason in error


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EDQUOT, "raise the quota"), (errno.EMFILE, "")],
)
def test_errors_of_a_try_are_those_of_the_directory(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    remedy: str,
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    tried, dry = find_errors(tmp_path)
    assert bool(tried) is bool(remedy)
    assert remedy in tried
    assert not dry


@pytest.mark.parametrize("name", ["drained", "unreleased", "serials"])
def test_an_unreadable_directory_of_notes_is_an_error(
    tmp_path: pathlib.Path, name: str
) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(errors.ConfigurationError) as caught:
        state_dir.check(configure(tmp_path, tmp_path))
    assert f"({name}: {os.strerror(20)})" in str(caught.value)
    obstacle = state_dir.find_obstacle(configure(tmp_path, tmp_path))
    assert str(obstacle) == str(caught.value)


def test_a_missing_state_dir_is_created_and_left_empty(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "nova/accel"
    state_dir.check(configure(tmp_path, path))
    assert list(path.iterdir()) == []
    assert path.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space on the file system"),
        (errno.EDQUOT, "raise the quota"),
        (errno.EROFS, "mount the file system of this directory read-write"),
        (errno.EACCES, "let the user of this process write"),
    ],
)
def test_the_remedy_follows_from_the_error(number: int, remedy: str) -> None:
    error = OSError(number, os.strerror(number))
    assert remedy in state_dir.explain_remedy(error)
