# SPDX-License-Identifier: Apache-2.0
"""VFs, drivers, resets and scrubs of functions, services of QAT devices.

A reset or scrub is never done before it was applied, and afterwards only if
the function answers.
"""

import dataclasses
import errno
import time
from collections.abc import Iterator, Mapping
from typing import Any

from nova_accel import errors
from nova_accel.host.execute import handlers, privileged, reset_checks
from nova_accel.host.execute.handlers import (
    RIGHTS,
    Handler,
    Host,
    Refusal,
    find_uses,
)
from nova_accel.model import actions

# VFs appear one by one, up to 256 per card.
_VF_ATTEMPTS = 100
# Output of sriov-manage while another program has the card open; it
# succeeds seconds later.
_TRANSIENT = "unbindLock"
_TOOL_ATTEMPTS = 5
_TOOL_PAUSE_S = 2.0
# Attributes of a QAT device.
_SERVICES, _STATE = "qat/cfg_services", "qat/state"
_STALE = (
    "virtual functions were enabled since the host was read: disable them if"
    " they are not needed, or remove num_vfs from device_spec"
)

_Scrub = actions.ResetFunction | actions.ResetTogether | actions.RunScrub
_SWITCH = "power-cycle the card, or the host"
_UNRESET = (
    '`nova-accel doctor --only pci.reset` says why; write "scrub": "none"'
    " into its own line of device_spec to offer it without a reset, then"
    " `nova-accel heal`"
)
UNRESETTABLE = (
    "nothing more was done to it, and it may keep data of its last server:"
    f" {_UNRESET}"
)


def _write_count(host: Host, action: actions.SetVfCount) -> int:
    function, count = action.function, action.count
    if not action.tool:
        return privileged.set_vf_count(
            host.root, function, count, action.is_probed
        )
    for remaining in reversed(range(_TOOL_ATTEMPTS)):
        try:
            return privileged.manage_vfs(host.root, function, count > 0)
        except errors.ToolError as error:
            if _TRANSIENT not in error.output or not remaining:
                raise
        time.sleep(_TOOL_PAUSE_S)
    return errno.EAGAIN


def _is_count_done(
    host: Host, action: actions.SetVfCount, is_new: bool
) -> bool:
    """Return whether a PF has its VFs, or more after a write."""
    enabled = host.state.vf_count(action.function)
    if enabled is None:
        return False
    is_all = bool(action.tool) and bool(enabled) == bool(action.count)
    # Intel QAT enables all of its VFs, whatever the number.
    is_enough = 0 < action.count <= enabled and (is_new or not action.before)
    if not (enabled == action.count or is_all or is_enough):
        return False
    return len(host.state.virtual_functions(action.function)) == enabled


def _is_count_final(host: Host, action: actions.SetVfCount) -> bool:
    """Return whether the driver made fewer VFs and has finished."""
    enabled = host.state.vf_count(action.function) or 0
    return action.count > enabled and not action.tool


def _check_count(host: Host, action: actions.SetVfCount) -> Iterator[Refusal]:
    enabled = host.state.vf_count(action.function)
    if enabled and enabled < action.count and not action.before:
        yield Refusal(errno.EBUSY, f"{enabled} are enabled since", _STALE)
    yield from find_uses(host, action.function, accepts_vfs=True)


def _restore_vfs(
    host: Host, undo: actions.SetVfCount
) -> Iterator[actions.Action]:
    """Yield an undo; disabling VFs discards their drivers."""
    function = undo.function
    count = host.state.vf_count(function)
    if count is None:
        yield undo
    elif undo.tool:
        yield dataclasses.replace(undo, count=count)
        yield from _restore_gpu(host, function)
    else:
        drivers = {
            vf: host.state.driver(vf)
            for vf in host.state.virtual_functions(function)
        }
        probed = host.state.attribute(function, "sriov_drivers_autoprobe")
        yield dataclasses.replace(undo, count=count, is_probed=probed != "0")
        for vf, driver in drivers.items():
            yield actions.BindDriver(function=vf, driver=driver)


