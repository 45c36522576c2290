# SPDX-License-Identifier: Apache-2.0
"""Vendors' command-line tools, run without a shell, with a timeout.

Only ``privileged`` calls what is here: it has checked the arguments.
"""

import contextlib
import errno
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator

from nova_accel import errors

# How long to wait for what has been killed; it may hang in the kernel.
BURIAL_S = 5
# What a tool may say before the rest is cut off, in bytes.
_OUTPUT = 4096


def _fpgaconf(card: str) -> list[str]:
    """Return the arguments of OPAE's fpgaconf (libraries/argsfilter)."""
    segment, bus, rest = card.split(":")
    device, _, function = rest.partition(".")
    return [
        "--segment", f"0x{segment}", "--bus", f"0x{bus}",
        "--device", f"0x{device}", "--function", f"0x{function}",
    ]  # fmt: skip


def _xrt_smi(user: str) -> list[str]:
    """Return the arguments of XRT's tool (xbutil2/SubCmdProgram)."""
    return ["program", "--device", user, "--user"]


# Of each tool: where it is installed, below the root, the first one that
# exists; and what its arguments are for an address, but for the file that
# comes behind them. XRT's has another name since 2025.1.
PROGRAMMERS: dict[str, tuple[tuple[str, ...], Callable[[str], list[str]]]] = {
    "fpgaconf": (("usr/bin/fpgaconf",), _fpgaconf),
    "xrt-smi": (
        (
            "opt/xilinx/xrt/bin/xrt-smi",
            "opt/xilinx/xrt/bin/xbutil",
            "usr/bin/xrt-smi",
            "usr/bin/xbutil",
        ),
        _xrt_smi,
    ),
}


def command(root: str, tool: str, address: str) -> list[str]:
    """Return a tool's command for a card, without the file at its end.

    :raises MalformedError: this is none of the tools.
    """
    if tool not in PROGRAMMERS:
        known = " or ".join(sorted(PROGRAMMERS))
        raise errors.MalformedError("FPGA tool", str(tool), known)
    places, arguments = PROGRAMMERS[tool]
    paths = [os.path.join(root, place) for place in places]
    found = next((p for p in paths if os.path.lexists(p)), paths[0])
    return [found, *arguments(address)]


def refusal(root: str, program: str) -> int:
    """Return 0 for a program that may be run as root, or an errno.

    EACCES is for a program, or one of its directories up to ``root``, that
    is not root's, that others may write, or that is a link. With none of
    these only root can exchange the program before it is run. It is
    run by its path: vendors' tools are scripts that look for their parts
    beside themselves.
    """
    try:
        if not _is_root_s(status := os.lstat(program)):
            return errno.EACCES
        if not stat.S_ISREG(status.st_mode):
            return errno.EACCES
        for place in _directories(root, program):
            status = os.lstat(place)
            if not (_is_root_s(status) and stat.S_ISDIR(status.st_mode)):
                return errno.EACCES
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _directories(root: str, program: str) -> Iterator[str]:
    """Yield the directories of a program, up to and with the root."""
    top = root.rstrip("/") or "/"
    place = os.path.dirname(program)
    while place not in (top, "/"):
        yield place
        place = os.path.dirname(place)
    yield top


def _is_root_s(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def run(command: list[str], seconds: float) -> int:
    """Run a program that ``refusal`` has no objection to.

    :returns: 0, ETIMEDOUT when it was killed with all it had started, or
        the errno with which it can't be started.
    :raises ToolError: it failed; what it said is in it.
    """
    try:
        tool = subprocess.Popen(  # noqa: S603 - no shell, checked parts
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
            umask=0o022,  # privsep's daemon has none
            start_new_session=True,
        )
    except OSError as error:
        return error.errno or errno.EIO
    try:
        said, _ = tool.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(tool.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            tool.communicate(timeout=BURIAL_S)
        return errno.ETIMEDOUT
    if not tool.returncode:
        return 0
    text = said[:_OUTPUT].decode(errors="replace").strip()
    raise errors.ToolError(" ".join(command), tool.returncode, text)
