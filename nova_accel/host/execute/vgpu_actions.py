# SPDX-License-Identifier: Apache-2.0
"""Mdevs, NVIDIA's vGPUs on VFs, GPU instances, and modes of GPUs."""

import dataclasses
import errno
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from nova_accel import errors
from nova_accel.host.execute import privileged, readback
from nova_accel.host.execute.handlers import (
    NO_NVML,
    RIGHTS,
    Handler,
    Host,
    Refusal,
    get_hint,
)
from nova_accel.model import actions

LOG = logging.getLogger(__name__)

_MdevAction = actions.CreateMdev | actions.RemoveMdev
_FREE = readback.FREE
_TAKEN = (
    "the function holds a vGPU already: of a concurrent spawn, or an orphan"
    " (`nova-accel inspect`)"
)
_OTHER = (
    "the function has another vGPU than the one to clear, so it stays;"
    " see `nova-accel inspect`"
)
_NO_MIG = "the GPU is not in MIG mode: nvidia-smi -i GPU -mig 1"
_NO_CALL = {errno.ENXIO: NO_NVML, errno.ENOSYS: NO_NVML}


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
        LOG.warning(
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
        start = host.state.vgpu_file(function, readback.PLACEMENT) or ""
        if start.isdecimal():
            yield actions.SetVgpuPlacementId(
                function=function, start=int(start)
            )
    if params := host.state.vgpu_file(function, readback.PARAMS):
        yield actions.SetVgpuParams(target=function, params=params)


def _has_params(
    host: Host, action: actions.SetVgpuParams, _is_new: bool
) -> bool:
    present = host.state.vgpu_file(action.target, readback.PARAMS)
    is_equal = _split(present or "") == _split(action.params)
    return is_equal and (present is not None or not action.params)


def _split(text: str) -> frozenset[tuple[str, str]]:
    """Return key and value of each parameter, without spaces."""
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return frozenset((key.strip(), value.strip()) for key, _, value in pairs)


def _restore_params(
    host: Host, undo: actions.SetVgpuParams
) -> Iterator[actions.Action]:
    params = host.state.vgpu_file(undo.target, readback.PARAMS) or ""
    yield dataclasses.replace(undo, params=params)


def _is_destroyed(
    host: Host, action: actions.DestroyInstance, _is_new: bool
) -> bool:
    starts = host.state.instance_starts(action.gpu, action.kind)
    if starts is None or action.start is None:
        return starts == set()
    # An instance whose start is unknown may be this instance.
    return not starts & {action.start, None}


def _destroy_free(host: Host, action: actions.DestroyInstance) -> bool | None:
    """Destroy the GPU instances of a kind that no vGPU uses.

    A failure is only logged: the next vGPU of the kind uses the remaining
    instance.
    """
    if action.start is not None:
        return None
    before = host.state.instance_starts(action.gpu, action.kind)
    number = privileged.destroy_instance(action.gpu, action.kind, None)
    after = host.state.instance_starts(action.gpu, action.kind)
    if number and number != errno.EBUSY:
        hint = get_hint(HINTS[actions.DestroyInstance], number)
        LOG.warning("%s", errors.ActionError(str(action), number, hint))
    if before != after:
        LOG.info("%s: done", action)
    return before != after


def _is_mode_done(
    host: Host,
    action: actions.SetMixedSizes | actions.SetMigMode,
    _is_new: bool,
) -> bool:
    state = host.state.gpu(action.gpu)
    if state is None:
        return False
    if isinstance(action, actions.SetMigMode):
        return state.is_mig is action.is_mig
    return state.is_mixed is action.is_mixed


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
    actions.CreateInstance: {
        errno.ENOSPC: "no room for the GPU instance: another one is in its"
        " place; destroy it when it is empty",
        errno.EBUSY: "the GPU is in use by another program; stop it first",
        errno.EINVAL: "the GPU has no such kind of instance at that place",
        errno.ENODEV: "NVML does not know the GPU, or no such kind of"
        " instance; see `nova-accel inspect`",
        errno.EOPNOTSUPP: _NO_MIG,
        **_NO_CALL,
    },
    actions.DestroyInstance: {
        errno.EBUSY: "a vGPU or a program is in the GPU instance; stop it"
        " first",
        errno.EOPNOTSUPP: _NO_MIG,
        **_NO_CALL,
    },
    actions.SetMixedSizes: {
        errno.EBUSY: "the mode changes only while the GPU holds no vGPU;"
        " delete its servers first",
        errno.EOPNOTSUPP: "the GPU has no mixed-size mode: write"
        ' "sizes": "equal" into its line of device_spec',
        **_NO_CALL,
    },
    actions.SetMigMode: {
        errno.EINPROGRESS: "the GPU switches at its next reset: reset it"
        " (nvidia-smi --gpu-reset) or power-cycle the machine",
        errno.EBUSY: "the mode changes only while nothing uses the GPU: stop"
        " its programs, and remove its GPU instances and VFs first",
        errno.EOPNOTSUPP: "the GPU has no MIG mode",
        **_NO_CALL,
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
            host.state.vgpu_file(action.function, readback.PLACEMENT)
            == str(action.start)
        ),
    ),
    actions.CreateInstance: Handler[actions.CreateInstance](
        write=lambda _, action: privileged.create_instance(
            action.gpu, action.kind, action.start
        ),
        is_done=lambda host, action, _: (
            action.start
            in (host.state.instance_starts(action.gpu, action.kind) or ())
        ),
    ),
    actions.DestroyInstance: Handler[actions.DestroyInstance](
        write=lambda _, action: privileged.destroy_instance(
            action.gpu, action.kind, action.start
        ),
        is_done=_is_destroyed,
        change=_destroy_free,
    ),
    actions.SetMixedSizes: Handler[actions.SetMixedSizes](
        write=lambda _, action: privileged.set_mixed(
            action.gpu, action.is_mixed
        ),
        is_done=_is_mode_done,
    ),
    actions.SetMigMode: Handler[actions.SetMigMode](
        write=lambda _, action: privileged.set_mig(action.gpu, action.is_mig),
        is_done=_is_mode_done,
    ),
}
