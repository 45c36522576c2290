# SPDX-License-Identifier: Apache-2.0
"""Handlers: how the actions of one class are applied, and read back."""

import dataclasses
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from nova_accel import errors
from nova_accel.host import nvml_gpus
from nova_accel.host.execute import privileged
from nova_accel.host.sysfs import attributes, fs
from nova_accel.model import actions, pci

_FUNCTIONS = "/sys/bus/pci/devices"
_MDEVS = "/sys/bus/mdev/devices"
# A PF's links to its VFs (drivers/pci/iov.c, VIRTFN_ID_LEN).
_VIRTFN = re.compile(r"virtfn[0-9]+")
# Content of driver_override without an override (pci-sysfs.c).
NO_OVERRIDE = ("", "(null)")
# Content of current_vgpu_type of a VF without a vGPU.
FREE = "0"
# Names of files of a vGPU.
PARAMS, PLACEMENT = "vgpu_params", "placement_id"


class Readback:
    """Reader of the state that actions change; it caches nothing.

    The kernel follows the links in a path, as it does for the writes.
    """

    def __init__(self, root: str) -> None:
        """Read files below ``root``."""
        self._root = root
        self._source = fs.DiskSource(root)

    def vgpu_type(self, function: str) -> str:
        """Return a VF's vGPU type, empty if it can't be read."""
        return self.vgpu_file(function, "current_vgpu_type") or ""

    def driver(self, function: str) -> str:
        """Return the driver bound to a function, empty for none."""
        try:
            target = self._source.link(f"{_FUNCTIONS}/{function}/driver")
        except OSError:
            return ""
        return os.path.basename(target or "")

    def vf_count(self, function: str) -> int | None:
        """Return how many VFs a PF has enabled, None if unknown."""
        return attributes.parse_number(
            self.attribute(function, "sriov_numvfs")
        )

    def guest_uses(self, function: str) -> Iterator[str]:
        """Yield descriptions of possible uses of a function by guests.

        sysfs does not show whether a process has a VF open, so a VF bound
        to a VFIO driver counts as used.
        """
        parents = self._mdev_parents()
        vfs = self.virtual_functions(function)
        for address in (function, *vfs):
            if address in parents or self.vgpu_type(address) not in ("", FREE):
                yield f"{address} holds a vGPU"
        for vf in vfs:
            driver = self.driver(vf)
            if pci.is_for_guests(driver):
                yield f"{vf} is bound to {driver}"

    def files(self) -> fs.Files:
        """Return a reader that has read nothing yet."""
        return fs.Files(self._source)

    def is_mdev_gone(self, uuid: str, parent: str) -> bool:
        """Return whether an mdev is removed completely."""
        # The kernel removes an mdev from the bus, waits for processes that
        # have it open, and removes its directory last.
        places = (_MDEVS, f"/sys/class/mdev_bus/{parent}")
        return not any(self._exists(f"{place}/{uuid}") for place in places)

    def _exists(self, path: str) -> bool:
        """Return whether a path exists; True if it can't be read."""
        try:
            self._source.mode(path)
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR)
        return True

    def mdev_place(self, uuid: str) -> tuple[str, str] | None:
        """Return an mdev's parent and type, None if it does not exist."""
        path = f"{_MDEVS}/{uuid}"
        try:
            device = self._source.link(path) or ""
            kind = self._source.link(f"{path}/mdev_type") or ""
        except OSError:
            return None
        parent = os.path.basename(os.path.dirname(device))
        return parent, os.path.basename(kind)

    def _mdev_parents(self) -> frozenset[str]:
        try:
            targets = [
                self._source.link(f"{_MDEVS}/{name}") or ""
                for name in self._source.names(_MDEVS)
            ]
        except OSError:
            return frozenset()
        return frozenset(
            os.path.basename(os.path.dirname(target)) for target in targets
        )

    def is_free(self, function: str) -> bool:
        """Return whether a VF has no vGPU."""
        type_id = self.vgpu_type(function)
        # An unreadable VF may have a vGPU; a removed VF has none.
        return type_id == FREE or (
            not type_id and self.files().is_gone(f"{_FUNCTIONS}/{function}")
        )

    def vgpu_file(self, target: str, name: str) -> str | None:
        """Return a file of a VF's or an mdev's vGPU, None if unreadable.

        A file that only root may read is read by the privileged daemon.
        """
        top = _FUNCTIONS if ":" in target else _MDEVS
        text = self.files().read_text(f"{top}/{target}/nvidia/{name}")
        number = 0
        if text in (errno.EACCES, errno.EPERM):
            number, text = privileged.read_vgpu(self._root, target, name)
        return None if number or isinstance(text, int) else text.strip()

    def virtual_functions(self, function: str) -> tuple[str, ...]:
        """Return the VFs of a PF whose physfn link exists."""
        files = self.files()
        place = f"{_FUNCTIONS}/{function}"
        try:
            links = [n for n in files.names(place) if _VIRTFN.fullmatch(n)]
        except errors.UnreadableError:
            return ()
        vfs = []
        for name in links:
            try:
                if files.link(f"{place}/{name}/physfn") == function:
                    vfs.append(files.link(f"{place}/{name}"))
            except errors.UnreadableError:
                continue  # the kernel creates the link after the directory
        return tuple(vfs)

    def attribute(self, function: str, name: str) -> str:
        """Return an attribute of a function, empty if unreadable."""
        text = self.files().read_text(f"{_FUNCTIONS}/{function}/{name}")
        return "" if isinstance(text, int) else text.strip()


