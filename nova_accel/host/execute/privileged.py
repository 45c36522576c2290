# SPDX-License-Identifier: Apache-2.0
"""Privileged functions: the only code that changes kernel state.

Inside nova-compute they run in Nova's privileged daemon. Its context
accepts functions of modules whose name begins with "nova" (oslo.privsep,
prefix check of PrivContext), hence this module's name.

The caller is an unprivileged process. So each function validates its
arguments and builds its paths from them. It returns 0 or the errno of the
refusal, ETIMEDOUT without an answer in time, and raises MalformedError for
an invalid argument. The caller reads back the effect itself.

``root`` must be the daemon's own root, which the daemon reads from its
configuration files: a caller can't direct it to another tree. So are the
commands of ``run_scrub``. Only a process with its own rights (``run_here``)
accepts any root and command.
"""

import errno
import functools
import inspect
import os
import re
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from nova_accel import model
from nova_accel.config import daemon_config
from nova_accel.host.execute import argument_checks, bus_reset, root_io
from nova_accel.host.fpga import bitstream_payload, ioctls
from nova_accel.host.nvml import gpu_reader, gpu_state, usage_reader
from nova_accel.model import actions, pci, usage

try:
    from nova import privsep
    from oslo_privsep import comm
except ImportError:  # a host without Nova: the process needs the rights
    privsep = comm = None

# Timeout of a call. The daemon gives up each write at the same time: a write
# that hangs must not take one of its few threads, which serve all of Nova.
TIMEOUT_S = root_io.WRITE_S
# NVIDIA's tool rebinds the card's driver, which takes half a minute on a
# large card.
TOOL_S = 120
# The extra time is for reading and checking 2 GiB from a slow disk, and for
# killing a tool.
_PROGRAM_S = actions.MAX_PROGRAM_S + 180
# Where NVIDIA's host driver installs it, below the root.
SRIOV_MANAGE = "usr/lib/nvidia/sriov-manage"
# The kernel waits up to 60 s for a function to answer after a reset, and
# may then try its next method (drivers/pci/pci.c,
# PCIE_RESET_READY_POLL_MS, __pci_reset_function_locked()).
RESET_S = 150
# A scrub_command may erase a disk.
SCRUB_S = 300
# A counter takes up to 120 bytes, and a device has less than 100.
_TELEMETRY_BYTES = 16 * 1024
# Set in a process that changes the host with its own rights.
_own_rights = threading.Event()
_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")
_SILENT = {
    "gpus": [],
    "problems": [["NVML", f"gives no answer in {TIMEOUT_S} s"]],
    "reason": "",
}
_NO_USAGE = usage.UsageSample(
    problems=(
        model.Problem(
            where="usage of GPUs", reason=f"no answer in {TIMEOUT_S} s"
        ),
    )
)


