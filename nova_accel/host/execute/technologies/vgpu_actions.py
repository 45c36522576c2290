# SPDX-License-Identifier: Apache-2.0
"""Mdevs, and NVIDIA's vGPUs on VFs."""

import dataclasses
import errno
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from nova_accel.config import logs
from nova_accel.host.execute import handlers, privileged
from nova_accel.host.execute.handlers import (
    RIGHTS,
    Handler,
    Host,
    Refusal,
)
from nova_accel.model import actions

LOG = logging.getLogger(__name__)

_MdevAction = actions.CreateMdev | actions.RemoveMdev
_FREE = handlers.FREE
_TAKEN = (
    "the function holds a vGPU already: of a concurrent spawn, or an orphan"
    " (`nova-accel inspect`)"
)
_OTHER = (
    "the function has another vGPU than the one to clear, so it stays;"
    " see `nova-accel inspect`"
)


def _write_mdev(host: Host, action: _MdevAction) -> int:
    if _is_done_by_libvirt(host, action) or _is_mdev_done(host, action):
        return 0
    uuid = action.uuid
    if isinstance(action, actions.RemoveMdev):
        number = privileged.remove_mdev(host.root, uuid)
    else:
        number = privileged.create_mdev(
            host.root, action.parent, action.type_id, uuid
        )
    # libvirt may have completed its attempt after its timeout.
    is_late = host.nodedev is not None and _is_mdev_done(host, action)
    return 0 if is_late else number


def _is_done_by_libvirt(host: Host, action: _MdevAction) -> bool:
    if host.nodedev is None:
        return False
    try:
        if isinstance(action, actions.RemoveMdev):
            return host.nodedev.remove(action.uuid)
        return host.nodedev.create(action.parent, action.type_id, action.uuid)
    except Exception as error:
        logs.warning(
            LOG,
            "%s: writing the kernel's files, since libvirt failed: %s",
            action,
            error,
        )
        return False


def _is_mdev_done(
    host: Host, action: _MdevAction, _is_new: bool = False
) -> bool:
    if isinstance(action, actions.RemoveMdev):
        return host.state.is_mdev_gone(action.uuid, action.parent)
    place = action.parent, action.type_id
    return host.state.mdev_place(action.uuid) == place


def _restore_mdev(
    host: Host, undo: actions.CreateMdev
) -> Iterator[actions.Action]:
    place = host.state.mdev_place(undo.uuid)
    parent, type_id = place or (undo.parent, undo.type_id)
    yield dataclasses.replace(undo, parent=parent, type_id=type_id)


def _check_untyped(
    host: Host, action: actions.SetVgpuType
) -> Iterator[Refusal]:
    present = host.state.vgpu_type(action.function)
    if present not in ("", _FREE):
        yield Refusal(errno.EBUSY, f"it holds type {present}")


def _check_typed(
    host: Host, action: actions.ClearVgpuType
) -> Iterator[Refusal]:
    present = host.state.vgpu_type(action.function)
    if present != action.type_id:
        detail = f"it holds type {present or '(unreadable)'}"
        yield Refusal(errno.EBUSY, detail, _OTHER)


def _restore_vgpu(
    host: Host, undo: actions.SetVgpuType | actions.ClearVgpuType
) -> Iterator[actions.Action]:
    """Yield an undo; freeing a VF clears its parameters and its place."""
    function = undo.function
    yield undo
    if isinstance(undo, actions.SetVgpuType):
        start = host.state.vgpu_file(function, handlers.PLACEMENT) or ""
        if start.isdecimal():
            yield actions.SetVgpuPlacementId(
                function=function, start=int(start)
            )
    if params := host.state.vgpu_file(function, handlers.PARAMS):
        yield actions.SetVgpuParams(target=function, params=params)


def _has_params(
    host: Host, action: actions.SetVgpuParams, _is_new: bool
) -> bool:
    present = host.state.vgpu_file(action.target, handlers.PARAMS)
    is_equal = _split(present or "") == _split(action.params)
    return is_equal and (present is not None or not action.params)


