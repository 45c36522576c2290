# SPDX-License-Identifier: Apache-2.0
"""Executor of actions: apply, read back, undo on failure.

Nothing is locked while something is written: a card whose kernel files
hang keeps nobody else waiting.
"""

import contextlib
import errno
import logging
import time
from collections.abc import Iterable
from typing import Protocol, TypeGuard

from nova_accel import errors
from nova_accel.host.execute import (
    hints,
    privileged,
    program_fpga,
    readback,
    undo_actions,
)
from nova_accel.model import actions

LOG = logging.getLogger(__name__)

# An mdev's directory stands before its mdev_type link does: libvirt waits
# up to 10 x 100 ms for it (node_device_udev.c,
# udevProcessMediatedDevice), and so does this. VFs are made one by one,
# and a card may have 256 of them.
_ATTEMPTS = 10
_VF_ATTEMPTS = 100
_PAUSE_S = 0.1
# sriov-manage fails with this while another program looks at the card;
# seconds later it works.
_TRANSIENT = "unbindLock"
_TOOL_ATTEMPTS = 5
_TOOL_PAUSE_S = 2.0

# These write more than one file: a refusal may come halfway.
_LONG = (actions.SetVfCount, actions.BindDriver, actions.SetServices)

# These may fail, and what they are about answers all the same.
_SCRUBS = (actions.ResetFunction, actions.RunScrub)

_Written = (
    readback.MdevAction
    | readback.VgpuAction
    | readback.GpuAction
    | readback.FunctionAction
    | actions.SetVfCount
    | actions.SetPort
    | actions.SetServices
)


class NodeDevices(Protocol):
    """Makes mdevs through libvirt, where that can be done.

    Each method tells whether it was done; False leaves it to the kernel's
    own files, whose refusals have a number. An exception is taken for
    False.
    """

    def create(self, parent: str, type_id: str, uuid: str) -> bool:
        """Make an mdev and start it."""
        ...

    def remove(self, uuid: str) -> bool:
        """Stop an mdev, which ends it."""
        ...


