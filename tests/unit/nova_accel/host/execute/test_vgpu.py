# SPDX-License-Identifier: Apache-2.0
"""vGPU types, parameters and placements change and are undone."""

import errno
import threading
import time
from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.host.execute import action_executor
from nova_accel.model import actions
from tests.lab import fakehost
from tests.support.hosts import executing
from tests.support.hosts.executing import (
    HALF,
    ONE_Q,
    OTHER_VF,
    TWO_Q,
    VF,
    VF_2,
    executor,
    failure,
    path_of,
    read,
)

pytestmark = pytest.mark.usefixtures("own_rights")
SPEC = executing.SPEC
UUID = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"


def typed(type_id: str = ONE_Q, function: str = VF) -> actions.SetVgpuType:
    return actions.SetVgpuType(function=function, type_id=type_id)


def params(text: str, target: str = VF) -> actions.SetVgpuParams:
    return actions.SetVgpuParams(target=target, params=text)


def data(kernel: fakehost.Controller) -> list[str]:
    return [write["data"] for write in kernel.writes()]


# -- types -----------------------------------------------------------------


def test_the_type_of_another_server_is_not_overwritten(
    kernel: fakehost.Controller,
) -> None:
    executor(kernel.root).apply(typed(ONE_Q))
    error = failure(kernel.root, typed(TWO_Q))
    assert error.number == errno.EBUSY
    assert f"it holds type {ONE_Q}" in str(error)
    assert "concurrent spawn" in error.hint
    assert data(kernel) == [ONE_Q]


def test_the_type_of_another_server_is_not_cleared(
    kernel: fakehost.Controller,
) -> None:
    executor(kernel.root).apply(typed(ONE_Q))
    error = failure(kernel.root, typed(TWO_Q).undo())
    assert error.number == errno.EBUSY
    assert f"it holds type {ONE_Q}" in str(error)
    assert "so it stays" in error.hint
    assert read(kernel, VF, "nvidia/current_vgpu_type") == ONE_Q


def test_an_unreadable_type_is_not_cleared(
    kernel: fakehost.Controller,
) -> None:
    executor(kernel.root).apply(typed())
    path = path_of(VF, "nvidia/current_vgpu_type")
    kernel.fail(path, "EIO", on="read")
    error = failure(kernel.root, typed().undo())
    assert "(unreadable)" in str(error)
    kernel.heal()
    assert read(kernel, VF, "nvidia/current_vgpu_type") == ONE_Q


def test_a_missing_vf_has_no_type(kernel: fakehost.Controller) -> None:
    kernel.unplug(executing.GPU)
    assert not executor(kernel.root).apply(typed().undo())
    error = failure(kernel.root, typed())
    assert error.number == errno.ENOENT
    assert "sriov-manage" in error.hint


def test_a_type_of_another_size_is_eio_with_a_hint(
    kernel: fakehost.Controller,
) -> None:
    error = failure(kernel.root, typed(ONE_Q), typed(TWO_Q, VF_2))
    assert error.number == errno.EIO
    assert "creatable_vgpu_types" in error.hint
    assert read(kernel, VF, "nvidia/current_vgpu_type") == "0"


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("EPERM", "holds a vGPU already"),
        ("EBUSY", "holds a vGPU already"),
        ("ENOSPC", "the device is full"),
        ("EINVAL", "does not fit"),
        ("ENODEV", "ids change"),
    ],
)
def test_a_refused_type_has_a_hint(
    kernel: fakehost.Controller, code: str, hint: str
) -> None:
    kernel.fail(path_of(VF, "nvidia/current_vgpu_type"), code)
    error = failure(kernel.root, typed())
    assert errno.errorcode[error.number] == code
    assert hint in error.hint


def test_hints_of_eperm_differ_for_mdevs_and_vfs() -> None:
    """The same number means two things."""
    mdev = actions.CreateMdev(parent="mtty", type_id="mtty-1", uuid=UUID)
    assert "capabilities" in action_executor.get_hint(mdev, errno.EPERM)
    assert "capabilities" not in action_executor.get_hint(typed(), errno.EPERM)


def test_losing_a_race_for_the_same_type_is_no_error(
    kernel: fakehost.Controller,
) -> None:
    """The write fails with EPERM, but the type is set."""
    executor(kernel.root).apply(typed())
    # The first two reads fail, as if they had preceded the race.
    path = path_of(VF, "nvidia/current_vgpu_type")
    kernel.fail(path, "EIO", on="read", times=2)
    assert not executor(kernel.root).apply(typed())
    assert [w["errno"] for w in kernel.writes()] == [0, errno.EPERM]


def test_a_hanging_card_does_not_block_others(
    kernel: fakehost.Controller,
) -> None:
    kernel.hang(path_of(VF, "nvidia/current_vgpu_type"))
    on_host = executor(kernel.root)
    slow = threading.Thread(target=on_host.apply, args=(typed(),))
    slow.start()
    try:
        time.sleep(0.1)
        assert on_host.apply(typed(HALF, OTHER_VF))
        assert slow.is_alive()
    finally:
        kernel.heal()
        slow.join()
    assert read(kernel, VF, "nvidia/current_vgpu_type") == ONE_Q


