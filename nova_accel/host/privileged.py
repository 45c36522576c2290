# SPDX-License-Identifier: Apache-2.0
"""The only functions that change the kernel's state.

Inside nova-compute they run in Nova's privileged daemon. Its context
serves functions of modules whose name begins with "nova"
(oslo.privsep, PrivContext's prefix check), hence this file's place. Each
builds its path from parts that it checks itself: what arrives here comes
from a process with fewer rights. Each returns 0 or the errno of the
refusal, ETIMEDOUT when there was no answer in time, and raises
MalformedError for an argument of the wrong form. What came of a change,
the caller reads for itself.
"""

import contextlib
import errno
import functools
import os
import re
import signal
import stat
import subprocess
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from nova_accel import errors, model, pci
from nova_accel.host import nvml, nvml_text

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
# minute on a large card; then a second or two for the dead to be buried.
TOOL_S = 120
_BURIAL_S = 5
# Where NVIDIA's host driver installs it, below the root.
SRIOV_MANAGE = "usr/lib/nvidia/sriov-manage"
# What a tool may say before the rest is cut off, in bytes.
_OUTPUT = 4096

# Directory names in sysfs: a PCI address, "mtty", "0.0.0052", a type id,
# a driver; and NVIDIA's names of GPU instances ("1g.5gb+me").
_PART = re.compile(r"[0-9A-Za-z][0-9A-Za-z:._+-]*")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_SETTING = re.compile("vgpu_params|placement_id")
# "key=value,key=value" in printable ASCII, or nothing; NVIDIA's driver
# keeps at most 1024 bytes of it.
_PARAMS = re.compile(r"[!-~ ]{0,1023}")
# The largest count sriov_numvfs takes (drivers/pci/iov.c: a u16).
_MOST = 0xFFFF

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
    """Let Nova's daemon carry out a function.

    :param seconds: how long at most; ``late`` is the answer afterwards.
    """

    def wrap(
        function: Callable[_Arguments, _Answer],
    ) -> Callable[_Arguments, _Answer]:
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


def run_here() -> None:
    """Make every change in this process from now on, without a daemon.

    For commands and tests that have the rights themselves.
    """
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
        _check_part(parent, "mdev parent"),
        "mdev_supported_types",
        _check_part(type_id, "mdev type"),
        "create",
    )
    return _write(path, _check_uuid(uuid))


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
    return _write(path, _check(_NUMBER, type_id, "vGPU type", "a number"))


@_entrypoint(late=(errno.ETIMEDOUT, ""))
def read_vgpu(root: str, target: str, name: str) -> tuple[int, str]:
    """Return errno and text of a vGPU's file that only root may read."""
    _check(_SETTING, name, "vGPU setting", "vgpu_params or placement_id")
    return _read(os.path.join(_vgpu(root, target), name))


@_entrypoint()
def set_vgpu_params(root: str, target: str, params: str) -> int:
    """Set a vGPU's parameters: of an mdev's uuid or a VF's address.

    A single space clears them.
    """
    _check(_PARAMS, params, "text of vgpu_params", "key=value,key=value")
    path = os.path.join(_vgpu(root, target), "vgpu_params")
    return _write(path, params or " ")


@_entrypoint()
def set_placement(root: str, function: str, start: int) -> int:
    """Move a vGPU that nobody has opened to a place on its GPU."""
    path = os.path.join(_function(root, function), "nvidia/placement_id")
    return _write(path, str(_check_count(start, "placement")))


def read_gpus() -> nvml.Gpus:
    """Return what NVML says to root, by PCI address; nothing is raised.

    Others are not told of memory slices. The daemon is not asked for what
    is not installed here; one that can't be is a problem in the result.
    """
    if not nvml.is_installed():
        return nvml.read_gpus()
    try:
        return nvml_text.from_plain(read_plain_gpus())
    except Exception as error:  # whatever keeps the daemon from starting
        reason = f"nova-compute's privileged helper can't ask it: {error!r}"
        return nvml.Gpus({}, (model.Problem(where="NVML", reason=reason),))


@_entrypoint(late=_SILENT)
def read_plain_gpus() -> dict[str, Any]:
    """Return what NVML says to root, as it goes between processes."""
    return nvml_text.to_plain(nvml.read_gpus())


@_entrypoint()
def create_instance(gpu: str, kind: str, start: int) -> int:
    """Make a GPU instance and the compute instance that fills it."""
    return nvml.create_instance(
        _check_address(gpu),
        _check_part(kind, "kind of GPU instance"),
        _check_count(start, "memory slice"),
    )


@_entrypoint()
def destroy_instance(gpu: str, kind: str, start: int | None) -> int:
    """Unmake the GPU instance at a start, None for every empty one."""
    return nvml.destroy_instance(
        _check_address(gpu),
        _check_part(kind, "kind of GPU instance"),
        None if start is None else _check_count(start, "memory slice"),
    )


