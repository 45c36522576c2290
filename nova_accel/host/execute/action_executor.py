# SPDX-License-Identifier: Apache-2.0
"""Executor of actions: apply, read back, undo on failure.

No lock is held during a write: a card whose kernel files hang does not
block the others.
"""

import contextlib
import errno
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nova_accel import errors
from nova_accel.claims import card_reset, scrub
from nova_accel.config import extensions, logs, policy
from nova_accel.host import nvml_gpus
from nova_accel.host.execute import function_actions, handlers
from nova_accel.model import actions

LOG = logging.getLogger(__name__)

# The kernel creates an mdev's directory before its mdev_type link: libvirt
# waits up to 10 x 100 ms for it (node_device_udev.c,
# udevProcessMediatedDevice).
_PAUSE_S = 0.1


@functools.cache
def load_handlers() -> Mapping[type[actions.Action], handlers.Handler[Any]]:
    """Return the handler of each class of actions.

    :raises ConfigurationError: a registered technology can't be loaded.
    """
    return {k: v for t in _load_technologies() for k, v in t.HANDLERS.items()}


@functools.cache
def load_hints() -> Mapping[type[actions.Action], Mapping[int, str]]:
    """Return what the operator can do, by errno, for classes of actions."""
    return {k: v for t in _load_technologies() for k, v in t.HINTS.items()}


def _load_technologies() -> tuple[handlers.Technology, ...]:
    registered = extensions.load(handlers.GROUP).values()
    return (function_actions, *registered)


class Executor:
    """Executor of actions below one root directory. Thread-safe."""

    def __init__(
        self,
        root: str = "/",
        nodedev: handlers.NodeDevices | None = None,
        read_gpus: nvml_gpus.ReadGpus = dict,
        program_s: float = 300,
    ) -> None:
        """Use the host whose files are below ``root``.

        :param nodedev: libvirt's interface, tried first for mdevs.
        :param read_gpus: returns NVML's answers, to read back changes.
        :param program_s: seconds that loading a bitstream may take.
        :raises ConfigurationError: a registered technology can't be loaded.
        """
        self.root = root
        self._host = handlers.Host(
            root=root,
            state=handlers.Readback(root),
            read_gpus=read_gpus,
            nodedev=nodedev,
            program_s=program_s,
        )
        self._handlers = load_handlers()

    def apply_all(self, planned: Iterable[actions.Action]) -> None:
        """Apply actions in order; undo all of them on a failure.

        Any exception is a failure, also one of the iterator or of the
        privileged daemon.

        :raises ActionError: an action failed. The actions before it are
            undone; a failure of an undo is logged.
        """
        with contextlib.ExitStack() as stack:
            for action in planned:
                undo = self._plan_undo(action)
                if self._apply(action, undo):
                    stack.callback(self._undo, undo)
            stack.pop_all()

    def apply_scrub(
        self,
        buses: Sequence[card_reset.BusFunctions],
        rule: policy.Rule,
        check: Callable[[Sequence[actions.Action]], None] = lambda _: None,
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
        return self._apply(action, self._plan_undo(action))

    def _plan_undo(self, action: actions.Action) -> Sequence[actions.Action]:
        """Return the actions that undo an action, in order.

        Some actions have none: the former bitstream of an FPGA region is
        not stored.
        """
        undo = action.undo()
        if undo is None:
            return ()
        restore = self._handlers[type(undo)].restore
        return tuple(restore(self._host, undo))

    def _apply(
        self, action: actions.Action, undo: Iterable[actions.Action]
    ) -> bool:
        own: handlers.Handler[actions.Action] = self._handlers[type(action)]
        if own.is_done(self._host, action, False):
            return False
        for refusal in own.check(self._host, action):
            raise _failure(action, *refusal)
        if (is_changed := own.change(self._host, action)) is not None:
            return is_changed
        try:
            is_changed = self._change(action, own)
        except errors.ActionError as error:
            is_begun = not error.number or own.is_long
            # After a timeout the kernel still works on the change.
            if is_begun and error.number != errno.ETIMEDOUT:
                self._undo(undo)
            raise
        if is_changed:
            LOG.info("%s: done", action)
        return is_changed

    def _change(
        self, action: actions.Action, own: handlers.Handler[actions.Action]
    ) -> bool:
        try:
            number = own.write(self._host, action)
        except errors.ToolError as error:
            raise _failure(action, errno.EIO, str(error)) from error
        if not number:
            self._wait(action, own)
            return True
        if own.is_scrub or not own.is_done(self._host, action, True):
            raise _failure(action, number)
        # The kernel was late, or another program made the change.
        return number == errno.ETIMEDOUT or own.is_long

    def _wait(
        self, action: actions.Action, own: handlers.Handler[actions.Action]
    ) -> None:
        for _ in range(own.attempts):
            if own.is_done(self._host, action, True):
                return
            if own.has_failed(self._host, action):
                break
            time.sleep(_PAUSE_S)
        # A function that does not answer after a scrub is ENODEV.
        number = errno.ENODEV if own.is_scrub else 0
        raise _failure(action, number, own.describe(self._host, action))

    def _undo(self, undo: Iterable[actions.Action]) -> None:
        for action in undo:
            try:
                # A failed undo is not undone itself.
                self._apply(action, ())
            except errors.ActionError as error:
                logs.error(LOG, "Undo failed: %s", error)


def get_hint(action: actions.Action, number: int) -> str:
    """Return what the operator can do.

    :param number: errno of the refusal; 0 for a change without effect.
    """
    return handlers.get_hint(load_hints().get(type(action), {}), number)


def _failure(
    action: actions.Action, number: int, detail: str = "", hint: str = ""
) -> errors.ActionError:
    hint = hint or get_hint(action, number)
    return errors.ActionError(str(action), number, hint, detail)
