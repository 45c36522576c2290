# SPDX-License-Identifier: Apache-2.0
"""ioctls of FPGAs with a Device Feature List.

Numbers and structures are those of include/uapi/linux/fpga-dfl.h. Only
``privileged`` calls what is here: it has checked the arguments.
"""

import ctypes
import errno
import fcntl
import os
import struct
import threading

# 'type' and 'nr' of <asm-generic/ioctl.h>: DFL_FPGA_MAGIC, and
# DFL_FME_BASE with what is added to it. The two that carry an int are
# _IOW('type', nr, int); PORT_PR is _IO, whatever it points to.
_MAGIC = 0xB6
_FME_BASE = 0x80
_WRITE_INT = 1 << 30 | struct.calcsize("i") << 16
PORT_PR = _MAGIC << 8 | _FME_BASE
PORT_RELEASE = _WRITE_INT | _MAGIC << 8 | _FME_BASE + 1
PORT_ASSIGN = _WRITE_INT | _MAGIC << 8 | _FME_BASE + 2
# struct dfl_fpga_fme_port_pr: argsz, flags, port_id, buffer_size and the
# address of the bitstream in this process.
_PORT_PR = struct.Struct("=IIIIQ")

# The devices that are being programmed by this process. A call that the
# kernel never comes back from keeps its device here, and its bitstream in
# memory, for good.
_BUSY: set[str] = set()
_BUSY_LOCK = threading.Lock()


def program(path: str, port: int, payload: bytes, seconds: float) -> int:
    """Load a bitstream into the region behind a port.

    The kernel can't be interrupted in it: when it takes too long, it is
    left alone with it.

    :param path: the character device of the management engine.
    :param payload: what the FPGA itself takes.
    :returns: 0, the errno of the refusal, EBUSY also while an earlier
        call is not over, or ETIMEDOUT.
    """
    with _BUSY_LOCK:
        if path in _BUSY:
            return errno.EBUSY
        _BUSY.add(path)
    answer: list[int] = []

    def call() -> None:
        try:
            answer.append(_program(path, port, payload))
        finally:
            with _BUSY_LOCK:
                _BUSY.discard(path)

    # A daemon of its own, so that the process can end all the same.
    caller = threading.Thread(target=call, name=f"program {path}", daemon=True)
    caller.start()
    caller.join(seconds)
    return answer[0] if answer else errno.ETIMEDOUT


def set_port(path: str, port: int, is_released: bool) -> int:
    """Release a port of a PF to its VFs, or take it back.

    :returns: 0 or the errno of the refusal.
    """
    request = PORT_RELEASE if is_released else PORT_ASSIGN
    return _ioctl(path, request, bytearray(struct.pack("=i", port)))


def _program(path: str, port: int, payload: bytes) -> int:
    # The kernel reads the bytes where they are; ``place`` keeps them there.
    place = ctypes.c_char_p(payload)
    start = ctypes.cast(place, ctypes.c_void_p).value or 0
    argument = _PORT_PR.pack(_PORT_PR.size, 0, port, len(payload), start)
    number = _ioctl(path, PORT_PR, bytearray(argument))
    del place
    return number


def _ioctl(path: str, request: int, argument: bytearray) -> int:
    """Make one call; others go on meanwhile, as the buffer is mutable."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        return error.errno or errno.EIO
    try:
        fcntl.ioctl(descriptor, request, argument, True)
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        os.close(descriptor)
    return 0
