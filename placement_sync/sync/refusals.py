# SPDX-License-Identifier: Apache-2.0
"""Consequences of calls that Placement refused."""

import dataclasses
from collections.abc import Callable

from nova_accel import errors, model
from nova_accel.model import providers
from placement_sync.client import calls

FindRoot = Callable[[str], providers.ProviderRoot | None]

# Codes and statuses of Placement's answers (placement/errors.py).
CONCURRENT = "placement.concurrent_update"
DUPLICATE = "placement.duplicate_name"
HAS_CHILDREN = "placement.resource_provider.cannot_delete_parent"
_CLASS_IN_USE = "placement.inventory.inuse"
_IN_USE = "placement.resource_provider.inuse"
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_INTERNAL = 500

_MEND = {
    CONCURRENT: "others change it all the time; the next pass tries again",
    _CLASS_IN_USE: "servers were scheduled to it meanwhile; the next pass"
    " keeps it for them",
    _IN_USE: "servers were scheduled to it meanwhile; the next pass keeps"
    " it for them",
    HAS_CHILDREN: "providers nest in it that are not this library's; it is"
    " reserved whole until 'openstack resource provider list --in-tree"
    " {uuid}' shows none and the next pass deletes it",
    DUPLICATE: "look for the provider that has its name with 'openstack"
    " resource provider list --name {name}'",
}
_MEND_FORBIDDEN = (
    "Placement's policy does not let this user write: give it the role"
    " that nova-compute's user has there, 'service' or 'admin'"
)
_MEND_OTHER = "the next pass tries again"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCall:
    """A call that Placement refused, and its answer.

    ``holder`` is the uuid of another provider that has the name of the
    provider to create, empty for any other refusal.
    """

    call: calls.Call
    error: errors.ServiceError
    holder: str = ""


Key = tuple[type, str]


class RefusedCalls:
    """The refusals of one pass, over its attempts.

    What is refused once may be an answer to something that has changed
    meanwhile: it is planned anew. What is refused again, for a reason that
    looking again doesn't mend, is settled: it stays undone in this pass.
    """

    def __init__(self) -> None:
        self.undeletable: set[str] = set()
        self._last: dict[Key, RefusedCall] = {}
        self._now: dict[Key, RefusedCall] = {}
        self._settled: dict[Key, RefusedCall] = {}
        self._told: dict[Key, RefusedCall] = {}
        self._missing: list[model.Problem] = []
        self._is_stale = False

    def begin(self) -> None:
        """Begin another attempt."""
        self._last, self._now = self._now, {}
        self._is_stale = False

    @property
    def is_final(self) -> bool:
        """Return whether another attempt would do no more than this one."""
        return not self._is_stale and self._now.keys() <= self._settled.keys()

    def is_settled(self, call: calls.Call) -> bool:
        """Return whether a call stays undone in this pass."""
        return _key(call) in self._settled

    def add(self, call: calls.Call, error: errors.ServiceError) -> None:
        """Remember a refusal.

        A provider in which others' providers nest can't be deleted: it
        counts as in use from here on.
        """
        key = _key(call)
        refusal = RefusedCall(call=call, error=error)
        if (
            isinstance(call, calls.DeleteProvider)
            and error.code == HAS_CHILDREN
        ):
            self.undeletable.add(call.uuid)
            self._told[key] = refusal
            self._is_stale = True
            return
        self._now[key] = refusal
        is_lasting = not is_passing(error) and error.code != CONCURRENT
        if is_lasting and key in self._last:
            self._settled[key] = refusal

    def settle(self, refusal: RefusedCall) -> None:
        """Leave a call undone in this pass: it can't succeed."""
        self._settled[_key(refusal.call)] = refusal

    def move(
        self,
        call: calls.Call,
        error: errors.ServiceError,
        find_root: FindRoot,
    ) -> calls.UpdateProvider | None:
        """Return what may help where a provider can't be created.

        One of ours that somebody moved below another host is in no tree
        where it is looked for, yet can't be created again.
        """
        if (
            not isinstance(call, calls.CreateProvider)
            or error.code != DUPLICATE
            or _key(call) not in self._last
        ):
            return None
        holder = find_root(call.name)
        if holder is not None and holder.uuid != call.uuid:
            return None
        return calls.UpdateProvider(
            uuid=call.uuid, name=call.name, parent=call.parent
        )

    def plan_anew(self) -> None:
        """Have another attempt: something was found to be otherwise."""
        self._is_stale = True

    def add_missing_root(self, root: providers.ProviderRoot) -> None:
        """Remember that the compute node itself is missing."""
        self._missing.append(
            model.Problem(
                where=root.name,
                reason="this compute node is not registered: Placement has"
                f" no resource provider {root.uuid}; start nova-compute,"
                " which registers it, or let a host without one be"
                " registered by the pass",
            )
        )

    def check_broken(self) -> None:
        """Raise ServiceError if a call failed that may succeed later."""
        for refusal in self._now.values():
            if is_passing(refusal.error):
                raise refusal.error

    def problems(self) -> tuple[model.Problem, ...]:
        """Return what stayed undone, with what to do about it."""
        left = (self._told | self._settled | self._now).values()
        taken = [refusal for refusal in left if refusal.holder]
        return (
            *self._missing,
            *([_tell_taken(taken)] if taken else []),
            *(_tell(each) for each in left if not each.holder),
        )


