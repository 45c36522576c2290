# SPDX-License-Identifier: Apache-2.0
"""Actions carried out on the host, read back, and undone on failure."""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterable

from nova_accel import actions, errors
from nova_accel.host import privileged

LOG = logging.getLogger(__name__)

# An mdev's directory stands before its mdev_type link does: libvirt waits
# up to 10 x 100 ms for it (node_device_udev.c,
# udevProcessMediatedDevice), and so does this.
_ATTEMPTS = 10
_PAUSE_S = 0.1

_MENDS = {
    errno.ENOSPC: "the device is full: another guest took the room; free"
    " a partition or choose another profile",
    errno.EUSERS: "the parent has no instance left; free one first",
    errno.EIO: "the device's driver failed or the device is full: see the"
    " kernel's log (dmesg) on this host",
    errno.EEXIST: "the uuid is in use by another mdev on this host; remove"
    " that one",
    errno.EACCES: "nova-compute's privileged helper may not write there:"
    " check its capabilities",
    errno.EPERM: "nova-compute's privileged helper may not write there:"
    " check its capabilities",
    errno.ENOENT: "the device or the type is gone: see the kernel's log"
    " and `nova-accel inspect`",
    errno.EBUSY: "something holds the device; stop it first",
    errno.ETIMEDOUT: f"the kernel did not answer in {privileged.TIMEOUT_S} s:"
    " something may hold the device open",
}
_OTHER = "see the kernel's log (dmesg) and `nova-accel inspect`"


class Executor:
    """Carries out actions below one root directory."""

    def __init__(self, root: str = "/") -> None:
        """Serve the host whose files are below ``root``."""
        self.root = root

    def apply_all(self, wanted: Iterable[actions.Action]) -> None:
        """Carry out actions in order; undo the done ones on a failure.

        Whatever the failure is: it may also be that of whoever yields the
        actions, or of the privileged daemon.

        :raises ActionError: an action failed; everything done before it
            has been taken back, or its undo's failure is in the log.
        """
        with contextlib.ExitStack() as undo:
            for action in wanted:
                if self.apply(action):
                    undo.callback(self._take_back, action)
            undo.pop_all()

    def apply(self, action: actions.Action) -> bool:
        """Carry out one action and read it back.

        :returns: whether anything changed; what is done already is not
            done again.
        :raises ActionError: refused by the kernel, or without effect.
        """
        if self._is_done(action):
            return False
        number = self._write(action)
        if number:
            raise errors.ActionError(
                str(action), number, _MENDS.get(number, _OTHER)
            )
        for _ in range(_ATTEMPTS):
            if self._is_done(action):
                LOG.info("%s: done", action)
                return True
            time.sleep(_PAUSE_S)
        raise errors.ActionError(str(action), 0, _OTHER)

    def _take_back(self, action: actions.Action) -> None:
        undo = action.undo()
        if undo is None:
            return
        try:
            self.apply(undo)
        except errors.ActionError as error:
            LOG.error("can't take back: %s", error)

    def _write(self, action: actions.Action) -> int:
        match action:
            case actions.CreateMdev(parent=parent, type_id=kind, uuid=uuid):
                return privileged.create_mdev(self.root, parent, kind, uuid)
            case actions.RemoveMdev(uuid=uuid):
                return privileged.remove_mdev(self.root, uuid)

    def _is_done(self, action: actions.Action) -> bool:
        match action:
            case actions.CreateMdev(parent=parent, type_id=kind, uuid=uuid):
                return self._mdev_place(uuid) == (parent, kind)
            case actions.RemoveMdev(parent=parent, uuid=uuid):
                # The bus forgets an mdev before the removal waits for
                # whoever holds it; its directory goes last.
                return not (
                    os.path.lexists(self._mdev_path(uuid))
                    or os.path.lexists(self._parent_path(parent, uuid))
                )

    def _mdev_path(self, uuid: str) -> str:
        return os.path.join(self.root, "sys/bus/mdev/devices", uuid)

    def _parent_path(self, parent: str, uuid: str) -> str:
        return os.path.join(self.root, "sys/class/mdev_bus", parent, uuid)

    def _mdev_place(self, uuid: str) -> tuple[str, str] | None:
        """Return an mdev's parent and type, None while it has none."""
        path = self._mdev_path(uuid)
        try:
            device = os.readlink(path)
            kind = os.readlink(f"{path}/mdev_type")
        except OSError:
            return None
        parent = os.path.basename(os.path.dirname(device))
        return parent, os.path.basename(kind)