def _split(text: str) -> frozenset[tuple[str, str]]:
    """Return key and value of each parameter, without spaces."""
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return frozenset((key.strip(), value.strip()) for key, _, value in pairs)


def _restore_params(
    host: Host, undo: actions.SetVgpuParams
) -> Iterator[actions.Action]:
    params = host.state.vgpu_file(undo.target, handlers.PARAMS) or ""
    yield dataclasses.replace(undo, params=params)


HINTS: Mapping[type[actions.Action], Mapping[int, str]] = {
    actions.SetVgpuType: {
        errno.EPERM: _TAKEN,
        errno.EBUSY: _TAKEN,
        errno.EIO: "the type can't be made there now: the GPU is full, holds"
        " vGPUs of another size, or its GPU instances have no room; see"
        " creatable_vgpu_types of the function and the kernel's log",
        errno.EINVAL: "the type does not fit beside the vGPUs of this GPU,"
        " or its driver has no such type",
        errno.ENODEV: "the driver of this GPU has no such type: ids change"
        " with the driver's release; restart nova-compute to read them again",
        errno.ENOENT: "the function is no VF of NVIDIA's vendor-specific"
        " VFIO any more: enable the VFs again (sriov-manage -e)",
    },
    actions.ClearVgpuType: {
        errno.EPERM: RIGHTS + "; or the vGPU is gone already",
        errno.EBUSY: "a guest has the vGPU open; stop the guest first",
    },
    actions.SetVgpuParams: {
        errno.ENOENT: "this host's driver takes no vgpu_params, or the vGPU"
        " is gone; remove vgpu_params from device_spec",
        errno.EINVAL: "the driver knows no such parameter or value: correct"
        " vgpu_params in device_spec",
        errno.EBUSY: "a guest has the vGPU open; stop the guest first",
        errno.EPERM: "the function has no vGPU yet, or it is open; " + RIGHTS,
        0: "the driver has other parameters than requested:"
        " correct vgpu_params in device_spec",
    },
    actions.SetVgpuPlacementId: {
        errno.ENXIO: "the function has no vGPU, or its GPU is not in"
        " mixed-size mode",
        errno.EBUSY: "the place is taken or a guest has the vGPU open",
        errno.EINVAL: "a vGPU of this type can't start there",
        errno.ENOENT: "the driver places vGPUs itself: placement_id came"
        " with release 580",
    },
}
HANDLERS: Mapping[type[actions.Action], Handler[Any]] = {
    actions.CreateMdev: Handler[actions.CreateMdev](
        write=_write_mdev, is_done=_is_mdev_done, restore=_restore_mdev
    ),
    actions.RemoveMdev: Handler[actions.RemoveMdev](
        write=_write_mdev, is_done=_is_mdev_done
    ),
    actions.SetVgpuType: Handler[actions.SetVgpuType](
        write=lambda host, action: privileged.set_vgpu_type(
            host.root, action.function, action.type_id
        ),
        is_done=lambda host, action, _: (
            host.state.vgpu_type(action.function) == action.type_id
        ),
        restore=_restore_vgpu,
        check=_check_untyped,
        describe=lambda host, action: (
            f"its type reads {host.state.vgpu_type(action.function)!r}"
        ),
    ),
    actions.ClearVgpuType: Handler[actions.ClearVgpuType](
        write=lambda host, action: privileged.set_vgpu_type(
            host.root, action.function, _FREE
        ),
        is_done=lambda host, action, _: host.state.is_free(action.function),
        restore=_restore_vgpu,
        check=_check_typed,
    ),
    actions.SetVgpuParams: Handler[actions.SetVgpuParams](
        write=lambda host, action: privileged.set_vgpu_params(
            host.root, action.target, action.params
        ),
        is_done=_has_params,
        restore=_restore_params,
    ),
    actions.SetVgpuPlacementId: Handler[actions.SetVgpuPlacementId](
        write=lambda host, action: privileged.set_placement(
            host.root, action.function, action.start
        ),
        is_done=lambda host, action, _: (
            host.state.vgpu_file(action.function, handlers.PLACEMENT)
            == str(action.start)
        ),
    ),
}