@_entrypoint()
def set_mixed(gpu: str, is_mixed: bool) -> int:
    """Switch a GPU's mixed-size mode."""
    return nvml.set_mixed(_check_address(gpu), bool(is_mixed))


@_entrypoint()
def set_vf_count(root: str, function: str, count: int, is_probed: bool) -> int:
    """Enable so many VFs, probed by the host's drivers or not.

    ``sriov_drivers_autoprobe`` is as before afterwards. The kernel takes
    a count other than 0 only where none is enabled (EBUSY,
    sriov_numvfs_store() in drivers/pci/iov.c).
    """
    place = _function(root, function)
    numvfs = os.path.join(place, "sriov_numvfs")
    autoprobe = os.path.join(place, "sriov_drivers_autoprobe")
    wanted = str(int(is_probed))
    text = str(_check_count(count, "number of virtual functions"))
    _, before = _read(autoprobe)  # kernels before 4.13 have none
    is_switched = count and before in ("0", "1") and before != wanted
    _, present = _read(numvfs)
    if present == text:
        return 0  # as the kernel answers, without going by 0
    if is_switched and (number := _write(autoprobe, wanted)):
        return number
    try:
        number = _write(numvfs, "0") if count and present != "0" else 0
        return number or _write(numvfs, text)
    finally:
        if is_switched:
            _write(autoprobe, before)


@_entrypoint(TOOL_S + 2 * _BURIAL_S)
def manage_vfs(root: str, function: str, is_enabled: bool) -> int:
    """Enable all of a PF's VFs, or none, with NVIDIA's sriov-manage.

    :returns: also EACCES for a tool that others than root may write.
    :raises ToolError: the tool failed; its output is in it.
    """
    program = os.path.join(root, SRIOV_MANAGE)
    switch = "-e" if is_enabled else "-d"
    command = [program, switch, _check_address(function)]
    try:
        found = os.stat(program)
    except OSError as error:
        return error.errno or errno.EIO
    is_safe = found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022
    if not (is_safe and stat.S_ISREG(found.st_mode)):
        return errno.EACCES
    return _run(command)


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
        _check_part(driver, "driver")
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


def is_for_guests(driver: str) -> bool:
    """Return whether a driver holds functions for guests."""
    return "vfio" in driver or driver == "pci-stub"


def _run(command: list[str]) -> int:
    """Run a tool; raise ToolError with what it said when it fails."""
    tool = subprocess.Popen(  # noqa: S603 - no shell, each part is checked
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        start_new_session=True,
    )
    try:
        said, _ = tool.communicate(timeout=TOOL_S)
    except subprocess.TimeoutExpired:
        os.killpg(tool.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            tool.communicate(timeout=_BURIAL_S)  # it may hang in the kernel
        return errno.ETIMEDOUT
    if not tool.returncode:
        return 0
    text = said[:_OUTPUT].decode(errors="replace").strip()
    raise errors.ToolError(" ".join(command), tool.returncode, text)


def _mdev(root: str, uuid: str) -> str:
    return os.path.join(root, "sys/bus/mdev/devices", _check_uuid(uuid))


def _vgpu(root: str, target: str) -> str:
    is_mdev = _UUID.fullmatch(target) is not None
    place = _mdev(root, target) if is_mdev else _function(root, target)
    return os.path.join(place, "nvidia")


def _function(root: str, address: str) -> str:
    return os.path.join(root, "sys/bus/pci/devices", _check_address(address))


def _check(form: re.Pattern[str], text: str, what: str, expected: str) -> str:
    if not form.fullmatch(text):
        raise errors.MalformedError(what, text, expected)
    return text


def _check_part(text: str, what: str) -> str:
    if ".." in text:
        raise errors.MalformedError(what, text, "one name without slashes")
    return _check(_PART, text, what, "one name without slashes")


def _check_uuid(text: str) -> str:
    return _check(_UUID, text, "mdev uuid", "a lower-case uuid")


def _check_address(text: str) -> str:
    if not pci.is_address(text):
        raise errors.MalformedError(
            "PCI address", text, "DDDD:BB:SS.F in hexadecimal"
        )
    return text


def _check_count(number: object, what: str) -> int:
    if not isinstance(number, int) or not 0 <= number <= _MOST:
        raise errors.MalformedError(what, str(number), f"0 to {_MOST}")
    return number


def _read(path: str) -> tuple[int, str]:
    """Return 0 and a kernel file's text, or the errno of the refusal."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, encoding="ascii", errors="replace") as opened:
            return 0, opened.read(_OUTPUT).strip()
    except OSError as error:
        return error.errno or errno.EIO, ""


def _write(path: str, text: str) -> int:
    """Write to a kernel file; return 0, or the errno of the refusal."""
    try:
        # The files written are no links: one that is leads elsewhere.
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        return error.errno or errno.EIO
    try:
        os.write(descriptor, text.encode("ascii"))
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        os.close(descriptor)
    return 0
