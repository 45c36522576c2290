# SPDX-License-Identifier: Apache-2.0
"""The only functions that change the kernel's state.

Inside nova-compute they run in Nova's privileged daemon. Its context
serves functions of modules whose name begins with "nova"
(oslo.privsep, PrivContext's prefix check), hence this file's place. Each
builds its path from parts that it checks itself: what arrives here comes
from a process with fewer rights.
"""

import errno
import os
import re
from collections.abc import Callable
from typing import Any

from nova_accel import errors

try:
    from nova import privsep
    from oslo_privsep import comm
except ImportError:  # a host without Nova: the caller has the rights itself
    privsep = comm = None

# A sysfs write that has not come back by then is stuck in the kernel: the
# removal of an mdev waits for whoever holds it open, and creating one took
# vendors' drivers at most a few seconds.
TIMEOUT_S = 60

# Directory names in sysfs: a PCI address, "mtty", "0.0.0052", a type id.
_PART = re.compile(r"[0-9A-Za-z][0-9A-Za-z:._+-]*")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _entrypoint(function: Callable[..., int]) -> Callable[..., int]:
    if privsep is None:
        return function
    wrap = privsep.sys_admin_pctxt.entrypoint_with_timeout(TIMEOUT_S)
    entry: Callable[..., int] = wrap(function)
    return entry


def run_here() -> None:
    """Make every change in this process from now on, without a daemon.

    For commands and tests that have the rights themselves.
    """
    if privsep is not None:
        privsep.sys_admin_pctxt.set_client_mode(False)


def create_mdev(root: str, parent: str, type_id: str, uuid: str) -> int:
    """Ask a parent to create an mdev.

    Written is ``mdev_supported_types/<type>/create``
    (Documentation/ABI/testing/sysfs-bus-vfio-mdev).

    :returns: 0, or the errno of the kernel's refusal; ETIMEDOUT when the
        kernel did not answer within TIMEOUT_S seconds.
    :raises MalformedError: an argument is no name, or no uuid.
    """
    _check_part(parent, "mdev parent")
    _check_part(type_id, "mdev type")
    _check_uuid(uuid)
    return _in_time(write_create, root, parent, type_id, uuid)


def remove_mdev(root: str, uuid: str) -> int:
    """Remove an mdev.

    The write blocks while the device is open
    (drivers/vfio/mdev/mdev_core.c): callers check first.

    :returns: as create_mdev.
    :raises MalformedError: the argument is no uuid.
    """
    _check_uuid(uuid)
    return _in_time(write_remove, root, uuid)


@_entrypoint
def write_create(root: str, parent: str, type_id: str, uuid: str) -> int:
    """Write a type's ``create`` file; the privileged half."""
    path = os.path.join(
        root,
        "sys/class/mdev_bus",
        _check_part(parent, "mdev parent"),
        "mdev_supported_types",
        _check_part(type_id, "mdev type"),
        "create",
    )
    return _write(path, _check_uuid(uuid))


@_entrypoint
def write_remove(root: str, uuid: str) -> int:
    """Write an mdev's ``remove`` file; the privileged half."""
    path = os.path.join(
        root, "sys/bus/mdev/devices", _check_uuid(uuid), "remove"
    )
    return _write(path, "1")


def _in_time(function: Callable[..., int], *arguments: Any) -> int:
    if comm is None:
        return function(*arguments)
    try:
        return function(*arguments)
    except comm.PrivsepTimeout:
        return errno.ETIMEDOUT


def _check_part(text: str, what: str) -> str:
    if not _PART.fullmatch(text) or ".." in text:
        raise errors.MalformedError(what, text, "one name without slashes")
    return text


def _check_uuid(text: str) -> str:
    if not _UUID.fullmatch(text):
        raise errors.MalformedError("mdev uuid", text, "a lower-case uuid")
    return text


def _write(path: str, text: str) -> int:
    """Write to a kernel file; return 0, or the errno of the refusal."""
    try:
        # The files written are no links: one that is leads elsewhere.
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        )
    except OSError as error:
        return error.errno or errno.EIO
    try:
        os.write(descriptor, text.encode("ascii"))
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        os.close(descriptor)
    return 0
