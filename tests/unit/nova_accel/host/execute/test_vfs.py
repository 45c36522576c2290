# SPDX-License-Identifier: Apache-2.0
"""VF counts are set by the kernel or by sriov-manage."""

import dataclasses
import errno
import os
import threading
import time
from pathlib import Path

import pytest

from nova_accel.host.execute import privileged
from nova_accel.model import actions
from tests.lab import fakehost
from tests.support.hosts import executing
from tests.support.hosts.executing import (
    CARD,
    FLEX,
    FLEX_VF,
    GPU,
    ONE_Q,
    VF,
    driver_of,
    executor,
    failure,
    read,
)

pytestmark = pytest.mark.usefixtures("own_rights")

SPEC = executing.SPEC


@pytest.fixture(scope="module")
def mounted(mounted: fakehost.Controller) -> fakehost.Controller:
    """Return the host with NVIDIA's tool for VFs."""
    mounted.write_sriov_manage(mounted.root / privileged.SRIOV_MANAGE)
    return mounted


def vfs(
    count: int, before: int = 0, function: str = FLEX
) -> actions.SetVfCount:
    return actions.SetVfCount(function=function, count=count, before=before)


def tool(count: int) -> actions.SetVfCount:
    return actions.SetVfCount(function=GPU, count=count, tool="sriov-manage")


def bind(driver: str, function: str = CARD) -> actions.BindDriver:
    return actions.BindDriver(function=function, driver=driver)


def writes(kernel: fakehost.Controller) -> list[tuple[str, str]]:
    return [
        (os.path.basename(write["path"]), write["data"])
        for write in kernel.writes()
    ]


# -- VF counts -------------------------------------------------------------


