# SPDX-License-Identifier: Apache-2.0
"""Privileged functions create and remove mdevs; see test_paths.py, too."""

import errno
from pathlib import Path
from typing import Any

import pytest

from nova_accel import errors
from nova_accel.host.execute import privileged

pytestmark = pytest.mark.usefixtures("own_rights")
UUID = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"


@pytest.mark.parametrize(
    ("parent", "type_id", "uuid"),
    [
        ("..", "mtty-1", UUID),
        ("/etc", "mtty-1", UUID),
        ("mtty", "..", UUID),
        ("mtty", "../../../../../etc", UUID),
        ("mtty", "mtty-1\n", UUID),
        ("mtty", "mtty-1", UUID + "\n"),
        ("mtty", "mtty-1", ".."),
        ("mtty", "mtty-1", "../../../../etc"),
    ],
)
def test_malformed_arguments_are_refused(
    tmp_path: Path, parent: str, type_id: str, uuid: str
) -> None:
    with pytest.raises(errors.MalformedError):
        privileged.create_mdev(str(tmp_path), parent, type_id, uuid)
    if uuid != UUID:
        with pytest.raises(errors.MalformedError):
            privileged.remove_mdev(str(tmp_path), uuid)


def tree(root: Path) -> Path:
    types = root / "sys/class/mdev_bus/mtty/mdev_supported_types"
    create = types / "mtty-1/create"
    create.parent.mkdir(parents=True)
    create.touch()
    return create


def test_uuid_and_1_are_written(tmp_path: Path) -> None:
    create = tree(tmp_path)
    assert privileged.create_mdev(str(tmp_path), "mtty", "mtty-1", UUID) == 0
    assert create.read_text() == UUID
    remove = tmp_path / "sys/bus/mdev/devices" / UUID / "remove"
    remove.parent.mkdir(parents=True)
    remove.touch()
    assert privileged.remove_mdev(str(tmp_path), UUID) == 0
    assert remove.read_text() == "1"


def test_the_kernels_errno_is_returned(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert privileged.remove_mdev(root, UUID) == errno.ENOENT
    create = tree(tmp_path)
    create.unlink()
    create.mkdir()
    assert privileged.create_mdev(root, "mtty", "mtty-1", UUID) == errno.EISDIR


def test_a_symlink_is_not_written_to(tmp_path: Path) -> None:
    """The kernel's files are no symlinks."""
    create = tree(tmp_path)
    create.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    create.symlink_to(elsewhere)
    root = str(tmp_path)
    assert privileged.create_mdev(root, "mtty", "mtty-1", UUID) == errno.ELOOP
    assert elsewhere.read_text() == "precious"


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    create = tree(tmp_path)
    create.unlink()
    root = str(tmp_path)
    assert privileged.create_mdev(root, "mtty", "mtty-1", UUID) == errno.ENOENT
    assert not create.exists()


def test_a_privsep_timeout_is_etimedout() -> None:
    comm = pytest.importorskip("oslo_privsep.comm")
    pytest.importorskip("nova.privsep")

    def hangs() -> int:
        raise comm.PrivsepTimeout

    hangs.__module__ = privileged.__name__
    entrypoint: Any = privileged.entrypoint
    assert entrypoint()(hangs)() == errno.ETIMEDOUT
    assert entrypoint(late=(errno.ETIMEDOUT, ""))(hangs)() == (
        errno.ETIMEDOUT,
        "",
    )
