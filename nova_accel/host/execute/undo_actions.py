# SPDX-License-Identifier: Apache-2.0
"""Undo actions, derived from the state before an action.

That is more than the action's own undo: the plan may have seen another
state, and some changes take others along. Freeing a VF clears its
parameters, disabling VFs forgets their drivers, and NVIDIA's sriov-manage
binds the card's driver anew, which forgets GPU instances and mixed sizes.
"""

import dataclasses
from collections.abc import Iterator

from nova_accel.host.execute import readback
from nova_accel.model import actions


def inverse(
    host: readback.Readback, action: actions.Action
) -> tuple[actions.Action, ...]:
    """Return the actions to take an action back with, in their order.

    Asked before it is carried out. Nothing where nothing can be done: what
    an FPGA region held, nobody has kept.
    """
    undo = action.undo()
    match undo:
        case actions.SetVfCount():
            return tuple(_counts_back(host, undo))
        case actions.BindDriver(function=function):
            driver = host.driver(function)
            return (dataclasses.replace(undo, driver=driver),)
        case actions.SetVgpuParams(target=target):
            params = host.vgpu(target, readback.PARAMS) or ""
            return (dataclasses.replace(undo, params=params),)
        case actions.SetVgpuType() | actions.ClearVgpuType():
            return tuple(_type_back(host, undo))
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


def _type_back(
    host: readback.Readback, undo: actions.SetVgpuType | actions.ClearVgpuType
) -> Iterator[actions.Action]:
    function = undo.function
    yield undo
    if isinstance(undo, actions.SetVgpuType):
        place = host.vgpu(function, readback.PLACEMENT) or ""
        if place.isdecimal():
            yield actions.SetPlacement(function=function, start=int(place))
    params = host.vgpu(function, readback.PARAMS)
    if params:
        yield actions.SetVgpuParams(target=function, params=params)


def _counts_back(
    host: readback.Readback, undo: actions.SetVfCount
) -> Iterator[actions.Action]:
    function = undo.function
    now = host.vf_count(function)
    if now is None:
        yield undo
    elif undo.tool:
        yield dataclasses.replace(undo, count=now)
        yield from _gpu_back(host, function)
    else:
        drivers = {
            virtual: host.driver(virtual)
            for virtual in host.virtual_functions(function)
        }
        yield dataclasses.replace(
            undo, count=now, is_probed=host.is_probing(function)
        )
        for virtual, driver in drivers.items():
            yield actions.BindDriver(function=virtual, driver=driver)


def _gpu_back(host: readback.Readback, gpu: str) -> Iterator[actions.Action]:
    facts = host.gpu(gpu)
    if facts is None:
        return
    if facts.is_mixed:
        yield actions.SetMixedSizes(gpu=gpu, is_mixed=True)
    for one in facts.instances:
        if one.span is not None:
            yield actions.CreateInstance(
                gpu=gpu, kind=one.kind, start=one.span.start
            )