class Executor:
    """Carries out actions below one root directory. Thread-safe."""

    def __init__(
        self,
        root: str = "/",
        nodedev: NodeDevices | None = None,
        read_gpus: readback.ReadGpus = privileged.read_gpus,
        program_s: float = 300,
    ) -> None:
        """Serve the host whose files are below ``root``.

        :param nodedev: the way to make mdevs that is tried first.
        :param read_gpus: asks NVML what became of GPU instances.
        :param program_s: how many seconds loading a bitstream may take.
        """
        self.root = root
        self._nodedev = nodedev
        self._host = readback.Readback(root, read_gpus)
        self._loading = program_fpga.FpgaProgrammer(
            root, self._host, program_s
        )

    def apply_all(self, wanted: Iterable[actions.Action]) -> None:
        """Carry out actions in order; undo the done ones on a failure.

        Whatever the failure is: it may also be that of whoever yields the
        actions, or of the privileged daemon.

        :raises ActionError: an action failed; everything done before it
            has been taken back, or its undo's failure is in the log.
        """
        with contextlib.ExitStack() as undo:
            for action in wanted:
                back = undo_actions.inverse(self._host, action)
                if self._carry_out(action, back):
                    undo.callback(self._take_back, back)
            undo.pop_all()

    def apply(self, action: actions.Action) -> bool:
        """Carry out one action and read it back.

        :returns: whether anything changed; what is done already is not
            done again.
        :raises ActionError: refused by the kernel, or without effect;
            what was done of it has been taken back.
        """
        return self._carry_out(
            action, undo_actions.inverse(self._host, action)
        )

    def _carry_out(
        self, action: actions.Action, back: Iterable[actions.Action]
    ) -> bool:
        if self._host.is_done(action):
            return False
        self._check(action)
        if _is_sweep(action):
            return self._sweep(action)
        try:
            is_changed = self._change(action)
        except errors.ActionError as error:
            # The kernel is still at what has timed out.
            is_begun = not error.number or isinstance(action, _LONG)
            if is_begun and error.number != errno.ETIMEDOUT:
                self._take_back(back)
            raise
        # Of a bitstream tells what loads it: also how long that took.
        if is_changed and not isinstance(action, actions.ProgramRegion):
            LOG.info("%s: done", action)
        return is_changed

    def _change(self, action: actions.Action) -> bool:
        if isinstance(action, actions.ProgramRegion):
            self._loading.load(action)
            return True
        number = self._write(action)
        if not number:
            self._wait(action)
            return True
        if isinstance(action, _SCRUBS) or not self._host.is_done(
            action, is_new=True
        ):
            raise _failure(action, number)
        # The kernel was late, or somebody else was first.
        return number == errno.ETIMEDOUT or isinstance(action, _LONG)

    def _wait(self, action: actions.Action) -> None:
        is_slow = isinstance(action, actions.SetVfCount)
        for _ in range(_VF_ATTEMPTS if is_slow else _ATTEMPTS):
            if self._host.is_done(action, is_new=True):
                return
            if isinstance(action, actions.SetVfCount):
                found = self._host.vf_count(action.function) or 0
                if action.count > found and not action.tool:
                    break  # the driver has made its VFs by now
            time.sleep(_PAUSE_S)
        # What a function is like that has gone, the kernel says itself.
        number = errno.ENODEV if isinstance(action, _SCRUBS) else 0
        raise _failure(action, number, self._sight(action))

    def _sight(self, action: actions.Action) -> str:
        """Return what reading back shows, where that tells more."""
        match action:
            case actions.SetVfCount(function=function, count=count):
                found = self._host.vf_count(function)
                return f"{found} of {count} virtual functions"
            case actions.BindDriver(function=function):
                found_driver = self._host.driver(function)
                return f"bound to {found_driver or 'no driver'}"
            case actions.SetVgpuType(function=function):
                return f"its type reads {self._host.vgpu_type(function)!r}"
            case actions.SetServices(function=function):
                state = "up" if self._host.is_up(function) else "not up"
                return f"{self._host.services(function)!r}, and it is {state}"
            case actions.ResetFunction() | actions.RunScrub():
                return "its configuration space reads as ones, or not at all"
        return ""

    def _check(self, action: actions.Action) -> None:
        """Raise for what the kernel might do, but nobody can want."""
        match action:
            case actions.SetVgpuType(function=function):
                found = self._host.vgpu_type(function)
                if found not in ("", readback.FREE):
                    raise _failure(
                        action, errno.EBUSY, f"it holds type {found}"
                    )
            case actions.ClearVgpuType(function=function, type_id=type_id):
                found = self._host.vgpu_type(function)
                if found != type_id:
                    raise errors.ActionError(
                        str(action), errno.EBUSY, hints.NOT_OURS,
                        f"it holds type {found or '(unreadable)'}",
                    )  # fmt: skip
            case actions.SetVfCount(function=function):
                now = self._host.vf_count(function)
                if now and now < action.count and not action.before:
                    raise errors.ActionError(
                        str(action), errno.EBUSY, hints.STALE,
                        f"{now} are enabled since",
                    )  # fmt: skip
                self._check_unused(action, function)
            case actions.BindDriver(function=function):
                self._check_unused(action, function)
            case (
                actions.SetPort(card=function)
                | actions.SetServices(function=function)
                | actions.ResetFunction(function=function)
            ):
                self._check_unused(action, function)
                self._check_whole(action, function)
            case actions.ProgramRegion():
                self._loading.check(action)

    def _check_unused(self, action: actions.Action, function: str) -> None:
        """Raise when a guest may hold something of a function."""
        held = sorted(self._host.held(function))
        if held:
            raise _failure(action, errno.EBUSY, ", ".join(held))

    def _check_whole(self, action: actions.Action, function: str) -> None:
        """Raise while a function has VFs, which its mode is the mode of."""
        if now := self._host.vf_count(function):
            detail = f"{now} virtual functions are enabled"
            raise _failure(action, errno.EBUSY, detail)

    def _take_back(self, back: Iterable[actions.Action]) -> None:
        for action in back:
            try:
                # What fails here is not taken back in its turn.
                self._carry_out(action, ())
            except errors.ActionError as error:
                LOG.error("can't take back: %s", error)

    def _sweep(self, action: actions.DestroyInstance) -> bool:
        """Destroy the GPU instances of a kind that are empty.

        One that stays is filled by the next vGPU: that brings none back.
        """
        before = self._host.starts(action.gpu, action.kind)
        number = self._write(action)
        after = self._host.starts(action.gpu, action.kind)
        if number and number != errno.EBUSY:
            LOG.warning("%s", _failure(action, number))
        if before != after:
            LOG.info("%s: done", action)
        return before != after

    def _write(self, action: _Written) -> int:
        match action:
            case actions.CreateMdev() | actions.RemoveMdev():
                return self._write_mdev(action)
            case actions.SetVfCount():
                return self._write_count(action)
            case (
                actions.BindDriver()
                | actions.ResetFunction()
                | actions.RunScrub()
            ):
                return _write_function(self.root, action)
            case actions.SetPort() | actions.SetServices():
                return self._write_card(action)
            case (
                actions.CreateInstance()
                | actions.DestroyInstance()
                | actions.SetMixedSizes()
            ):
                return _write_gpu(action)
            case _:
                return _write_vgpu(self.root, action)

    def _write_mdev(self, action: readback.MdevAction) -> int:
        if self._is_done_by_libvirt(action) or self._host.is_done(action):
            return 0
        uuid = action.uuid
        if isinstance(action, actions.RemoveMdev):
            number = privileged.remove_mdev(self.root, uuid)
        else:
            number = privileged.create_mdev(
                self.root, action.parent, action.type_id, uuid
            )
        # libvirt may have been at it still when it was given up.
        is_late = self._nodedev is not None and self._host.is_done(action)
        return 0 if is_late else number

    def _is_done_by_libvirt(self, action: readback.MdevAction) -> bool:
        if self._nodedev is None:
            return False
        try:
            if isinstance(action, actions.RemoveMdev):
                return self._nodedev.remove(action.uuid)
            return self._nodedev.create(
                action.parent, action.type_id, action.uuid
            )
        except Exception as error:
            LOG.warning("%s: libvirt can't: %s", action, error)
            return False

    def _write_card(
        self, action: actions.SetPort | actions.SetServices
    ) -> int:
        match action:
            case actions.SetPort(number=port, is_released=is_released):
                node = self._host.fme(action.card)
                if node is None:
                    return errno.ENODEV
                return privileged.set_port(self.root, node, port, is_released)
            case actions.SetServices(function=function, services=services):
                return privileged.set_services(self.root, function, services)

    def _write_count(self, action: actions.SetVfCount) -> int:
        function, count = action.function, action.count
        if not action.tool:
            return privileged.set_vf_count(
                self.root, function, count, action.is_probed
            )
        for left in reversed(range(_TOOL_ATTEMPTS)):
            try:
                return privileged.manage_vfs(self.root, function, count > 0)
            except errors.ToolError as error:
                if _TRANSIENT not in error.output or not left:
                    raise _failure(action, errno.EIO, str(error)) from error
            time.sleep(_TOOL_PAUSE_S)
        return errno.EAGAIN


