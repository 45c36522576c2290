# SPDX-License-Identifier: Apache-2.0
"""Processes that have an mdev open are found in /proc."""

import os
from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.host.execute import open_files

UUID = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with an mdev in IOMMU group 7, which is VFIO's device 2."""
    mdev = tmp_path / "sys/bus/mdev/devices" / UUID
    (mdev / "vfio-dev/vfio2").mkdir(parents=True)
    (mdev / "iommu_group").symlink_to("../../../kernel/iommu_groups/7")
    run(tmp_path, 1, "dev/null")
    run(tmp_path, 20, "dev/vfio/vfio", "dev/vfio/71")
    (tmp_path / "proc/cpuinfo").write_text("")
    return tmp_path


def run(root: Path, pid: int, *opened: str) -> None:
    place = root / f"proc/{pid}/fd"
    place.mkdir(parents=True)
    for number, path in enumerate(opened):
        (place / str(number)).symlink_to(root / path)


def test_an_unused_mdev_has_no_processes(root: Path) -> None:
    assert open_files.find_processes(str(root), UUID) == frozenset()


def test_processes_are_found_by_group_and_by_device(root: Path) -> None:
    run(root, 30, "dev/null", "dev/vfio/7")
    run(root, 31, "dev/vfio/devices/vfio2")
    assert open_files.find_processes(str(root), UUID) == {30, 31}


def test_a_process_that_ends_meanwhile_is_ignored(root: Path) -> None:
    (root / "proc/40").mkdir()
    assert open_files.find_processes(str(root), UUID) == frozenset()


def test_a_tree_without_proc_has_no_processes(tmp_path: Path) -> None:
    assert open_files.find_processes(str(tmp_path), UUID) == frozenset()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may see everything")
def test_an_unreadable_process_is_an_error(root: Path) -> None:
    place = root / "proc/50/fd"
    place.mkdir(parents=True)
    place.chmod(0)
    with pytest.raises(errors.UnreadableError):
        open_files.find_processes(str(root), UUID)


def test_a_malformed_uuid_is_refused(root: Path) -> None:
    with pytest.raises(errors.MalformedError):
        open_files.find_processes(str(root), "../" + UUID)
