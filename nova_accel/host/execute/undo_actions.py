# SPDX-License-Identifier: Apache-2.0
"""Undo actions, derived from the state before an action.

An action's own ``undo()`` is not enough: the host may have changed since
the plan, and some changes have side effects. Freeing a VF clears its
parameters, disabling VFs discards their drivers, and NVIDIA's sriov-manage
rebinds the card's driver, which discards GPU instances and mixed-size mode.
"""

import dataclasses
from collections.abc import Iterator

from nova_accel.host.execute import readback
from nova_accel.model import actions


def plan_undo(
    host: readback.Readback, action: actions.Action
) -> tuple[actions.Action, ...]:
    """Return the actions that undo an action, in order.

    Call it before the action is applied. Some actions have no undo: the
    former bitstream of an FPGA region is not stored.
    """
    undo = action.undo()
    match undo:
        case actions.SetVfCount():
            return tuple(_restore_vfs(host, undo))
        case actions.BindDriver(function=function):
            driver = host.driver(function)
            return (dataclasses.replace(undo, driver=driver),)
        case actions.SetVgpuParams(target=target):
            params = host.vgpu_file(target, readback.PARAMS) or ""
            return (dataclasses.replace(undo, params=params),)
        case actions.SetVgpuType() | actions.ClearVgpuType():
            return tuple(_restore_vgpu(host, undo))
        case actions.CreateMdev(uuid=uuid):
            place = host.mdev_place(uuid)
            parent, kind = place or (undo.parent, undo.type_id)
            return (dataclasses.replace(undo, parent=parent, type_id=kind),)
        case actions.SetServices(function=function):
            services = host.services(function)
            undo = dataclasses.replace(undo, services=services)
            if not services:
                undo = None
    return (undo,) if undo else ()


def _restore_vgpu(
    host: readback.Readback, undo: actions.SetVgpuType | actions.ClearVgpuType
) -> Iterator[actions.Action]:
    function = undo.function
    yield undo
    if isinstance(undo, actions.SetVgpuType):
        start = host.vgpu_file(function, readback.PLACEMENT) or ""
        if start.isdecimal():
            yield actions.SetVgpuPlacementId(
                function=function, start=int(start)
            )
    params = host.vgpu_file(function, readback.PARAMS)
    if params:
        yield actions.SetVgpuParams(target=function, params=params)


def _restore_vfs(
    host: readback.Readback, undo: actions.SetVfCount
) -> Iterator[actions.Action]:
    function = undo.function
    count = host.vf_count(function)
    if count is None:
        yield undo
    elif undo.tool:
        yield dataclasses.replace(undo, count=count)
        yield from _restore_gpu(host, function)
    else:
        drivers = {
            vf: host.driver(vf) for vf in host.virtual_functions(function)
        }
        yield dataclasses.replace(
            undo, count=count, is_probed=host.is_probing(function)
        )
        for vf, driver in drivers.items():
            yield actions.BindDriver(function=vf, driver=driver)


def _restore_gpu(
    host: readback.Readback, gpu: str
) -> Iterator[actions.Action]:
    state = host.gpu(gpu)
    if state is None:
        return
    if state.is_mixed:
        yield actions.SetMixedSizes(gpu=gpu, is_mixed=True)
    for instance in state.instances:
        if instance.span is not None:
            yield actions.CreateInstance(
                gpu=gpu, kind=instance.kind, start=instance.span.start
            )