def test_a_count_is_set_to_0_before_another_one(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    on_host.apply(vfs(5))
    assert on_host.apply(vfs(3, before=5))
    assert kernel.functions()[FLEX]["vfs"] == 3
    assert [text for _, text in writes(kernel)] == ["5", "0", "3"]


def test_autoprobe_is_set_as_planned(
    kernel: fakehost.Controller,
) -> None:
    action = dataclasses.replace(vfs(2), is_probed=False)
    executor(kernel.root).apply(action)
    assert driver_of(kernel, FLEX_VF) == ("", "")
    # It stays 0: otherwise a VF that a guest releases gets a host driver.
    assert read(kernel, FLEX, "sriov_drivers_autoprobe") == "0"
    executor(kernel.root).apply_all([action.undo(), vfs(2)])
    assert driver_of(kernel, FLEX_VF) == ("i915", "")
    assert read(kernel, FLEX, "sriov_drivers_autoprobe") == "1"


def test_a_refused_count_restores_the_old_one(
    kernel: fakehost.Controller,
) -> None:
    """The refusal follows the write of 0."""
    executor(kernel.root).apply(vfs(5))
    error = failure(kernel.root, vfs(40, before=5))
    assert error.number == errno.ERANGE
    assert "sriov_totalvfs" in error.hint
    assert kernel.functions()[FLEX]["vfs"] == 5
    assert read(kernel, FLEX, "sriov_drivers_autoprobe") == "1"


def test_a_driver_without_sriov_is_enoent(
    kernel: fakehost.Controller,
) -> None:
    kernel.set_vfs(GPU, 0)
    error = failure(kernel.root, vfs(4, function=GPU))
    assert error.number == errno.ENOENT
    assert privileged.SRIOV_MANAGE in error.hint


def test_vfs_that_the_plan_does_not_know_are_not_disabled(
    kernel: fakehost.Controller,
) -> None:
    """The owner of these VFs is unknown."""
    kernel.set_vfs(FLEX, 4)
    error = failure(kernel.root, vfs(8))
    assert error.number == errno.EBUSY
    assert "4 are enabled" in str(error)
    assert kernel.functions()[FLEX]["vfs"] == 4


def test_vfs_with_vgpus_are_not_disabled(kernel: fakehost.Controller) -> None:
    on_host = executor(kernel.root)
    on_host.apply(actions.SetVgpuType(function=VF, type_id=ONE_Q))
    for action in (tool(0), vfs(0, 4, GPU), bind("vfio-pci", GPU)):
        error = failure(kernel.root, action)
        assert error.number == errno.EBUSY
        assert f"{VF} holds a vGPU" in str(error)
    assert read(kernel, VF, "nvidia/current_vgpu_type") == ONE_Q


# -- NVIDIA's tool ---------------------------------------------------------


def test_nvidias_tool_enables_and_disables_all_vfs(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    assert on_host.apply(tool(0))
    assert kernel.functions()[GPU]["vfs"] == 0
    assert [on_host.apply(tool(32)) for _ in range(2)] == [True, False]
    assert kernel.functions()[GPU]["vfs"] == 32
    assert driver_of(kernel, GPU) == ("nvidia", "")
    assert on_host.apply(tool(32).undo())
    assert kernel.functions()[GPU]["vfs"] == 0


def script(root: Path, text: str) -> Path:
    path = root / privileged.SRIOV_MANAGE
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_error_contains_the_output_of_the_tool(tmp_path: Path) -> None:
    physical(tmp_path, GPU)
    script(tmp_path, 'echo "no luck with $*" >&2; exit 3')
    error = failure(tmp_path, tool(32))
    assert error.number == errno.EIO
    assert f"sriov-manage -e {GPU} ended with 3: no luck with" in str(error)
    assert f"no luck with -e {GPU}" in str(error)


def test_a_failed_undo_is_not_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tool fails halfway, and so does its undo."""
    place = physical(tmp_path, GPU)
    script(tmp_path, f"echo 2 > {place}/sriov_numvfs; echo $1; exit 1")
    error = failure(tmp_path, tool(32))
    assert error.detail.endswith("ended with 1: -e")
    assert caplog.text.count("Undo failed: set 0 virtual functions") == 1


def test_a_missing_card_is_an_error(tmp_path: Path) -> None:
    script(tmp_path, "echo no such card; exit 1")
    error = failure(tmp_path, tool(32))
    assert "no such card" in error.detail


def test_a_transient_failure_of_the_tool_is_retried(
    tmp_path: Path,
) -> None:
    place = physical(tmp_path, GPU)
    script(
        tmp_path,
        f"cd {place}\n"
        "[ -e again ] || { touch again; echo Cannot obtain unbindLock;"
        " exit 1; }\n"
        "ln -s ../vf virtfn0; mkdir ../vf; ln -s ../{0} ../vf/physfn\n"
        "echo 1 > sriov_numvfs".replace("{0}", GPU),
    )
    assert executor(tmp_path).apply(tool(32))
    assert (place / "again").exists()


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    physical(tmp_path, GPU)
    error = failure(tmp_path, tool(32))
    assert error.number == errno.ENOENT
    assert privileged.SRIOV_MANAGE in error.hint


def test_a_tool_writable_by_others_is_not_run(tmp_path: Path) -> None:
    physical(tmp_path, GPU)
    script(tmp_path, f"touch {tmp_path}/ran").chmod(0o757)
    error = failure(tmp_path, tool(32))
    assert error.number == errno.EACCES
    assert "writable by no other user" in error.hint
    assert not (tmp_path / "ran").exists()


def test_a_hanging_tool_is_etimedout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privileged, "TOOL_S", 0.3)
    physical(tmp_path, GPU)
    script(tmp_path, "sleep 600")
    error = failure(tmp_path, tool(32))
    assert error.number == errno.ETIMEDOUT
    assert "not made in time" in error.hint


# -- drivers with other counts ----------------------------------------------


def physical(root: Path, function: str = FLEX) -> Path:
    place = root / "sys/bus/pci/devices" / function
    place.mkdir(parents=True)
    (place / "sriov_numvfs").write_text("0\n")
    return place


class Driver:
    """Makes a fixed number of VFs for each request but 0."""

    def __init__(self, place: Path, count: int) -> None:
        self.place = place
        self.count = count
        self.calls: list[str] = []

    def make(self) -> None:
        for number in range(self.count):
            virtual = self.place.parent / f"0000:4d:00.{number + 1}"
            virtual.mkdir()
            (virtual / "physfn").symlink_to(f"../{self.place.name}")
            link = self.place / f"virtfn{number}"
            link.symlink_to(f"../{virtual.name}")

    def remove(self) -> None:
        for link in self.place.glob("virtfn*"):
            (link / "physfn").unlink()
            link.resolve().rmdir()
            link.unlink()

    def serve(self, times: int) -> None:
        """Handle a number of writes to sriov_numvfs."""
        numvfs, last = self.place / "sriov_numvfs", "0\n"
        while times:
            time.sleep(0.005)
            text = numvfs.read_text()
            if text == last:
                continue
            times -= 1
            self.calls.append(text.strip())
            if text == "0\n":
                self.remove()
                last = text
            else:
                self.make()
                last = f"{self.count}\n"
                # No reader may see the file truncated.
                with numvfs.open("r+") as file:
                    file.write(last)

    def start(self, times: int) -> threading.Thread:
        player = threading.Thread(target=self.serve, args=(times,))
        player.start()
        return player


def test_more_vfs_than_requested_are_accepted(tmp_path: Path) -> None:
    """Intel QAT makes all of its VFs for any number."""
    player = Driver(physical(tmp_path), 7).start(times=2)
    on_host = executor(tmp_path)
    assert [on_host.apply(vfs(5)) for _ in range(2)] == [True, False]
    assert on_host.apply(vfs(5).undo())
    player.join()


def test_fewer_vfs_than_requested_are_disabled(tmp_path: Path) -> None:
    place = physical(tmp_path)
    driver = Driver(place, 4)
    player = driver.start(times=2)
    error = failure(tmp_path, vfs(8))
    player.join()
    assert error.number == 0
    assert "4 of 8 virtual functions" in str(error)
    assert "made fewer" in error.hint
    assert driver.calls == ["8", "0"]
    assert list(place.glob("virtfn*")) == []


def test_links_to_vfs_are_awaited(tmp_path: Path) -> None:
    place = physical(tmp_path)
    late = threading.Timer(0.3, Driver(place, 3).make)
    late.start()
    assert executor(tmp_path).apply(vfs(3))
    assert len(list(place.glob("virtfn*"))) == 3
    late.join()


# -- VFs of guests ----------------------------------------------------------


def test_vfs_bound_to_vfio_pci_are_not_disabled(
    kernel: fakehost.Controller,
) -> None:
    """The kernel does not show whether a guest has them open."""
    on_host = executor(kernel.root)
    on_host.apply(vfs(2))
    taken = actions.BindDriver(function=FLEX_VF, driver="vfio-pci")
    on_host.apply(taken)
    error = failure(kernel.root, vfs(2).undo())
    assert error.number == errno.EBUSY
    assert f"{FLEX_VF} is bound to vfio-pci" in str(error)
    assert kernel.functions()[FLEX]["vfs"] == 2
    on_host.apply_all([actions.BindDriver(function=FLEX_VF, driver="")])
    assert on_host.apply(vfs(2).undo())


def test_undo_restores_the_drivers_of_vfs(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    on_host.apply(vfs(3))
    on_host.apply(actions.BindDriver(function=FLEX_VF, driver=""))
    before = executing.state(kernel)
    missing = actions.BindDriver(function=executing.CARD, driver="none-such")
    failure(kernel.root, vfs(0, before=3), missing)
    assert executing.state(kernel) == before
