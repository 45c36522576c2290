# SPDX-License-Identifier: Apache-2.0
"""GPU instances and size modes change through NVML."""

import errno
from typing import Any

import pytest

from nova_accel.model import actions
from tests.lab import fakehost
from tests.support.hosts import simulated_gpus
from tests.support.hosts.executing import GPU, OTHER, executor, failure, read

pynvml: Any = pytest.importorskip("pynvml")
pytestmark = pytest.mark.usefixtures("own_rights")
MOUNT = simulated_gpus.mounted
WITHOUT_VFS = "0000:3f:00.0"
SMALL, HALF = "1g.5gb", "3g.20gb"
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.NvidiaGpu(
            address=GPU,
            model="A100",
            interface="vfio",
            enabled_vfs=4,
            mig=True,
        ),
        fakehost.NvidiaGpu(
            address=OTHER, model="L40S", interface="vfio", enabled_vfs=4
        ),
        fakehost.NvidiaGpu(
            address=WITHOUT_VFS, model="A100", interface="vfio", mig=True
        ),
    )
)


def make(kind: str = SMALL, start: int = 0) -> actions.CreateInstance:
    return actions.CreateInstance(gpu=GPU, kind=kind, start=start)


def destroy(kind: str = SMALL) -> actions.DestroyInstance:
    return actions.DestroyInstance(gpu=GPU, kind=kind)


def typed(kernel: fakehost.Controller) -> actions.SetVgpuType:
    """Return the action that makes a vGPU in the first small instance."""
    vf = f"{GPU[:-1]}4"
    types = read(kernel, vf, "nvidia/creatable_vgpu_types").splitlines()
    type_id = next(t.split()[0] for t in types if t.endswith("A100-1-5C"))
    return actions.SetVgpuType(function=vf, type_id=type_id)


def instances(kernel: fakehost.Controller) -> list[list[Any]]:
    return sorted(kernel.gpus()[GPU]["instances"].values())


def test_an_instance_is_created_and_destroyed(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    action = make(SMALL, 2)
    assert [on_host.apply(action) for _ in range(2)] == [True, False]
    assert instances(kernel) == [[SMALL, 2]]
    undo = action.undo()
    assert [on_host.apply(undo) for _ in range(2)] == [True, False]
    assert instances(kernel) == []


def test_a_failure_destroys_the_created_instance(
    kernel: fakehost.Controller,
) -> None:
    executor(kernel.root).apply(make(HALF, 4))
    error = failure(kernel.root, make(SMALL, 0), make(SMALL, 5))
    assert error.number in (errno.ENOSPC, errno.EEXIST)
    assert "in its place" in error.hint
    assert instances(kernel) == [[HALF, 4]]


def test_an_invalid_start_is_einval(kernel: fakehost.Controller) -> None:
    error = failure(kernel.root, make(HALF, 1))
    assert error.number == errno.EINVAL
    assert "no such kind of instance at that place" in error.hint


def test_only_empty_instances_are_destroyed(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    on_host.apply_all([make(start=0), make(start=1), make(HALF, 4)])
    typing = typed(kernel)
    on_host.apply(typing)
    assert on_host.apply(destroy())
    assert instances(kernel) == [[SMALL, 0], [HALF, 4]]
    # An instance in use stays, which is no failure.
    assert not on_host.apply(destroy())
    on_host.apply(typing.undo())
    assert on_host.apply(destroy())
    assert not on_host.apply(destroy())
    assert instances(kernel) == [[HALF, 4]]


def test_an_instance_that_cant_be_destroyed_restores_no_vgpu(
    kernel: fakehost.Controller,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """NVML is of another release than the driver, after an upgrade."""
    on_host = executor(kernel.root)
    on_host.apply(make())
    typing = typed(kernel)
    on_host.apply(typing)
    monkeypatch.setenv("FAKEHOST_CONTROL", "/nonexistent")
    on_host.apply_all([typing.undo(), destroy()])
    assert read(kernel, typing.function, "nvidia/current_vgpu_type") == "0"
    assert instances(kernel) == [[SMALL, 0]]
    assert "destroy GPU instance 1g.5gb that is empty" in caplog.text


def test_an_instance_in_use_is_not_destroyed(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    on_host.apply(make())
    on_host.apply(typed(kernel))
    error = failure(kernel.root, make().undo())
    assert error.number == errno.EBUSY
    assert "in the GPU instance" in error.hint
    assert instances(kernel) == [[SMALL, 0]]


def test_mixed_sizes_are_set_and_undone(kernel: fakehost.Controller) -> None:
    on_host = executor(kernel.root)
    action = actions.SetMixedSizes(gpu=OTHER, is_mixed=True)
    assert [on_host.apply(action) for _ in range(2)] == [True, False]
    assert kernel.gpus()[OTHER]["mixed"]
    assert on_host.apply(action.undo())
    assert not kernel.gpus()[OTHER]["mixed"]


def test_the_mode_is_not_changed_while_a_vgpu_exists(
    kernel: fakehost.Controller,
) -> None:
    executor(kernel.root).apply(
        actions.SetVgpuType(function=f"{OTHER[:-1]}4", type_id="1147")
    )
    action = actions.SetMixedSizes(gpu=OTHER, is_mixed=True)
    error = failure(kernel.root, action)
    assert error.number == errno.EBUSY
    assert "holds no vGPU" in error.hint


def test_mig_mode_is_switched_and_undone(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    action = actions.SetMigMode(gpu=WITHOUT_VFS, is_mig=False)
    assert [on_host.apply(action) for _ in range(2)] == [True, False]
    assert not kernel.gpus()[WITHOUT_VFS]["mig"]
    assert on_host.apply(action.undo())
    assert kernel.gpus()[WITHOUT_VFS]["mig"]


def test_mig_mode_stays_while_a_vf_is_enabled(
    kernel: fakehost.Controller,
) -> None:
    error = failure(kernel.root, actions.SetMigMode(gpu=GPU, is_mig=False))
    assert error.number == errno.EBUSY
    assert "nothing uses the GPU" in error.hint


def test_a_gpu_without_mig_mode_is_eopnotsupp(
    kernel: fakehost.Controller,
) -> None:
    error = failure(kernel.root, actions.SetMigMode(gpu=OTHER, is_mig=True))
    assert error.number == errno.EOPNOTSUPP


def test_an_unknown_gpu_is_enodev(kernel: fakehost.Controller) -> None:
    action = actions.SetMixedSizes(gpu="0000:99:00.0", is_mixed=True)
    assert failure(kernel.root, action).number == errno.ENODEV