def _entrypoint(
    seconds: float = TIMEOUT_S, late: Any = errno.ETIMEDOUT
) -> Callable[[Callable[_Arguments, _Answer]], Callable[_Arguments, _Answer]]:
    """Return a decorator that runs a function in Nova's daemon.

    :param seconds: timeout of a call.
    :param late: result after the timeout.
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

        # wraps() also copies the attribute that marks an entrypoint.
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
    """Make a function refuse any ``root`` but this process's own."""
    signature = inspect.signature(function)
    if "root" not in signature.parameters:
        return function

    @functools.wraps(function)
    def call(
        *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> _Answer:
        if not _own_rights.is_set():
            root = signature.bind(*arguments, **named).arguments["root"]
            argument_checks.root(root, _read_own_root())
        return function(*arguments, **named)

    return call


@functools.cache
def _read_own_root() -> str:
    return daemon_config.read_own_root()


@functools.cache
def _read_own_commands() -> frozenset[str]:
    return daemon_config.read_own_commands()


def run_here() -> None:
    """Run all functions in this process from now on, without the daemon.

    For commands and tests that have the rights themselves.
    """
    _own_rights.set()
    if privsep is not None:
        privsep.sys_admin_pctxt.set_client_mode(False)


@_entrypoint()
def create_mdev(root: str, parent: str, type_id: str, uuid: str) -> int:
    """Create an mdev on a parent.

    Writes ``mdev_supported_types/<type>/create``
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
    return root_io.write(path, argument_checks.uuid(uuid))


@_entrypoint()
def remove_mdev(root: str, uuid: str) -> int:
    """Remove an mdev.

    The write blocks while a process has the device open
    (drivers/vfio/mdev/mdev_core.c): callers check that first.
    """
    return root_io.write(os.path.join(_mdev(root, uuid), "remove"), "1")


@_entrypoint()
def set_vgpu_type(root: str, function: str, type_id: str) -> int:
    """Set the vGPU type of a vendor-specific VFIO VF; ``0`` frees it."""
    path = os.path.join(_function(root, function), "nvidia/current_vgpu_type")
    return root_io.write(path, argument_checks.vgpu_type(type_id))


@_entrypoint(late=(errno.ETIMEDOUT, ""))
def read_vgpu(root: str, target: str, name: str) -> tuple[int, str]:
    """Return errno and text of a vGPU's file that only root may read."""
    setting = argument_checks.setting(name)
    return root_io.read(os.path.join(_vgpu(root, target), setting))


@_entrypoint(late=(errno.ETIMEDOUT, ""))
def read_serial(root: str, function: str) -> tuple[int, str]:
    """Return errno and the serial number of a function, empty for none.

    Without root only the first 64 bytes of configuration space are readable
    (drivers/pci/pci-sysfs.c, pci_read_config).
    """
    number, config = root_io.read_bytes(
        os.path.join(_function(root, function), "config")
    )
    return number, pci.parse_serial(config)


@_entrypoint()
def set_vgpu_params(root: str, target: str, params: str) -> int:
    """Set the parameters of a vGPU; an empty text clears them.

    :param target: uuid of an mdev, or address of a VF.
    """
    # The driver clears the parameters on a single space.
    text = argument_checks.params(params) or " "
    return root_io.write(
        os.path.join(_vgpu(root, target), "vgpu_params"), text
    )


@_entrypoint()
def set_placement(root: str, function: str, start: int) -> int:
    """Set the start of a vGPU that no process has open."""
    path = os.path.join(_function(root, function), "nvidia/placement_id")
    return root_io.write(path, str(argument_checks.count(start, "placement")))


def read_gpus() -> gpu_reader.NvmlGpus:
    """Return NVML's state of all GPUs, as root reads it; never raises.

    Only root can read memory slices. Without nvidia-ml-py the daemon is not
    called; a failure of the daemon is a problem in the result.
    """
    if not gpu_reader.is_installed():
        return gpu_reader.read_gpus()
    try:
        return gpu_state.from_plain(read_plain_gpus())
    except Exception as error:  # the daemon may fail to start for any reason
        reason = f"nova-compute's privileged daemon can't ask it: {error!r}"
        return gpu_reader.NvmlGpus(
            {}, (model.Problem(where="NVML", reason=reason),)
        )


@_entrypoint(late=_SILENT)
def read_plain_gpus() -> dict[str, Any]:
    """Return NVML's state of all GPUs as plain values."""
    return gpu_state.to_plain(gpu_reader.read_gpus())


def read_usage() -> usage.UsageSample:
    """Return NVML's usage of all GPUs and vGPUs.

    The daemon reads it, as it has NVML and its rights already. Without
    nvidia-ml-py the daemon is not called.

    :raises ValueError: the daemon is of another release.
    """
    if not gpu_reader.is_installed():
        return usage.UsageSample()
    return usage.FORMAT.decode(read_plain_usage())


@_entrypoint(late=usage.FORMAT.encode(_NO_USAGE))
def read_plain_usage() -> str:
    """Return NVML's usage of all GPUs and vGPUs as a JSON document."""
    return usage.FORMAT.encode(usage_reader.read_usage())


@_entrypoint(late=(errno.ETIMEDOUT, "", ""))
def read_telemetry(root: str, function: str) -> tuple[int, str, str]:
    """Return errno, state and counters of a QAT device's telemetry.

    debugfs is for root only. The counters are not read while the state is
    ``0``, disabled: the kernel would log each attempt. The telemetry is
    never enabled here.

    :returns: ENOENT for a device or kernel without telemetry.
    """
    address = argument_checks.address(function)
    top = os.path.join(root, "sys/kernel/debug")
    name = re.compile(rf"qat_[0-9a-z]+_{re.escape(address)}")
    try:
        directory = next(filter(name.fullmatch, os.listdir(top)), "")
    except OSError as error:
        return error.errno or errno.EIO, "", ""
    if not directory:
        return errno.ENOENT, "", ""
    place = os.path.join(top, directory, "telemetry")
    number, state = root_io.read(os.path.join(place, "control"))
    if number or state == "0":
        return number, state, ""
    number, text = root_io.read(
        os.path.join(place, "device_data"), _TELEMETRY_BYTES
    )
    return number, state, text


@_entrypoint()
def create_instance(gpu: str, kind: str, start: int) -> int:
    """Create a GPU instance and the compute instance that fills it."""
    return gpu_reader.create_instance(
        argument_checks.address(gpu),
        argument_checks.part(kind, "kind of GPU instance"),
        argument_checks.count(start, "memory slice"),
    )


@_entrypoint()
def destroy_instance(gpu: str, kind: str, start: int | None) -> int:
    """Destroy the GPU instance at a start, None for all unused ones."""
    return gpu_reader.destroy_instance(
        argument_checks.address(gpu),
        argument_checks.part(kind, "kind of GPU instance"),
        None
        if start is None
        else argument_checks.count(start, "memory slice"),
    )


@_entrypoint()
def set_mixed(gpu: str, is_mixed: bool) -> int:
    return gpu_reader.set_mixed(argument_checks.address(gpu), bool(is_mixed))


@_entrypoint()
def set_mig(gpu: str, is_mig: bool) -> int:
    return gpu_reader.set_mig(argument_checks.address(gpu), bool(is_mig))


@_entrypoint()
def set_vf_count(root: str, function: str, count: int, is_probed: bool) -> int:
    """Set the number of VFs of a PF.

    The kernel accepts a count other than 0 only while no VF is enabled
    (EBUSY, sriov_numvfs_store() in drivers/pci/iov.c), so VFs are disabled
    first. The autoprobe setting stays: the host's driver would otherwise
    probe each VF that a guest releases. It is restored on failure.

    :param is_probed: whether the host's drivers probe the VFs.
    """
    place = _function(root, function)
    numvfs = os.path.join(place, "sriov_numvfs")
    autoprobe = os.path.join(place, "sriov_drivers_autoprobe")
    probed = str(int(is_probed))
    text = str(argument_checks.count(count, "number of virtual functions"))
    _, before = root_io.read(autoprobe)  # missing in kernels before 4.13
    is_switched = before in ("0", "1") and before != probed
    _, present = root_io.read(numvfs)
    if present == text:
        return 0  # the kernel accepts it, too; don't disable the VFs
    if is_switched and (number := root_io.write(autoprobe, probed)):
        return number
    number = root_io.write(numvfs, "0") if count and present != "0" else 0
    number = number or root_io.write(numvfs, text)
    if is_switched and number:
        root_io.write(autoprobe, before)
    return number


@_entrypoint(TOOL_S + 2 * root_io.KILL_WAIT_S)
def manage_vfs(root: str, function: str, is_enabled: bool) -> int:
    """Enable or disable all VFs of a PF with NVIDIA's sriov-manage.

    :returns: 0 or an errno; EACCES if the tool or its directories are
        writable by other users than root.
    :raises ToolError: the tool failed; the error has its output.
    """
    program = os.path.join(root, SRIOV_MANAGE)
    switch = "-e" if is_enabled else "-d"
    command = [program, switch, argument_checks.address(function)]
    return root_io.check_program(root, program) or root_io.run(command, TOOL_S)


@_entrypoint(_PROGRAM_S)
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


@_entrypoint(_PROGRAM_S)
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


@_entrypoint()
def set_port(root: str, node: str, port: int, is_released: bool) -> int:
    """Release an FPGA port of a PF to its VFs, or assign it to the PF.

    EBUSY: the port is open, or released already (drivers/fpga/dfl.c,
    dfl_fpga_cdev_release_port()).
    """
    device = os.path.join(root, "dev", argument_checks.node(node))
    number = argument_checks.count(port, "FPGA port")
    return ioctls.set_port(device, number, bool(is_released))


@_entrypoint()
def set_services(root: str, function: str, services: str) -> int:
    """Set a QAT device's services; the device is down meanwhile.

    It is started again also after a failure
    (Documentation/ABI/testing/sysfs-driver-qat).
    """
    place = os.path.join(_function(root, function), "qat")
    text = argument_checks.services(services)
    state = os.path.join(place, "state")
    number, present = root_io.read(state)
    # The kernel may refuse "down" for a device that is down (EINVAL).
    if not number and present != "down":
        number = root_io.write(state, "down")
    if number:
        return number
    number = root_io.write(os.path.join(place, "cfg_services"), text)
    return root_io.write(state, "up") or number


@_entrypoint()
def bind_driver(root: str, function: str, driver: str) -> int:
    """Unbind a function from its driver and bind it to another, or none.

    ENOPKG: the driver is not loaded.

    ``driver_override`` selects the driver. It stays set for a driver for
    guests: such a driver has no ids, and the next scan of the bus would
    bind the function to another driver. Otherwise it is cleared, as libvirt
    does when it returns a function to the host.
    """
    place = _function(root, function)
    bus = os.path.join(root, "sys/bus/pci")
    if driver:
        argument_checks.part(driver, "driver")
        if not os.path.isdir(os.path.join(bus, "drivers", driver)):
            return errno.ENOPKG
    override = os.path.join(place, "driver_override")
    number = root_io.write(override, driver + "\n")
    if not number and os.path.islink(os.path.join(place, "driver")):
        number = root_io.write(os.path.join(place, "driver/unbind"), function)
    if not number and driver:
        # Also succeeds if no driver binds: the caller reads back.
        number = root_io.write(os.path.join(bus, "drivers_probe"), function)
    if number or not driver or pci.is_for_guests(driver):
        return number
    return root_io.write(override, "\n")


@_entrypoint(RESET_S)
def reset_function(root: str, function: str) -> int:
    """Reset a function by the first of its methods that works.

    ENOENT: the function can't be reset by itself. ENOTTY: none of its
    methods works (Documentation/ABI/testing/sysfs-bus-pci).
    """
    path = os.path.join(_function(root, function), "reset")
    return root_io.write(path, "1", RESET_S)


@_entrypoint(RESET_S)
def reset_together(root: str, functions: list[str]) -> int:
    """Reset the bus of functions that VFIO has, and no process.

    EINVAL: VFIO lacks a function on the bus. EBUSY: a process has one.
    ENOTTY: the bus can't be reset.
    """
    return bus_reset.reset(
        root, argument_checks.functions_of_one_bus(functions)
    )


@_entrypoint(SCRUB_S + 2 * root_io.KILL_WAIT_S)
def run_scrub(root: str, command: str, address: str) -> int:
    """Run the operator's scrub_command for a function.

    The daemon runs the commands of its own device_spec only: a caller could
    name any other program of root's.

    :returns: 0 or an errno; EACCES if the command or its directories are
        writable by other users than root.
    :raises ToolError: it failed; the error has its output.
    """
    path = argument_checks.command(command)
    if not _own_rights.is_set():
        argument_checks.own_command(path, _read_own_commands())
    program = os.path.join(root, path.lstrip("/"))
    arguments = [program, argument_checks.address(address)]
    return root_io.check_program(root, program) or root_io.run(
        arguments, SCRUB_S
    )


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
