# SPDX-License-Identifier: Apache-2.0
"""Executor of actions: apply, read back, undo on failure.

No lock is held during a write: a card whose kernel files hang does not
block the others.
"""

import contextlib
import errno
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeGuard

from nova_accel import errors
from nova_accel.claims import card_reset, scrub
from nova_accel.config import policy
from nova_accel.host.execute import (
    hints,
    privileged,
    program_fpga,
    readback,
    undo_actions,
)
from nova_accel.model import actions

LOG = logging.getLogger(__name__)

# The kernel creates an mdev's directory before its mdev_type link: libvirt
# waits up to 10 x 100 ms for it (node_device_udev.c,
# udevProcessMediatedDevice). VFs appear one by one, up to 256 per card.
_ATTEMPTS = 10
_VF_ATTEMPTS = 100
_PAUSE_S = 0.1
# Output of sriov-manage while another program has the card open; it
# succeeds seconds later.
_TRANSIENT = "unbindLock"
_TOOL_ATTEMPTS = 5
_TOOL_PAUSE_S = 2.0

# Actions of several writes: they may fail halfway.
_LONG = (actions.SetVfCount, actions.BindDriver, actions.SetServices)

# Actions whose failure can't be read back: the function answers anyway.
_SCRUBS = (actions.ResetFunction, actions.ResetTogether, actions.RunScrub)

_Written = (
    readback.MdevAction
    | readback.VgpuAction
    | readback.GpuAction
    | readback.FunctionAction
    | actions.SetVfCount
    | actions.SetPort
    | actions.SetServices
)


def _accept(_planned: Sequence[actions.Action]) -> None:
    """Accept all actions."""


class NodeDevices(Protocol):
    """Creation and removal of mdevs through libvirt.

    Each method returns whether libvirt did it. After False, or an
    exception, the executor writes the kernel's files, whose errors have an
    errno.
    """

    def create(self, parent: str, type_id: str, uuid: str) -> bool:
        """Create an mdev and start it."""
        ...

    def remove(self, uuid: str) -> bool:
        """Stop an mdev, which removes it."""
        ...