def _restore_gpu(host: Host, gpu: str) -> Iterator[actions.Action]:
    """Yield what sriov-manage discards: it rebinds the card's driver."""
    state = host.read_gpus().get(gpu)
    if state is None:
        return
    if state.is_mixed:
        yield actions.SetMixedSizes(gpu=gpu, is_mixed=True)
    for instance in state.instances:
        if instance.span is not None:
            yield actions.CreateInstance(
                gpu=gpu, kind=instance.kind, start=instance.span.start
            )


def _is_bound(host: Host, action: actions.BindDriver, _is_new: bool) -> bool:
    override = host.state.attribute(action.function, "driver_override")
    return host.state.driver(action.function) == action.driver and (
        bool(action.driver) or override in handlers.NO_OVERRIDE
    )


def _restore_driver(
    host: Host, undo: actions.BindDriver
) -> Iterator[actions.Action]:
    driver = host.state.driver(undo.function)
    yield dataclasses.replace(undo, driver=driver)


def _has_services(
    host: Host, action: actions.SetServices, _is_new: bool
) -> bool:
    """Return whether a QAT device is up with services, in any order."""
    present = host.state.attribute(action.function, _SERVICES).split(";")
    is_equal = {*present} == {*action.services.split(";")}
    return is_equal and host.state.attribute(action.function, _STATE) == "up"


def _describe_services(host: Host, action: actions.SetServices) -> str:
    present = host.state.attribute(action.function, _SERVICES)
    is_up = host.state.attribute(action.function, _STATE) == "up"
    return f"{present!r}, and it is {'up' if is_up else 'not up'}"


def _restore_services(
    host: Host, undo: actions.SetServices
) -> Iterator[actions.Action]:
    if services := host.state.attribute(undo.function, _SERVICES):
        yield dataclasses.replace(undo, services=services)


def _is_answering(host: Host, action: _Scrub, is_new: bool) -> bool:
    addresses: tuple[str, ...] = (action.function,)
    if isinstance(action, actions.ResetTogether):
        addresses = action.functions
    return is_new and all(
        reset_checks.is_answering(host.root, address) for address in addresses
    )


def _describe_silence(_host: Host, _action: _Scrub) -> str:
    return "its configuration space reads as ones, or not at all"


