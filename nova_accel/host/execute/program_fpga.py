# SPDX-License-Identifier: Apache-2.0
"""Load of a bitstream into an FPGA region, with read-back.

An attempt that was refused before it began raises ActionError: the region
holds what it held. After that, whatever is not a function read back is a
ProgrammingError: the region may hold anything.
"""

import errno
import logging
import time

from nova_accel import errors
from nova_accel.host.execute import hints, privileged, readback
from nova_accel.host.fpga import xrt
from nova_accel.model import actions, names

LOG = logging.getLogger(__name__)

# A region that can't be read may be on its way: the kernel enables its port
# again, or the card comes back from a reset that the tool has made, which
# takes a PCI device some seconds. One that shows another function stays so.
_PAUSE_S = 0.1
_OTHERS, _UNREAD, _UNREAD_BY_TOOL = 10, 10, 300

# Refusals of files (bitstream, device node, tool) that come before anything
# is touched, and those of the kernel's that do (drivers/fpga/dfl-fme-pr.c,
# fme_pr(): EINVAL for the card, EBUSY from fpga_region_get()). What else
# there is may come from halfway, as EIO and ETIMEDOUT do.
_UNTOUCHED = frozenset(
    (
        errno.EACCES,
        errno.EBADMSG,
        errno.EBUSY,
        errno.EEXIST,
        errno.EFBIG,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENOENT,
        errno.ENOEXEC,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.ENOTTY,
        errno.ENXIO,
        errno.EPERM,
        errno.ETXTBSY,
    )
)


class FpgaProgrammer:
    """Loads bitstreams on one host. Thread-safe."""

    def __init__(
        self, root: str, host: readback.Readback, seconds: float
    ) -> None:
        """Serve the host below ``root``.

        :param seconds: how long loading one may take.
        """
        self._root = root
        self._host = host
        self._seconds = seconds

    def check(self, action: actions.ProgramRegion) -> None:
        """Raise for a region that must not be touched, or can't be.

        :raises ActionError: nothing was touched. EBUSY: a guest may have
            the region, as its function or its card's is with a driver for
            guests, or the host uses what depends on it. ENODEV: the card
            has no device to load it by.
        """
        for function in dict.fromkeys((action.slot, action.card)):
            driver = self._host.driver(function)
            if privileged.is_for_guests(driver):
                raise _busy(action, function, driver, hints.WITH_GUEST)
        own = self._host.driver(action.card)
        for function in action.dependents:
            driver = self._host.driver(function)
            if driver not in ("", own) and not privileged.is_for_guests(
                driver
            ):
                raise _busy(action, function, driver, hints.WITH_HOST)
        if not action.tool and self._host.fme(action.card) is None:
            raise _refusal(action, errno.ENODEV)

    def load(self, action: actions.ProgramRegion) -> None:
        """Load a bitstream and wait until the region shows it.

        :raises ActionError: refused before anything was touched.
        :raises ProgrammingError: the region may hold anything.
        """
        start = time.monotonic()
        try:
            number = self._write(action)
        except errors.ToolError as error:
            raise _failure(action, errno.EIO, str(error)) from error
        except OSError as error:
            # Only an end in the middle of an answer has no errno (privsep's
            # "Premature eof"): otherwise the daemon was not even asked.
            if error.errno is not None:
                raise
            detail = f"nova-compute's privileged daemon ended: {error}"
            raise _failure(action, errno.EIO, detail) from error
        if number:
            is_untouched = number in _UNTOUCHED
            raise (_refusal if is_untouched else _failure)(action, number)
        self._wait(action)
        LOG.info("%s: done in %.1f s", action, time.monotonic() - start)

    def _write(self, action: actions.ProgramRegion) -> int:
        bitstream = action.bitstream
        checked = (bitstream.path, bitstream.sha512, self._seconds)
        if not action.tool:
            node = self._host.fme(action.card)
            if node is None:
                return errno.ENOENT
            return privileged.program_port(
                self._root, node, action.number, *checked
            )
        is_by_slot = action.tool == xrt.TOOL
        address = action.slot if is_by_slot else action.card
        return privileged.run_fpga_tool(
            self._root, action.tool, address, *checked
        )

    def _wait(self, action: actions.ProgramRegion) -> None:
        others, unread = _OTHERS, _UNREAD
        if action.tool:
            unread = _UNREAD_BY_TOOL
        wanted = names.fpga_id(action.bitstream.function)
        while True:
            found = self._host.function(action)
            if found == wanted:
                return
            if found is None:
                unread -= 1
            else:
                others -= 1
            if not others or not unread:
                raise _failure(action, 0, _sight(found))
            time.sleep(_PAUSE_S)


def _busy(
    action: actions.ProgramRegion, function: str, driver: str, mend: str
) -> errors.ActionError:
    return errors.ActionError(
        str(action), errno.EBUSY, mend, f"{function} is bound to {driver}"
    )


def _sight(found: str | None) -> str:
    if found is None:
        return "the region can't be read, or is gone"
    return f"the region shows function {found or '(none)'}"


def _refusal(action: actions.ProgramRegion, number: int) -> errors.ActionError:
    return errors.ActionError(
        str(action), number, hints.mend(action, number), "nothing was touched"
    )


def _failure(
    action: actions.ProgramRegion, number: int, detail: str = ""
) -> errors.ProgrammingError:
    mend = (
        f"the region may hold anything: {hints.mend(action, number)}; bind"
        f" {action.card} to its driver anew (what failed halfway keeps the"
        " port closed until then), or switch the card off and on, then"
        f" `nova-accel heal {action.region}`"
    )
    return errors.ProgrammingError(
        str(action), number, mend, detail, action.region
    )
