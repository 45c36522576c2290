# SPDX-License-Identifier: Apache-2.0
"""Privileged functions: the only code that changes kernel state.

Inside nova-compute they run in Nova's privileged daemon. Its context
serves functions of modules whose name begins with "nova"
(oslo.privsep, PrivContext's prefix check), hence this file's place. Each
builds its path from parts that it checks itself: what arrives here comes
from a process with fewer rights. Each returns 0 or the errno of the
refusal, ETIMEDOUT when there was no answer in time, and raises
MalformedError for an argument of the wrong form. What came of a change,
the caller reads for itself.

``root`` is the caller's, and must be the daemon's own, which the daemon
reads from its configuration files: a caller can't lead it to a tree of the
caller's making. Only a process that has the rights itself (``run_here``)
works below any root.
"""

import errno
import functools
import inspect
import os
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from nova_accel import model
from nova_accel.config import conf
from nova_accel.host.execute import argument_checks, vendor_tools
from nova_accel.host.execute.kernel_writes import read as _read
from nova_accel.host.execute.kernel_writes import read_bytes as _read_bytes
from nova_accel.host.execute.kernel_writes import write as _write
from nova_accel.host.fpga import bitstream_payload, ioctls
from nova_accel.host.nvml import codec, gpu_reader
from nova_accel.model import actions, pci

try:
    from nova import privsep
    from oslo_privsep import comm
except ImportError:  # a host without Nova: the caller has the rights itself
    privsep = comm = None

# A sysfs write that has not come back by then is stuck in the kernel: the
# removal of an mdev waits for whoever holds it open, and creating one took
# vendors' drivers at most a few seconds.
TIMEOUT_S = 60
# NVIDIA's tool unbinds and binds the card's driver, which takes it half a
# minute on a large card.
TOOL_S = 120
# Beside the time for a bitstream itself: to read and check 2 GiB from a
# slow disk, and for the end of a tool that was killed.
_PROGRAM_S = actions.MOST_PROGRAM_S + 180
# Where NVIDIA's host driver installs it, below the root.
SRIOV_MANAGE = "usr/lib/nvidia/sriov-manage"
# The kernel waits up to 60 s for a function to answer after a reset, and
# may then try its next method (drivers/pci/pci.c,
# PCIE_RESET_READY_POLL_MS, __pci_reset_function_locked()).
RESET_S = 150
# An operator's command may empty a disk.
SCRUB_S = 300
#: Set in a process that changes the host with its own rights.
_own_rights = threading.Event()
_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")
_SILENT = {
    "gpus": [],
    "problems": [["NVML", f"gives no answer in {TIMEOUT_S} s"]],
    "reason": "",
}


def _entrypoint(
    seconds: float = TIMEOUT_S, late: Any = errno.ETIMEDOUT
) -> Callable[[Callable[_Arguments, _Answer]], Callable[_Arguments, _Answer]]:
    """Let Nova's daemon carry out a function, below its own root only.

    :param seconds: how long at most; ``late`` is the answer afterwards.
    """

    def wrap(
        function: Callable[_Arguments, _Answer],
    ) -> Callable[_Arguments, _Answer]:
        function = _confined(function)
        if privsep is None:
            return function
        entry = privsep.sys_admin_pctxt.entrypoint_with_timeout(seconds)(
            function
        )

        # The daemon knows an entrypoint by an attribute, which comes along.
        @functools.wraps(entry)
        def in_time(
            *arguments: _Arguments.args, **named: _Arguments.kwargs
        ) -> _Answer:
            try:
                answer: _Answer = entry(*arguments, **named)
            except comm.PrivsepTimeout:
                answer = late
            return answer

        return in_time

    return wrap


