# SPDX-License-Identifier: Apache-2.0
"""Privileged functions write only their own kernel files."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.host.execute import privileged
from tests.support import strategies

pytestmark = pytest.mark.usefixtures("own_rights")
UUID = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"
SHARED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
# Any text, and text with the characters of paths.
anything = st.text() | st.text("./-:0aZ\n\0\\~", max_size=12)
parts = st.from_regex(r"[0-9a-f:.]{1,12}|mtty|nvidia-[0-9]+", fullmatch=True)


class Watch:
    """Records each file that this process opens for writing."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.on = False
        sys.addaudithook(self)  # an audit hook can't be removed

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.on and event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & os.O_ACCMODE:
                self.seen.append(os.fsdecode(path))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


def opened(watch: Watch, *arguments: str, remove: bool = False) -> list[str]:
    """Return the files that a call opens for writing."""
    watch.seen.clear()
    watch.on = True
    try:
        if remove:
            privileged.remove_mdev(*arguments)
        else:
            privileged.create_mdev(*arguments)
    except errors.MalformedError:
        assert watch.seen == []
    finally:
        watch.on = False
    return watch.seen


@given(
    parent=anything | parts,
    type_id=anything | parts,
    uuid=anything | strategies.uuids,
)
@example(parent="..", type_id="..", uuid=UUID)
@example(parent="mtty", type_id="../../../../../etc", uuid=UUID)
@example(parent="/etc", type_id="mtty-1", uuid=UUID)
@example(parent="mtty", type_id="mtty-1\n", uuid=UUID)
@example(parent="mtty", type_id="mtty-1", uuid=UUID + "\n")
@SHARED
def test_create_opens_at_most_one_file_of_its_type(
    tmp_path: Path, watch: Watch, parent: str, type_id: str, uuid: str
) -> None:
    seen = opened(watch, str(tmp_path), parent, type_id, uuid)
    for path in seen:
        assert os.path.normpath(path) == path
        types = Path(path).parents[1]
        assert types.name == "mdev_supported_types"
        assert types.parents[1] == tmp_path / "sys/class/mdev_bus"
        assert Path(path).name == "create"
    assert len(seen) <= 1


@given(uuid=anything | strategies.uuids)
@example(uuid="..")
@example(uuid="../../../../etc")
@SHARED
def test_remove_opens_at_most_one_file_of_its_mdev(
    tmp_path: Path, watch: Watch, uuid: str
) -> None:
    for path in opened(watch, str(tmp_path), uuid, remove=True):
        assert os.path.normpath(path) == path
        assert Path(path).name == "remove"
        assert Path(path).parents[1] == tmp_path / "sys/bus/mdev/devices"


@given(uuid=strategies.uuids, type_id=parts.filter(lambda p: p[0].isalnum()))
@SHARED
def test_valid_arguments_open_a_file(
    tmp_path: Path, watch: Watch, uuid: str, type_id: str
) -> None:
    if ".." not in type_id:
        assert opened(watch, str(tmp_path), "mtty", type_id, uuid)
    assert opened(watch, str(tmp_path), uuid, remove=True)


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