HINTS: Mapping[type[actions.Action], Mapping[int, str]] = {
    actions.SetVfCount: {
        errno.ENOENT: "no driver that makes VFs is bound to the function, or"
        " the vendor's tool is not installed: NVIDIA's cards need"
        f" /{privileged.SRIOV_MANAGE} of the host driver",
        errno.EBUSY: "guests may hold them: stop those, clear the vGPUs and"
        " unbind what is bound to a VFIO driver first",
        errno.ERANGE: "the function has fewer VFs (sriov_totalvfs): lower"
        " num_vfs in device_spec",
        errno.EACCES: f"/{privileged.SRIOV_MANAGE} and its directories must"
        " be root's and writable by no other user, and no links; " + RIGHTS,
        errno.EINVAL: "the function's driver refuses that number of VFs:"
        " correct num_vfs in device_spec",
        errno.ENOSPC: "the bus has no numbers or memory left for VFs: see"
        " SR-IOV in the firmware's setup",
        errno.ENOMEM: "the bus has no numbers or memory left for VFs: see"
        " SR-IOV in the firmware's setup",
        errno.ETIMEDOUT: "the VFs were not made in time: something may hold"
        " the card open; see the kernel's log (dmesg) on this host",
        0: "the driver made fewer VFs than asked: lower"
        " num_vfs in device_spec, or see the kernel's log (dmesg)",
    },
    actions.BindDriver: {
        errno.EBUSY: "guests may hold them: stop those and clear the vGPUs"
        " first",
        errno.ENOPKG: "load the driver first (modprobe), and at boot",
        errno.ENODEV: "the driver does not take the function: see the"
        " kernel's log (dmesg) on this host",
        errno.EINVAL: "the driver does not take the function: is the IOMMU"
        " on? See the kernel's log (dmesg) on this host",
        errno.ENOENT: "the function is gone: see the kernel's log and"
        " `nova-accel inspect`",
        0: "no driver took the function: is the IOMMU on, and"
        " does the driver know this card? See the kernel's log (dmesg)",
    },
    actions.SetServices: {
        errno.EBUSY: "the device is in use or being reset: stop the guests"
        " and programs that have its functions, and disable its VFs",
        errno.EINVAL: "the device knows no such services: correct services"
        " in device_spec",
        errno.ENOENT: "this device's driver has no choice of services:"
        " remove services from device_spec, or update the kernel",
    },
    actions.ResetFunction: {
        errno.ENOENT: f"the kernel knows no way to reset it: {_UNRESET}",
        errno.ENOTTY: "none of its reset methods (reset_method) works:"
        f" {_UNRESET}",
        errno.ENODEV: "the function does not answer after its reset: see"
        f" the kernel's log (dmesg) on this host; {_SWITCH}",
        errno.EBUSY: "a guest or the host uses the function: stop that",
        errno.ETIMEDOUT: "the kernel has not finished after"
        f" {privileged.RESET_S} s: see its log (dmesg); {_SWITCH}",
    },
    actions.ResetTogether: {
        errno.ENOENT: "the host has no node of their IOMMU group in"
        " /dev/vfio: is /dev of this host there, and vfio-pci loaded?",
        errno.ENOTTY: "the kernel can't reset their bus: " + _UNRESET,
        errno.EINVAL: "VFIO does not have all functions on their bus: see"
        " `nova-accel inspect` and the kernel's log (dmesg) on this host",
        errno.ENODEV: "a function does not answer after the reset: see"
        f" the kernel's log (dmesg) on this host; {_SWITCH}",
        errno.EBUSY: "a guest or another process has one of them: stop it",
        errno.ETIMEDOUT: "the kernel has not finished after"
        f" {privileged.RESET_S} s: see its log (dmesg); {_SWITCH}",
    },
    actions.RunScrub: {
        errno.EACCES: "the command and its directories must be root's and"
        " writable by no other user, and no links",
        errno.ENOENT: "there is no such command on this host",
        errno.ENODEV: "the function does not answer after the command: see"
        f" the kernel's log (dmesg) on this host; {_SWITCH}",
        errno.ENOEXEC: "it is no program, or a script without #!",
        errno.EIO: "the command failed, see its output",
        errno.ETIMEDOUT: "the command did not end in"
        f" {privileged.SCRUB_S} s, and was killed",
    },
}
HANDLERS: Mapping[type[actions.Action], Handler[Any]] = {
    actions.SetVfCount: Handler[actions.SetVfCount](
        write=_write_count,
        is_done=_is_count_done,
        restore=_restore_vfs,
        check=_check_count,
        describe=lambda host, action: (
            f"{host.state.vf_count(action.function)} of {action.count}"
            " virtual functions"
        ),
        has_failed=_is_count_final,
        attempts=_VF_ATTEMPTS,
        is_long=True,
    ),
    actions.BindDriver: Handler[actions.BindDriver](
        write=lambda host, action: privileged.bind_driver(
            host.root, action.function, action.driver
        ),
        is_done=_is_bound,
        restore=_restore_driver,
        check=lambda host, action: find_uses(
            host, action.function, accepts_vfs=True
        ),
        describe=lambda host, action: (
            f"bound to {host.state.driver(action.function) or 'no driver'}"
        ),
        is_long=True,
    ),
    actions.SetServices: Handler[actions.SetServices](
        write=lambda host, action: privileged.set_services(
            host.root, action.function, action.services
        ),
        is_done=_has_services,
        restore=_restore_services,
        check=lambda host, action: find_uses(host, action.function),
        describe=_describe_services,
        is_long=True,
    ),
    actions.ResetFunction: Handler[actions.ResetFunction](
        write=lambda host, action: privileged.reset_function(
            host.root, action.function
        ),
        is_done=_is_answering,
        check=lambda host, action: find_uses(host, action.function),
        describe=_describe_silence,
        is_scrub=True,
    ),
    actions.ResetTogether: Handler[actions.ResetTogether](
        write=lambda host, action: privileged.reset_together(
            host.root, list(action.functions)
        ),
        is_done=_is_answering,
        check=lambda host, action: find_uses(host, *action.functions),
        describe=_describe_silence,
        is_scrub=True,
    ),
    actions.RunScrub: Handler[actions.RunScrub](
        write=lambda host, action: privileged.run_scrub(
            host.root, action.command, action.function
        ),
        is_done=_is_answering,
        describe=_describe_silence,
        is_scrub=True,
    ),
}