# -- parameters ------------------------------------------------------------


def test_parameters_are_set_and_cleared(kernel: fakehost.Controller) -> None:
    on_host = executor(kernel.root)
    on_host.apply(typed())
    action = params("enable_uvm=1,frame_rate_limiter=0")
    assert [on_host.apply(action) for _ in range(2)] == [True, False]
    # The same parameters in another order.
    assert not on_host.apply(params("frame_rate_limiter = 0, enable_uvm=1"))
    assert on_host.apply(action.undo())
    assert read(kernel, VF, "nvidia/vgpu_params") == ""
    assert data(kernel) == [ONE_Q, action.params, " "]


@pytest.mark.parametrize("is_typed", [True, False])
def test_parameters_are_restored_with_their_vgpu(
    kernel: fakehost.Controller, is_typed: bool
) -> None:
    """Freeing a VF clears them."""
    on_host = executor(kernel.root)
    if is_typed:
        on_host.apply(typed())
    on_host.apply(params("a=1"))
    before = executing.state(kernel)
    action: actions.Action = typed().undo() if is_typed else typed()
    failure(
        kernel.root,
        action,
        actions.BindDriver(function=executing.CARD, driver="none-such"),
    )
    assert executing.state(kernel) == before


def test_a_vgpu_is_restored_at_its_placement(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    on_host.apply(typed(HALF, OTHER_VF))
    first = int(read(kernel, OTHER_VF, "nvidia/placement_id"))
    on_host.apply(place(24 - first))
    failure(
        kernel.root,
        typed(HALF, OTHER_VF).undo(),
        actions.BindDriver(function=executing.CARD, driver="none-such"),
    )
    assert read(kernel, OTHER_VF, "nvidia/placement_id") == str(24 - first)


def test_a_missing_mdev_has_no_parameters(
    kernel: fakehost.Controller,
) -> None:
    assert not executor(kernel.root).apply(params("", UUID))
    error = failure(kernel.root, params("a=1", UUID))
    assert error.number == errno.ENOENT
    assert "takes no vgpu_params" in error.hint


def test_files_that_only_root_may_read_are_read_by_privsep(
    kernel: fakehost.Controller,
) -> None:
    """The driver's files have mode 0600."""
    on_host = executor(kernel.root)
    on_host.apply_all([typed(), params("a=1")])
    kernel.fail(
        path_of(VF, "nvidia/vgpu_params"), "EACCES", on="open", times=1
    )
    assert not on_host.apply(params("a=1"))
    kernel.fail(path_of(VF, "nvidia/vgpu_params"), "EACCES", on="open")
    error = failure(kernel.root, params("a=2"))
    assert error.number == errno.EACCES
    assert "capabilities" in error.hint


def mdev_params(root: Path) -> Path:
    path = root / "sys/bus/mdev/devices" / UUID / "nvidia/vgpu_params"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_parameters_of_an_mdev_are_set(tmp_path: Path) -> None:
    path = mdev_params(tmp_path)
    assert executor(tmp_path).apply(params("a=1,b=2", UUID))
    assert path.read_text() == "a=1,b=2"


def test_parameters_that_the_driver_changes_are_an_error(
    tmp_path: Path,
) -> None:
    path = mdev_params(tmp_path)
    path.write_text("a=1,c=3,d=4")  # The write replaces only the start.
    error = failure(tmp_path, params("b=2", UUID))
    assert error.number == 0
    assert "other parameters than requested" in error.hint


@pytest.mark.parametrize("text", ["a=1\nb=2", "a=\0", "ä=1", "a" * 1024])
def test_malformed_parameters_are_not_written(
    kernel: fakehost.Controller, text: str
) -> None:
    with pytest.raises(errors.MalformedError, match="vgpu_params"):
        executor(kernel.root).apply(params(text))
    assert data(kernel) == []


# -- placements ------------------------------------------------------------


def place(start: int) -> actions.SetVgpuPlacementId:
    return actions.SetVgpuPlacementId(function=OTHER_VF, start=start)


def test_a_placement_is_set(kernel: fakehost.Controller) -> None:
    on_host = executor(kernel.root)
    on_host.apply(typed(HALF, OTHER_VF))
    first = int(read(kernel, OTHER_VF, "nvidia/placement_id"))
    assert not on_host.apply(place(first))
    other = 24 - first
    assert [on_host.apply(place(other)) for _ in range(2)] == [True, False]
    assert read(kernel, OTHER_VF, "nvidia/placement_id") == str(other)


def test_a_placement_without_a_vgpu_is_enxio(
    kernel: fakehost.Controller,
) -> None:
    error = failure(kernel.root, place(0))
    assert error.number == errno.ENXIO
    assert "has no vGPU" in error.hint


def test_an_invalid_placement_is_undone(kernel: fakehost.Controller) -> None:
    error = failure(kernel.root, typed(HALF, OTHER_VF), place(7))
    assert error.hint
    assert kernel.gpus()[executing.OTHER]["vgpus"] == {}
