# SPDX-License-Identifier: Apache-2.0
"""Load of a bitstream into an FPGA region, with read-back.

A refusal before the load begins raises ActionError: the region is
unchanged. Any later failure, including a read-back of another function,
raises ProgrammingError: the content of the region is undefined.
"""

import errno
import logging
import time

from nova_accel import errors
from nova_accel.host.execute import hints, privileged, readback
from nova_accel.host.fpga import xrt
from nova_accel.model import actions, names, pci

LOG = logging.getLogger(__name__)

# Readings of another function, and unreadable ones, before a load failed.
# A region can't be read while the kernel enables its port, or while the
# card recovers from a reset by the tool, which takes some seconds.
_PAUSE_S = 0.1
_OTHERS, _UNREAD, _UNREAD_BY_TOOL = 10, 10, 300

# Errors of files (bitstream, device node, tool), and those of the kernel
# before it changes the region (drivers/fpga/dfl-fme-pr.c, fme_pr(): EINVAL
# for the card, EBUSY from fpga_region_get()). Others, such as EIO and
# ETIMEDOUT, may come halfway.
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
    """Loader of bitstreams on one host. Thread-safe."""

    def __init__(
        self, root: str, host: readback.Readback, seconds: float
    ) -> None:
        """Use the host below ``root``.

        :param seconds: timeout of a load.
        """
        self._root = root
        self._host = host
        self._seconds = seconds

    def check(self, action: actions.ProgramRegion) -> None:
        """Check that a region may be programmed.

        :raises ActionError: EBUSY if a guest may use the region (its
            function or its card is bound to a driver for guests), or the
            host uses a dependent function. ENODEV if the card has no FME
            device to load a bitstream.
        """
        for function in dict.fromkeys((action.slot, action.card)):
            driver = self._host.driver(function)
            if pci.is_for_guests(driver):
                raise _busy(action, function, driver, hints.WITH_GUEST)
        own = self._host.driver(action.card)
        for function in action.dependents:
            driver = self._host.driver(function)
            if driver not in ("", own) and not pci.is_for_guests(driver):
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
            # Without errno (privsep's "Premature eof") the daemon ended
            # during the call; with an errno it was never called.
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
        arguments = (bitstream.path, bitstream.sha512, self._seconds)
        if not action.tool:
            node = self._host.fme(action.card)
            if node is None:
                return errno.ENOENT
            return privileged.program_port(
                self._root, node, action.number, *arguments
            )
        is_by_slot = action.tool == xrt.TOOL
        address = action.slot if is_by_slot else action.card
        return privileged.run_fpga_tool(
            self._root, action.tool, address, *arguments
        )

    def _wait(self, action: actions.ProgramRegion) -> None:
        others = _OTHERS
        unread = _UNREAD_BY_TOOL if action.tool else _UNREAD
        expected = names.normalize_fpga_id(action.bitstream.function)
        while True:
            function = self._host.region_function(action)
            if function == expected:
                return
            if function is None:
                unread -= 1
            else:
                others -= 1
            if not others or not unread:
                raise _failure(action, 0, _describe_region(function))
            time.sleep(_PAUSE_S)


def _busy(
    action: actions.ProgramRegion, function: str, driver: str, hint: str
) -> errors.ActionError:
    return errors.ActionError(
        str(action), errno.EBUSY, hint, f"{function} is bound to {driver}"
    )


def _describe_region(function: str | None) -> str:
    if function is None:
        return "the region can't be read, or is gone"
    return f"the region shows function {function or '(none)'}"


def _refusal(action: actions.ProgramRegion, number: int) -> errors.ActionError:
    return errors.ActionError(
        str(action),
        number,
        hints.get_hint(action, number),
        "nothing was touched",
    )


def _failure(
    action: actions.ProgramRegion, number: int, detail: str = ""
) -> errors.ProgrammingError:
    hint = (
        "the content of the region is undefined:"
        f" {hints.get_hint(action, number)}; rebind {action.card} to its"
        " driver (its port stays disabled until then), or power-cycle the"
        f" card, then `nova-accel heal {action.region}`"
    )
    return errors.ProgrammingError(
        str(action), number, hint, detail, action.region
    )
