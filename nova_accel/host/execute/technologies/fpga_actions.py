# SPDX-License-Identifier: Apache-2.0
"""FPGA regions and ports; bitstreams are loaded with read-back.

A refusal before the load begins raises ActionError: the region is
unchanged. Any later failure, including a read-back of another function,
raises ProgrammingError: the content of the region is undefined.
"""

import errno
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from nova_accel import errors
from nova_accel.host.execute.handlers import (
    RIGHTS,
    Handler,
    Host,
    Refusal,
    find_uses,
    get_hint,
)
from nova_accel.host.execute.technologies import fpga_privileged
from nova_accel.host.fpga import dfl, xrt
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
_WITH_GUEST = (
    "a guest may have it, so nothing was touched: stop the guest, and bind"
    " the function to the host's driver"
)
WITH_HOST = (
    "the host uses the card's present function, so nothing was touched:"
    " unbind that function from its driver, or leave the card as it is"
)


def _read_function(host: Host, action: actions.ProgramRegion) -> str | None:
    """Return the function of a region; see ``model.Region.function``."""
    read = xrt.read_loaded if action.tool == xrt.TOOL else dfl.read_loaded
    return read(host.state.files(), action.card, action.number, action.slot)


def _read_ports(
    host: Host, action: actions.ProgramRegion | actions.SetPort
) -> dfl.DflLayout:
    """Return the FME device and the ports of a card."""
    return dfl.read(host.state.files(), action.card)


def _check(host: Host, action: actions.ProgramRegion) -> Iterator[Refusal]:
    """Yield why a region may not be programmed.

    EBUSY if a guest may use the region (its function or its card is bound
    to a driver for guests), or the host uses a dependent function. ENODEV
    if the card has no FME device to load a bitstream.
    """
    for function in dict.fromkeys((action.slot, action.card)):
        driver = host.state.driver(function)
        if pci.is_for_guests(driver):
            detail = f"{function} is bound to {driver}"
            yield Refusal(errno.EBUSY, detail, _WITH_GUEST)
    own = host.state.driver(action.card)
    for function in action.dependents:
        driver = host.state.driver(function)
        if driver not in ("", own) and not pci.is_for_guests(driver):
            detail = f"{function} is bound to {driver}"
            yield Refusal(errno.EBUSY, detail, WITH_HOST)
    if not action.tool and _read_ports(host, action).node is None:
        yield Refusal(errno.ENODEV, "nothing was touched")


def _load(host: Host, action: actions.ProgramRegion) -> bool:
    """Load a bitstream and wait until the region shows it.

    :raises ActionError: refused before anything was touched.
    :raises ProgrammingError: the region may hold anything.
    """
    start = time.monotonic()
    try:
        number = _write(host, action)
    except errors.ToolError as error:
        raise _failure(action, errno.EIO, str(error)) from error
    except OSError as error:
        # Without errno (privsep's "Premature eof") the daemon ended
        # during the call; with an errno it was never called.
        if error.errno is not None:
            raise
        detail = f"nova-compute's privileged daemon ended: {error}"
        raise _failure(action, errno.EIO, detail) from error
    if number in _UNTOUCHED:
        raise errors.ActionError(
            str(action),
            number,
            get_hint(HINTS[actions.ProgramRegion], number),
            "nothing was touched",
        )
    if number:
        raise _failure(action, number)
    _wait(host, action)
    LOG.info("%s: done in %.1f s", action, time.monotonic() - start)
    return True


def _write(host: Host, action: actions.ProgramRegion) -> int:
    bitstream = action.bitstream
    arguments = (bitstream.path, bitstream.sha512, host.program_s)
    if not action.tool:
        node = _read_ports(host, action).node
        if node is None:
            return errno.ENOENT
        return fpga_privileged.program_port(
            host.root, node, action.number, *arguments
        )
    is_by_slot = action.tool == xrt.TOOL
    address = action.slot if is_by_slot else action.card
    return fpga_privileged.run_fpga_tool(
        host.root, action.tool, address, *arguments
    )


def _wait(host: Host, action: actions.ProgramRegion) -> None:
    others = _OTHERS
    unread = _UNREAD_BY_TOOL if action.tool else _UNREAD
    expected = names.normalize_fpga_id(action.bitstream.function)
    while True:
        function = _read_function(host, action)
        if function == expected:
            return
        if function is None:
            unread -= 1
        else:
            others -= 1
        if not others or not unread:
            raise _failure(action, 0, _describe(function))
        time.sleep(_PAUSE_S)


