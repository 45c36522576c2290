# SPDX-License-Identifier: Apache-2.0
"""Kernel files and vendors' command-line tools, used as root.

Errors are errno values. Tools run without a shell, with a timeout. Only
``privileged`` calls these functions; it builds the paths and validates the
arguments.
"""

import contextlib
import errno
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator

from nova_accel import errors
from nova_accel.host import bounded_calls

# Seconds that a write may take. The removal of an mdev waits for processes
# that have it open; vendors' drivers create one in a few seconds at most.
WRITE_S = 60
# Bytes to read of a kernel file.
_PAGE = 4096
# Seconds to wait for a killed tool; it may hang in the kernel.
KILL_WAIT_S = 5
# Bytes of a tool's output that are kept.
_MAX_OUTPUT = 4096


def read(path: str, limit: int = _PAGE) -> tuple[int, str]:
    """Return 0 and a kernel file's text, or the errno of the refusal.

    :param limit: bytes after which the text is cut.
    """
    number, content = read_bytes(path, limit)
    return number, content.decode("ascii", errors="replace").strip()


def write(path: str, text: str, limit_s: float = WRITE_S) -> int:
    """Write to a kernel file; return 0, or the errno of the refusal.

    :returns: ETIMEDOUT after ``limit_s`` seconds, and at once while an
        earlier write to the card has not returned.
    """
    try:
        bounded_calls.write(path, limit_s, _write, text)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _write(path: str, text: str) -> None:
    # O_NOFOLLOW: no kernel file that is written here is a link.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


def read_bytes(path: str, limit: int = _PAGE) -> tuple[int, bytes]:
    """Return 0 and a kernel file's bytes, or the errno of the refusal.

    The errno is ETIMEDOUT if its card does not answer.
    """
    try:
        return 0, bounded_calls.read(path, _read_bytes, limit)
    except OSError as error:
        return error.errno or errno.EIO, b""


def _read_bytes(path: str, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, "rb") as opened:
        return opened.read(limit)


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


# By tool: possible paths below the root, of which the first that exists is
# used, and its arguments for an address, without the trailing file. XRT
# renamed its tool in 2025.1.
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


def build_command(root: str, tool: str, address: str) -> list[str]:
    """Return a tool's command for a card, without the trailing file.

    :raises MalformedError: the tool is unknown.
    """
    if tool not in PROGRAMMERS:
        tools = " or ".join(sorted(PROGRAMMERS))
        raise errors.MalformedError("FPGA tool", str(tool), tools)
    places, build_arguments = PROGRAMMERS[tool]
    paths = [os.path.join(root, place) for place in places]
    program = next((p for p in paths if os.path.lexists(p)), paths[0])
    return [program, *build_arguments(address)]


def check_program(root: str, program: str) -> int:
    """Return 0 if a program may run as root, else an errno.

    EACCES: the program, or one of its directories up to ``root``, has
    another owner than root, is writable by others, or is a link.
    Otherwise only root can replace the program before it runs. It is run by
    its path, not by descriptor: vendors' tools are scripts that need the
    files beside them.
    """
    try:
        if not _is_owned_by_root(status := os.lstat(program)):
            return errno.EACCES
        if not stat.S_ISREG(status.st_mode):
            return errno.EACCES
        for place in _directories(root, program):
            status = os.lstat(place)
            is_directory = stat.S_ISDIR(status.st_mode)
            if not (is_directory and _is_owned_by_root(status)):
                return errno.EACCES
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _directories(root: str, program: str) -> Iterator[str]:
    """Yield the directories of a program, up to and including the root."""
    top = root.rstrip("/") or "/"
    place = os.path.dirname(program)
    while place not in (top, "/"):
        yield place
        place = os.path.dirname(place)
    yield top


def _is_owned_by_root(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def run(command: list[str], seconds: float) -> int:
    """Run a program that ``check_program`` accepts.

    :returns: 0, ETIMEDOUT if it was killed with its process group, or the
        errno with which it can't be started.
    :raises ToolError: it failed; the error has its output.
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
        output, _ = tool.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(tool.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            tool.communicate(timeout=KILL_WAIT_S)
        return errno.ETIMEDOUT
    if not tool.returncode:
        return 0
    text = output[:_MAX_OUTPUT].decode(errors="replace").strip()
    raise errors.ToolError(" ".join(command), tool.returncode, text)
