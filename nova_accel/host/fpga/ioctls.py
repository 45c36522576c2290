# SPDX-License-Identifier: Apache-2.0
"""ioctls of FPGAs with a Device Feature List.

Numbers and structures are those of include/uapi/linux/fpga-dfl.h. Only
``privileged`` calls these functions; it validates the arguments.
"""

import ctypes
import errno
import fcntl
import os
import struct
import threading

from nova_accel.host import bounded_calls

# 'type' and 'nr' of <asm-generic/ioctl.h> are DFL_FPGA_MAGIC and an offset
# from DFL_FME_BASE. PORT_PR is defined as _IO although it has an argument;
# the other two are _IOW('type', nr, int).
_MAGIC = 0xB6
_FME_BASE = 0x80
_WRITE_INT = 1 << 30 | struct.calcsize("i") << 16
PORT_PR = _MAGIC << 8 | _FME_BASE
PORT_RELEASE = _WRITE_INT | _MAGIC << 8 | _FME_BASE + 1
PORT_ASSIGN = _WRITE_INT | _MAGIC << 8 | _FME_BASE + 2
# struct dfl_fpga_fme_port_pr: argsz, flags, port_id, buffer_size and the
# address of the bitstream in this process.
_PORT_PR = struct.Struct("=IIIIQ")

# Seconds that releasing or assigning a port may take.
_PORT_S = 60

# Devices that this process is programming. A call that never returns keeps
# its device here, and its bitstream in memory.
_BUSY: set[str] = set()
_BUSY_LOCK = threading.Lock()


def program(path: str, port: int, payload: bytes, seconds: float) -> int:
    """Load a bitstream into the region behind a port.

    The ioctl can't be interrupted: after a timeout its thread continues.

    :param path: character device of the FME.
    :param payload: bitstream without its header.
    :param seconds: timeout.
    :returns: 0, the errno of the refusal (EBUSY also while an earlier call
        runs), or ETIMEDOUT.
    """
    with _BUSY_LOCK:
        if path in _BUSY:
            return errno.EBUSY
        _BUSY.add(path)
    results: list[int] = []

    def call() -> None:
        try:
            results.append(_program(path, port, payload))
        finally:
            with _BUSY_LOCK:
                _BUSY.discard(path)

    # A daemon thread does not keep the process from ending.
    thread = threading.Thread(target=call, name=f"program {path}", daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else errno.ETIMEDOUT


def set_port(path: str, port: int, is_released: bool) -> int:
    """Release a port of a PF to its VFs, or assign it to the PF.

    :returns: 0, the errno of the refusal, or ETIMEDOUT.
    """
    request = PORT_RELEASE if is_released else PORT_ASSIGN
    argument = bytearray(struct.pack("=i", port))
    try:
        return bounded_calls.write(path, _PORT_S, _ioctl, request, argument)
    except OSError as error:
        return error.errno or errno.EIO


def _program(path: str, port: int, payload: bytes) -> int:
    # The kernel reads the payload in place; ``buffer`` keeps it alive.
    buffer = ctypes.c_char_p(payload)
    start = ctypes.cast(buffer, ctypes.c_void_p).value or 0
    argument = _PORT_PR.pack(_PORT_PR.size, 0, port, len(payload), start)
    number = _ioctl(path, PORT_PR, bytearray(argument))
    del buffer
    return number


def _ioctl(path: str, request: int, argument: bytearray) -> int:
    """Call an ioctl; return 0 or the errno.

    With a mutable buffer, Python releases the GIL during the call.
    """
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
