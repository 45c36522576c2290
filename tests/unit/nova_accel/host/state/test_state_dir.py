# SPDX-License-Identifier: Apache-2.0
"""nova-compute checks state_dir when it starts."""

import errno
import os
import pathlib

import pytest

from nova_accel import errors
from nova_accel.config import conf
from nova_accel.host.state import state_dir


def configure(place: pathlib.Path, path: pathlib.Path) -> conf.Settings:
    """Return the settings of a configuration file with this state_dir."""
    file = place / "compute.conf"
    file.write_text(f"[nova_accel]\nstate_dir = {path}\n")
    return conf.read_files([str(file)])


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


@pytest.mark.parametrize("name", ["drained", "unreleased", "serials"])
def test_an_unreadable_directory_of_notes_is_an_error(
    tmp_path: pathlib.Path, name: str
) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(errors.ConfigurationError) as caught:
        state_dir.check(configure(tmp_path, tmp_path))
    assert f"({name}: {os.strerror(20)})" in str(caught.value)


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