def _write_function(root: str, action: readback.FunctionAction) -> int:
    match action:
        case actions.BindDriver(function=function, driver=driver):
            return privileged.bind_driver(root, function, driver)
        case actions.ResetFunction(function=function):
            return privileged.reset_function(root, function)
        case actions.RunScrub(command=command, function=function):
            try:
                return privileged.run_scrub(root, command, function)
            except errors.ToolError as error:
                raise _failure(action, errno.EIO, str(error)) from error


def _write_vgpu(root: str, action: readback.VgpuAction) -> int:
    match action:
        case actions.SetVgpuType(function=function, type_id=type_id):
            return privileged.set_vgpu_type(root, function, type_id)
        case actions.ClearVgpuType(function=function):
            return privileged.set_vgpu_type(root, function, readback.FREE)
        case actions.SetVgpuParams(target=target, params=params):
            return privileged.set_vgpu_params(root, target, params)
        case actions.SetPlacement(function=function, start=start):
            return privileged.set_placement(root, function, start)


def _write_gpu(action: readback.GpuAction) -> int:
    match action:
        case actions.CreateInstance(gpu=gpu, kind=kind, start=start):
            return privileged.create_instance(gpu, kind, start)
        case actions.DestroyInstance(gpu=gpu, kind=kind, start=at):
            return privileged.destroy_instance(gpu, kind, at)
        case actions.SetMixedSizes(gpu=gpu, is_mixed=is_mixed):
            return privileged.set_mixed(gpu, is_mixed)


def _is_sweep(
    action: actions.Action,
) -> TypeGuard[actions.DestroyInstance]:
    return isinstance(action, actions.DestroyInstance) and (
        action.start is None
    )


def _failure(
    action: actions.Action, number: int, detail: str = ""
) -> errors.ActionError:
    return errors.ActionError(
        str(action), number, hints.mend(action, number), detail
    )
