# SPDX-License-Identifier: Apache-2.0
"""Privileged functions of FPGAs; see ``privileged`` for their rules."""

import errno
import os

from nova_accel.host.execute import argument_checks, privileged, root_io
from nova_accel.host.fpga import bitstream_payload, ioctls
from nova_accel.model import actions

# The extra time is for reading and checking 2 GiB from a slow disk, and for
# killing a tool.
_PROGRAM_S = actions.MAX_PROGRAM_S + 180


@privileged.entrypoint(_PROGRAM_S)
def program_port(
    root: str, node: str, port: int, path: str, sha512: str, seconds: float
) -> int:
    """Load a bitstream into an FPGA region with DFL_FPGA_FME_PORT_PR.

    :param node: character device of the card's FME.
    :param path: path of the bitstream's file, not a link.
    :param sha512: expected digest of the file.
    :returns: 0 or an errno; EBADMSG for another digest, EFBIG over 2 GiB,
        EBUSY while an earlier call hangs. After these the region is
        unchanged.
    """
    device = os.path.join(root, "dev", argument_checks.node(node))
    number, limit = (
        argument_checks.count(port, "FPGA port"),
        argument_checks.seconds(seconds),
    )
    file, digest = argument_checks.path(path), argument_checks.sha512(sha512)
    try:
        payload = bitstream_payload.read_payload(file, digest)
    except OSError as error:
        return error.errno or errno.EIO
    return ioctls.program(device, number, payload, limit)


@privileged.entrypoint(_PROGRAM_S)
def run_fpga_tool(
    root: str, tool: str, address: str, path: str, sha512: str, seconds: float
) -> int:
    """Load a bitstream with a vendor's tool: fpgaconf or xrt-smi.

    The tool gets a copy that only root can change after the check.

    :param address: the function that the tool has as its argument.
    :returns: see ``program_port``; also EACCES if the tool or its
        directories are writable by other users than root, and the errno
        with which it can't be started.
    :raises ToolError: the tool failed; the error has its output.
    """
    command = root_io.build_command(
        root, tool, argument_checks.address(address)
    )
    file, digest = argument_checks.path(path), argument_checks.sha512(sha512)
    limit = argument_checks.seconds(seconds)
    try:
        content = bitstream_payload.read(file, digest)
        # Reading takes seconds, so the tool is checked just before it runs.
        if number := root_io.check_program(root, command[0]):
            return number
        with bitstream_payload.private_copy(root, content) as copy:
            return root_io.run([*command, copy], limit)
    except OSError as error:
        return error.errno or errno.EIO


@privileged.entrypoint()
def set_port(root: str, node: str, port: int, is_released: bool) -> int:
    """Release an FPGA port of a PF to its VFs, or assign it to the PF.

    EBUSY: the port is open, or released already (drivers/fpga/dfl.c,
    dfl_fpga_cdev_release_port()).
    """
    device = os.path.join(root, "dev", argument_checks.node(node))
    number = argument_checks.count(port, "FPGA port")
    return ioctls.set_port(device, number, bool(is_released))
