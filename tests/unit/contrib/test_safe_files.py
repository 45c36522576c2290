# SPDX-License-Identifier: Apache-2.0
"""Files of roles: root follows no link of another user."""

import os
import pathlib
import stat

import pytest

from tests.unit.contrib import collection

safe_files = collection.load_module("safe_files")
OTHER_USER = 12345


@pytest.fixture
def owned(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a directory of another user than root."""
    if os.geteuid():
        pytest.skip("only root can give a directory away")
    place = tmp_path / "nova"
    place.mkdir()
    os.chown(place, OTHER_USER, OTHER_USER)
    return place


@pytest.fixture
def secret(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "shadow"
    path.write_text("root:hash\n")
    path.chmod(0o600)
    return path


def test_a_link_of_another_user_is_not_followed(
    owned: pathlib.Path, secret: pathlib.Path
) -> None:
    path = owned / "nova.conf"
    path.symlink_to(secret)
    for function, arguments in (
        (safe_files.read, ()),
        (safe_files.replace, ("x\n", 0o640)),
        (safe_files.remove, ()),
    ):
        with pytest.raises(OSError, match="is a link in a directory of"):
            function(str(path), *arguments)
    assert secret.read_text() == "root:hash\n"
    assert os.listdir(owned) == ["nova.conf"]


def test_a_linked_directory_of_another_user_is_not_entered(
    owned: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    target = tmp_path / "etc"
    target.mkdir()
    (owned / "conf").symlink_to(target)
    with pytest.raises(OSError, match="conf is a link"):
        safe_files.replace(str(owned / "conf/cron"), "x\n", 0o644)
    assert os.listdir(target) == []


def test_a_link_of_root_is_followed_and_stays(tmp_path: pathlib.Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "target").write_text("a\n")
    (tmp_path / "link").symlink_to("target")
    safe_files.replace(str(tmp_path / "link"), "b\n", 0o600)
    assert (tmp_path / "link").is_symlink()
    assert safe_files.read(str(tmp_path / "link")) == ("b\n", 0o600)


def test_links_in_a_circle_are_an_error(tmp_path: pathlib.Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(OSError, match=os.strerror(40)):
        safe_files.read(str(tmp_path / "link"))


def test_a_replaced_file_keeps_its_owner(owned: pathlib.Path) -> None:
    path = owned / "nova.conf"
    path.write_text("a\n")
    os.chown(path, OTHER_USER, OTHER_USER)
    safe_files.replace(str(path), "b\n", 0o640)
    status = path.stat()
    assert (status.st_uid, status.st_gid) == (OTHER_USER, OTHER_USER)
    assert stat.S_IMODE(status.st_mode) == 0o640


def test_a_new_file_has_the_group_of_its_directory(
    owned: pathlib.Path,
) -> None:
    path = owned / "nova.conf"
    safe_files.replace(str(path), "b\n", 0o640)
    assert (path.stat().st_uid, path.stat().st_gid) == (0, OTHER_USER)


def test_a_missing_file_has_no_text(tmp_path: pathlib.Path) -> None:
    assert safe_files.read(str(tmp_path / "a/b")) == (None, 0)


def test_what_is_no_file_is_refused(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="no regular file"):
        safe_files.read(str(tmp_path / "fifo"))


def test_no_temporary_file_is_left(tmp_path: pathlib.Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match="directory"):
        safe_files.replace(str(tmp_path / "directory"), "x", 0o644)
    assert os.listdir(tmp_path) == ["directory"]


def test_missing_directories_are_created(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a/b/c.conf"
    safe_files.replace(str(path), "x\n", 0o644)
    assert safe_files.read(str(path)) == ("x\n", 0o644)
    safe_files.remove(str(path))
    assert not path.exists()
