# SPDX-License-Identifier: Apache-2.0
"""Mdevs are created by libvirt, or by kernel files after a failure.

A class replaces libvirt with mdevctl, which writes the same files to the
kernel.
"""

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.host.execute import action_executor
from nova_accel.model import actions
from tests.lab import fakehost

pytestmark = pytest.mark.usefixtures("own_rights")
UUID = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"
CREATE = actions.CreateMdev(parent="mtty", type_id="mtty-1", uuid=UUID)
Way = Callable[[Callable[[], object]], bool]


class Libvirt:
    """Makes and removes mdevs in one of the ways below."""

    def __init__(self, root: Path, way: Way) -> None:
        self.root = root
        self.way = way
        self.calls: list[str] = []

    def create(self, parent: str, type_id: str, uuid: str) -> bool:
        self.calls.append(f"create {uuid}")
        types = self.root / f"sys/class/mdev_bus/{parent}/mdev_supported_types"
        return self.way(lambda: (types / type_id / "create").write_text(uuid))

    def remove(self, uuid: str) -> bool:
        self.calls.append(f"remove {uuid}")
        device = self.root / "sys/bus/mdev/devices" / uuid
        return self.way(lambda: (device / "remove").write_text("1"))


def does(change: Callable[[], object]) -> bool:
    change()
    return True


def can_not(_: Callable[[], object]) -> bool:
    return False


def breaks(_: Callable[[], object]) -> bool:
    raise RuntimeError("Cannot recv data: Connection reset by peer")


def does_and_breaks(change: Callable[[], object]) -> bool:
    change()
    raise RuntimeError("Timed out waiting for the node device")


def does_later(change: Callable[[], object]) -> bool:
    threading.Timer(0.3, change).start()
    return True


def does_nothing(_: Callable[[], object]) -> bool:
    return True


@pytest.mark.parametrize(
    "way", [does, can_not, breaks, does_and_breaks, does_later]
)
def test_an_mdev_is_created_and_removed_once_despite_libvirt(
    kernel: fakehost.Controller, way: Way
) -> None:
    libvirt = Libvirt(kernel.root, way)
    on_host = action_executor.Executor(str(kernel.root), libvirt)
    assert [on_host.apply(CREATE) for _ in range(2)] == [True, False]
    assert kernel.mdevs()[UUID]["type"] == "mtty-1"
    undo = CREATE.undo()
    assert [on_host.apply(undo) for _ in range(2)] == [True, False]
    assert kernel.mdevs() == {}
    assert libvirt.calls == [f"create {UUID}", f"remove {UUID}"]
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            # The kernel shows a change before its write returns.
            thread.join()
    assert [write["data"] for write in kernel.writes()] == [UUID, "1"]


@pytest.mark.parametrize("way", [can_not, breaks])
def test_a_refusal_has_the_kernels_errno(
    kernel: fakehost.Controller, way: Way
) -> None:
    kernel.fail(
        "class/mdev_bus/mtty/mdev_supported_types/mtty-1/create", "ENOSPC"
    )
    on_host = action_executor.Executor(
        str(kernel.root), Libvirt(kernel.root, way)
    )
    with pytest.raises(errors.ActionError) as caught:
        on_host.apply(CREATE)
    assert caught.value.number == errno.ENOSPC


def test_a_false_success_of_libvirt_is_an_error(
    kernel: fakehost.Controller,
) -> None:
    on_host = action_executor.Executor(
        str(kernel.root), Libvirt(kernel.root, does_nothing)
    )
    with pytest.raises(errors.ActionError, match="no change"):
        on_host.apply(CREATE)


def test_an_mdev_that_libvirt_creates_late_is_accepted(
    kernel: fakehost.Controller,
) -> None:
    """libvirt's late call succeeds first: the kernel returns EEXIST."""
    kernel.hang(
        "class/mdev_bus/mtty/mdev_supported_types/mtty-1/create",
        on="open",
        seconds=0.5,
        times=1,
    )

    def goes_on(change: Callable[[], object]) -> bool:
        def later() -> None:
            time.sleep(0.1)
            change()

        threading.Thread(target=later).start()
        return False

    on_host = action_executor.Executor(
        str(kernel.root), Libvirt(kernel.root, goes_on)
    )
    assert on_host.apply(CREATE)
    assert set(kernel.mdevs()) == {UUID}
    assert on_host.apply(CREATE.undo())


def test_other_actions_do_not_go_through_libvirt(
    kernel: fakehost.Controller,
) -> None:
    libvirt = Libvirt(kernel.root, breaks)
    on_host = action_executor.Executor(str(kernel.root), libvirt)
    on_host.apply(
        actions.BindDriver(function="0000:3b:00.0", driver="vfio-pci")
    )
    assert libvirt.calls == []