class Executor:
    """Executor of actions below one root directory. Thread-safe."""

    def __init__(
        self,
        root: str = "/",
        nodedev: NodeDevices | None = None,
        read_gpus: readback.ReadGpus = privileged.read_gpus,
        program_s: float = 300,
    ) -> None:
        """Use the host whose files are below ``root``.

        :param nodedev: libvirt's interface, tried first for mdevs.
        :param read_gpus: returns NVML's answers, to read back changes.
        :param program_s: seconds that loading a bitstream may take.
        """
        self.root = root
        self._nodedev = nodedev
        self._host = readback.Readback(root, read_gpus)
        self._programmer = program_fpga.FpgaProgrammer(
            root, self._host, program_s
        )

    def apply_all(self, planned: Iterable[actions.Action]) -> None:
        """Apply actions in order; undo all of them on a failure.

        Any exception is a failure, also one of the iterator or of the
        privileged daemon.

        :raises ActionError: an action failed. The actions before it are
            undone; a failure of an undo is logged.
        """
        with contextlib.ExitStack() as stack:
            for action in planned:
                undo = undo_actions.plan_undo(self._host, action)
                if self._apply(action, undo):
                    stack.callback(self._undo, undo)
            stack.pop_all()

    def apply_scrub(
        self,
        buses: Sequence[card_reset.BusFunctions],
        rule: policy.Rule,
        check: Callable[[Sequence[actions.Action]], None] = _accept,
    ) -> None:
        """Apply the scrub of the functions of one guest.

        The kernel may list a reset of the bus for one of several functions,
        and refuse it (ENOTTY). Then the functions are reset together.

        :param check: raises an error if actions must not be applied now.
        :raises ActionError: see ``apply_all``.
        """
        due = scrub.plan(buses, rule)
        check(due)
        try:
            self.apply_all(due)
        except errors.ActionError as error:
            together = scrub.plan(buses, rule, is_refused=True)
            if error.number != errno.ENOTTY or together == due:
                raise
            LOG.info("Resetting the bus instead: %s", error)
            check(together)
            self.apply_all(together)

    def apply(self, action: actions.Action) -> bool:
        """Apply one action and read it back.

        :returns: whether the host changed; an action whose effect exists
            already does nothing.
        :raises ActionError: the kernel refused it, or it had no effect; a
            partial change is undone.
        """
        return self._apply(action, undo_actions.plan_undo(self._host, action))

    def _apply(
        self, action: actions.Action, undo: Iterable[actions.Action]
    ) -> bool:
        if self._host.is_done(action):
            return False
        self._check(action)
        if _is_for_all_instances(action):
            return self._destroy_free_instances(action)
        try:
            is_changed = self._change(action)
        except errors.ActionError as error:
            is_begun = not error.number or isinstance(action, _LONG)
            # After a timeout the kernel still works on the change.
            if is_begun and error.number != errno.ETIMEDOUT:
                self._undo(undo)
            raise
        # The programmer logs its own line, with the duration.
        if is_changed and not isinstance(action, actions.ProgramRegion):
            LOG.info("%s: done", action)
        return is_changed

    def _change(self, action: actions.Action) -> bool:
        if isinstance(action, actions.ProgramRegion):
            self._programmer.load(action)
            return True
        number = self._write(action)
        if not number:
            self._wait(action)
            return True
        if isinstance(action, _SCRUBS) or not self._host.is_done(
            action, is_new=True
        ):
            raise _failure(action, number)
        # The kernel was late, or another program made the change.
        return number == errno.ETIMEDOUT or isinstance(action, _LONG)

    def _wait(self, action: actions.Action) -> None:
        is_slow = isinstance(action, actions.SetVfCount)
        for _ in range(_VF_ATTEMPTS if is_slow else _ATTEMPTS):
            if self._host.is_done(action, is_new=True):
                return
            if isinstance(action, actions.SetVfCount):
                enabled = self._host.vf_count(action.function) or 0
                if action.count > enabled and not action.tool:
                    break  # the driver made fewer VFs and has finished
            time.sleep(_PAUSE_S)
        # A function that does not answer after a scrub is ENODEV.
        number = errno.ENODEV if isinstance(action, _SCRUBS) else 0
        raise _failure(action, number, self._describe_state(action))

    def _describe_state(self, action: actions.Action) -> str:
        """Return the state that was read back, empty if it adds nothing."""
        match action:
            case actions.SetVfCount(function=function, count=count):
                enabled = self._host.vf_count(function)
                return f"{enabled} of {count} virtual functions"
            case actions.BindDriver(function=function):
                driver = self._host.driver(function)
                return f"bound to {driver or 'no driver'}"
            case actions.SetVgpuType(function=function):
                return f"its type reads {self._host.vgpu_type(function)!r}"
            case actions.SetServices(function=function):
                state = "up" if self._host.is_up(function) else "not up"
                return f"{self._host.services(function)!r}, and it is {state}"
            case (
                actions.ResetFunction()
                | actions.ResetTogether()
                | actions.RunScrub()
            ):
                return "its configuration space reads as ones, or not at all"
        return ""

    def _check(self, action: actions.Action) -> None:
        """Refuse harmful changes that the kernel would accept."""
        match action:
            case actions.SetVgpuType(function=function):
                present = self._host.vgpu_type(function)
                if present not in ("", readback.FREE):
                    raise _failure(
                        action, errno.EBUSY, f"it holds type {present}"
                    )
            case actions.ClearVgpuType(function=function, type_id=type_id):
                present = self._host.vgpu_type(function)
                if present != type_id:
                    raise errors.ActionError(
                        str(action), errno.EBUSY, hints.OTHER_VGPU,
                        f"it holds type {present or '(unreadable)'}",
                    )  # fmt: skip
            case actions.SetVfCount(function=function):
                enabled = self._host.vf_count(function)
                if enabled and enabled < action.count and not action.before:
                    raise errors.ActionError(
                        str(action), errno.EBUSY, hints.STALE,
                        f"{enabled} are enabled since",
                    )  # fmt: skip
                self._check_unused(action, function)
            case actions.BindDriver(function=function):
                self._check_unused(action, function)
            case (
                actions.SetPort(card=function)
                | actions.SetServices(function=function)
                | actions.ResetFunction(function=function)
                | actions.ResetTogether(function=function)
            ):
                self._check_idle(action, function)
            case actions.ProgramRegion():
                self._programmer.check(action)

    def _check_idle(self, action: actions.Action, function: str) -> None:
        """Raise if functions of an action are in use or have VFs."""
        addresses = [function]
        if isinstance(action, actions.ResetTogether):
            addresses = [*action.functions]
        for address in addresses:
            self._check_unused(action, address)
            self._check_no_vfs(action, address)

    def _check_unused(self, action: actions.Action, function: str) -> None:
        """Raise if a guest may use a function or one of its VFs."""
        uses = sorted(self._host.guest_uses(function))
        if uses:
            raise _failure(action, errno.EBUSY, ", ".join(uses))

    def _check_no_vfs(self, action: actions.Action, function: str) -> None:
        """Raise if a function has VFs: the change would affect them."""
        if enabled := self._host.vf_count(function):
            detail = f"{enabled} virtual functions are enabled"
            raise _failure(action, errno.EBUSY, detail)

    def _undo(self, undo: Iterable[actions.Action]) -> None:
        for action in undo:
            try:
                # A failed undo is not undone itself.
                self._apply(action, ())
            except errors.ActionError as error:
                LOG.error("Undo failed: %s", error)

    def _destroy_free_instances(self, action: actions.DestroyInstance) -> bool:
        """Destroy the GPU instances of a kind that no vGPU uses.

        A failure is only logged: the next vGPU of the kind uses the
        remaining instance.
        """
        before = self._host.instance_starts(action.gpu, action.kind)
        number = self._write(action)
        after = self._host.instance_starts(action.gpu, action.kind)
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
                | actions.ResetTogether()
                | actions.RunScrub()
            ):
                return _write_function(self.root, action)
            case actions.SetPort() | actions.SetServices():
                return self._write_card(action)
            case (
                actions.CreateInstance()
                | actions.DestroyInstance()
                | actions.SetMixedSizes()
                | actions.SetMigMode()
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
        # libvirt may have completed its attempt after its timeout.
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
            LOG.warning(
                "%s: writing the kernel's files, since libvirt failed: %s",
                action,
                error,
            )
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
        for remaining in reversed(range(_TOOL_ATTEMPTS)):
            try:
                return privileged.manage_vfs(self.root, function, count > 0)
            except errors.ToolError as error:
                if _TRANSIENT not in error.output or not remaining:
                    raise _failure(action, errno.EIO, str(error)) from error
            time.sleep(_TOOL_PAUSE_S)
        return errno.EAGAIN


def _write_function(root: str, action: readback.FunctionAction) -> int:
    match action:
        case actions.BindDriver(function=function, driver=driver):
            return privileged.bind_driver(root, function, driver)
        case actions.ResetFunction(function=function):
            return privileged.reset_function(root, function)
        case actions.ResetTogether(functions=functions):
            return privileged.reset_together(root, list(functions))
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
        case actions.SetVgpuPlacementId(function=function, start=start):
            return privileged.set_placement(root, function, start)


def _write_gpu(action: readback.GpuAction) -> int:
    match action:
        case actions.CreateInstance(gpu=gpu, kind=kind, start=start):
            return privileged.create_instance(gpu, kind, start)
        case actions.DestroyInstance(gpu=gpu, kind=kind, start=first_slice):
            return privileged.destroy_instance(gpu, kind, first_slice)
        case actions.SetMixedSizes(gpu=gpu, is_mixed=is_mixed):
            return privileged.set_mixed(gpu, is_mixed)
        case actions.SetMigMode(gpu=gpu, is_mig=is_mig):
            return privileged.set_mig(gpu, is_mig)


def _is_for_all_instances(
    action: actions.Action,
) -> TypeGuard[actions.DestroyInstance]:
    return isinstance(action, actions.DestroyInstance) and (
        action.start is None
    )


def _failure(
    action: actions.Action, number: int, detail: str = ""
) -> errors.ActionError:
    return errors.ActionError(
        str(action), number, hints.get_hint(action, number), detail
    )
