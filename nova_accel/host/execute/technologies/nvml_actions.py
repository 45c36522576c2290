# SPDX-License-Identifier: Apache-2.0
"""GPU instances and modes of GPUs, changed through NVML."""

import errno
import logging
from collections.abc import Mapping
from typing import Any

from nova_accel import errors
from nova_accel.host.execute.handlers import Handler, Host, get_hint
from nova_accel.host.execute.technologies import nvml_privileged
from nova_accel.model import actions

LOG = logging.getLogger(__name__)

_NO_NVML = (
    "NVML can't be called: install nvidia-ml-py and NVIDIA's host driver, or"
    " create GPU instances by hand"
)
_NO_MIG = "the GPU is not in MIG mode: nvidia-smi -i GPU -mig 1"
_NO_CALL = {errno.ENXIO: _NO_NVML, errno.ENOSYS: _NO_NVML}


def _read_starts(
    host: Host, action: actions.CreateInstance | actions.DestroyInstance
) -> set[int | None] | None:
    """Return the starts of GPU instances of a kind, None if unknown.

    An instance whose start is unknown gives None.
    """
    state = host.read_gpus().get(action.gpu)
    if state is None or "instances" in state.unread:
        return None
    return {
        instance.span.start if instance.span else None
        for instance in state.instances
        if instance.kind == action.kind
    }


def _is_destroyed(
    host: Host, action: actions.DestroyInstance, _is_new: bool
) -> bool:
    starts = _read_starts(host, action)
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
    before = _read_starts(host, action)
    number = nvml_privileged.destroy_instance(action.gpu, action.kind, None)
    after = _read_starts(host, action)
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
    state = host.read_gpus().get(action.gpu)
    if state is None:
        return False
    if isinstance(action, actions.SetMigMode):
        return state.is_mig is action.is_mig
    return state.is_mixed is action.is_mixed


HINTS: Mapping[type[actions.Action], Mapping[int, str]] = {
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
    actions.CreateInstance: Handler[actions.CreateInstance](
        write=lambda _, action: nvml_privileged.create_instance(
            action.gpu, action.kind, action.start
        ),
        is_done=lambda host, action, _: (
            action.start in (_read_starts(host, action) or ())
        ),
    ),
    actions.DestroyInstance: Handler[actions.DestroyInstance](
        write=lambda _, action: nvml_privileged.destroy_instance(
            action.gpu, action.kind, action.start
        ),
        is_done=_is_destroyed,
        change=_destroy_free,
    ),
    actions.SetMixedSizes: Handler[actions.SetMixedSizes](
        write=lambda _, action: nvml_privileged.set_mixed(
            action.gpu, action.is_mixed
        ),
        is_done=_is_mode_done,
    ),
    actions.SetMigMode: Handler[actions.SetMigMode](
        write=lambda _, action: nvml_privileged.set_mig(
            action.gpu, action.is_mig
        ),
        is_done=_is_mode_done,
    ),
}