def _describe(function: str | None) -> str:
    if function is None:
        return "the region can't be read, or is gone"
    return f"the region shows function {function or '(none)'}"


def _failure(
    action: actions.ProgramRegion, number: int, detail: str = ""
) -> errors.ProgrammingError:
    cause = get_hint(HINTS[actions.ProgramRegion], number)
    hint = (
        f"the content of the region is undefined: {cause}; rebind"
        f" {action.card} to its driver (its port stays disabled until then),"
        f" or power-cycle the card, then `nova-accel heal {action.region}`"
    )
    return errors.ProgrammingError(
        str(action), number, hint, detail, action.region
    )


def _is_loaded(
    host: Host, action: actions.ProgramRegion, is_new: bool
) -> bool:
    """Return whether a region has its function.

    A forced bitstream counts only if it was just loaded.
    """
    loaded = names.normalize_fpga_id(action.bitstream.function)
    is_trusted = is_new or not action.is_forced
    return is_trusted and _read_function(host, action) == loaded


def _set_port(host: Host, action: actions.SetPort) -> int:
    node = _read_ports(host, action).node
    if node is None:
        return errno.ENODEV
    return fpga_privileged.set_port(
        host.root, node, action.number, action.is_released
    )


def _is_port_set(host: Host, action: actions.SetPort, _is_new: bool) -> bool:
    """Return whether a port is assigned to its PF, or is released."""
    layout = _read_ports(host, action)
    if not action.is_released:
        return layout.port(action.number) is not None
    # A port whose number is unknown (None) may be this port.
    numbers = {port.number for port in layout.ports}
    return layout.node is not None and not numbers & {action.number, None}


HINTS: Mapping[type[actions.Action], Mapping[int, str]] = {
    actions.ProgramRegion: {
        errno.EBUSY: "the region is in use: stop what has /dev/dfl-port.* or"
        " the card open, or wait for another one to be loaded",
        errno.EINVAL: "it is no bitstream for this card, or a damaged one:"
        " compare its interface id with the region's (`nova-accel inspect`)",
        errno.EBADMSG: "the bitstream's file has changed since it was"
        " checked: remove it from state_dir, and it is fetched again; restore"
        " the file if it is a blank of device_spec",
        errno.EFBIG: "the bitstream is larger than any FPGA's",
        errno.ELOOP: "the bitstream's path is a link: name the file itself",
        errno.EISDIR: "the bitstream's path is a directory",
        errno.EACCES: "the vendor's tool and its directories must be root's"
        " and writable by no other user, and no links; " + RIGHTS,
        errno.ENOENT: "the bitstream's file, the card's device in /dev or"
        " the vendor's tool (/usr/bin/fpgaconf, /opt/xilinx/xrt/bin/xrt-smi)"
        " is missing",
        errno.ENODEV: "the card has no device to load it by: is it bound to"
        " dfl-pci with dfl-fme, and not to a guest's driver? See"
        " `nova-accel inspect`",
        errno.ENXIO: "the card is gone: see the kernel's log (dmesg)",
        errno.ENOTTY: "that device loads no bitstreams: update the kernel",
        errno.ENOEXEC: "the vendor's tool can't be started: reinstall it",
        errno.EEXIST: "/run is no directory on this host",
        errno.ENOSPC: "no room for a copy of the bitstream in /run",
        errno.EIO: "the vendor's tool or the card's driver failed: see the"
        " kernel's log (dmesg) on this host",
        errno.ETIMEDOUT: "the card did not answer, or the load took longer"
        " than nova.conf [nova_accel] program_timeout: see the kernel's log"
        " (dmesg) on this host",
        0: "the bitstream is not what its function id says,"
        " or the card did not take it: see the kernel's log (dmesg)",
    },
    actions.SetPort: {
        errno.EBUSY: "the port is in use, or VFs are enabled: stop what has"
        " /dev/dfl-port.* open, and disable the VFs",
        errno.EINVAL: "the card's driver refuses it: see the kernel's log"
        " (dmesg) on this host",
        errno.ENODEV: "the card has no such port, or dfl-fme is not bound to"
        " it: see `nova-accel inspect`",
    },
}
HANDLERS: Mapping[type[actions.Action], Handler[Any]] = {
    actions.ProgramRegion: Handler[actions.ProgramRegion](
        write=_write,
        is_done=_is_loaded,
        check=_check,
        change=_load,
    ),
    actions.SetPort: Handler[actions.SetPort](
        write=_set_port,
        is_done=_is_port_set,
        check=lambda host, action: find_uses(host, action.card),
    ),
}