def find_holder(
    call: calls.Call, error: errors.ServiceError, find_root: FindRoot
) -> str:
    """Return the uuid of the other provider that has a name, or nothing.

    :param call: what Placement refused with ``error``.
    """
    if not isinstance(call, calls.CreateProvider) or error.code != DUPLICATE:
        return ""
    holder = find_root(call.name)
    return holder.uuid if holder and holder.uuid != call.uuid else ""


def is_passing(error: errors.ServiceError) -> bool:
    """Return whether the same call may succeed a little later.

    A token that Placement does not accept any more is replaced.
    """
    return error.is_transient or error.status == _UNAUTHORIZED


def is_mendable(error: errors.ServiceError) -> bool:
    """Return whether a pass that it ended may get further next time."""
    return is_passing(error) or error.is_conflict


def is_everybodys(error: errors.ServiceError) -> bool:
    """Return whether the next call would fail like this one.

    An internal error may be about this one provider only.
    """
    if error.status is None:
        return True
    return is_passing(error) and error.status != _INTERNAL


def _key(call: calls.Call) -> Key:
    return type(call), call.name if isinstance(call, calls.Name) else call.uuid


def _tell(refusal: RefusedCall) -> model.Problem:
    call, error = refusal.call, refusal.error
    return model.Problem(
        where=call.name,
        reason=f"can't {call}: {error}; {_mend(call, error)}",
    )


def _tell_taken(taken: list[RefusedCall]) -> model.Problem:
    """Return the problem of names that other providers have."""
    taken = sorted(taken, key=lambda refusal: refusal.call.name)
    names = ", ".join(f"{each.call.name} ({each.holder})" for each in taken)
    delete = " && ".join(
        f"openstack resource provider delete {each.holder}" for each in taken
    )
    return model.Problem(
        where=taken[0].call.name,
        reason="other providers have the names of providers of this host,"
        f" most likely from a former registration of the host: {names}. If"
        " Nova does not have that compute node any more, 'placement-sync"
        " audit --heal' deletes those without allocations; otherwise see"
        " 'openstack resource provider show --allocations"
        f" {taken[0].holder}', then '{delete}'. The names are tried again"
        " every few minutes",
    )


def _mend(call: calls.Call, error: errors.ServiceError) -> str:
    """Return what to do about a refusal."""
    if error.status == _FORBIDDEN:
        return _MEND_FORBIDDEN
    uuid = "" if isinstance(call, calls.Name) else call.uuid
    found = _MEND.get(error.code, _MEND_OTHER)
    return found.format(name=call.name, uuid=uuid)