def _confined(
    function: Callable[_Arguments, _Answer],
) -> Callable[_Arguments, _Answer]:
    """Refuse any root but this process's own, if a function takes one."""
    signature = inspect.signature(function)
    if "root" not in signature.parameters:
        return function

    @functools.wraps(function)
    def call(
        *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> _Answer:
        if not _own_rights.is_set():
            given = signature.bind(*arguments, **named).arguments["root"]
            argument_checks.root(given, _read_own_root())
        return function(*arguments, **named)

    return call


@functools.cache
def _read_own_root() -> str:
    return conf.read_own_root()


def run_here() -> None:
    """Make every change in this process from now on, without a daemon.

    For commands and tests that have the rights themselves.
    """
    _own_rights.set()
    if privsep is not None:
        privsep.sys_admin_pctxt.set_client_mode(False)


@_entrypoint()
def create_mdev(root: str, parent: str, type_id: str, uuid: str) -> int:
    """Ask a parent to create an mdev.

    Written is ``mdev_supported_types/<type>/create``
    (Documentation/ABI/testing/sysfs-bus-vfio-mdev).
    """
    path = os.path.join(
        root,
        "sys/class/mdev_bus",
        argument_checks.part(parent, "mdev parent"),
        "mdev_supported_types",
        argument_checks.part(type_id, "mdev type"),
        "create",
    )
    return _write(path, argument_checks.uuid(uuid))


@_entrypoint()
def remove_mdev(root: str, uuid: str) -> int:
    """Remove an mdev.

    The write blocks while the device is open
    (drivers/vfio/mdev/mdev_core.c): callers check first.
    """
    return _write(os.path.join(_mdev(root, uuid), "remove"), "1")


@_entrypoint()
def set_vgpu_type(root: str, function: str, type_id: str) -> int:
    """Type a VF of NVIDIA's vendor-specific VFIO; ``0`` frees it."""
    path = os.path.join(_function(root, function), "nvidia/current_vgpu_type")
    return _write(path, argument_checks.vgpu_type(type_id))


@_entrypoint(late=(errno.ETIMEDOUT, ""))
def read_vgpu(root: str, target: str, name: str) -> tuple[int, str]:
    """Return errno and text of a vGPU's file that only root may read."""
    setting = argument_checks.setting(name)
    return _read(os.path.join(_vgpu(root, target), setting))


@_entrypoint(late=(errno.ETIMEDOUT, ""))
def read_serial(root: str, function: str) -> tuple[int, str]:
    """Return errno and the serial number of a function, empty for none.

    Users may read the first 64 bytes of configuration space only
    (drivers/pci/pci-sysfs.c, pci_read_config).
    """
    number, config = _read_bytes(
        os.path.join(_function(root, function), "config")
    )
    return number, pci.parse_serial(config)


@_entrypoint()
def set_vgpu_params(root: str, target: str, params: str) -> int:
    """Set a vGPU's parameters: of an mdev's uuid or a VF's address.

    A single space clears them.
    """
    text = argument_checks.params(params) or " "
    return _write(os.path.join(_vgpu(root, target), "vgpu_params"), text)


@_entrypoint()
def set_placement(root: str, function: str, start: int) -> int:
    """Move a vGPU that nobody has opened to a place on its GPU."""
    path = os.path.join(_function(root, function), "nvidia/placement_id")
    return _write(path, str(argument_checks.count(start, "placement")))


def read_gpus() -> gpu_reader.NvmlGpus:
    """Return what NVML says to root, by PCI address; nothing is raised.

    Others are not told of memory slices. The daemon is not asked for what
    is not installed here; one that can't be is a problem in the result.
    """
    if not gpu_reader.is_installed():
        return gpu_reader.read_gpus()
    try:
        return codec.from_plain(read_plain_gpus())
    except Exception as error:  # whatever keeps the daemon from starting
        reason = f"nova-compute's privileged daemon can't ask it: {error!r}"
        return gpu_reader.NvmlGpus(
            {}, (model.Problem(where="NVML", reason=reason),)
        )


@_entrypoint(late=_SILENT)
def read_plain_gpus() -> dict[str, Any]:
    """Return what NVML says to root, as it goes between processes."""
    return codec.to_plain(gpu_reader.read_gpus())


@_entrypoint()
def create_instance(gpu: str, kind: str, start: int) -> int:
    """Make a GPU instance and the compute instance that fills it."""
    return gpu_reader.create_instance(
        argument_checks.address(gpu),
        argument_checks.part(kind, "kind of GPU instance"),
        argument_checks.count(start, "memory slice"),
    )


@_entrypoint()
def destroy_instance(gpu: str, kind: str, start: int | None) -> int:
    """Unmake the GPU instance at a start, None for every empty one."""
    return gpu_reader.destroy_instance(
        argument_checks.address(gpu),
        argument_checks.part(kind, "kind of GPU instance"),
        None
        if start is None
        else argument_checks.count(start, "memory slice"),
    )


@_entrypoint()
def set_mixed(gpu: str, is_mixed: bool) -> int:
    """Switch a GPU's mixed-size mode."""
    return gpu_reader.set_mixed(argument_checks.address(gpu), bool(is_mixed))


@_entrypoint()
def set_vf_count(root: str, function: str, count: int, is_probed: bool) -> int:
    """Enable so many VFs, probed by the host's drivers or not.

    The kernel takes a count other than 0 only where none is enabled
    (EBUSY, sriov_numvfs_store() in drivers/pci/iov.c). Whether they are
    probed stays so: the host's driver would take each VF that a guest
    gives back. Where nothing comes of it, all is as before.
    """
    place = _function(root, function)
    numvfs = os.path.join(place, "sriov_numvfs")
    autoprobe = os.path.join(place, "sriov_drivers_autoprobe")
    wanted = str(int(is_probed))
    text = str(argument_checks.count(count, "number of virtual functions"))
    _, before = _read(autoprobe)  # kernels before 4.13 have none
    is_switched = before in ("0", "1") and before != wanted
    _, present = _read(numvfs)
    if present == text:
        return 0  # as the kernel answers, without going by 0
    if is_switched and (number := _write(autoprobe, wanted)):
        return number
    number = _write(numvfs, "0") if count and present != "0" else 0
    number = number or _write(numvfs, text)
    if is_switched and number:
        _write(autoprobe, before)
    return number


@_entrypoint(TOOL_S + 2 * vendor_tools.BURIAL_S)
def manage_vfs(root: str, function: str, is_enabled: bool) -> int:
    """Enable all of a PF's VFs, or none, with NVIDIA's sriov-manage.

    :returns: also EACCES for a tool that others than root may write, or
        whose directories they may.
    :raises ToolError: the tool failed; its output is in it.
    """
    program = os.path.join(root, SRIOV_MANAGE)
    switch = "-e" if is_enabled else "-d"
    command = [program, switch, argument_checks.address(function)]
    return vendor_tools.refusal(root, program) or vendor_tools.run(
        command, TOOL_S
    )


@_entrypoint(_PROGRAM_S)
def program_port(
    root: str, node: str, port: int, path: str, sha512: str, seconds: float
) -> int:
    """Load a bitstream into an FPGA region by DFL_FPGA_FME_PORT_PR.

    :param node: the character device of the card's management engine.
    :param path: the bitstream's file, which no link leads to.
    :param sha512: the digest that the file must have.
    :returns: also EBADMSG for another file, EFBIG over 2 GiB, and EBUSY
        while an earlier call hangs. Nothing was touched then.
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


@_entrypoint(_PROGRAM_S)
def run_fpga_tool(
    root: str, tool: str, address: str, path: str, sha512: str, seconds: float
) -> int:
    """Load a bitstream with a vendor's tool: fpgaconf or xrt-smi.

    The tool gets a copy that nobody can change after it was checked.

    :param address: of the function that the tool wants to be told.
    :returns: as program_port; also EACCES for a tool that others than
        root may write, or whose directories they may, and the errno with
        which it can't be started.
    :raises ToolError: the tool failed; its output is in it.
    """
    command = vendor_tools.command(
        root, tool, argument_checks.address(address)
    )
    file, digest = argument_checks.path(path), argument_checks.sha512(sha512)
    limit = argument_checks.seconds(seconds)
    try:
        content = bitstream_payload.read(file, digest)
        # To read it takes seconds: the tool is checked when it is run.
        if number := vendor_tools.refusal(root, command[0]):
            return number
        with bitstream_payload.private_copy(root, content) as copy:
            return vendor_tools.run([*command, copy], limit)
    except OSError as error:
        return error.errno or errno.EIO


@_entrypoint()
def set_port(root: str, node: str, port: int, is_released: bool) -> int:
    """Release an FPGA port of a PF to its VFs, or take it back.

    EBUSY is for one that is open, or released already
    (drivers/fpga/dfl.c, dfl_fpga_cdev_release_port()).
    """
    device = os.path.join(root, "dev", argument_checks.node(node))
    number = argument_checks.count(port, "FPGA port")
    return ioctls.set_port(device, number, bool(is_released))


@_entrypoint()
def set_services(root: str, function: str, services: str) -> int:
    """Choose a QAT device's services, for which it goes down.

    It comes up again whatever became of that
    (Documentation/ABI/testing/sysfs-driver-qat).
    """
    place = os.path.join(_function(root, function), "qat")
    words = argument_checks.services(services)
    state = os.path.join(place, "state")
    number, now = _read(state)
    # The kernel may refuse to take down what is down (EINVAL).
    if not number and now != "down":
        number = _write(state, "down")
    if number:
        return number
    number = _write(os.path.join(place, "cfg_services"), words)
    return _write(state, "up") or number


@_entrypoint()
def bind_driver(root: str, function: str, driver: str) -> int:
    """Take a function from its driver and give it to another, or none.

    ENOPKG stands for a driver that is not loaded.

    ``driver_override`` makes the kernel choose. It stays where the driver
    is one for guests: such a driver knows no ids, and the next scan of
    the bus would give the function to another. Elsewhere it is cleared,
    as libvirt does when a function comes back to the host.
    """
    place = _function(root, function)
    bus = os.path.join(root, "sys/bus/pci")
    if driver:
        argument_checks.part(driver, "driver")
        if not os.path.isdir(os.path.join(bus, "drivers", driver)):
            return errno.ENOPKG
    override = os.path.join(place, "driver_override")
    number = _write(override, driver + "\n")
    if not number and os.path.islink(os.path.join(place, "driver")):
        number = _write(os.path.join(place, "driver/unbind"), function)
    if not number and driver:
        # Success where no driver took it: the caller reads back.
        number = _write(os.path.join(bus, "drivers_probe"), function)
    if number or not driver or is_for_guests(driver):
        return number
    return _write(override, "\n")


@_entrypoint(RESET_S)
def reset_function(root: str, function: str) -> int:
    """Reset a function by the first of its methods that works.

    ENOENT is for one that can't be reset by itself, ENOTTY for one of
    which no method works (Documentation/ABI/testing/sysfs-bus-pci).
    """
    return _write(os.path.join(_function(root, function), "reset"), "1")


@_entrypoint(SCRUB_S + 2 * vendor_tools.BURIAL_S)
def run_scrub(root: str, command: str, address: str) -> int:
    """Run an operator's command for a function.

    :returns: also EACCES for one that others than root may write, or
        whose directories they may.
    :raises ToolError: it failed; its output is in it.
    """
    program = os.path.join(root, argument_checks.command(command).lstrip("/"))
    words = [program, argument_checks.address(address)]
    return vendor_tools.refusal(root, program) or vendor_tools.run(
        words, SCRUB_S
    )


def is_for_guests(driver: str) -> bool:
    """Return whether a driver holds functions for guests."""
    return "vfio" in driver or driver == "pci-stub"


def _mdev(root: str, uuid: str) -> str:
    return os.path.join(
        root, "sys/bus/mdev/devices", argument_checks.uuid(uuid)
    )


def _vgpu(root: str, target: str) -> str:
    is_mdev = argument_checks.is_uuid(target)
    place = _mdev(root, target) if is_mdev else _function(root, target)
    return os.path.join(place, "nvidia")


def _function(root: str, address: str) -> str:
    return os.path.join(
        root, "sys/bus/pci/devices", argument_checks.address(address)
    )