#: Entry points whose objects are technologies.
GROUP = "nova_accel.actions"
A = TypeVar("A", bound=actions.Action)
_Actions = Iterable[actions.Action]

RIGHTS = (
    "nova-compute's privileged daemon may not write there: check its"
    " capabilities"
)
_LOG = "see the kernel's log (dmesg) on this host and `nova-accel inspect`"
_HINTS: Mapping[int, str] = {
    0: _LOG,
    errno.ENOSPC: "the device is full: another guest took the room; free a"
    " partition or choose another profile",
    errno.EUSERS: "the parent has no instance left; free one first",
    errno.EIO: "the device's driver failed or the device is full: see the"
    " kernel's log (dmesg) on this host",
    errno.EEXIST: "the uuid is in use by another mdev on this host; remove"
    " that one",
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.ENOENT: "the device or the type is gone: see the kernel's log"
    " and `nova-accel inspect`",
    errno.EBUSY: "something holds the device; stop it first",
    errno.ETIMEDOUT: f"the kernel did not answer in {privileged.TIMEOUT_S} s:"
    " something may hold the device open",
}


class NodeDevices(Protocol):
    """Creation and removal of mdevs through libvirt.

    Each method returns whether libvirt did it. After False, or an
    exception, the kernel's files are written, whose errors have an errno.
    """

    def create(self, parent: str, type_id: str, uuid: str) -> bool: ...

    def remove(self, uuid: str) -> bool: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Host that actions change; see ``action_executor.Executor``."""

    root: str
    state: Readback
    read_gpus: nvml_gpus.ReadGpus
    nodedev: NodeDevices | None
    program_s: float


class Refusal(NamedTuple):
    """Refusal of a harmful change; an empty hint is that of the errno."""

    number: int
    detail: str
    hint: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Handler(Generic[A]):
    """Functions of one class of actions, for the executor.

    ``write`` makes the change and returns 0 or an errno. ``is_done`` returns
    whether the effect exists; its last argument is whether the action was
    just applied. ``restore`` completes an undo action with the present state:
    some changes have side effects, or the plan is outdated. ``check`` yields
    reasons to refuse a harmful change that the kernel would accept.

    ``change`` writes and verifies a change of its own kind; None for an
    action that is written as others. ``describe`` returns the state that was
    read back, ``has_failed`` whether waiting for the effect, for
    ``attempts`` of 0.1 s, is of no use. A change that ``is_long`` may fail
    halfway; the failure of one that ``is_scrub`` can't be read back.
    """

    write: Callable[[Host, A], int]
    is_done: Callable[[Host, A, bool], bool]
    restore: Callable[[Host, A], _Actions] = lambda _host, undo: (undo,)
    check: Callable[[Host, A], Iterable[Refusal]] = lambda _host, _action: ()
    change: Callable[[Host, A], bool | None] = lambda _host, _action: None
    describe: Callable[[Host, A], str] = lambda _host, _action: ""
    has_failed: Callable[[Host, A], bool] = lambda _host, _action: False
    attempts: int = 10
    is_long: bool = False
    is_scrub: bool = False


class Technology(Protocol):
    """Actions of one technology: a module, here or registered in GROUP."""

    HANDLERS: Mapping[type[actions.Action], Handler[Any]]
    HINTS: Mapping[type[actions.Action], Mapping[int, str]]


def get_hint(hints: Mapping[int, str], number: int) -> str:
    """Return what the operator can do about an errno, 0 for no effect.

    :param hints: those of the action.
    """
    return hints.get(number) or _HINTS.get(number, _LOG)


def find_uses(
    host: Host, *functions: str, accepts_vfs: bool = False
) -> Iterable[Refusal]:
    """Yield refusals if guests may use functions or their VFs.

    :param accepts_vfs: VFs that are not in use are no reason.
    """
    for function in functions:
        if uses := sorted(host.state.guest_uses(function)):
            yield Refusal(errno.EBUSY, ", ".join(uses))
        enabled = 0 if accepts_vfs else host.state.vf_count(function)
        if enabled:
            detail = f"{enabled} virtual functions are enabled"
            yield Refusal(errno.EBUSY, detail)
