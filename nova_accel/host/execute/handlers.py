# SPDX-License-Identifier: Apache-2.0
"""Handlers: how the actions of one class are applied to a host."""

import dataclasses
import errno
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from nova_accel.host import nvml_gpus
from nova_accel.host.execute import privileged, readback
from nova_accel.model import actions

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
    state: readback.Readback
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
