# SPDX-License-Identifier: Apache-2.0
"""Privileged functions: the only code that changes kernel state.

Those of NVML and of FPGAs are in ``technologies``, by the same rules:
``entrypoint`` marks each of them.

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
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from nova_accel.config import daemon_config
from nova_accel.host.execute import argument_checks, bus_reset, root_io
from nova_accel.model import pci

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
# Where NVIDIA's host driver installs it, below the root.
SRIOV_MANAGE = "usr/lib/nvidia/sriov-manage"
# The kernel waits up to 60 s for a function to answer after a reset, and
# may then try its next method (drivers/pci/pci.c,
# PCIE_RESET_READY_POLL_MS, __pci_reset_function_locked()).
RESET_S = 150
# A scrub_command may erase a disk.
SCRUB_S = 300
# Set in a process that changes the host with its own rights.
_own_rights = threading.Event()
_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


def entrypoint(
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


@entrypoint()
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


@entrypoint()
def remove_mdev(root: str, uuid: str) -> int:
    """Remove an mdev.

    The write blocks while a process has the device open
    (drivers/vfio/mdev/mdev_core.c): callers check that first.
    """
    return root_io.write(os.path.join(_mdev(root, uuid), "remove"), "1")


@entrypoint()
def set_vgpu_type(root: str, function: str, type_id: str) -> int:
    """Set the vGPU type of a vendor-specific VFIO VF; ``0`` frees it."""
    path = os.path.join(_function(root, function), "nvidia/current_vgpu_type")
    return root_io.write(path, argument_checks.vgpu_type(type_id))


@entrypoint(late=(errno.ETIMEDOUT, ""))
def read_vgpu(root: str, target: str, name: str) -> tuple[int, str]:
    """Return errno and text of a vGPU's file that only root may read."""
    setting = argument_checks.setting(name)
    return root_io.read(os.path.join(_vgpu(root, target), setting))


@entrypoint(late=(errno.ETIMEDOUT, ""))
def read_serial(root: str, function: str) -> tuple[int, str]:
    """Return errno and the serial number of a function, empty for none.

    Without root only the first 64 bytes of configuration space are readable
    (drivers/pci/pci-sysfs.c, pci_read_config).
    """
    number, config = root_io.read_bytes(
        os.path.join(_function(root, function), "config")
    )
    return number, pci.parse_serial(config)


@entrypoint()
def set_vgpu_params(root: str, target: str, params: str) -> int:
    """Set the parameters of a vGPU; an empty text clears them.

    :param target: uuid of an mdev, or address of a VF.
    """
    # The driver clears the parameters on a single space.
    text = argument_checks.params(params) or " "
    return root_io.write(
        os.path.join(_vgpu(root, target), "vgpu_params"), text
    )


@entrypoint()
def set_placement(root: str, function: str, start: int) -> int:
    """Set the start of a vGPU that no process has open."""
    path = os.path.join(_function(root, function), "nvidia/placement_id")
    return root_io.write(path, str(argument_checks.count(start, "placement")))


@entrypoint()
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


@entrypoint(TOOL_S + 2 * root_io.KILL_WAIT_S)
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


@entrypoint()
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


@entrypoint()
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


@entrypoint(RESET_S)
def reset_function(root: str, function: str) -> int:
    """Reset a function by the first of its methods that works.

    ENOENT: the function can't be reset by itself. ENOTTY: none of its
    methods works (Documentation/ABI/testing/sysfs-bus-pci).
    """
    path = os.path.join(_function(root, function), "reset")
    return root_io.write(path, "1", RESET_S)


@entrypoint(RESET_S)
def reset_together(root: str, functions: list[str]) -> int:
    """Reset the bus of functions that VFIO has, and no process.

    EINVAL: VFIO lacks a function on the bus. EBUSY: a process has one.
    ENOTTY: the bus can't be reset.
    """
    return bus_reset.reset(
        root, argument_checks.functions_of_one_bus(functions)
    )


@entrypoint(SCRUB_S + 2 * root_io.KILL_WAIT_S)
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
